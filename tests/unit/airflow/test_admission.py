"""The gate before the replicas: when it opens, what it says while it waits, and who goes first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from trigger_board import Board, events, plan

from tf_operator import airflow_io, turns
from tf_operator.admission import AdmissionTrigger, ring
from tf_operator.membership import Cluster, Phase
from tf_operator.plan import GroupRef, Plan


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(monkeypatch)


class Admitting:
    dag_id, run_id, task_id = "d", "r", "train.admission"


def admission(board: Board, tmp_path: Path, **policy: Any) -> AdmissionTrigger:
    board.plan = plan(tmp_path, **policy)
    subject = AdmissionTrigger("train", ["worker"])
    subject.task_instance = Admitting()  # type: ignore[assignment]
    return subject


def test_admission_opens_for_this_attempts_cluster(board: Board, tmp_path: Path) -> None:
    board.stored = Cluster("a1")
    board.states["train.worker_0"] = None
    assert [type(e) for e in events(admission(board, tmp_path))] == [TaskSuccessEvent]


def test_trap_5_admission_waits_for_replicas_of_an_older_try(board: Board, tmp_path: Path) -> None:
    board.stored = Cluster("a1")
    subject = admission(board, tmp_path)

    async def opened_only_after_they_ended() -> None:
        task = asyncio.ensure_future(_first(subject))
        await asyncio.sleep(1.5)
        assert not task.done()
        board.states["train.worker_0"] = "failed"
        assert isinstance(await asyncio.wait_for(task, 10), TaskSuccessEvent)

    asyncio.run(opened_only_after_they_ended())


async def _first(subject: BaseTrigger) -> TriggerEvent:
    return await anext(aiter(subject.run()))


def test_admission_fails_with_the_cluster(board: Board, tmp_path: Path) -> None:
    board.states["train.cluster"] = "failed"
    assert [type(e) for e in events(admission(board, tmp_path))] == [TaskFailedEvent]
    assert board.reasons == {}, "the cluster has left its own, or a person has ended it"


def test_admission_says_why_where_nobody_else_does(board: Board, tmp_path: Path) -> None:
    board.stored = Cluster("a1", phase=Phase.FAILED, reason="no data")
    board.states["train.worker_0"] = None
    assert [type(e) for e in events(admission(board, tmp_path))] == [TaskFailedEvent]
    assert board.reasons == {("admission", "a1"): "not opened: the job has failed: no data"}, "what result quotes"


def test_an_admission_that_cannot_say_why_ends_all_the_same(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: str) -> None:
        raise OSError("away")

    monkeypatch.setattr(airflow_io, "leave_reason", away)
    board.stored = Cluster("a1", phase=Phase.FAILED, reason="no data")
    board.states["train.worker_0"] = None
    assert [type(e) for e in events(admission(board, tmp_path))] == [TaskFailedEvent]


def test_what_it_waited_behind_others_is_a_part_of_its_schedule_timeout(board: Board, tmp_path: Path) -> None:
    board.states["train.cluster"] = "scheduled"
    subject = admission(board, tmp_path, schedule_timeout=100)
    assert board.plan
    board.plan = board.plan.model_copy(update={"waited": 100.0})
    (event,) = events(subject)
    assert "had no 1 slots free within 100 s" in event.payload["too_late"]


def test_admission_fails_after_schedule_timeout(board: Board, tmp_path: Path) -> None:
    board.states["train.cluster"] = "scheduled"
    (event,) = events(admission(board, tmp_path, schedule_timeout=0))
    assert "schedule_timeout: pool gpu had no 1 slots free" in event.payload["too_late"]


def test_its_cluster_rings_for_an_admission_that_looks_seldom(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_operator.admission.TICK", 60.0)
    board.states = {"train.cluster": "scheduled"}
    subject = admission(board, tmp_path)

    async def opened_when_it_rings() -> None:
        task = asyncio.ensure_future(_first(subject))
        while not board.looks:
            await asyncio.sleep(0.01)
        board.states, board.stored = {"train.cluster": "deferred"}, Cluster("a1")
        ring(GroupRef("d", "r", "other"))
        await asyncio.sleep(0.3)
        assert not task.done()
        ring(GroupRef("d", "r", "train"))
        assert isinstance(await asyncio.wait_for(task, 10), TaskSuccessEvent)

    asyncio.run(opened_when_it_rings())


def test_all_who_wait_share_one_look_at_the_pool(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    holder = {"dag_id": "big", "run_id": "r", "group_id": "train", "slots": 8}
    monkeypatch.setattr(airflow_io, "holders", lambda pool: asked.append(pool) or [holder])
    monkeypatch.setattr("tf_operator.admission._known", {})
    plan_ = plan(tmp_path)
    told = [
        asyncio.run(AdmissionTrigger("train", [])._in_the_way(GroupRef(dag, "r", "train"), plan_))
        for dag in ("a", "b", "big")
    ]
    assert told == ["held by big/r/train (8 slots)"] * 2 + ["no other tf_operator job holds any"]
    assert asked == ["gpu"]


def test_a_setting_of_the_triggerer_that_cannot_be_used_ends_the_wait(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__RESERVE_AFTER", "10")
    board.states["train.cluster"] = "scheduled"
    (event,) = events(admission(board, tmp_path))
    assert event.payload["too_late"].startswith("[tf_operator] reserve_after = 10: must be a duration")


def test_a_job_that_waits_for_long_goes_first_and_gives_that_up(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__RESERVE_AFTER", "1s")
    said: list[str] = []

    def take(ref: GroupRef, plan: Plan) -> None:
        said.append(f"take {ref}")
        board.states["train.cluster"] = "deferred"
        board.stored = Cluster("a1")

    monkeypatch.setattr(turns, "take", take)
    monkeypatch.setattr(turns, "give_up", lambda ref, plan: said.append(f"give up {ref}"))
    board.states = {"train.cluster": "scheduled"}
    assert [type(e) for e in events(admission(board, tmp_path))] == [TaskSuccessEvent]
    assert said == ["take d/r/train", "give up d/r/train"]


def test_who_comes_later_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"dag_id": "big", "run_id": "r", "group_id": "train", "slots": 8, "priority": 1}
    answers = iter([OSError("away"), [first], []])

    def entries(prefix: str, task: str) -> Any:
        assert (prefix, task) == ("tf_operator/turn/gpu/", "admission")
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(airflow_io, "entries", entries)
    monkeypatch.setattr(turns, "TICK", 0.01)
    (event,) = events(turns.TurnTrigger("gpu", "d", "r", "train", 1, None))
    assert 0 < event.payload["waited"] < 10
    answers = iter([[first], [first]])
    (event,) = events(turns.TurnTrigger("gpu", "d", "r", "train", 1, -1.0))
    assert event.payload["too_late"].startswith("schedule_timeout") and "after big/r/train (8 slots)" in str(event)
    path, kwargs = turns.TurnTrigger("gpu", "d", "r", "train", 1, None).serialize()
    assert turns.TurnTrigger(**kwargs).serialize() == (path, kwargs)


@pytest.mark.parametrize(("priority", "held"), [(1, True), (2, True), (3, False)])
def test_only_a_higher_priority_passes(monkeypatch: pytest.MonkeyPatch, priority: int, held: bool) -> None:
    first = {"dag_id": "big", "run_id": "r", "group_id": "train", "slots": 8, "priority": 2}
    monkeypatch.setattr(airflow_io, "entries", lambda prefix, task: [first])
    assert bool(turns.before("gpu", GroupRef("d", "r", "train"), priority)) is held
    assert turns.before("gpu", GroupRef("big", "r", "train"), 1) == [], "nobody waits for itself"
