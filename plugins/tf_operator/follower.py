"""Follows the program of one replica: its start or adoption, its output, its end, its removal. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_operator.errors import EngineUnavailableError, RunnerError
from tf_operator.output import OutputLines
from tf_operator.runners.base import Exit, Handle, Launch, Lease, Runner

TICK = 0.25
"""Seconds between looks at the program."""
KILL_MARGIN = 15.0
"""Seconds beyond the grace within which a program that is killed must be gone."""
RUNNER_PATIENCE = 60.0
"""Seconds a runner may fail to answer before the watch gives up."""
CHUNK = 65536
CHUNKS_PER_LOOK = 16
"""So that a program which prints faster than we read cannot hold the watcher."""
RECALL = 16384
"""Bytes before the saved offset from which an adopted program's last lines are taken."""


class Follower:
    """At most one program at a time. All methods may raise RunnerError."""

    def __init__(
        self,
        runner: Runner,
        *,
        emit: Callable[[str], None],
        log: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.handle: Handle | None = None
        self.last_output = clock()
        self._runner, self._emit, self._log = runner, emit, log
        self._clock, self._sleep = clock, sleep
        self._lines = OutputLines(emit, clock)
        self._offset = 0
        self._trouble_since: float | None = None

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines it printed."""
        return self._lines.tail

    @property
    def position(self) -> dict[str, Any] | None:
        """Which program's output has been logged up to where: what `adopt` goes on from. None with no program."""
        if self.handle is None:
            return None
        offset = self._offset - self._lines.pending
        return {"incarnation": self.handle.incarnation, "generation": self.handle.generation, "offset": offset}

    # -- beginning

    def start(self, launch: Launch, lease: Lease) -> Handle:
        """Start the program. The runner holds the address from now on, too."""
        handle = self._runner.start(launch, lease)
        self._follow(handle, 0)
        return handle

    def adopt(self, handle: Handle, position: dict[str, Any] | None) -> None:
        """Go on with a program an earlier watcher started; its output goes on where that one's log ended."""
        same = position and (position["incarnation"], position["generation"]) == (handle.incarnation, handle.generation)
        offset = int(position["offset"]) if position and same else 0
        self._follow(handle, offset)
        begin = max(0, offset - RECALL)
        if begin < offset:
            self._lines.recall(self._runner.output(handle, begin, offset - begin)[0], whole=begin == 0)

    def _follow(self, handle: Handle, offset: int) -> None:
        self.handle, self._offset = handle, offset
        self._lines = OutputLines(self._emit, self._clock)
        self.last_output = self._clock()

    # -- on the way

    def look(self) -> Exit | None:
        """Log what it printed; its end once it has ended, with everything it printed logged before."""
        if self.handle is None:
            return None
        try:
            end = self._runner.poll(self.handle)
            self._read(self.handle, to_the_end=end is not None)
        except EngineUnavailableError:
            # The runner has waited for its engine already.
            raise
        except RunnerError as error:
            self._bear(error)
            return None
        self._trouble_since = None
        if end is not None:
            self._lines.close()
        return end

    def _bear(self, error: RunnerError) -> None:
        now = self._clock()
        if self._trouble_since is None:
            self._trouble_since = now
            self._log(f"the program cannot be looked at now: {error}")
        if now - self._trouble_since > RUNNER_PATIENCE:
            raise error

    def _read(self, handle: Handle, to_the_end: bool) -> None:
        chunks = 0
        while to_the_end or chunks < CHUNKS_PER_LOOK:
            data, self._offset = self._runner.output(handle, self._offset, CHUNK)
            if not data:
                return
            chunks += 1
            self.last_output = self._clock()
            self._lines.feed(data)

    # -- ending

    def stop(self, grace: float) -> None:
        """Ask it to end; returns at once."""
        if self.handle:
            self._runner.stop(self.handle, grace)

    def end(self, grace: float, tend: Callable[[], None] = lambda: None) -> Exit | None:
        """Stop it and wait, for as long as TERM and KILL may take; None if it lives even then.

        `tend` is called as long as it lives: its last checkpoint needs its credentials.
        """
        self.stop(grace)
        deadline = self._clock() + grace + KILL_MARGIN
        while (end := self.look()) is None and self._clock() < deadline:
            tend()
            self._sleep(TICK)
        return end

    def remove(self, keep_output: bool) -> None:
        """Remove what is left of it. The output stays also where the log has not all of it."""
        if self.handle:
            self._runner.remove(self.handle, keep_output or self._lines.thinned)
        self.handle = None

    def clear_away(self, handle: Handle, grace: float, keep_failed: bool) -> None:
        """Stop and remove a program that nobody goes on with. RunnerError if it does not end."""
        self._runner.stop(handle, grace)
        deadline = self._clock() + grace + KILL_MARGIN
        while (end := self._runner.poll(handle)) is None:
            if self._clock() > deadline:
                raise RunnerError(
                    f"{handle.identity}: its old program does not end within {KILL_MARGIN:.0f} s of KILL;"
                    " look for it on this host with `tf-operator clean`"
                )
            self._sleep(TICK)
        self._runner.remove(handle, keep_output=keep_failed and end.failed)


class ModelDirSigns:
    """Tells when something last changed in model_dir. Only that it changed counts: its clock may be another's."""

    def __init__(self, model_dir: str, clock: Callable[[], float], interval: float) -> None:
        self._root, self._clock, self._interval = Path(model_dir), clock, interval
        self._newest = _newest(self._root)
        self._looked = self._changed = clock()

    def last_change(self) -> float:
        """On our own clock, as exact as `interval`."""
        now = self._clock()
        if now - self._looked >= self._interval:
            self._looked = now
            newest = _newest(self._root)
            if newest != self._newest:
                self._newest, self._changed = newest, now
        return self._changed


def _newest(root: Path) -> tuple[int, int]:
    """Newest time and number of files; files that vanish while we look are no fault."""
    newest = count = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                newest = max(newest, (Path(folder) / name).stat().st_mtime_ns)
            except OSError:
                continue
            count += 1
    return newest, count
