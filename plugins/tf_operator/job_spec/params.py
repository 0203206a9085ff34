"""A job's params: JSON Schemas with defaults, as Airflow's Param has them, and the values of one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tf_operator.job_spec.templates import nearest

_KEYWORDS = """
    type default title description enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength
    maxLength pattern format items prefixItems contains minItems maxItems uniqueItems properties patternProperties
    propertyNames minProperties maxProperties required additionalProperties dependentRequired anyOf oneOf allOf not
    if then else examples $comment readOnly writeOnly deprecated
    values_display description_md custom_html_form section source
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""JSON Schema's and the Airflow form's. JSON Schema itself would let a misspelt one pass, and check nothing."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


class _Missing:
    def __repr__(self) -> str:
        return "no default"


NO_DEFAULT = _Missing()


@dataclass(frozen=True)
class ParamSpec:
    """One declared param. `schema` has no `default`; `default` is NO_DEFAULT where a run has to give the value."""

    name: str
    default: Any
    schema: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, declared: Any) -> ParamSpec:
        """Read a declaration: a mapping is a schema, anything else the default, whose type is then the param's."""
        if isinstance(declared, Mapping):
            schema = {key: value for key, value in declared.items() if key != "default"}
            return cls(name, declared.get("default", NO_DEFAULT), schema)
        kind = _TYPES.get(type(declared))
        return cls(name, declared, {"type": kind} if kind else {})

    def check(self) -> None:
        """ValueError if the schema is none, or its default does not fit it."""
        from jsonschema import SchemaError  # type: ignore[import-untyped]

        for key in map(str, self.schema):
            if key not in KEYWORDS:
                known = sorted(KEYWORDS)
                raise ValueError(f"{key} is no keyword of a JSON Schema; {nearest(key, known) or 'remove it'}")
        if _refers(self.schema):
            # Following it could mean a request to another host, each time a DAG is parsed.
            raise ValueError("$ref is not followed; write out what it stands for")
        _require_json([dict(self.schema), None if self.default is NO_DEFAULT else self.default])
        try:
            _validator_class().check_schema(dict(self.schema))
        except SchemaError as error:
            raise ValueError(
                f"is no JSON Schema: {_one_line(error.message)}; write it as for Airflow's Param"
            ) from None
        if self.default is not NO_DEFAULT:
            self.accept(self.default, "the default")

    def accept(self, value: Any, what: str = "the value") -> Any:
        """The value as the program gets it: 3.0 for an integer is 3. ValueError if it does not fit the schema."""
        errors = sorted(_validator_class()(self.schema, format_checker=_format_checker()).iter_errors(value), key=str)
        if errors:
            raise ValueError(f"{what} does not fit the schema: {_one_line(errors[0].message)}; give a value that does")
        kinds = self.schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if isinstance(value, float) and "integer" in kinds and "number" not in kinds:
            return int(value)
        return value


def effective(
    specs: Mapping[str, ParamSpec], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, Any, str]]]:
    """The values a run works with, defaults filled in, and what is wrong with them as (name, value, rule)."""
    faults = [
        (name, value, f"is not declared; {nearest(name, specs) or f'declared are: {_listed(specs)}'}")
        for name, value in given.items()
        if name not in specs
    ]
    values: dict[str, Any] = {}
    for name, spec in specs.items():
        value = given.get(name, spec.default)
        if value is NO_DEFAULT:
            faults.append((name, None, "has no default and got no value; give one"))
            continue
        try:
            values[name] = spec.accept(value)
        except ValueError as error:
            faults.append((name, value, str(error)))
    return values, faults


def _refers(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return "$ref" in schema or "$dynamicRef" in schema or any(_refers(part) for part in schema.values())
    return isinstance(schema, list) and any(_refers(part) for part in schema)


def _require_json(value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("must be plain JSON; use text, numbers, true, false, null, lists and mappings") from None


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "none"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:200] + "..."


@lru_cache(maxsize=1)
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


@lru_cache(maxsize=1)
def _format_checker() -> Any:
    from jsonschema import FormatChecker

    return FormatChecker()
