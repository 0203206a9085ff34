"""Who holds a container's devices: real processes, with a group that every process is in for the container's."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tf_operator import locks
from tf_operator.errors import RunnerError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners import docker_devices
from tf_operator.runners.base import Launch

ANY, NONE = ":", "no-such-container"


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    monkeypatch.setattr(docker_devices, "_HOLD", docker_devices._HOLD.replace("< 10:", "< 1:"))
    lock = locks.acquire(tmp_path / "device")
    assert lock is not None
    who = Identity("d", "r", "train", ReplicaId("worker", 0))
    yield Launch(who, "a", 1, 1, ["x"], "/", {}, device_fds=(lock,))
    os.close(lock)


def let_go(launch: Launch) -> None:
    """The starter's own hold; a second descriptor keeps the fixture's close harmless."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), launch.device_fds[0])


def freed(tmp_path: Path, within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while locks.is_held(tmp_path / "device"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_held_until_the_container_ends(launch: Launch, program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with docker_devices.held(launch, ANY, lambda pid: True) as tell:
        tell(program.pid)
    let_go(launch)
    assert not freed(tmp_path, 0.5)
    program.kill()
    assert freed(tmp_path)


def test_one_that_has_ended_already_is_let_go(launch: Launch, tmp_path: Path) -> None:
    with docker_devices.held(launch, ANY, lambda pid: True) as tell:
        tell(None)
    let_go(launch)
    assert freed(tmp_path)


def test_who_was_not_told_looks_for_the_container_itself(launch: Launch, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"), docker_devices.held(launch, NONE, lambda pid: True):
        raise OSError("gone")
    let_go(launch)
    assert freed(tmp_path), "there is none"


def test_another_process_of_that_number_is_not_the_container(
    launch: Launch, program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with docker_devices.held(launch, NONE, lambda pid: False) as tell:
        tell(program.pid)
    let_go(launch)
    assert freed(tmp_path)


def test_a_container_that_cannot_be_seen_is_refused(launch: Launch, program: subprocess.Popen[bytes]) -> None:
    nobody = 1 << 22
    for pid, container in ((nobody, ANY), (program.pid, NONE)):
        with (
            pytest.raises(RunnerError, match=rf"process {pid} here is not its\): .*a worker that sees its processes"),
            docker_devices.held(launch, container, lambda pid: True) as tell,
        ):
            tell(pid)
    with docker_devices.held(launch, NONE, lambda pid: False) as tell:
        tell(nobody)
