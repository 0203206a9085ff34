"""The triggers' ways out: only end events, whatever happens (trap 2); nothing written when a person kills (trap 3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from fakes import make_job, running_cluster

from tf_operator import airflow_io, turns
from tf_operator.admission import AdmissionTrigger, ring
from tf_operator.job_spec import RenderedJob
from tf_operator.job_spec.rendered import RenderedRunPolicy, ReplicaGroup
from tf_operator.membership import Cluster, Member, Owner, Phase, Status
from tf_operator.plan import GroupRef, Place, Plan
from tf_operator.runners.base import Exit
from tf_operator.triggers import ClusterTrigger


def plan(tmp_path: Path, **policy: Any) -> Plan:
    group = ReplicaGroup(task_id="worker", role="worker", count=1, command=["true"], working_dir=str(tmp_path))
    run_policy = RenderedRunPolicy(termination_grace=0, **policy)
    job = RenderedJob(
        name="j", strategy="none", groups=[group], model_dir=str(tmp_path), run_policy=run_policy, retry_delay=0
    )
    return Plan(attempt="a1", job=job, pool="gpu", slots=1)


def trigger(tmp_path: Path, **policy: Any) -> ClusterTrigger:
    return ClusterTrigger("d", "r", "train", ["worker"], plan(tmp_path, **policy).model_dump(mode="json"))


class Board:
    """Airflow's side of the conversation, in memory: what each airflow_io function answers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clusters: list[Cluster] = []
        self.states: dict[str, str | None] = {"train.worker_0": "running", "train.cluster": "deferred"}
        self.member: Member | None = None
        self.plan: Plan | None = None
        self.stored: Cluster | None = None
        self.looks = 0
        self.reasons: dict[tuple[str, str], str] = {}
        # An admission of an earlier test may not have been collected yet: its bell belongs to that one's event loop.
        patch.setattr("tf_operator.admission._bells", WeakValueDictionary())
        patch.setattr(airflow_io, "read_cluster", lambda ref, attempt: self.stored)
        patch.setattr(airflow_io, "write_cluster", self._write)
        patch.setattr(airflow_io, "read_plan", lambda ref: self.plan)
        patch.setattr(airflow_io, "replace_plan", self._replace_plan)
        patch.setattr(airflow_io, "keep_plan", lambda ref, plan: None)
        patch.setattr(airflow_io, "read_member", lambda ref, place: self.member)
        patch.setattr(airflow_io, "task_states", self._task_states)
        patch.setattr(airflow_io, "register_holder", lambda pool, ref, slots: None)
        patch.setattr(airflow_io, "unregister_holder", lambda pool, ref: None)
        patch.setattr(airflow_io, "holders", lambda pool: [])
        patch.setattr(airflow_io, "leave_reason", lambda ref, task, of, text: self.reasons.update({(task, of): text}))
        patch.setattr(airflow_io, "read_reason", lambda ref, task, of: self.reasons.get((task, of)))

    def _task_states(self, ref: GroupRef, ids: list[str]) -> dict[str, str | None]:
        found = self.states
        # After the look: who sees it counted may change the states for the next one.
        self.looks += 1
        return found

    def _replace_plan(self, ref: GroupRef, plan: Plan, elapsed: float) -> None:
        self.plan = plan.next_attempt(elapsed)

    def _write(self, ref: GroupRef, cluster: Cluster) -> None:
        self.clusters.append(cluster)
        if cluster.phase.terminal:
            self.states["train.worker_0"] = "success"


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(monkeypatch)


def events(subject: BaseTrigger) -> list[TriggerEvent]:
    async def collect() -> list[TriggerEvent]:
        return [event async for event in subject.run()]

    return asyncio.run(asyncio.wait_for(collect(), 20))


def member(status: Status, end: Exit | None = None, generation: int = 1) -> Member:
    return Member("a1", 1, "127.0.0.1:20000", status, generation=generation, end=end)


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


def test_kwargs_survive_serialization(tmp_path: Path) -> None:
    path, kwargs = trigger(tmp_path).serialize()
    assert path == "tf_operator.triggers.ClusterTrigger"
    again = ClusterTrigger(**kwargs)
    assert again.serialize()[1] == kwargs
    assert Place("train.worker", 0).state_key == "train.worker_0"
