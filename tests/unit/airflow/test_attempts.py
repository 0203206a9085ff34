"""From one attempt of a run to the next: what a replica hears meanwhile, and that the plan is replaced once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import make_job

from tf_operator import airflow_io
from tf_operator.cli import local_machine
from tf_operator.errors import InUseError, PreflightError
from tf_operator.local import new_run_id
from tf_operator.operators import checks
from tf_operator.plan import GroupRef, Place, Plan

REF = GroupRef("d", "r", "train")


def plan(again: int = 0) -> Plan:
    return Plan(attempt="a1", job=make_job(), pool="gpu", slots=1, again=again)


@pytest.mark.parametrize(
    ("state", "again", "heard"),
    [
        ("deferred", 0, "alive"),
        ("running", 1, "alive"),
        ("scheduled", 1, "waiting"),
        ("queued", 1, "waiting"),
        ("up_for_reschedule", 1, "waiting"),
        ("failed", 1, "the task train.cluster is failed"),
        ("scheduled", 0, "the task train.cluster is scheduled"),
        (None, 0, "the task train.cluster is cleared"),
    ],
)
def test_what_a_replica_hears_of_its_owner(
    monkeypatch: pytest.MonkeyPatch, state: str | None, again: int, heard: str
) -> None:
    """In a first attempt the replicas come after the slots: a cluster in the queue was cleared by a person."""
    monkeypatch.setattr(airflow_io, "task_states", lambda ref, ids: {"train.cluster": state})
    channel = airflow_io.AirflowChannel(REF, Place("train.worker", 0), plan(again))
    assert channel.owner_state() == heard


@pytest.mark.parametrize("state", ["deferred", "running", "success", None])
def test_a_plan_cleared_alone_goes_on_as_it_was_while_the_job_lives(
    monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """Airflow has deleted plan's own XComs by then: the copy beside the cluster counts."""
    stored: dict[str, Any] = {}
    monkeypatch.setattr(airflow_io.XCom, "get_one", lambda **call: stored.get(call["task_id"]))
    monkeypatch.setattr(airflow_io.XCom, "set", lambda **call: stored.update({call["task_id"]: call["value"]}))
    monkeypatch.setattr(airflow_io, "task_states", lambda ref, ids: {"train.cluster": state})
    lives = state in ("deferred", "running")
    if lives:
        with pytest.raises(PreflightError, match=r"train\.cluster of this run is alive: clear the whole group"):
            checks.living_plan(REF)
    airflow_io.keep_plan(REF, plan())
    assert checks.living_plan(REF) == (plan() if lives else None)


@pytest.mark.parametrize("state", ["up_for_reschedule", "scheduled", "queued"])
@pytest.mark.parametrize("again", [0, 1])
def test_a_plan_cleared_alone_between_two_attempts_goes_on_as_it_was(
    monkeypatch: pytest.MonkeyPatch, state: str, again: int
) -> None:
    """Before the first attempt a cluster in the queue goes by no plan yet."""
    stored: dict[str, Any] = {}
    monkeypatch.setattr(airflow_io.XCom, "get_one", lambda **call: stored.get(call["task_id"]))
    monkeypatch.setattr(airflow_io.XCom, "set", lambda **call: stored.update({call["task_id"]: call["value"]}))
    monkeypatch.setattr(airflow_io, "task_states", lambda ref, ids: {"train.cluster": state})
    airflow_io.keep_plan(REF, plan())
    if again:
        airflow_io.replace_plan(REF, plan(), 70.0)
    planned = airflow_io.read_plan(REF)
    stored.pop("train.plan", None)
    assert checks.living_plan(REF) == planned
    assert (planned is not None) is bool(again)


def test_the_plan_is_replaced_once_however_often_a_triggerer_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[str, Any] = {"value": plan().model_dump(mode="json")}
    monkeypatch.setattr(airflow_io.XCom, "get_one", lambda **_: stored["value"])
    monkeypatch.setattr(airflow_io.XCom, "set", lambda **call: stored.update(call))
    airflow_io.replace_plan(REF, plan(), 70.0)
    second = airflow_io.read_plan(REF)
    assert second and (second.again, second.elapsed, stored["task_id"], stored["key"]) == (
        1,
        70.0,
        "train.plan",
        "plan",
    )
    airflow_io.replace_plan(REF, plan(), 80.0)
    assert airflow_io.read_plan(REF) == second


def test_a_run_that_this_airflow_does_not_know_may_live_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C-54: a local run is in no database, and its model_dir is its own."""
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(airflow_io, "run_is_over", lambda *_: True)
    job = make_job(model_dir=str(tmp_path / "model"))
    with local_machine.claimed(job, new_run_id()), pytest.raises(InUseError):
        checks.claim(job, REF)
    checks.claim(job, REF)
