"""The slots a run asks for, from its conf alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tf_operator.errors import JobError
from tf_operator.gang import Demand, evaluate
from tf_operator.job_spec import TensorFlowJob


def gang(scheduling: dict[str, Any] | None = None, prefix: str = "", **worker: Any) -> dict[str, Any]:
    job = TensorFlowJob(
        name="g",
        params={"workers": 2, "gpus": 1, "pool": "a", "slots": 5, "other": 1, "must": {"type": "integer"}},
        program={"command": ["p"]},
        replicas={"ps": {"replicas": 2}, "worker": {"replicas": "{{ params.workers }}", **worker}},
        scheduling=scheduling or {},
    )
    formula: dict[str, Any] = json.loads(json.dumps(job.gang(prefix)))
    return formula


def test_the_formula_names_its_params_and_their_defaults() -> None:
    assert gang({"pool": "{{ params.pool }}"}, gpus=1) == {
        "job": "g",
        "pool": {"param": "pool"},
        "slots": None,
        "terms": [{"count": {"param": "workers"}, "gpus": 1}, {"count": 2, "gpus": 0}],
        "defaults": {"pool": "a", "workers": 2},
    }


@pytest.mark.parametrize(
    ("formula", "conf", "per_gpu", "demand"),
    [
        (gang(), None, 1, Demand(None, 1)),
        (gang({"pool": "a"}), {}, 1, Demand("a", 1)),
        (gang(gpus=1), None, 1, Demand("gpu", 2)),
        (gang(gpus=1), {"workers": 8, "unrelated": "x"}, 1, Demand("gpu", 8)),
        (gang(gpus=1), {"workers": 8.0}, 1, Demand("gpu", 8)),
        (gang(gpus=1), {"workers": 0}, 1, Demand(None, 1)),
        (gang(gpus=0.5), {"workers": 3}, 1, Demand("gpu", 3)),
        (gang(gpus=0.5), {"workers": 3}, 4, Demand("gpu", 6)),
        (gang(gpus=2), {"workers": 3}, 4, Demand("gpu", 24)),
        (gang(gpus="{{ params.gpus }}"), {"gpus": 2}, 1, Demand("gpu", 4)),
        (gang({"slots": 7}), {"workers": 3}, 4, Demand("gpu", 7)),
        (gang({"slots": "{{ params.slots }}", "pool": "{{ params.pool }}"}, gpus=1), {"pool": "b"}, 1, Demand("b", 5)),
        (gang(prefix="a_", gpus=1), {"workers": 8, "a_workers": 4}, 1, Demand("gpu", 4)),
    ],
)
def test_demand(formula: dict[str, Any], conf: dict[str, Any] | None, per_gpu: int, demand: Demand) -> None:
    assert evaluate(formula, conf, per_gpu) == demand


@pytest.mark.parametrize("value", ["3", 1.5, -1, True, None, [2], float("nan"), float("inf")])
def test_a_count_that_is_none_is_refused_by_the_param_s_name(value: object) -> None:
    with pytest.raises(
        JobError, match=r"^job g: params\.workers = .*: must be a whole number, 0 or more; start the run"
    ):
        evaluate(gang(gpus=1), {"workers": value})


@pytest.mark.parametrize("value", ["1", -1, True, float("nan"), float("inf")])
def test_gpus_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(
        JobError, match=r"^job g: params\.gpus = .*: must be a number of GPUs, 0 or more; start the run"
    ):
        evaluate(gang(gpus="{{ params.gpus }}"), {"gpus": value})


def test_pool_and_slots_that_are_none_are_refused() -> None:
    formula = gang({"slots": "{{ params.slots }}", "pool": "{{ params.pool }}"})
    with pytest.raises(JobError, match=r"^job g: params\.pool = 3: must be the name of a pool; "):
        evaluate(formula, {"pool": 3})
    with pytest.raises(JobError, match=r"^job g: params\.slots = 0: must be a whole number, 1 or more; "):
        evaluate(formula, {"slots": 0})


def test_it_is_light_enough_for_every_airflow_process() -> None:
    heavy = ("pydantic", "jinja2", "yaml", "airflow")
    script = f"import sys, tf_operator.gang; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
