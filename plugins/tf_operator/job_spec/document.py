"""What a job file holds, with the line each part stands on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]

MOST_VALUES = 10_000
DEEPEST = 64


class TooLargeError(ValueError):
    """A text stands for more than anybody writes: it is not worth the memory to find out for how much."""


@dataclass(frozen=True)
class Document:
    """A file's value, the line of each key and list item, and the keys given twice as (path, first line, line)."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    repeated: list[tuple[Path, int, int]] = field(default_factory=list)
    counter: Iterator[int] = field(default_factory=itertools.count)

    def enter(self, path: Path) -> None:
        """Count one more value. A few lines of aliases of aliases stand for billions."""
        if len(path) > DEEPEST:
            raise TooLargeError("is nested too deep; a few levels are enough")
        if next(self.counter) >= MOST_VALUES:
            raise TooLargeError(f"holds more than {MOST_VALUES} values, those of its aliases included; shorten it")

    def note(self, path: Path, key: str, line: int) -> None:
        """Record where a key of the mapping at `path` stands."""
        place = (*path, key)
        if place in self.lines:
            self.repeated.append((place, self.lines[place], line))
        else:
            self.lines[place] = line
