"""What the cluster task refuses before it holds anything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException
from fakes import make_job

from tf_operator import airflow_io
from tf_operator.operators import AdmissionOperator, ClusterOperator
from tf_operator.plan import Plan


class Instance:
    dag_id, run_id = "d", "r"


CONTEXT: Any = {"ti": Instance()}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    """The reasons that were left, by task and what they belong to."""
    left: dict[tuple[str, str], str] = {}
    plan = Plan(attempt="a1", job=make_job(), pool="gpu", slots=1)
    monkeypatch.setattr(airflow_io, "read_plan", lambda ref: plan)
    monkeypatch.setattr(airflow_io, "leave_reason", lambda ref, task, of, text: left.update({(task, of): text}))
    return left


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (None, "cluster policy has not seen this run"),
        ({"refused": "the job needs 6 slots, pool gpu has 4 in all"}, "needs 6 slots, pool gpu has 4"),
        ({"pool": "gpu", "slots": 2}, "holds 2 slots of pool gpu, the job needs 3 of gpu"),
        ({"pool": "other", "slots": 3}, "holds 3 slots of pool other, the job needs 3 of gpu"),
    ],
)
def test_the_policys_mark_is_checked(mark: dict[str, Any] | None, text: str) -> None:
    cluster = ClusterOperator(task_id="cluster", gang="{}", group_id="train", mapped=[])
    with pytest.raises(AirflowFailException) as error:
        cluster._check_policy(mark, 3, "gpu")
    assert text in str(error.value) and "\n" not in str(error.value)


def test_a_sound_mark_passes() -> None:
    cluster = ClusterOperator(task_id="cluster", gang="{}", group_id="train", mapped=[])
    cluster._check_policy({"pool": "gpu", "slots": 3}, 3, "gpu")


def test_a_way_back_airflow_took_by_itself_fails_for_good(said: dict[tuple[str, str], str]) -> None:
    cluster = ClusterOperator(task_id="cluster", gang="{}", group_id="train", mapped=[])
    admission = AdmissionOperator(task_id="admission", group_id="train", replica_tasks=[])
    for task in (cluster, admission):
        with pytest.raises(AirflowFailException, match="clear the whole group"):
            task.resumed(CONTEXT)
        assert "clear the whole group" in said[task.task_id, "a1"], "what result quotes"


def test_what_the_cluster_refuses_is_left_for_result(said: dict[tuple[str, str], str]) -> None:
    cluster = ClusterOperator(task_id="cluster", gang="{}", group_id="train", mapped=[])
    CONTEXT["task_state_store"] = {"policy": {"refused": "the job needs 6 slots"}}  # type: ignore[typeddict-item]
    with pytest.raises(AirflowFailException):
        cluster.execute(CONTEXT)
    assert said == {("cluster", "a1"): "the job needs 6 slots"}


def test_an_admission_that_gave_up_leaves_why(
    said: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_io, "withdraw", lambda task_id: None)
    admission = AdmissionOperator(task_id="admission", group_id="train", replica_tasks=[])
    with pytest.raises(AirflowFailException):
        admission.resumed(CONTEXT, {"too_late": "schedule_timeout: pool gpu ..."})
    assert said == {("admission", "a1"): "schedule_timeout: pool gpu ..."}


def test_after_a_start_timeout_the_cluster_stays_away_before_it_asks_for_its_slots_again(
    said: dict[tuple[str, str], str],
) -> None:
    cluster = ClusterOperator(task_id="cluster", gang="{}", group_id="train", mapped=[])
    with pytest.raises(AirflowRescheduleException) as away:
        cluster.resumed({}, {"again_after": 30.0})  # type: ignore[typeddict-item]
    assert not said
    assert timedelta(seconds=25) < away.value.reschedule_date - datetime.now(UTC) <= timedelta(seconds=30)
