"""Kernel locks on files: they end with the processes that hold them, `kill -9` included.

A lock belongs to the open file. A child that inherits the descriptor holds it too, and closing one of several copies
gives nothing up; that is how a lease outlives the process that took it. So never unlock here: only close.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

PAUSE = 0.02
"""Seconds between two tries for a lock that is held."""


def acquire(path: Path, *, shared: bool = False, wait: float = 0.0) -> int | None:
    """Lock the file (made where missing) and return its descriptor; None if it is still held after `wait` seconds."""
    deadline = time.monotonic() + wait
    while True:
        descriptor = _try(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        if descriptor is not None or time.monotonic() >= deadline:
            return descriptor
        time.sleep(PAUSE)


def _try(path: Path, kind: int) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # A holder may have removed the file between our open and our lock: a lock on a nameless file guards nothing.
    if _is_file(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Whether anybody holds the file exclusively. Takes a shared lock for an instant, so exclusive takers try twice."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_note(path: Path) -> str:
    """What the last holder wrote into the lock's file; empty if nothing. Means nothing where the lock is free."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def write_note(descriptor: int, text: str) -> None:
    """Write who holds the lock into its file. Only the holder may."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
