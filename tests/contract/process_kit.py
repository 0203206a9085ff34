"""The process runner for the contract, and what every kit has in common."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners import secret_files
from tf_operator.runners.base import Exit, Handle, Launch, SecretBundle
from tf_operator.runners.process import ProcessRunner
from tf_operator.runners.process_tree import MARKER
from tf_operator.runners.run_folder import RunFolder

PROBE = Path(__file__).parent.parent / "probe.py"
SEEN_BY_ALL = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
"""A program's environment in these tests, but for what a test adds."""


class ProcessKit:
    """The process runner on an empty host of its own (`state_dir`)."""

    kind = "process"
    python = sys.executable
    own: tuple[str, ...] = (MARKER,)
    """Variables every program has from its runner."""
    odd_env = "ÜMLAUT"

    def __init__(self, tmp_path: Path) -> None:
        self.state_dir = tmp_path / "state"
        self.work = tmp_path / "work"
        self.work.mkdir()
        self.runner = self.another()

    @property
    def recipe(self) -> tuple[Any, tuple[Any, ...]]:
        """What makes such a runner in another process."""
        return ProcessRunner, (self.state_dir, (21000, 21999))

    def another(self) -> Any:
        """A runner that remembers nothing, as another process has it."""
        make, arguments = self.recipe
        return make(*arguments)

    def identity(
        self, role: str = "worker", index: int = 0, run: str = "manual__2026-01-01T00:00:00+00:00"
    ) -> Identity:
        return Identity("digits", run, "train", ReplicaId(role, index))

    def launch(self, *argv: str, identity: Identity | None = None, **more: Any) -> Launch:
        """A launch of the probe with these flags, or of `argv` where it begins with no flag."""
        command = argv if argv and not argv[0].startswith("--") else (self.python, "-I", "-S", str(PROBE), *argv)
        fields: dict[str, Any] = {
            "attempt": "a1",
            "incarnation": 1,
            "generation": 1,
            "working_dir": str(self.work),
            "env": SEEN_BY_ALL,
            "termination_grace": 5.0,
            "orphan_timeout": 60.0,
        }
        return Launch(identity=identity or self.identity(), argv=command, **(fields | more))

    def start(self, *argv: str, **more: Any) -> Handle:
        """Reserve and start; then the program alone holds the lease."""
        launch = self.launch(*argv, **more)
        lease = self.runner.reserve(launch.identity, None)
        try:
            return self.runner.start(launch, lease)
        finally:
            lease.release()

    def wait(self, handle: Handle, timeout: float = 15.0) -> Exit:
        """The end of a program."""
        return until(lambda: self.runner.poll(handle), f"{handle.identity} to end", timeout)

    def output(self, handle: Handle) -> bytes:
        """All output there is, read in small steps."""
        data, offset = b"", 0
        while True:
            chunk, offset = self.runner.output(handle, offset, 1000)
            if not chunk:
                return data
            data += chunk

    def wait_output(self, handle: Handle, text: bytes) -> None:
        until(lambda: text in self.output(handle), f"output {text!r}")

    def record(self, out: Path, name: str = "none-0-1") -> dict[str, Any]:
        """What the probe wrote about itself once it has done what its flags say."""

        def ready() -> dict[str, Any] | None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                content: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
                return content if content.get("ready") else None
            return None

        return until(ready, f"{name}.json")

    def inside(self, handle: Handle, path: str) -> Path:
        """A path the program sees, as the host has it."""
        return Path(path)

    def folder(self, identity: Identity | None = None) -> RunFolder:
        return RunFolder(self.state_dir, (identity or self.identity()).key)

    def keeper(self, identity: Identity | None = None) -> int:
        record = self.folder(identity).record()
        assert record
        return int(record["keeper"][0])

    def close(self) -> None:
        """End whatever a test left, by its own marks."""
        self.runner.close()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.state_dir) in " ".join((*process.cmdline(), *process.environ().values())):
                    process.send_signal(signal.SIGKILL)
        for folder in secret_files.base_dir().glob(f"{secret_files.state_mark(self.state_dir)}*"):
            secret_files.remove(folder)


def until(probe: Callable[[], Any], what: str, timeout: float = 15.0) -> Any:
    """The first true answer of `probe`; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(0.02)
    return answer


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


SECRETS = SecretBundle(env={"STORE_KEY": "S3cr3t-abcdefghij"}, mask=("S3cr3t-abcdefghij",))
