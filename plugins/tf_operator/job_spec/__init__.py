"""The job: what a person writes (`TensorFlowJob`), and what one run makes of it (`RenderedJob`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_operator.job_spec.job import TensorFlowJob
    from tf_operator.job_spec.params import NO_DEFAULT, ParamSpec
    from tf_operator.job_spec.render import dates, plain_context
    from tf_operator.job_spec.rendered import RenderedJob

__all__ = ["NO_DEFAULT", "ParamSpec", "RenderedJob", "TensorFlowJob", "dates", "plain_context"]

_HOME = {
    "TensorFlowJob": "job",
    "RenderedJob": "rendered",
    "ParamSpec": "params",
    "NO_DEFAULT": "params",
    "plain_context": "render",
    "dates": "render",
}


def __getattr__(name: str) -> Any:
    # A replica's task needs RenderedJob alone: it does not pay for Jinja and the models.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
