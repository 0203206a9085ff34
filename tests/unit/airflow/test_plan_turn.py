"""plan: what it refuses before a slot is taken, and that it leaves its worker while another job goes first."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.timezone import coerce_datetime

from tf_operator import airflow_io, turns
from tf_operator.errors import PreflightError
from tf_operator.job_spec import TensorFlowJob
from tf_operator.operators.plan import conf_fault, render
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


class Instance:
    dag_id, run_id = "j", "r"
    pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


class Run:
    clear_number, conf = 2, None


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

    left: dict[str, Any] = {}
    monkeypatch.setattr(airflow_io, "leave_reason", lambda ref, task, of, text: left.update({of: text}))
    context = {"ti": Instance(), "dag_run": Run()}
    assert operator.its_turn(context, {"waited": 7.5}) == [0, 1, 2], "what the workers are mapped over"
    assert Plan.model_validate(Instance.pushed["plan"]) == plan.model_copy(update={"waited": 7.5})
    assert not left
    with pytest.raises(AirflowFailException, match="schedule_timeout"):
        operator.its_turn(context, {"too_late": "schedule_timeout: ..."})
    assert left == {"clear 2": "schedule_timeout: ..."}, "what result quotes"


@pytest.mark.parametrize("has_date", [False, True])
def test_a_run_without_a_date_has_that_of_the_time_it_was_asked_for(tmp_path: Path, has_date: bool) -> None:
    """What Airflow leaves out for a run that was triggered by API, by `tf-operator run`, by an asset."""
    file = tmp_path / "j.yaml"
    file.write_text(
        "name: j\nreplicas: {worker: {}}\n"
        'program: {command: [train, "--day={{ ds }}", "{{ data_interval_start.add(days=0).year }}"]}\n'
    )
    asked = datetime(2026, 3, 1, 9, tzinfo=UTC)

    class Run:
        run_after = asked

    context = {"dag_run": Run, "run_id": "r", "dag": None, "params": {}}
    context |= (
        {"ds": "2026-01-31", "data_interval_start": coerce_datetime(datetime(2026, 1, 30, tzinfo=UTC))}
        if has_date
        else {}
    )
    job = render(TensorFlowJob.from_file(file), context, "", str(tmp_path), "")  # type: ignore[arg-type]
    assert job.groups[0].command[1:] == [f"--day={'2026-01-31' if has_date else '2026-03-01'}", "2026"]


@pytest.mark.parametrize(
    ("store", "told"),
    [({}, "the tf_operator cluster policy has not seen this run"), ({"policy": {"seen": True}}, "next")],
)
def test_a_run_the_policy_has_not_seen_takes_no_slots(
    operator: Any, monkeypatch: pytest.MonkeyPatch, store: dict[str, Any], told: str
) -> None:
    """Else the cluster would say so: once it has its slots, which may take hours."""
    left: list[str] = []
    monkeypatch.setattr(airflow_io, "task_states", lambda ref, ids: {})
    monkeypatch.setattr(airflow_io, "leave_reason", lambda ref, task, of, text: left.append(text))
    monkeypatch.setattr(operator, "rendered", _next, raising=False)
    context = {"ti": Instance(), "dag_run": Run(), "dag": operator.dag, "task_state_store": store}
    with pytest.raises(AirflowFailException, match=told):
        operator.execute(context)
    assert len(left) == 1 and left[0].startswith(told)


def _next(context: Any) -> Any:
    raise AirflowFailException("next")


@pytest.mark.parametrize(
    ("given", "prefix", "strict", "told"),
    [
        ({"workers": 3, "date": "x"}, "", False, None),
        ({"wrokers": 3}, "", False, "conf.wrokers = 3: the DAG has no such param; did you mean workers? A key that"),
        ({"epoch": 3}, "", False, "did you mean epochs?"),
        ({"worker_pool": "a", "day": 1}, "", False, None),
        ({"a_wokers": 3}, "a_", False, "did you mean a_workers?"),
        ({"wrokers": 3}, "a_", False, None),
        ({"epochs_": 3, "epochs": 3}, "", False, "did you mean epochs?"),
        ({"n_epochs": 3}, "", False, None),  # a param of another group, or the DAG's own
        ({"day": 1}, "", True, "conf.day = 1: the job has no such param; it has workers, epochs"),
    ],
)
def test_a_typing_error_in_a_runs_conf_does_not_train_with_defaults(
    given: dict[str, Any], prefix: str, strict: bool, told: str | None
) -> None:
    own = ("workers", "epochs")
    fault = conf_fault(given, {*(prefix + name for name in own), "n_epochs"}, own, prefix, strict)
    assert (fault is None) == (told is None)
    assert (told or "") in (fault or "")


def test_who_needs_no_pool_waits_for_nobody(operator: Any, tmp_path: Path) -> None:
    operator._wait_for_turn(plan_of(operator, tmp_path, pool="default_pool"), REF)


def test_a_setting_that_cannot_be_used_is_said_before_a_slot_is_taken(
    operator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__RESERVE_AFTER", "10")
    with pytest.raises(PreflightError, match=r"\[tf_operator\] reserve_after = 10: must be a duration"):
        operator._check(plan_of(operator, tmp_path), REF, {})
