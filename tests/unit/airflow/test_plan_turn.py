"""plan: what it refuses before a slot is taken, and that it leaves its worker while another job goes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tf_operator import airflow_io, turns
from tf_operator.errors import PreflightError
from tf_operator.job_spec import TensorFlowJob
from tf_operator.plan import GroupRef, Plan
from tf_operator.task_group import as_dag

REF = GroupRef("j", "r", "train")
BEFORE = [{"dag_id": "big", "run_id": "b", "group_id": "train", "slots": 8, "priority": 1}]


@pytest.fixture
def operator(tmp_path: Path) -> Any:
    file = tmp_path / "j.yaml"
    file.write_text(
        "name: j\nparams: {workers: {type: integer, default: 3}}\nprogram: {command: [python, x.py]}\n"
        'replicas: {worker: {replicas: "{{ params.workers }}", gpus: 1}}\n'
    )
    return as_dag(TensorFlowJob.from_file(file), project_dir=tmp_path).get_task("train.plan")


def plan_of(operator: Any, tmp_path: Path, pool: str = "gpu") -> Plan:
    job = operator.job.render({"dag": None, "run_id": "r"}, project_dir=tmp_path, params={"workers": 3})
    return Plan(attempt="a", job=job, pool=pool, slots=3)


@pytest.fixture(autouse=True)
def somebody_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "before", lambda pool, ref, priority: BEFORE)


def test_it_waits_in_the_triggerer_and_then_goes_on(
    operator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(operator, tmp_path)
    with pytest.raises(TaskDeferred) as left:
        operator._wait_for_turn(plan, REF)
    assert left.value.method_name == "its_turn"
    assert left.value.trigger.serialize()[1]["timeout"] == plan.job.run_policy.schedule_timeout
    monkeypatch.setattr(airflow_io, "read_plan", lambda ref: plan)

    class Instance:
        dag_id, run_id = "j", "r"

    assert operator.its_turn({"ti": Instance()}, {}) == [0, 1, 2], "what the workers are mapped over"
    with pytest.raises(AirflowFailException, match="schedule_timeout"):
        operator.its_turn({"ti": Instance()}, {"too_late": "schedule_timeout: ..."})


def test_who_needs_no_pool_waits_for_nobody(operator: Any, tmp_path: Path) -> None:
    operator._wait_for_turn(plan_of(operator, tmp_path, pool="default_pool"), REF)


def test_a_setting_that_cannot_be_used_is_said_before_a_slot_is_taken(
    operator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__RESERVE_AFTER", "10")
    with pytest.raises(PreflightError, match=r"\[tf_operator\] reserve_after = 10: must be a duration"):
        operator._check(plan_of(operator, tmp_path), REF, {})
