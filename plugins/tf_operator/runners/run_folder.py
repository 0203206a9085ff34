"""The files of one replica's program on this host. Standard library only and light: the keeper imports it.

    handle.json      who it is, which start it is, the pids; written before a start (without pids) and after
    output.<n>.log   what start n printed, masked
    exit.<n>.json    how start n ended: written last
    stop.<n>.json    a request to stop start n
    kept.<n>.json    the end of a start whose output stays until somebody cleans up
    inspect.<n>.json what the engine said of such a start's container
    watched          touched by every poll, and locked by living watchers
    keeper.log       empty, unless the keeper itself failed

The keeper holds two locks for as long as it lives: its own, and the identity's, which the program inherits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESERVED = 4096
"""Bytes taken beforehand for each of `exit` and `stop`."""


class RunFolder:
    """Paths and atomic reads and writes below `<state_dir>/runs/<identity key>`."""

    def __init__(self, state_dir: Path, key: str) -> None:
        self.state_dir = state_dir
        self.key = key
        self.path = state_dir / "runs" / key
        self.watched = self.path / "watched"
        self.keeper_log = self.path / "keeper.log"
        self.identity_lock = state_dir / "locks" / key
        self.keeper_lock = state_dir / "locks" / f"{key}.keeper"

    def create(self) -> None:
        """Make the folders; only their owner may look into them."""
        for folder in (self.state_dir / "locks", self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def output(self, start: int) -> Path:
        """The output of one start."""
        return self.path / f"output.{start}.log"

    def _exit(self, start: int) -> Path:
        return self.path / f"exit.{start}.json"

    def _stop(self, start: int) -> Path:
        return self.path / f"stop.{start}.json"

    def _kept(self, start: int) -> Path:
        return self.path / f"kept.{start}.json"

    def _files(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []

    def last_start(self) -> int:
        """The number of the newest start that left anything, 0 if none."""
        numbers = [file.name.split(".")[1] for file in self._files() if file.name.count(".") == 2]
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def record(self) -> dict[str, Any] | None:
        """The newest start, as `handle.json` has it."""
        return _read(self.path / "handle.json")

    def write_record(self, record: dict[str, Any]) -> None:
        """Replace `handle.json`."""
        _write(self.path / "handle.json", json.dumps(record))

    def drop_record(self) -> None:
        """Remove `handle.json`: nothing was started after all."""
        (self.path / "handle.json").unlink(missing_ok=True)

    def exit(self, start: int) -> dict[str, Any] | None:
        """How a start ended; None while that is not recorded."""
        return _read(self._exit(start))

    def reserve(self, start: int) -> None:
        """Take the space of its end and its stop now: a program that fills the disk must be seen to end, and obey."""
        for path in (self._exit(start), self._stop(start)):
            _write(_reserve(path), " " * RESERVED)

    def write_exit(self, start: int, end: dict[str, Any]) -> None:
        """Record the end of a start, atomically."""
        text = json.dumps(end)
        if len(text) > RESERVED:
            text = json.dumps({**end, "reason": str(end.get("reason"))[:500]})
        _write_reserved(self._exit(start), text)

    def stop_request(self, start: int) -> dict[str, Any] | None:
        """The request to stop a start, if there is one."""
        return _read(self._stop(start))

    def request_stop(self, start: int, grace: float, **more: Any) -> None:
        """Ask the keeper to stop a start. `more`: what a runner without a keeper remembers of it."""
        # Removed by another thread in this moment: there is nothing to stop any more.
        with contextlib.suppress(FileNotFoundError):
            _write_reserved(self._stop(start), json.dumps({"grace": grace, **more}))

    def touch_watched(self) -> None:
        """Leave a sign that a watcher looked."""
        self.watched.touch(mode=0o600)

    def last_watched(self) -> int:
        """Changes whenever a watcher looks; no time to compare with a clock."""
        try:
            return self.watched.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def keep(self, start: int) -> None:
        """Have output and end of this start outlast `forget`."""
        # A new name takes no space: the disk may be full.
        try:
            self._exit(start).replace(self._kept(start))
        except FileNotFoundError:
            if self.path.is_dir():
                self._kept(start).touch(mode=0o600)

    def write_facts(self, start: int, facts: Mapping[str, Any]) -> None:
        """Leave what a person may want to know of a start that is kept."""
        _write(self.path / f"inspect.{start}.json", json.dumps(facts, indent=1))

    def forget(self, keep: int | None = None) -> None:
        """Remove the files but those of starts that were kept, and of `keep`; the folder once it is empty."""
        # First of all: a record without its end is a program that lives.
        self.drop_record()
        if keep is not None:
            self.keep(keep)
        kept = {file.name.split(".")[1] for file in self._files() if file.name.startswith("kept.")}
        names = ("output.{}.log", "kept.{}.json", "inspect.{}.json")
        stay = {name.format(number) for number in kept for name in names}
        self._remove(file for file in self._files() if file.name not in stay)

    def forget_all(self, keep_output: bool) -> None:
        """Remove the folder, with what was kept unless `keep_output`."""
        self.drop_record()
        stay = ("output.", "kept.", "inspect.") if keep_output else ()
        self._remove(file for file in self._files() if not file.name.startswith(stay))

    def _remove(self, files: Iterable[Path]) -> None:
        for file in files:
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        # Unreadable after a crash of the machine is as good as absent: every writer replaces whole files.
        return None
    return value if isinstance(value, dict) else None


def _reserve(path: Path) -> Path:
    return path.with_suffix(".reserve")


def _write_reserved(path: Path, text: str) -> None:
    """Atomically into the space that was taken for it. A second time a full disk leaves only the first's own place."""
    reserve = _reserve(path)
    # Gone where it was used before, perhaps by another process in this moment.
    with contextlib.suppress(FileNotFoundError):
        _overwrite(reserve, text)
        reserve.replace(path)
        return
    try:
        _write(path, text)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        _overwrite(path, text)


def _overwrite(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, text.ljust(RESERVED).encode(), 0)
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.urandom(6).hex()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    new.replace(path)
