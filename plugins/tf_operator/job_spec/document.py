"""What a job file holds, with the line each part stands on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
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


def unfit_texts(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, str]]:
    """Every text below `value` that no program, file name or database can take: its place, itself, and why."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from unfit_texts(key, path)
            yield from unfit_texts(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from unfit_texts(item, (*path, index))
    elif isinstance(value, str) and "\0" in value:
        yield path, value, "holds a NUL, which no program, path or database takes; remove it"
    elif isinstance(value, str) and value != readable(value):
        yield path, value, "holds half a character (a lone surrogate), which is no text; write the character"


def readable(text: str) -> str:
    """The text as it can be printed and kept."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
