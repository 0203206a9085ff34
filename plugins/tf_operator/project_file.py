"""The project's own files beside its jobs, `configs/pools.yaml` and `configs/teams.yaml`: read as strictly as a job."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tf_operator.errors import JobFileError, PreflightError
from tf_operator.job_spec.document import unfit_texts
from tf_operator.job_spec.faults import Fault, explained, shown_path, shown_value
from tf_operator.job_spec.load import read_mapping

Model = TypeVar("Model", bound=BaseModel)


def read_project_file(path: Path, model: type[Model], top: str) -> Model:
    """The file, with `top` as its first key. PreflightError naming the faulty field."""
    try:
        data, source = read_mapping(path, f"no {top}; write a mapping with the key {top}")
        if faults := [Fault(at, rule, text) for at, text, rule in unfit_texts(data)]:
            raise explained(faults, None, source)
    except JobFileError as error:
        raise PreflightError(str(error)) from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        rule = first.get("ctx", {}).get("error") or f"{first['msg'].lower()}; change it"
        place = f"{path}:{source.line(first['loc']) or 1}: {shown_path(first['loc'])}"
        raise PreflightError(f"{place} = {shown_value(first['input'])}: {rule}") from None
