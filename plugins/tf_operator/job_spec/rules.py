"""The rules single values of a job follow, as pydantic field types.

A value is checked and kept as it was written: it may hold a template, and is checked again, by the same rule, when the
run's params have filled it in. Converting is `render`'s work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from tf_operator.job_spec import units
from tf_operator.job_spec.templates import is_template, param_ref

Templates = Literal["any", "param", "no"]

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
GROUP_NAME = r"^[a-z0-9][a-z0-9_-]{0,31}$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
USER = r"^[0-9]+(:[0-9]+)?$"
ULIMIT = {"type": ["string", "integer"], "pattern": r"^-?[0-9]+(:-?[0-9]+)?$"}
LONGEST_FORM = 1000
"""Characters that a pattern is tried on: its time may grow with their square."""
PRESETS = ("@once", "@continuous", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


@dataclass(frozen=True)
class Rule:
    """How one value is checked. `templates` tells what may stand for it; `none`, that null means "not set"."""

    check: Callable[[Any], object]
    schema: dict[str, Any]
    templates: Templates = "any"
    none: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        kinds = [self.schema]
        if self.templates != "no" and self.schema.get("type") != "string":
            pattern = r"^\{\{ *params\.\w+ *\}\}$" if self.templates == "param" else r"\{\{|\{%"
            kinds.append({"type": "string", "pattern": pattern})
        elif self.templates != "no" and len(self.schema) > 1:
            kinds.append({"type": "string", "pattern": r"\{\{|\{%"})
        if self.none:
            kinds.append({"type": "null"})
        return dict(kinds[0]) if len(kinds) == 1 else {"anyOf": kinds}

    def _validate(self, value: Any, info: ValidationInfo) -> Any:
        rendered = bool(info.context and info.context.rendered)
        if value is None and self.none:
            return value
        if is_template(value) and not rendered:
            if self.templates == "no":
                raise ValueError("is read before any run exists and takes no template; write the value itself")
            if self.templates == "param" and not param_ref(value):
                raise ValueError("takes a literal or exactly {{ params.NAME }}; put the formula into a param")
            return value
        self.check(value)
        return value


MOST = 2_000_000_000
"""Databases keep little more, and Airflow adds to some of them."""
MOST_REPLICAS = 10_000
"""Of a job: each is an object in memory, here and in Airflow."""
MOST_GPUS = 1024


def whole(at_least: int, at_most: int | None = None) -> Callable[[Any], object]:
    """A rule: an integer of at least this, or one of the two given; no bool."""
    allowed = f"a whole number, {at_least} or more" if at_most is None else f"{at_least} or {at_most}"

    def check(value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be {allowed}; write it as a plain number")
        if value < at_least or (at_most is not None and value > at_most):
            raise ValueError(f"must be {allowed}; change it")
        if value > MOST:
            raise ValueError(f"must be at most {MOST}: databases keep little more; change it")

    return check


def replica_count(value: Any) -> None:
    """How many replicas there are of a kind."""
    whole(0)(value)
    if value > MOST_REPLICAS:
        raise ValueError(f"must be at most {MOST_REPLICAS}; lower it")


def one_of(*allowed: str) -> Callable[[Any], object]:
    """A rule: one of these words."""

    def check(value: Any) -> None:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}; choose one")

    return check


def matches(pattern: str, what: str) -> Callable[[Any], object]:
    """A rule: text of this form."""

    def check(value: Any) -> None:
        if (
            not isinstance(value, str)
            or len(value) > LONGEST_FORM
            or not re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value)
        ):
            raise ValueError(f"must be {what} ({pattern}); rename it")

    return check


def text(value: Any) -> None:
    """Text with something in it, on one line of meaning."""
    if not isinstance(value, str):
        raise ValueError('must be text; put it in quotes: "..."')
    if not value.strip():
        raise ValueError("must not be empty; write a value or leave the key out")


def literal_text(value: Any) -> None:
    """An argument or an environment value: text or a whole number, for `0.10` could reach the program as `0.1`."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError('must be text; put it in quotes, a list or mapping of params through "| tojson"')
    if isinstance(value, str) and "\0" in value:
        raise ValueError("must not hold a NUL character; remove it")


