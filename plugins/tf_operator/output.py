"""A program's output on its way to a log: lines out of bytes, whatever the program prints."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

MAX_LINE = 16 * 1024
"""Characters; a longer line is cut, and says so. Airflow's own log has no limit."""
MAX_RATE = 1000
"""Lines a second that reach the log; what is above is counted and dropped there. The whole output stays in its file."""

MAX_TAIL_LINE = 500
"""Characters of a line among the last lines: they travel in messages."""

_BREAK = re.compile(rb"\r\n|\r|\n")


class OutputLines:
    """Splits output at carriage returns and newlines, cuts, thins out, and remembers the last lines.

    Bytes that are not UTF-8 come out as U+FFFD. `emit` gets one line at a time, without its end.
    """

    def __init__(self, emit: Callable[[str], None], clock: Callable[[], float], keep: int = 20) -> None:
        self._emit = emit
        self._clock = clock
        self._rest = b""
        self._last: deque[str] = deque(maxlen=keep)
        self._second = 0.0
        self._count = 0
        self._dropped = 0
        self.thinned = False
        """Whether lines were left out of the log."""

    @property
    def pending(self) -> int:
        """Bytes taken that are not a whole line yet."""
        return len(self._rest)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last non-empty lines, oldest first."""
        return tuple(line[:MAX_TAIL_LINE] for line in self._last)

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        pieces = _BREAK.split(self._rest + data)
        self._rest = pieces.pop()
        if len(self._rest) > MAX_LINE:
            pieces.append(self._rest)
            self._rest = b""
        for piece in pieces:
            if piece:
                self._line(piece)

    def recall(self, data: bytes, whole: bool) -> None:
        """Take output that was logged before, for `tail` alone. Not `whole`: its first line is cut off."""
        pieces = [piece for piece in _BREAK.split(data) if piece]
        for piece in pieces if whole else pieces[1:]:
            self._last.append(_text(piece))

    def close(self) -> None:
        """The output has ended: an unfinished line is a line."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        self._tell_dropped()

    def _line(self, piece: bytes) -> None:
        text = _text(piece)
        self._last.append(text)
        now = self._clock()
        if now - self._second >= 1.0:
            self._tell_dropped()
            self._second, self._count = now, 0
        self._count += 1
        if self._count > MAX_RATE:
            self._dropped += 1
            self.thinned = True
        else:
            self._emit(text)

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._emit(f"[{self._dropped} lines left out here, over {MAX_RATE} a second]")
            self._dropped = 0


def _text(piece: bytes) -> str:
    # The last lines travel in XComs, and PostgreSQL has no NUL in a text.
    text = piece[:MAX_LINE].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return f"{text} [cut, {len(piece)} bytes]" if len(piece) > MAX_LINE else text
