"""One line per fault of a job: `FILE:LINE: job NAME: PATH = VALUE: rule; way out`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tf_operator.errors import JobError, JobFileError
from tf_operator.job_spec.document import Path, readable

_LONGEST_VALUE = 80


class _Absent:
    def __repr__(self) -> str:
        return "(nothing)"


ABSENT = _Absent()


@dataclass(frozen=True)
class Source:
    """Where a job was read from, and in which state: with its templates, or `rendered` for one run."""

    file: str | None = None
    lines: Mapping[Path, int] = field(default_factory=dict)
    rendered: bool = False

    def line(self, path: Path) -> int | None:
        """The line of `path`, else of the nearest part above it that has one."""
        for length in range(len(path), 0, -1):
            if (line := self._folded.get(path[:length])) is not None:
                return line
        return 1 if self.lines else None

    @cached_property
    def _folded(self) -> Mapping[Path, int]:
        return {folded_path(place): line for place, line in self.lines.items()}


@dataclass(frozen=True)
class Fault:
    """What is wrong at one place of a job. `rule` ends with the way out; `line` is given where the path tells none."""

    path: Path
    rule: str
    value: Any = ABSENT
    line: int | None = None


def folded_path(path: Path) -> Path:
    """The path with its replica type as we spell it: a file may say `replicas.Worker` or `replicas.MASTER`."""
    if len(path) > 1 and path[0] == "replicas" and isinstance(path[1], str):
        return (path[0], folded_role(path[1]), *path[2:])
    return path


def folded_role(name: str) -> str:
    """A replica type in lower case, `master` as chief."""
    lower = name.strip().lower()
    return "chief" if lower == "master" else lower


def shown_path(path: Path) -> str:
    """`replicas.worker[0].gpus`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def shown_value(value: Any) -> str:
    """The value as JSON on one line, cut where it is long."""
    text = " ".join(json.dumps(value, default=repr, ensure_ascii=False).split())
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def explained(faults: Iterable[Fault], name: object, source: Source) -> JobError:
    """One exception for all faults, one line each, in file order."""
    placed = sorted(((fault.line or source.line(fault.path) or 0, fault) for fault in faults), key=lambda item: item[0])
    lines = list(dict.fromkeys(_line(line, fault, name, source) for line, fault in placed))
    kind = JobFileError if source.file else JobError
    return kind("\n".join(lines))


def _line(line: int, fault: Fault, name: object, source: Source) -> str:
    place = f"{source.file}:{line}: " if source.file and line else f"{source.file}: " if source.file else ""
    job = f"job {' '.join(name.split())}: " if isinstance(name, str) and name else ""
    value = "" if fault.value is ABSENT else f" = {shown_value(fault.value)}"
    return readable(f"{place}{job}{shown_path(fault.path) or 'job'}{value}: {' '.join(fault.rule.split())}")
