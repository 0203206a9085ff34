"""`--param name=value`, as `plan` and `local` take it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_operator.errors import JobError

if TYPE_CHECKING:
    from tf_operator.job_spec.params import ParamSpec


def read_params(pairs: Sequence[str], specs: Mapping[str, ParamSpec]) -> dict[str, Any]:
    """Values as JSON, else as text; a param of type string is text always. Unknown names are left to `render`."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise JobError(f"--param {pair}: must be name=value; write --param {name or 'workers'}=3")
        if name in values:
            raise JobError(f"--param {pair}: params.{name} is given twice; keep one")
        values[name] = text if name in specs and specs[name].schema.get("type") == "string" else _json_or_text(text)
    return values


def _json_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # NaN and infinities are no JSON, though Python reads them: Airflow could not keep them.
    return text if isinstance(value, float) and not math.isfinite(value) else value
