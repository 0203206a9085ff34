"""What a job file holds, with the line each part stands on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A file's value, the line of each key and list item, and the keys given twice as (path, first line, line)."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    repeated: list[tuple[Path, int, int]] = field(default_factory=list)

    def note(self, path: Path, key: str, line: int) -> None:
        """Record where a key of the mapping at `path` stands."""
        place = (*path, key)
        if place in self.lines:
            self.repeated.append((place, self.lines[place], line))
        else:
            self.lines[place] = line