def number(value: Any) -> float:
    """A finite number, no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number; write it without quotes")
    return value


def positive(value: Any) -> None:
    """A number above 0."""
    if number(value) <= 0:
        raise ValueError("must be more than 0; leave it out for no limit")


def gpu_count(value: Any) -> None:
    """A whole number of devices, or a part of one."""
    if number(value) < 0 or (value > 1 and value != int(value)):
        raise ValueError("must be 0, a whole number of GPUs, or a part of one (such as 0.5); change it")
    if value > MOST_GPUS:
        raise ValueError(f"must be at most {MOST_GPUS}: one host gives them all; lower it")


def duration(value: Any) -> None:
    """A duration, 0s included."""
    units.seconds(value)


def deadline(value: Any) -> None:
    """A duration of some length."""
    if units.seconds(value) <= 0:
        raise ValueError("must be longer than 0s; write null for no deadline where there may be none")


def boolean(value: Any) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false; write it without quotes")


def arguments(value: Any) -> None:
    """A command: a list, no shell line."""
    if isinstance(value, str):
        raise ValueError("must be a list of arguments, for no shell reads it; write [python, train.py]")
    if not isinstance(value, Sequence) or not value:
        raise ValueError("must be a list with a program and its arguments; write [python, train.py]")
    for index, argument in enumerate(value):
        try:
            literal_text(argument)
        except ValueError as error:
            raise ValueError(f"argument {index} {error}") from None
    if not str(value[0]).strip():
        raise ValueError("must begin with a program; write [python, train.py]")


def iso_date(value: Any) -> None:
    """A date or a moment."""
    if isinstance(value, date):
        return
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("must be an ISO 8601 date or time; write for example 2026-01-31") from None


def schedule(value: Any) -> None:
    """A cron expression, or one of Airflow's presets."""
    if isinstance(value, str) and (value in PRESETS or (not value.startswith("@") and _is_cron(value))):
        return
    raise ValueError(f"must be a cron expression or one of {', '.join(PRESETS)}; write for example 0 6 * * *")


def _is_cron(value: str) -> bool:
    if len(value) > LONGEST_FORM:
        return False
    from croniter import croniter  # type: ignore[import-untyped]

    return bool(croniter.is_valid(value))


def file_mode(value: Any) -> None:
    """An octal mode nobody outside the user and the group can read."""
    if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value) or int(value, 8) & 0o007:
        raise ValueError('must be an octal mode in quotes that gives others nothing; write "0400"')
    if not int(value, 8) & 0o400:
        raise ValueError('must let the program read the file; write "0400"')


_WHOLE = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_DURATION = {"type": "string", "pattern": units.DURATION_PATTERN}

Count = Annotated[int | str, Rule(replica_count, {**_WHOLE, "maximum": MOST_REPLICAS}, "param")]
AtMostOne = Annotated[int | str, Rule(whole(0, 1), {**_WHOLE, "maximum": 1}, "param")]
Whole = Annotated[int | str, Rule(whole(0), _WHOLE)]
FixedWhole = Annotated[int, Rule(whole(0), _WHOLE, "no")]
MaybeFixedWhole = Annotated[int | None, Rule(whole(0), _WHOLE, "no", none=True)]
MaybePositive = Annotated[int | None, Rule(whole(1), {"type": "integer", "minimum": 1}, "no", none=True)]
FixedPositive = Annotated[int, Rule(whole(1), {"type": "integer", "minimum": 1}, "no")]
Slots = Annotated[int | str | None, Rule(whole(1), {"type": "integer", "minimum": 1}, "param", none=True)]
Pool = Annotated[str | None, Rule(text, _TEXT, "param", none=True)]
Gpus = Annotated[float | str, Rule(gpu_count, {"type": "number", "minimum": 0, "maximum": MOST_GPUS}, "param")]
Cpus = Annotated[float | str | None, Rule(positive, {"type": "number", "exclusiveMinimum": 0}, none=True)]


def ulimit(value: Any) -> None:
    """A whole number, or two as `soft:hard`."""
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]+(:-?[0-9]+)?", str(value)):
        raise ValueError('must be a whole number, or "soft:hard"; change it')


Memory = Annotated[str | None, Rule(units.memory_bytes, {**_TEXT, "pattern": units.MEMORY_PATTERN}, none=True)]
Duration = Annotated[str, Rule(duration, _DURATION)]
FixedDuration = Annotated[str, Rule(duration, _DURATION, "no")]
Deadline = Annotated[str, Rule(deadline, _DURATION)]
MaybeDeadline = Annotated[str | None, Rule(deadline, _DURATION, none=True)]
Text = Annotated[str, Rule(text, _TEXT)]
MaybeText = Annotated[str | None, Rule(text, _TEXT, none=True)]
FixedText = Annotated[str, Rule(text, _TEXT, "no")]
MaybeFixedText = Annotated[str | None, Rule(text, _TEXT, "no", none=True)]
FixedFlag = Annotated[bool, Rule(boolean, {"type": "boolean"}, "no")]
EnvValue = Annotated[str | int, Rule(literal_text, {"type": ["string", "integer"]})]
Command = Annotated[
    list[Any] | str | None,
    Rule(arguments, {"type": "array", "minItems": 1, "items": {"type": ["string", "integer"]}}, none=True),
]
FileMode = Annotated[str, Rule(file_mode, {**_TEXT, "pattern": "^0?[0-7]{2}0$"})]


def words(*allowed: str, templates: Templates = "any", none: bool = False) -> Rule:
    """A field type that takes one of these words."""
    return Rule(one_of(*allowed), {"type": "string", "enum": list(allowed)}, templates, none)


def form(pattern: str, what: str, templates: Templates = "any", none: bool = False) -> Rule:
    """A field type that takes text of this form."""
    return Rule(matches(pattern, what), {"type": "string", "pattern": pattern}, templates, none)
