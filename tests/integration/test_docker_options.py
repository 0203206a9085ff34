"""What `runtime` may say about a container, seen from inside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from contract.docker_kit import DockerKit

from tf_operator.errors import LaunchError
from tf_operator.runners.base import Exit, Handle

pytestmark = pytest.mark.docker


def start(kit: DockerKit, *argv: str, launch: dict[str, Any] | None = None, **options: Any) -> Handle:
    """Start with these options of `runtime`; `launch`: other fields."""
    made = kit.launch(*argv, **(launch or {}))
    runtime = {**made.runtime, "options": {**made.runtime["options"], **options}}
    return kit.runner.start(dataclasses.replace(made, runtime=runtime), kit.runner.reserve(made.identity, None))


def said(kit: DockerKit, script: str, **options: Any) -> bytes:
    """What a shell script prints in such a container."""
    handle = start(kit, "sh", "-c", script, **options)
    assert kit.wait(handle) == Exit(code=0), kit.output(handle)
    return kit.output(handle)


def test_the_user_is_the_one_the_job_names(kit: DockerKit) -> None:
    assert said(kit, "id -u; id -g") == b"10001\n10001\n", "the worker is root here: then it is nobody's"
    assert said(kit, "id -u; id -g", user="4321:4322") == b"4321\n4322\n"
    with pytest.raises(LaunchError, match=r"runtime.user = 'root': must be numbers"):
        start(kit, "true", user="root")


def test_a_read_only_root_leaves_tmp_and_the_mounts(kit: DockerKit, tmp_path: Path) -> None:
    script = f"echo 1 >/tmp/a && echo 2 >{tmp_path}/b && cat /tmp/a; (echo 3 >/var/tmp/c) 2>&1"
    told = said(kit, f"{script} || true", read_only=True)
    assert told.startswith(b"1\n") and b"Read-only file system" in told
    assert (tmp_path / "b").read_text() == "2\n"
    assert said(kit, "echo 3 >/var/tmp/c && cat /var/tmp/c") == b"3\n"


def test_limits_hold_inside(kit: DockerKit) -> None:
    told = said(
        kit, "ulimit -Sn; ulimit -Hn; df -k /dev/shm | tail -1", ulimits={"nofile": "500:600"}, shm_size=8 << 20
    )
    soft, hard, shm = told.decode().splitlines()
    assert (soft, hard, shm.split()[1]) == ("500", "600", "8192")


def test_no_program_gains_rights(kit: DockerKit) -> None:
    status = said(kit, "grep -E '^(Cap(Eff|Prm|Bnd)|NoNewPrivs)' /proc/self/status").decode().split()
    assert dict(zip(status[::2], status[1::2], strict=True)) == {
        "CapPrm:": "0" * 16,
        "CapEff:": "0" * 16,
        "CapBnd:": "0" * 16,
        "NoNewPrivs:": "1",
    }


def test_docker_stop_by_hand_gives_the_jobs_grace(kit: DockerKit) -> None:
    flags = ("--print", "text:up", "--on-term", "slow:2", "--sleep", "long")
    handle = start(kit, *flags, launch={"termination_grace": 4.5})
    kit.wait_output(handle, b"up\n")
    assert kit.engine.api.inspect_container(handle.data["container"])["Config"]["StopTimeout"] == 5
    kit.engine.api.stop(handle.data["container"])
    assert kit.wait(handle) == Exit(code=0)
    assert kit.output(handle).endswith(b"probe: saved\n")
