"""Kernel locks on files."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from pathlib import Path

import pytest

from tf_operator import locks


def test_exclusive_excludes_and_shared_shares(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = locks.acquire(path)
    assert first is not None
    assert locks.acquire(path) is None
    assert locks.acquire(path, shared=True) is None
    assert locks.is_held(path)
    os.close(first)
    assert not locks.is_held(path)
    both = [locks.acquire(path, shared=True) for _ in range(2)]
    assert None not in both
    assert not locks.is_held(path)
    assert locks.acquire(path) is None
    for descriptor in both:
        assert descriptor is not None
        os.close(descriptor)


def test_looking_makes_no_file(tmp_path: Path) -> None:
    assert not locks.is_held(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_waits_until_it_is_free(tmp_path: Path) -> None:
    first = locks.acquire(tmp_path / "lock")
    assert first is not None
    threading.Timer(0.1, os.close, (first,)).start()
    second = locks.acquire(tmp_path / "lock", wait=10)
    assert second is not None
    os.close(second)


def test_a_lock_dies_with_its_last_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = locks.acquire(path)
    assert descriptor is not None
    child = os.fork()
    if child == 0:
        signal.pause()
    os.close(descriptor)
    assert locks.is_held(path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not locks.is_held(path)


def test_a_lock_on_a_removed_file_is_not_taken_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder removes the file and ends just when the next one has opened it."""
    path, lock = tmp_path / "lock", fcntl.flock

    def remove_first(descriptor: int, kind: int) -> None:
        monkeypatch.undo()
        path.unlink()
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    taken = locks.acquire(path, wait=1)
    assert taken is not None
    assert locks.is_held(path)
    os.close(taken)


def test_notes_replace_one_another(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert locks.read_note(path) == ""
    descriptor = locks.acquire(path)
    assert descriptor is not None
    locks.write_note(descriptor, "a long first note")
    locks.write_note(descriptor, "short")
    assert locks.read_note(path) == "short"
    os.close(descriptor)
