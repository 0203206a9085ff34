"""What /proc tells about a program's processes. Standard library only and light: the keeper imports it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MARKER = "TF_OPERATOR_RUN"
"""Variable in the environment of a program and of everything it starts; its value is the run folder."""


class Process(NamedTuple):
    """One line of /proc/<pid>/stat, as far as it is needed. `started` is in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def lives(self) -> bool:
        """False for a zombie."""
        return self.state not in ("Z", "X")


def read(pid: int) -> Process | None:
    """The process with this id; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def all_processes() -> list[Process]:
    """Every process one can see, zombies included."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [process for process in map(read, pids) if process]


def descendants(root: int) -> list[Process]:
    """The living processes below `root`, parents first."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(0), []):
            queue.append(child.pid)
            if child.lives:
                found.append(child)
    return found


def memory(processes: list[Process], enough: int) -> int:
    """Bytes the processes use, pages they share counted once (PSS). A sum up to `enough` may be too high (RSS)."""
    resident = sum(_resident(process.pid) for process in processes)
    return resident if resident <= enough else sum(_proportional(process.pid) for process in processes)


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(pid)


def boot_id() -> str:
    """Process ids of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def members(run: str, leader: Process | None) -> list[Process]:
    """The living processes of a program: by the marker in their environment, or by its session.

    `leader` is the program's first process as it was recorded in this boot.
    """
    belongs = membership_test(run, leader)
    return [process for process in all_processes() if belongs(process)]


def membership_test(run: str, leader: Process | None) -> Callable[[Process], bool]:
    """A test for one process. A session id that a later process has taken over is not the program's."""
    mark = f"{MARKER}={run}".encode()
    session = leader.session if leader else None
    if leader and session is not None:
        now = read(session)
        if now and now.pid == leader.pid and now.started != leader.started:
            session = None

    def belongs(process: Process) -> bool:
        if not process.lives or process.pid == os.getpid():
            return False
        return (session is not None and process.session == session) or mark in _environment(process.pid)

    return belongs


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def send(process: Process, number: int) -> bool:
    """Signal exactly this process, never a later one with its id. False if it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def kill_members(run: str, leader: Process | None, timeout: float) -> list[Process]:
    """KILL the program's processes until none is left; return those that live after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while left := members(run, leader):
        for process in left:
            send(process, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return left
        time.sleep(0.02)
    return []
