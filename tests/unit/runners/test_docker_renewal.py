"""When secret files in a container count as replaced: by the end of the shell that does it, or of the container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tf_operator.errors import RunnerError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners.base import Handle, SecretBundle, SecretFile
from tf_operator.runners.docker import DockerRunner
from tf_operator.runners.docker_container import Containers, Found
from tf_operator.runners.docker_spec import LABEL

HANDLE = Handle(Identity("d", "r", "train", ReplicaId("worker", 0)), "a", 1, 1, "worker-0:2222", {"container": "c"})
NEW = SecretBundle(files=[SecretFile("key", b"new")])


class OneContainer(Containers):
    """One whose shell ends with `code`, and which is in `status` after that: what no engine does when asked to."""

    def __init__(self, code: int | None, status: str | None) -> None:
        self.code, self.status, self.then = code, "running", status

    def get(self, container: str) -> Found | None:
        labels = {f"{LABEL}.start": "1", f"{LABEL}.mark": "m"}
        raw: dict[str, Any] = {"Id": "c", "State": {"Status": self.status}, "Config": {"Labels": labels}}
        return Found(raw) if self.status else None

    def run_script(self, container: str, script: bytes) -> int | None:
        self.status = self.then  # type: ignore[assignment]
        return self.code


def renew(folder: Path, code: int | None, status: str | None) -> None:
    runner = DockerRunner(folder, url="unix:///nowhere")
    runner.containers = OneContainer(code, status)
    runner.renew(HANDLE, NEW, None)


@pytest.mark.parametrize(("code", "said"), [(None, "could not be run"), (1, "ended with 1")])
def test_a_shell_that_did_not_do_it(tmp_path: Path, code: int | None, said: str) -> None:
    with pytest.raises(RunnerError, match=f"its secret files cannot be replaced: a shell in it {said}$"):
        renew(tmp_path, code, "running")


@pytest.mark.parametrize(("code", "status"), [(0, "running"), (None, "exited"), (137, "exited"), (None, None)])
def test_done_or_no_longer_needed(tmp_path: Path, code: int | None, status: str | None) -> None:
    renew(tmp_path, code, status)
