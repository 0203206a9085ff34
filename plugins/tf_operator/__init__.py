"""Distributed TensorFlow training on Apache Airflow.

The flow: job file → `job_spec` → `cluster_spec` → `membership` → `runners`, `secrets`, `gpus` → `operators`,
`triggers` → `task_group`, `policy` → `cli`. Importing this package imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_operator.job_spec import TensorFlowJob

__version__ = "0.1.0"
__all__ = ["TensorFlowJob", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "TensorFlowJob":
        from tf_operator.job_spec import TensorFlowJob

        return TensorFlowJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
