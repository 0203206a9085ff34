"""A lease's life under kill -9, step by step, with real processes; and the last look before a program starts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tf_operator import locks
from tf_operator.errors import DeviceError, VisibleDevicesError
from tf_operator.gpus import Device, DeviceLeases, device_env
from tf_operator.runners import visible
from tf_operator.runners.clearing import settle_dead

from .process_kit import SEEN_BY_ALL, ProcessKit, lives, until

ONE = [Device("0", "declared")]
SECONDS = 30.0
"""The issue's bound; most of it is room for a busy machine."""


def leases(kit: ProcessKit) -> DeviceLeases:
    return DeviceLeases(kit.state_dir.resolve(), ONE)


def free(kit: ProcessKit) -> bool:
    """Whether another replica gets the device, as its watcher would try it."""
    other, found = kit.identity(index=9), leases(kit)
    settle_dead(kit.state_dir.resolve(), found.held_keys())
    try:
        found.acquire(other, 1).release()
    except DeviceError:
        return False
    return True


def start(kit: ProcessKit, *flags: str) -> None:
    """A program with the device; this process lets go of it."""
    lease = leases(kit).acquire(kit.identity(), 1)
    env = SEEN_BY_ALL | device_env(lease.ids)
    kit.start(*flags, devices=lease.ids, device_fds=lease.fds, env=env)
    lease.release()


