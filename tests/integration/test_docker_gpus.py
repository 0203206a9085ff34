"""Devices of containers: counted before the program starts, and locked as long as the container lives."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from contract.docker_kit import DockerKit
from contract.process_kit import until

from tf_operator import locks

pytestmark = pytest.mark.docker


def test_a_device_nobody_was_given_is_seen_before_the_program_starts(kit: DockerKit, tmp_path: Path) -> None:
    """A file where the engine puts a GPU's stands for an engine that gives every container all of them."""
    device = tmp_path / "device"
    device.touch()
    mounts = [{"source": str(device), "target": "/dev/nvidia0", "read_only": True}]
    runtime = kit.launch("--exit", "0").runtime
    options = {**runtime.get("options", {}), "mounts": [*runtime.get("options", {}).get("mounts", ()), *mounts]}
    end = kit.wait(kit.start("--exit", "0", runtime={**runtime, "options": options}))
    assert (end.code, end.final) == (125, True)
    assert end.reason == "given 0 GPUs, but the container has 1: look at the engine's runtime"
    assert kit.wait(kit.start("--exit", "0")).code == 0


STOPS_BEFORE_IT_TELLS = """
import pickle, sys, time
from tf_operator.runners import docker_start
from tf_operator.runners.docker_start import Found

(make, arguments), launch = pickle.load(sys.stdin.buffer)
runner = make(*arguments)

def here(state):
    print("started", flush=True)
    time.sleep(600)

docker_start.Found = here
runner.start(launch, runner.reserve(launch.identity, None))
"""


def test_a_starter_killed_right_after_the_start_leaves_the_device_with_the_container(
    kit: DockerKit, tmp_path: Path
) -> None:
    lock = locks.acquire(tmp_path / "device")
    assert lock is not None
    launch = kit.launch("--sleep", "long", device_fds=(lock,))
    starter = subprocess.Popen(
        [sys.executable, "-c", STOPS_BEFORE_IT_TELLS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lock,),
    )
    os.close(lock)
    with starter:
        assert starter.stdin and starter.stdout
        starter.stdin.write(pickle.dumps((kit.recipe, launch)))
        starter.stdin.close()
        assert starter.stdout.readline() == b"started\n"
        starter.send_signal(signal.SIGKILL)
    assert locks.is_held(tmp_path / "device")
    handle = kit.another().find(launch.identity)
    assert handle and kit.runner.poll(handle) is None, "it lives, and is adopted with its device"
    kit.another().remove(handle)
    until(lambda: not locks.is_held(tmp_path / "device"), "the device to be free", 30)
