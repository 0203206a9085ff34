"""Jinja in a job's values: found and checked when the job is read, evaluated when the run's params are known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateAssertionError, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.sandbox import SandboxedEnvironment

PARAM_REF = re.compile(r"\{\{ *params\.([A-Za-z_][A-Za-z0-9_]*) *\}\}")
"""The one form that counts, GPUs, slots and the pool may have, beside a literal."""

_PLAIN = re.compile(r"\{\{ *([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))? *\}\}", re.ASCII)

_DATED = frozenset({"prev_data_interval_start_success", "prev_data_interval_end_success"})
_UNDEFINED = re.compile(r"'(\w+)' is undefined")

RAW = "put {% raw %}...{% endraw %} around text that is not a template"


def is_template(value: object) -> bool:
    """Tell whether Jinja would see anything in `value`."""
    return isinstance(value, str) and any(mark in value for mark in ("{{", "{%", "{#"))


def param_ref(value: object) -> str | None:
    """The name X where `value` is exactly `{{ params.X }}`."""
    found = PARAM_REF.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else None


CONTEXT_NAMES = frozenset(
    [
        *("dag", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash", "inlet_events", "inlets"),
        *("logical_date", "macros", "outlet_events", "outlets", "params", "prev_data_interval_end_success"),
        *("prev_data_interval_start_success", "prev_end_date_success", "prev_start_date_success", "run_id"),
        *("start_date", "task", "task_group_id", "task_instance", "task_instance_key_str", "test_mode", "ti"),
        *("triggering_asset_events", "ts", "ts_nodash", "ts_nodash_with_tz"),
    ]
)
"""What Airflow offers to templates, and `task_group_id`. Not `conn`, `var`: what a template yields is kept."""


def check(text: str, declared: Mapping[str, Any]) -> None:
    """Parse the template. ValueError if it is broken, or uses a name or a param that will not be there."""
    if (names := _plain_params(text)) is None:
        tree = _parse(text)
        _check_filters(text)
        _check_names(tree)
        names = list(_param_names(tree))
    for name in names:
        if name not in declared:
            raise ValueError(f"params.{name} is not declared; {nearest(name, declared) or 'add it to params'}")


def _plain_params(text: str) -> list[str] | None:
    # Nearly all templates look like this, and parsing a folder of jobs must be quick.
    accesses = _PLAIN.findall(text)
    if is_template(_PLAIN.sub("", text)) or any(root not in CONTEXT_NAMES for root, _ in accesses):
        return None
    return [name for root, name in accesses if root == "params" and name]


def _check_names(tree: nodes.Template) -> None:
    for name in sorted(meta.find_undeclared_variables(tree) - CONTEXT_NAMES - set(_environment().globals)):
        if name in ("conn", "var"):
            what = "a connection's password" if name == "conn" else "a variable's value"
            raise ValueError(f"{what} would be kept with the run; put it into Vault, and under secrets:")
        raise ValueError(f"{name} is no name that templates know; {nearest(name, sorted(CONTEXT_NAMES)) or RAW}")


def nearest(name: str, known: Mapping[str, Any] | list[str], cutoff: float = 0.6) -> str | None:
    """`did you mean X?`, where something is close enough."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {close[0]}?" if close else None


def render(text: str, context: Mapping[str, Any]) -> Any:
    """Evaluate one value: text, but a lone `{{ expr }}` keeps its type. ValueError says what is wrong."""
    expression = _lone_expression(_parse(text))
    try:
        return _text(text, context) if expression is None else _native(expression, context)
    # The expression is the user's: it may raise anything, and what it raises is the user's to read in one line.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        name = _UNDEFINED.fullmatch(reason)
        if name and name[1] in CONTEXT_NAMES:
            where = "a run on Airflow that has a date, as a scheduled one" if name[1] in _DATED else "a run on Airflow"
            raise ValueError(f"{name[1]} is known only in {where}") from None
        raise ValueError(f"the template cannot be evaluated: {reason}; correct it, or {RAW}") from None


class ParamValues(Mapping[str, Any]):
    """Params as templates see them: `params.items` is the param of that name, never a method of a dict."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            values = object.__getattribute__(self, "_values")
            if name in values:
                return values[name]
        return super().__getattribute__(name)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _lone_expression(tree: nodes.Template) -> nodes.Expr | None:
    match tree.body:
        case [nodes.Output(nodes=[expression])] if not isinstance(expression, nodes.TemplateData):
            return expression
    return None


def _text(text: str, context: Mapping[str, Any]) -> str:
    return str(_environment().from_string(text).render(context))


def _native(expression: nodes.Node, context: Mapping[str, Any]) -> Any:
    # What Environment.compile_expression does, from a parsed node: it keeps Jinja's whitespace marks out of our hands.
    assign = nodes.Assign(nodes.Name("value", "store", lineno=1), expression, lineno=1)
    template = _environment().from_string(nodes.Template([assign], lineno=1))
    scope = template.new_context(dict(context))
    for _ in template.root_render_func(scope):
        pass
    value = scope.vars["value"]
    if isinstance(value, Undefined):
        str(value)
    return str(value) if isinstance(value, str) else value


def _check_filters(text: str) -> None:
    try:
        _environment().compile(text)
    except TemplateAssertionError as error:
        raise ValueError(f"the template cannot be used: {error.message}; correct it, or {RAW}") from None


def _parse(text: str) -> nodes.Template:
    try:
        return _environment().parse(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"is not a complete template ({error.message}); {RAW}") from None


def _param_names(tree: nodes.Template) -> Iterator[str]:
    for access in tree.find_all(nodes.Getattr):
        if _is_params(access.node):
            yield access.attr
    for item in tree.find_all(nodes.Getitem):
        if _is_params(item.node) and isinstance(item.arg, nodes.Const):
            yield str(item.arg.value)


def _is_params(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "params"


@lru_cache(maxsize=1)
def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, cache_size=0)
    environment.filters.update(_AIRFLOW_FILTERS)
    return environment


def _format(pattern: str) -> Any:
    return lambda moment: moment.strftime(pattern)


def _ts(moment: datetime) -> str:
    return moment.isoformat()


_AIRFLOW_FILTERS = {
    "ds": _format("%Y-%m-%d"),
    "ds_nodash": _format("%Y%m%d"),
    "ts": _ts,
    "ts_nodash": _format("%Y%m%dT%H%M%S"),
    "ts_nodash_with_tz": lambda moment: moment.isoformat().replace("-", "").replace(":", ""),
}
