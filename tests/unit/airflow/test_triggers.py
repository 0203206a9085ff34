"""The triggers' ways out: only end events, whatever happens (trap 2); nothing written when a person kills (trap 3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from fakes import make_job, running_cluster
from trigger_board import Board, events, member, plan, trigger

from tf_operator import airflow_io
from tf_operator.admission import AdmissionTrigger
from tf_operator.job_spec.rendered import ReplicaGroup
from tf_operator.membership import Cluster, Member, Owner, Phase, Status
from tf_operator.plan import GroupRef, Place, Plan
from tf_operator.runners.base import Exit
from tf_operator.triggers import ClusterTrigger


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(monkeypatch)


def test_success_is_a_success_event(tmp_path: Path, board: Board) -> None:
    board.stored = Cluster("a1", launch={"worker-0": 1}, members={"worker-0": 1})
    board.member = member(Status.EXITED, Exit(0))
    assert [type(e) for e in events(trigger(tmp_path))] == [TaskSuccessEvent]
    assert board.clusters[-1].phase == "succeeded"


def test_who_decides_on_an_end_is_heard_in_every_round(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn alone, a large job's lost ps would be heard after those it drew down have been judged."""
    job = make_job(chief=0, worker=60, ps=1, strategy="between_graph")
    places = {Place("train.worker", index): f"worker-{index}" for index in range(60)} | {Place("train.ps", 0): "ps-0"}
    board.states = {place.state_key: "running" for place in places}
    heard: list[str] = []

    def read_member(ref: GroupRef, place: Place) -> Member:
        heard.append(places[place])
        return Member("a1", 1, f"127.0.0.1:{20000 + len(heard)}", Status.EXITED, generation=1, end=Exit(1))

    monkeypatch.setattr(airflow_io, "read_member", read_member)
    planned = Plan(attempt="a1", job=job, pool="gpu", slots=1)
    subject = ClusterTrigger("d", "r", "train", ["worker", "ps"], planned.model_dump(mode="json"))
    owner = Owner(job, running_cluster(job))

    async def look(rounds: int) -> int:
        heard.clear()
        for _ in range(rounds):
            assert await subject._look(owner)
        return heard.count("ps-0")

    asyncio.run(look(1))
    assert "ps-0" not in heard and owner.decisive(subject._members)
    assert asyncio.run(look(4)) == 4


def test_trap_2_a_fault_of_ours_is_a_failed_event_too(
    tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ClusterTrigger, owner: Any, since: float) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ClusterTrigger, "_step", broken)
    assert [type(e) for e in events(trigger(tmp_path))] == [TaskFailedEvent]
    assert "RuntimeError: a bug" in board.clusters[-1].reason


