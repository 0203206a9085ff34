"""What programs have left on this host though nobody watches them any more: for `tf-operator clean`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tf_operator import locks
from tf_operator.errors import RunnerError
from tf_operator.identity import Identity
from tf_operator.runners import secret_files
from tf_operator.runners.clearing import forget_all, settle
from tf_operator.runners.process import ProcessRunner
from tf_operator.runners.records import handle_of, identity_of
from tf_operator.runners.run_folder import RunFolder


@dataclass(frozen=True)
class Leftover:
    """One run folder without a watcher."""

    key: str
    identity: Identity | None
    """None where only output is left."""
    state: str
    """`running`, `ended` (not removed yet), `lost` (its keeper is gone) or `output` (nothing but output)."""
    pid: int | None
    unwatched: float
    """Seconds since a watcher last looked, by file time: for a person to read, not to decide by."""
    path: Path

    def __str__(self) -> str:
        who = str(self.identity) if self.identity else self.key
        pid = f", pid {self.pid}" if self.pid and self.state == "running" else ""
        return f"{who}: {self.state}{pid}, nobody has looked for {self.unwatched:.0f} s ({self.path})"


def leftovers(state_dir: Path) -> list[Leftover]:
    """Run folders no living process watches. A running one may still be waiting for Airflow's retry to adopt it."""
    return list(_leftovers(state_dir.resolve()))


def _leftovers(state_dir: Path) -> Iterator[Leftover]:
    runs = state_dir / "runs"
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        folder = RunFolder(state_dir, path.name)
        # Gone meanwhile: its watcher has removed it.
        with contextlib.suppress(FileNotFoundError):
            if not is_watched(folder):
                yield _describe(folder)


def is_watched(folder: RunFolder) -> bool:
    """Whether a process of this host watches: they share a lock, and the kernel knows whether one lives."""
    if not folder.watched.exists():
        return False
    try:
        descriptor = locks.acquire(folder.watched)
    except FileNotFoundError:
        return False
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _describe(folder: RunFolder) -> Leftover:
    record = folder.record()
    if record is None:
        state = "output"
    elif folder.exit(record["start"]):
        state = "ended"
    else:
        state = "running" if locks.is_held(folder.keeper_lock) else "lost"
    about = folder.watched if folder.watched.exists() else folder.path
    return Leftover(
        key=folder.key,
        identity=identity_of(record) if record else None,
        state=state,
        pid=record.get("pid") if record else None,
        unwatched=max(0.0, time.time() - about.stat().st_mtime),
        path=folder.path,
    )


def clean(state_dir: Path, chosen: Iterable[Leftover], keep_output: bool = False) -> list[str]:
    """Stop and remove the chosen ones that are still without a watcher, and forgotten secret files.

    Returns a line for each thing done or not done.
    """
    state_dir = state_dir.resolve()
    runner = ProcessRunner(state_dir, (0, 0))
    lines = [_clean_one(runner, RunFolder(state_dir, leftover.key), leftover, keep_output) for leftover in chosen]
    return lines + _clean_secrets(state_dir)


def _clean_one(runner: ProcessRunner, folder: RunFolder, leftover: Leftover, keep_output: bool) -> str:
    try:
        if is_watched(folder):
            return f"{leftover}: left alone, somebody watches it again"
        record = folder.record()
        unended = record is None or not folder.exit(record["start"])
        # Its watcher looks at it only once it has started.
        if unended and leftover.state != "running" and locks.is_held(folder.keeper_lock):
            return f"{leftover}: left alone, it runs now"
        if record:
            runner.remove(handle_of(record), keep_output)
        forget_all(folder, keep_output)
    except (RunnerError, OSError) as error:
        return f"not removed: {error}"
    return f"removed: {leftover}"


def _clean_secrets(state_dir: Path) -> list[str]:
    """Secret files whose keeper was killed and whose run folder is gone."""
    base, mark = secret_files.base_dir(), secret_files.state_mark(state_dir)
    lines = []
    for path in base.glob(f"{mark}*"):
        folder = RunFolder(state_dir, path.name.removeprefix(mark))
        if not locks.is_held(folder.keeper_lock):
            try:
                settle(folder) if folder.record() else secret_files.remove(path)
                lines.append(f"removed: secret files of {folder.key}")
            except (RunnerError, OSError) as error:
                lines.append(f"not removed: {error}")
    return lines
