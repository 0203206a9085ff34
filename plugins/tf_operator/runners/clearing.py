"""What a start left behind is ended, recorded, removed: under the keeper's lock, so by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tf_operator import locks
from tf_operator.errors import IdentityHeldError
from tf_operator.identity import Identity
from tf_operator.runners import process_tree, secret_files
from tf_operator.runners.records import process_of
from tf_operator.runners.run_folder import RunFolder

CLEAR_WAIT = 10.0
"""Seconds for killed processes to go and for their locks to be free."""
BRIEFLY = 0.5
"""Seconds to try for a lock nobody should hold: others look at it for an instant (`locks.is_held`)."""


def settle(folder: RunFolder) -> None:
    """End the tree of a keeper that is gone and record the end in its place; nothing if somebody else is at it.

    The record of a start whose starter died before there was a program is dropped.
    """
    keeper_fd = locks.acquire(folder.keeper_lock, wait=BRIEFLY)
    if keeper_fd is None:
        return
    try:
        os.close(clear(folder, folder.key))
        if "pid" not in (folder.record() or {}):
            folder.drop_record()
    finally:
        os.close(keeper_fd)


def settle_dead(state_dir: Path, keys: Iterable[str]) -> bool:
    """End the programs of these replicas that no keeper keeps any more; whether there was any."""
    dead = []
    for key in keys:
        folder = RunFolder(state_dir, key)
        record = folder.record()
        if record and not folder.exit(record["start"]) and not locks.is_held(folder.keeper_lock):
            dead.append(folder)
    for folder in dead:
        settle(folder)
    return bool(dead)


def clear(folder: RunFolder, identity: object) -> int:
    """Under the keeper's lock: let nothing of an earlier start live, and return the identity's lock.

    Raises IdentityHeldError if processes cannot be killed.
    """
    record = folder.record()
    unrecorded = record is not None and not folder.exit(record["start"])
    descriptor = locks.acquire(folder.identity_lock, wait=BRIEFLY)
    if descriptor is None or unrecorded:
        leader = process_of(record, "program")
        left = process_tree.kill_members(str(folder.path), leader, CLEAR_WAIT)
        if not left and descriptor is None:
            descriptor = locks.acquire(folder.identity_lock, wait=CLEAR_WAIT)
        if left or descriptor is None:
            if descriptor is not None:
                os.close(descriptor)
            raise _held(folder, identity, [process.pid for process in left])
    secret_files.remove(secret_files.secrets_dir(folder.state_dir, folder.key))
    if record is not None and unrecorded:
        reason = "its keeper was killed, and the program was ended with it"
        folder.write_exit(record["start"], {"code": 137, "signal": "SIGKILL", "reason": reason})
    return descriptor


def remove(folder: RunFolder, identity: object, start: int, keep_output: bool) -> None:
    """Remove folder and locks of an ended start. Raises IdentityHeldError if it does not end."""
    keeper_fd = locks.acquire(folder.keeper_lock, wait=2 * CLEAR_WAIT)
    if keeper_fd is None:
        raise _held(folder, identity, [])
    try:
        record = folder.record()
        if record is None or record["start"] != start:
            return
        os.close(clear(folder, identity))
        folder.forget(start if keep_output else None)
        for lock in (folder.identity_lock, folder.keeper_lock):
            lock.unlink(missing_ok=True)
    finally:
        os.close(keeper_fd)


def forget_all(folder: RunFolder, keep_output: bool) -> None:
    """Remove what is left of starts that are over; nothing while somebody starts, settles or removes."""
    if not folder.path.is_dir():
        return
    folder.create()
    keeper_fd = locks.acquire(folder.keeper_lock, wait=BRIEFLY)
    if keeper_fd is None:
        return
    try:
        if folder.record() is None:
            folder.forget_all(keep_output)
        folder.keeper_lock.unlink(missing_ok=True)
    finally:
        os.close(keeper_fd)


def take_keeper_lock(folder: RunFolder, identity: Identity) -> int:
    """Be the only one to start, settle or remove. Raises IdentityHeldError while a program lives."""
    record = folder.record()
    ending = record is not None and folder.exit(record["start"]) is not None
    descriptor = locks.acquire(folder.keeper_lock, wait=CLEAR_WAIT if ending else BRIEFLY)
    if descriptor is None:
        raise _held(folder, identity, [])
    return descriptor


def _held(folder: RunFolder, identity: object, stuck: list[int]) -> IdentityHeldError:
    if stuck:
        pids = ", ".join(map(str, stuck))
        return IdentityHeldError(f"{identity}: processes {pids} of its last program cannot be killed: reboot this host")
    record = folder.record() or {}
    pids = ", ".join(str(record[key][0]) for key in ("program", "keeper") if record.get(key)) or "unknown"
    return IdentityHeldError(
        f"{identity}: its program still lives on this host (program and keeper pid {pids}): "
        f"adopt it, stop it, or run `tf-operator clean`; `fuser {folder.identity_lock}` shows who holds it"
    )
