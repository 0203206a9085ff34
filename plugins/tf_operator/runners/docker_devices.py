"""A container's devices stay locked for as long as it lives, whatever becomes of who started it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_operator.errors import RunnerError
from tf_operator.runners.base import Launch

# Told the pid it waits for that process' end: no polling. If the starter dies first, it looks for processes of the
# container by their control group until none has been there for a while: the engine may still be starting it.
_HOLD = """
import os, select, sys, time
container = sys.argv[1]
os.fork() and os._exit(0)

def belongs(pid):
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return container in file.read()
    except OSError:
        return False

told = sys.stdin.readline().strip()
if told == "none":
    sys.exit()
if told:
    try:
        watch = os.pidfd_open(int(told))
    except OSError:
        sys.exit()
    if belongs(told):
        waiting = select.poll()
        waiting.register(watch, select.POLLIN)
        waiting.poll()
        sys.exit()
since = time.monotonic()
while time.monotonic() - since < 10:
    if any(belongs(name) for name in os.listdir("/proc") if name.isdigit()):
        since = time.monotonic()
    time.sleep(1)
"""


@contextlib.contextmanager
def held(launch: Launch, container: str, lives: Callable[[int], bool]) -> Iterator[Callable[[int | None], None]]:
    """From before the container's start on, a process that is nobody's child holds the device locks.

    Call what this gives with the container's pid once it runs. RunnerError if that process `lives`, as the engine
    tells, and is not the container's here: another host, or another pid namespace, has numbers of its own.
    """
    if not launch.device_fds:
        yield lambda pid: None
        return
    holder = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HOLD, container],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
        pass_fds=launch.device_fds,
    )
    assert holder.stdin
    told = ""

    def tell(pid: int | None) -> None:
        nonlocal told
        if pid is None:
            told = "none"
            return
        if not _belongs(pid, container) and lives(pid):
            raise RunnerError(
                f"{launch.identity}: the devices' locks cannot be tied to the container (process {pid} here is not"
                " its): GPUs need an engine on this host, and a worker that sees its processes"
            )
        told = str(pid)

    # The process that was started ends once it has forked.
    holder.wait()
    try:
        yield tell
    finally:
        with contextlib.suppress(BrokenPipeError), holder.stdin as pipe:
            pipe.write(f"{told}\n".encode())


def _belongs(pid: int, container: str) -> bool:
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False