def test_an_outage_of_airflow_is_waited_out(tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.member = member(Status.EXITED, Exit(0))
    calls = iter([OSError("away"), OSError("away")])

    def states(ref: GroupRef, ids: Any) -> dict[str, str | None]:
        if error := next(calls, None):
            raise error
        return board.states

    monkeypatch.setattr(airflow_io, "task_states", states)
    assert [type(e) for e in events(trigger(tmp_path))] == [TaskSuccessEvent]


def test_a_trigger_whose_task_was_cleared_says_nothing_more(tmp_path: Path, board: Board) -> None:
    """The triggerer takes a moment to end it: meanwhile its word would stand for that of the next try."""
    board.stored = Cluster("a1", phase=Phase.RUNNING, launch={"worker-0": 1}, members={"worker-0": 1})
    board.states |= {"train.cluster": "failed", "train.worker_0": "skipped"}

    async def lead() -> None:
        subject = trigger(tmp_path)
        await asyncio.wait_for(anext(subject.run()), 3)

    with pytest.raises(TimeoutError):
        asyncio.run(lead())
    assert board.clusters == []


@pytest.mark.parametrize("attempt", ["a1", "a2"])
def test_a_trigger_that_stood_still_looks_whose_job_it_is(
    tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch, attempt: str
) -> None:
    """`deferred` may be the state of a later attempt's cluster by then, whose word it must not write over."""
    board.plan = plan(tmp_path).model_copy(update={"attempt": attempt})
    monkeypatch.setattr("tf_operator.triggers.THAWED", 0.0)
    subject = trigger(tmp_path)

    async def lead() -> None:
        task = asyncio.ensure_future(anext(subject.run()))
        while board.looks < 2:
            await asyncio.sleep(0.01)
        said = len(board.clusters)
        board.member = member(Status.EXITED, Exit(0))
        board.stored = None
        await asyncio.sleep(3)
        assert (len(board.clusters) > said) is (attempt == "a1")
        task.cancel()

    board.stored = Cluster("a1", phase=Phase.RUNNING, launch={"worker-0": 1}, members={"worker-0": 1})
    asyncio.run(lead())


def test_an_admission_that_did_not_open_ends_the_cluster_at_once(tmp_path: Path, board: Board) -> None:
    board.states = {"train.admission": "failed", "train.worker": "upstream_failed", "train.cluster": "deferred"}
    assert [type(e) for e in events(trigger(tmp_path))] == [TaskFailedEvent]
    assert "train.admission is failed: it did not open" in board.clusters[-1].reason


def test_what_admission_left_is_the_clusters_reason(tmp_path: Path, board: Board) -> None:
    board.states = {"train.admission": "failed", "train.worker": "upstream_failed", "train.cluster": "deferred"}
    board.reasons = {("admission", "a0"): "old", ("admission", "a1"): "schedule_timeout: pool gpu ..."}
    events(trigger(tmp_path))
    assert board.clusters[-1].reason == "train.admission is failed: schedule_timeout: pool gpu ..."


def test_another_attempts_member_is_dropped(tmp_path: Path, board: Board) -> None:
    board.member = Member("old", 7, "127.0.0.1:20000", Status.EXITED, generation=1, end=Exit(0))
    assert [type(e) for e in events(trigger(tmp_path, start_timeout=0, backoff_limit=0))] == [TaskFailedEvent]
    assert "start_timeout" in board.clusters[-1].reason


def test_slots_that_are_not_the_plans_fail(tmp_path: Path, board: Board) -> None:
    class Holding:
        pool_slots, task_id = 3, "train.cluster"

    subject = trigger(tmp_path)
    subject.task_instance = Holding()  # type: ignore[assignment]
    assert [type(e) for e in events(subject)] == [TaskFailedEvent]
    assert "holds 3" in board.clusters[-1].reason and "need 1" in board.clusters[-1].reason


def test_after_a_start_timeout_the_slots_are_let_go_and_the_next_attempt_is_planned(
    tmp_path: Path, board: Board
) -> None:
    subject = trigger(tmp_path, start_timeout=0, backoff_limit=1)
    (event,) = events(subject)
    assert type(event) is TriggerEvent, "no end event: it leads back through the pool"
    assert board.clusters[-1].again_after == event.payload["again_after"] > 0
    assert board.plan and board.plan.again == 1
    assert board.plan.elapsed == board.clusters[-1].elapsed > 0, "active_deadline is the whole job's"
    assert board.plan.attempt != "a1"

    second = ClusterTrigger("d", "r", "train", ["worker"], board.plan.model_dump(mode="json"))
    board.states["train.worker_0"] = "running"
    assert [type(e) for e in events(second)] == [TaskFailedEvent], "backoff_limit bounds it"


def test_a_job_that_does_not_let_go_is_not_tried_again(
    tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two attempts could hold devices at once."""

    async def never(self: ClusterTrigger, unreleased: frozenset[str]) -> bool:
        return False

    monkeypatch.setattr(ClusterTrigger, "_wait_until_released", never)
    assert [type(e) for e in events(trigger(tmp_path, start_timeout=0, backoff_limit=1))] == [TaskFailedEvent]
    assert board.clusters[-1].again_after is None, "who comes back must not wait for another attempt"
    assert board.plan is None


def test_what_fell_with_the_cause_is_named_though_the_job_had_failed_already(tmp_path: Path, board: Board) -> None:
    group = ReplicaGroup(task_id="ps", role="ps", count=1, command=["true"], working_dir=str(tmp_path))
    first = plan(tmp_path)
    job = first.job.model_copy(update={"groups": [group, *first.job.groups], "strategy": "between_graph"})
    subject = ClusterTrigger("d", "r", "train", ["ps", "worker"], first.model_copy(update={"job": job}).model_dump())
    board.states |= {"train.ps_0": "failed", "train.worker_0": "skipped"}
    board.stored = Cluster("a1", phase=Phase.FAILED, members={"worker-0": 1}, cause={"replica": "ps-0"})
    board.member = member(Status.EXITED, Exit(1))
    assert [type(e) for e in events(subject)] == [TaskFailedEvent]
    assert board.clusters[-1].consequences == ("worker-0",)


def test_trap_3_a_kill_writes_nothing() -> None:
    assert ClusterTrigger.on_kill is BaseTrigger.on_kill
    assert AdmissionTrigger.on_kill is BaseTrigger.on_kill
    assert ClusterTrigger.cleanup is BaseTrigger.cleanup


def test_kwargs_survive_serialization(tmp_path: Path) -> None:
    path, kwargs = trigger(tmp_path).serialize()
    assert path == "tf_operator.triggers.ClusterTrigger"
    again = ClusterTrigger(**kwargs)
    assert again.serialize()[1] == kwargs
    assert Place("train.worker", 0).state_key == "train.worker_0"
