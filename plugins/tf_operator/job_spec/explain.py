"""pydantic's errors as faults: unknown keys get the nearest name or the right place, types the rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tf_operator.job_spec import models
from tf_operator.job_spec.document import Path
from tf_operator.job_spec.faults import ABSENT, Fault, folded_path, folded_role
from tf_operator.job_spec.templates import nearest

Levels = Mapping[str, tuple[str, ...]]
_SLIP = 0.8
"""How alike two keys are if one is the other's misspelling, though a third level has just this key."""


@lru_cache(maxsize=4)
def levels_of(job: type[BaseModel]) -> Levels:
    """The keys each level of a job knows; `<type>` stands for a replica type."""
    parts: dict[str, type[BaseModel]] = {
        "": job,
        "program": models.Program,
        "runtime": models.Runtime,
        "replicas": models.Replicas,
        "replicas.<type>": models.WorkerGroup,
        "replicas.<type>.program": models.Program,
        "replicas.<type>.runtime": models.Runtime,
        "secrets[]": models.Secret,
        "run_policy": models.RunPolicy,
        "scheduling": models.Scheduling,
        "notify": models.Notify,
        "runtime.mounts[]": models.Mount,
        "replicas.<type>.runtime.mounts[]": models.Mount,
    }
    return {level: tuple(part.model_fields) for level, part in parts.items()}


def faults_of(error: ValidationError, levels: Levels) -> Iterator[Fault]:
    """One fault per error of pydantic's."""
    for detail in error.errors(include_url=False):
        path = folded_path(tuple(part for part in detail["loc"] if not _is_marker(part)))
        yield _fault(path, detail, levels)


def _is_marker(part: int | str) -> bool:
    # Tags of unions and pydantic's word for a mapping's key: no part of what the user wrote.
    return part in ("<one>", "<groups>", "[key]")


def _fault(path: Path, detail: ErrorDetails, levels: Levels) -> Fault:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return Fault(path, _unknown(path, levels))
    if kind == "missing":
        return Fault(path, "is missing; add it")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Fault(path, f"must be a mapping{_with_keys(path, levels)}; write key: value pairs", value)
    if kind == "list_type":
        return Fault(path, "must be a list; write [a, b]", value)
    if kind == "too_short":
        return Fault(path, "must not be empty; add an entry or leave the key out", value)
    if kind == "value_error":
        shown = ABSENT if isinstance(value, Mapping) else value
        return Fault(path, str(detail["ctx"]["error"]), shown)
    return Fault(path, f"{detail['msg'].lower()}; change it", value)


def _level(path: Path) -> str:
    parts = [str(part) if isinstance(part, str) else "[]" for part in path]
    if len(parts) > 1 and parts[0] == "replicas":
        parts = ["replicas", "<type>", *parts[3 if parts[2:3] == ["[]"] else 2 :]]
    return ".".join(parts).replace(".[]", "[]")


def _with_keys(path: Path, levels: Levels) -> str:
    keys = levels.get(_level(path))
    return f" with some of the keys {', '.join(keys)}" if keys else ""


def _unknown(path: Path, levels: Levels) -> str:
    key, level = str(path[-1]), _level(path[:-1])
    here = levels.get(level, ())
    if key == "name" and level == "replicas.<type>":
        return "only the groups of a list of workers have names; write worker: [{name: ...}]"
    if level == "replicas":
        return f"is no replica type; {nearest(folded_role(key), list(here)) or 'types are ' + ', '.join(here)}"
    if near := nearest(key, list(here), _SLIP):
        return f"is not known; {near}"
    elsewhere = _places(key, levels)
    if elsewhere:
        return f"is not known here; the right place is {' or '.join(elsewhere[:2])}"
    if near := nearest(key, list(here)):
        return f"is not known; {near}"
    everywhere = [name for names in levels.values() for name in names]
    if near := nearest(key, everywhere):
        return f"is not known; {near} Its place is {' or '.join(_places(near[len('did you mean ') : -1], levels)[:2])}"
    return f"is not known; known here are {', '.join(here)}"


def _places(key: str, levels: Levels) -> list[str]:
    return [f"{level}.{key}" if level else key for level, keys in levels.items() if key in keys]