@pytest.fixture
def watcher(process_kit: ProcessKit, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A process that takes the device and starts a program, and stops for ever at the step it is told."""
    pids: list[int] = []

    def run(step: str) -> int:
        reached, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _watch(process_kit, step, tell)
            finally:
                os._exit(1)
        pids.append(pid)
        os.close(tell)
        assert os.read(reached, 1) == b"!", "the step was not reached"
        os.close(reached)
        return pid

    yield run
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _watch(kit: ProcessKit, step: str, tell: int) -> None:
    def here(*_: object, **__: object) -> None:
        os.write(tell, b"!")
        time.sleep(600)

    if step == "looking":
        locks.write_note = here
    lease = leases(kit).acquire(kit.identity(), 1)
    if step == "leased":
        here()
    if step == "keeper told nothing":
        # The keeper lives and waits for its orders, with the device's lock.
        subprocess.Popen.__enter__ = here  # type: ignore[method-assign, assignment]
    if step == "keeper not heard":
        from tf_operator.runners import keeper_start

        keeper_start._first_line = here  # type: ignore[assignment]
    env = SEEN_BY_ALL | device_env(lease.ids)
    kit.start("--sleep", "long", devices=lease.ids, device_fds=lease.fds, env=env)
    lease.release()
    here()


@pytest.mark.parametrize("step", ["looking", "leased", "keeper told nothing"])
def test_a_watcher_killed_before_the_program_starts_frees_the_device(
    process_kit: ProcessKit, watcher: object, step: str
) -> None:
    pid = watcher(step)  # type: ignore[operator]
    if step != "looking":
        assert not free(process_kit)
    os.kill(pid, signal.SIGKILL)
    until(lambda: free(process_kit), f"the device after a kill while {step}", SECONDS)


@pytest.mark.parametrize("step", ["keeper not heard", "running"])
def test_a_watcher_killed_later_leaves_the_device_with_the_program(
    process_kit: ProcessKit, watcher: object, step: str
) -> None:
    os.kill(watcher(step), signal.SIGKILL)  # type: ignore[operator]
    handle = until(lambda: process_kit.another().find(process_kit.identity()), "the program to adopt")
    until(lambda: (process_kit.folder().record() or {}).get("pid"), "the program to run")
    assert not free(process_kit), "it lives, and is adopted with its device"
    os.kill((process_kit.folder().record() or {})["pid"], signal.SIGKILL)
    until(lambda: free(process_kit), "the device after the program's end", SECONDS)
    assert process_kit.wait(handle).signal == "SIGKILL"


def test_a_killed_keeper_frees_the_device_though_nobody_watches(process_kit: ProcessKit, tmp_path: Path) -> None:
    start(process_kit, "--out", str(tmp_path), "--spawn-child", "--sleep", "long")
    child = process_kit.record(tmp_path)["child"]
    os.kill(process_kit.keeper(), signal.SIGKILL)
    until(lambda: not lives((process_kit.folder().record() or {})["pid"]), "the program to follow its keeper")
    # The child left the session and has the device's lock still: whoever wants the device ends it.
    assert lives(child)
    until(lambda: free(process_kit), "the device after its keeper's death", SECONDS)
    assert not lives(child)


def test_keeper_and_program_killed_together_free_the_device(process_kit: ProcessKit) -> None:
    start(process_kit, "--sleep", "long")
    pid = (process_kit.folder().record() or {})["pid"]
    for each in (process_kit.keeper(), pid):
        os.kill(each, signal.SIGKILL)
    until(lambda: free(process_kit), "the device", SECONDS)


def test_a_living_keeper_s_program_is_nobody_s_to_end(process_kit: ProcessKit) -> None:
    start(process_kit, "--sleep", "long")
    assert not settle_dead(process_kit.state_dir.resolve(), leases(process_kit).held_keys())
    assert not free(process_kit)


# -- what a program sees is what it was given


def test_other_devices_than_the_lease_s_are_refused_for_good(process_kit: ProcessKit) -> None:
    lease = DeviceLeases(process_kit.state_dir.resolve(), [*ONE, Device("1", "declared")]).acquire(
        process_kit.identity(), 1
    )
    for devices, env, fds, told in (
        (
            lease.ids,
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            lease.fds,
            "given GPUs 0, but its CUDA_VISIBLE_DEVICES shows 0, 1",
        ),
        (lease.ids, device_env(("0",)), (), "given GPUs 0, but it holds the locks of none"),
        ((), device_env(()), lease.fds, "given GPUs none, but it holds the locks of 0"),
        (("1",), device_env(("1",)), lease.fds, "given GPUs 1, but it holds the locks of 0"),
    ):
        with pytest.raises(VisibleDevicesError, match=told):
            process_kit.start("--exit", "0", devices=devices, device_fds=fds, env=SEEN_BY_ALL | env)
        assert process_kit.another().find(process_kit.identity()) is None
    lease.release()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) here: the test builds a libcuda of its own")
@pytest.mark.parametrize("seen", [0, 1, 2])
def test_what_cuda_shows_is_compared(process_kit: ProcessKit, tmp_path: Path, seen: int) -> None:
    source = f"int cuInit(int f) {{ return {0 if seen else 100}; }}\n"
    source += f"int cuDeviceGetCount(int *n) {{ *n = {seen}; return 0; }}\n"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")],
        input=source,
        text=True,
        check=True,
    )
    env = SEEN_BY_ALL | {"LD_LIBRARY_PATH": str(tmp_path)}
    assert visible.count(env) == seen
    lease = leases(process_kit).acquire(process_kit.identity(), 1)
    launch = {"devices": lease.ids, "device_fds": lease.fds, "env": env | device_env(lease.ids)}
    if seen == 1:
        assert process_kit.wait(process_kit.start("--exit", "0", **launch)).code == 0
    else:
        with pytest.raises(
            VisibleDevicesError, match=f"given GPUs 0, but CUDA shows it {seen} under CUDA_VISIBLE_DEVICES=0"
        ):
            process_kit.start("--exit", "0", **launch)
    lease.release()


def test_no_cuda_tells_nothing() -> None:
    assert visible.count({"LD_LIBRARY_PATH": "/nowhere"}) in (None, 0)


@pytest.mark.gpu
def test_on_real_hardware_a_program_sees_its_device_and_no_other(process_kit: ProcessKit, tmp_path: Path) -> None:
    found = DeviceLeases(process_kit.state_dir.resolve())
    assert found.devices, "a driver with devices"
    lease = found.acquire(process_kit.identity(), 1)
    env = SEEN_BY_ALL | device_env(lease.ids)
    assert visible.count(env) == 1
    assert visible.count(SEEN_BY_ALL | device_env(())) == 0
    handle = process_kit.start("--exit", "0", devices=lease.ids, device_fds=lease.fds, env=env)
    lease.release()
    assert process_kit.wait(handle).code == 0
    until(lambda: not found.holders(), "the device to be free")
