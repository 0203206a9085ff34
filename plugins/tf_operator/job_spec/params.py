"""A job's params: JSON Schemas with defaults, as Airflow's Param has them, and the values of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tf_operator.job_spec.document import unfit_texts
from tf_operator.job_spec.templates import nearest

_PLAIN = """
    type default title description enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength
    maxLength pattern format minItems maxItems uniqueItems minContains maxContains minProperties maxProperties required
    dependentRequired contentEncoding contentMediaType examples $comment readOnly writeOnly deprecated
    values_display description_md custom_html_form section source
"""
_ONE = "items contains propertyNames additionalProperties unevaluatedItems unevaluatedProperties not if then else"
_LISTED = "prefixItems anyOf oneOf allOf"
_NAMED = "properties patternProperties dependentSchemas"
KEYWORDS = frozenset(" ".join((_PLAIN, _ONE, _LISTED, _NAMED)).split())
"""JSON Schema's and the Airflow form's. JSON Schema itself would let a misspelt one pass, and check nothing."""
_FORMATS = """
    date time date-time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference
    uri-template uuid json-pointer relative-json-pointer regex multiline
"""
FORMATS = frozenset(_FORMATS.split())
"""JSON Schema's, and the Airflow form's `multiline`."""
LONGEST_MATCHED = 1000
"""Characters of a value that a param's pattern is tried on: its time may grow with their square, and worse."""

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

        if _refers(self.schema):
            # Following it could mean a request to another host, each time a DAG is parsed.
            raise ValueError("$ref is not followed; write out what it stands for")
        _require_known(self.schema, "")
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
        if unfit := next(unfit_texts(value), None):
            raise ValueError(f"{what} {unfit[2]}")
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


def _require_known(schema: Any, place: str) -> None:
    if not isinstance(schema, Mapping):
        return
    for key in map(str, schema):
        if key not in KEYWORDS:
            way_out = nearest(key, sorted(KEYWORDS)) or "remove it"
            raise ValueError(f"{place}{key} is no keyword of a JSON Schema; {way_out}")
    name = schema.get("format")
    if isinstance(name, str) and name not in FORMATS:
        raise ValueError(f"{place}format: {name} is none; {nearest(name, sorted(FORMATS)) or 'remove it'}")
    for at, part in _parts(schema):
        _require_known(part, f"{place}{at}.")


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, with their places."""
    for key, value in schema.items():
        if key in _ONE.split():
            yield key, value
        elif key in _LISTED.split() and isinstance(value, list):
            yield from ((f"{key}[{index}]", part) for index, part in enumerate(value))
        elif key in _NAMED.split() and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", part) for name, part in value.items())


def for_editors() -> dict[str, Any]:
    """The JSON Schema of a param's own schema, to stand at `#/$defs/ParamSchema`."""
    here = {"$ref": "#/$defs/ParamSchema"}
    kinds: dict[str, Any] = {key: {} for key in sorted(KEYWORDS)}
    kinds |= dict.fromkeys(_ONE.split(), here)
    kinds |= dict.fromkeys(_LISTED.split(), {"type": "array", "minItems": 1, "items": here})
    kinds |= dict.fromkeys(_NAMED.split(), {"type": "object", "additionalProperties": here})
    kinds |= {key: {"type": "number"} for key in KEYWORDS if key.lower().endswith(("minimum", "maximum"))}
    kinds |= {
        key: {"type": "integer", "minimum": 0} for key in KEYWORDS if key[:3] in ("min", "max") and key[3].isupper()
    }
    names = {"enum": ["array", "boolean", "integer", "null", "number", "object", "string"]}
    kinds["type"] = {"anyOf": [names, {"type": "array", "minItems": 1, "items": names}]}
    kinds["format"] = {"enum": sorted(FORMATS)}
    kinds["pattern"] = {"type": "string", "format": "regex"}
    return {"type": ["object", "boolean"], "properties": kinds, "additionalProperties": False}


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
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend  # type: ignore[import-untyped]

    match = Draft202012Validator.VALIDATORS["pattern"]

    def bounded(validator: Any, pattern: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, str) and len(value) > LONGEST_MATCHED:
            yield ValidationError(f"{len(value)} characters, of which a pattern takes {LONGEST_MATCHED}")
        else:
            yield from match(validator, pattern, value, schema) or ()

    return extend(Draft202012Validator, {"pattern": bounded})


@lru_cache(maxsize=1)
def _format_checker() -> Any:
    from jsonschema import FormatChecker

    return FormatChecker()
