"""Forming, running, success, deadlines, the acts of a person: what the owner says next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import make_job
from membership_world import DONE, FAILED, KILLED, World

from tf_operator.identity import ReplicaId
from tf_operator.membership import Facts, Member, Owner, Phase, Status, Timers, begin, decide, deciders
from tf_operator.membership.backoff import pause
from tf_operator.runners.base import Exit


def test_nothing_opens_before_everybody_stands_ready() -> None:
    job = make_job(worker=1)
    cluster, timers = begin(job, "a1"), Timers()
    members: dict[ReplicaId, Member] = {}
    for number, replica in enumerate(job.replicas):
        cluster, timers = decide(job, cluster, timers, Facts(0.0, members))
        assert cluster.phase is Phase.FORMING
        assert not cluster.spec
        members[replica] = Member("a1", 1, f"h:{number + 1}", Status.READY)
    cluster, timers = decide(job, cluster, timers, Facts(0.0, members))
    assert cluster.phase is Phase.RUNNING
    assert cluster.spec == {"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]}
    assert cluster.members == {"chief-0": 1, "worker-0": 1, "ps-0": 1}


def test_a_ready_message_of_a_watcher_that_is_between_two_tries_opens_nothing() -> None:
    world = World(make_job(), go=False)
    for number, replica in enumerate(world.job.replicas):
        world.members[replica] = Member("a1", 1, f"h:{number + 1}", Status.READY)
    world.states[ReplicaId("ps", 0)] = "up_for_retry"
    assert world.step().phase is Phase.FORMING
    world.come_back("ps-0")
    assert world.settle().members["ps-0"] == 2
    assert world.is_running()


def test_may_start_only_with_a_spec_that_holds_the_own_incarnation() -> None:
    world = World(make_job())
    worker = ReplicaId("worker", 1)
    ready = replace(world.members[worker], status=Status.READY, generation=0)
    assert world.cluster.may_start(worker, ready)
    assert not world.cluster.may_start(worker, replace(ready, incarnation=2))
    assert not world.cluster.may_start(worker, replace(ready, generation=1))
    assert not world.cluster.may_start(worker, replace(ready, status=Status.RUNNING))
    assert not replace(world.cluster, phase=Phase.FORMING).may_start(worker, ready)


def test_the_evaluator_is_not_in_the_spec_and_comes_back_alone_at_any_address() -> None:
    world = World(make_job(evaluator=1))
    assert set(world.cluster.spec) == {"chief", "worker", "ps"}
    world.end("evaluator-0", FAILED)
    world.settle()
    assert world.cluster.phase is Phase.RUNNING
    world.come_back("evaluator-0", address="elsewhere:1")
    world.settle()
    assert world.is_running()
    assert world.cluster.generation == 1
    assert world.starts[ReplicaId("evaluator", 0)] == 2


def test_types_of_count_zero_are_nowhere() -> None:
    world = World(make_job(chief=0, ps=0, strategy="multi_worker_mirrored"))
    assert list(world.cluster.spec) == ["worker"]
    assert world.is_running()


@pytest.mark.parametrize(
    ("counts", "policy", "expected"),
    [
        ({"chief": 1}, "chief", ["chief-0"]),
        ({"chief": 0}, "chief", ["worker-0"]),
        ({"chief": 0, "worker": 0, "ps": 1}, "chief", ["ps-0"]),
        ({"chief": 1}, "all_workers", ["chief-0", "worker-0", "worker-1"]),
        ({"chief": 0}, "all_workers", ["worker-0", "worker-1"]),
        ({"chief": 0, "worker": 0, "ps": 1}, "all_workers", ["ps-0"]),
    ],
)
def test_success_is_the_deciders(counts: dict[str, Any], policy: str, expected: list[str]) -> None:
    world = World(make_job(**counts, success_policy=policy, strategy="none"))
    assert [str(r) for r in deciders(world.job)] == expected
    for name in map(str, world.job.replicas):
        if name not in expected:
            world.end(name, DONE)
    assert world.step().phase is Phase.RUNNING
    for name in expected:
        assert world.step().phase is Phase.RUNNING
        world.end(name, DONE)
    assert world.step().phase is Phase.SUCCEEDED
    assert world.cluster.reason == f"{', '.join(expected)} ended with exit code 0"


@pytest.mark.parametrize(
    "end", [Exit(code=0, stopped=True), Exit(code=143, signal="SIGTERM"), Exit(code=0, signal="SIGTERM", stopped=True)]
)
def test_a_decider_that_was_stopped_is_never_success(end: Exit) -> None:
    world = World(make_job())
    world.end("chief-0", end)
    for _ in range(20):
        assert world.step().phase is not Phase.SUCCEEDED
    assert world.cluster.cause is not None


def test_success_counts_even_where_a_ps_was_lost_at_the_last_moment() -> None:
    world = World(make_job())
    world.end("ps-0", KILLED)
    world.step()
    world.end("chief-0", DONE)
    assert world.step().phase is Phase.SUCCEEDED
    assert world.cluster.cause is None


def test_workers_may_end_at_different_times() -> None:
    world = World(make_job(chief=0, ps=0, worker=3, strategy="multi_worker_mirrored", success_policy="all_workers"))
    for name in ("worker-2", "worker-0", "worker-1"):
        assert world.step(100).phase is Phase.RUNNING
        world.end(name, DONE)
    assert world.step().phase is Phase.SUCCEEDED


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed"])
@pytest.mark.parametrize("name", ["chief-0", "ps-0"])
def test_a_replica_that_a_person_ended_ends_the_job_as_failed(state: str, name: str) -> None:
    world = World(make_job())
    world.states[ReplicaId.parse(name)] = state
    assert world.step().phase is Phase.FAILED
    assert f"{name}: its task became {state}" in world.cluster.reason
    assert ("or its watcher could not go on: its log says why" in world.cluster.reason) is (state == "failed")
    assert world.cluster.cause == {"replica": name, "state": state}


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED])
def test_a_terminal_cluster_never_changes(phase: Phase) -> None:
    world = World(make_job())
    world.owner.cluster = replace(world.cluster, phase=phase, reason="it is over")
    before = world.cluster
    world.states[ReplicaId("chief", 0)] = "failed"
    world.end("chief-0", DONE if phase is Phase.FAILED else KILLED)
    world.come_back("ps-0", address="elsewhere:2")
    assert world.step(10_000) == before


# -- deadlines


def test_start_timeout_counts_from_admission_and_names_who_is_late() -> None:
    world = World(make_job(worker=1, policy={"start_timeout": 60}), go=False)
    world.members[ReplicaId("chief", 0)] = Member("a1", 1, "h:1", Status.READY)
    world.states = {ReplicaId("ps", 0): "queued"}
    world.step(0.0)
    assert world.step(59).phase is Phase.FORMING
    assert world.step(2).phase is Phase.FAILED
    assert world.cluster.reason == (
        "start_timeout: not ready within 60 s: worker-0 (not started), ps-0 (queued);"
        " are there executor slots for every replica? (run_policy.start_timeout)"
    )


def test_after_a_start_timeout_the_job_may_try_again_each_time_later() -> None:
    job = make_job(policy={"start_timeout": 60, "backoff_limit": 2}, retry_delay=10.0)
    pauses = []
    for tries_left in (2, 1, 0):
        cluster, timers = decide(job, begin(job, "a1", tries_left), Timers(), Facts(0.0, {}))
        cluster, _ = decide(job, cluster, timers, Facts(61.0, {}))
        assert cluster.phase is Phase.FAILED
        assert ("asked for again in" in cluster.reason) is bool(tries_left)
        pauses.append(cluster.again_after)
    first, second, none = pauses
    assert none is None
    assert first is not None
    assert 10 <= first <= 15
    assert second == pytest.approx(2 * first)


def test_two_jobs_in_each_others_way_do_not_come_back_together() -> None:
    job = make_job(retry_delay=10.0)
    assert len({pause(job, f"attempt-{number}", 0) for number in range(50)}) > 40
    assert pause(job, "a", 50) <= 900


def assert_given_up_after(world: World, seconds: float, who: str) -> None:
    """Within five seconds either way, and the reason says whom it waited for."""
    assert not world.step(seconds - 5).phase.terminal
    assert world.step(10).phase is Phase.FAILED
    assert who in world.cluster.reason


def test_start_timeout_of_a_lost_replica_begins_after_its_retry_delay() -> None:
    world = World(make_job(policy={"start_timeout": 60}, retry_delay=30.0))
    world.end("worker-1", KILLED, "the last line")
    world.settle()
    assert_given_up_after(world, 90, "worker-1 (up_for_retry)")
    assert world.cluster.cause is not None
    assert world.cluster.cause["replica"] == "worker-1"


def test_a_replica_that_may_start_and_never_does_fails_the_job() -> None:
    world = World(make_job(policy={"start_timeout": 60}))
    world.end("worker-1", KILLED)
    world.settle()
    world.come_back("worker-1")
    world.step()
    assert world.step(100).phase is Phase.RUNNING
    assert world.step(40).phase is Phase.FAILED
    assert "worker-1" in world.cluster.reason


def test_a_program_that_cannot_be_stopped_for_the_next_generation_fails_the_job() -> None:
    world = World(make_job(policy={"start_timeout": 60}))
    world.end("ps-0", KILLED)
    world.step()
    assert world.cluster.phase is Phase.FORMING
    world.come_back("ps-0")
    world.step()
    assert world.step(61).phase is Phase.FAILED
    assert "chief-0 (running)" in world.cluster.reason


@pytest.mark.parametrize(("lives", "patience"), [(True, 900 + 30), (False, 60 + 30)])
def test_a_lost_watcher_is_waited_for_while_its_program_may_live(lives: bool, patience: int) -> None:
    """Its retry may be late: its retry_delay, a paused DAG, a scheduler that is away."""
    world = World(make_job(policy={"start_timeout": 60, "orphan_timeout": 900}, retry_delay=30.0))
    if not lives:
        world.end("worker-1", KILLED)
        world.settle()
    world.states[ReplicaId("worker", 1)] = "up_for_retry"
    world.step()
    assert_given_up_after(world, patience, "worker-1 (up_for_retry)")


def test_a_forming_generation_waits_no_longer_for_a_lost_watcher_than_for_anybody() -> None:
    world = World(make_job(policy={"start_timeout": 60, "orphan_timeout": 86400}, retry_delay=30.0))
    world.states[ReplicaId("chief", 0)] = "up_for_retry"
    world.end("ps-0", KILLED)
    world.settle()
    assert world.cluster.phase is Phase.FORMING
    world.come_back("ps-0")
    world.step()
    assert_given_up_after(world, 87, "chief-0 (up_for_retry)")


def test_active_deadline_counts_all_attempts() -> None:
    job = make_job(policy={"active_deadline": 1000})
    owner = Owner(job, begin(job, "a2", elapsed=990.0), clock=iter([0.0, 5.0, 11.0]).__next__)
    owner.step({}, {})
    assert owner.cluster.phase is Phase.FORMING
    owner.step({}, {})
    assert owner.cluster.reason.startswith("active_deadline: the job ran for 1001 s")


def test_active_deadline_survives_the_owner_and_outranks_old_causes() -> None:
    world = World(make_job(policy={"active_deadline": 1000}))
    world.end("worker-0", KILLED)
    world.settle()
    world.come_back("worker-0")
    world.settle()
    world.step(600)
    world.resume()
    assert world.step(390).phase is Phase.RUNNING
    assert world.step(20).phase is Phase.FAILED
    assert world.cluster.reason.startswith("active_deadline: the job ran for 10")
    assert world.cluster.cause is None


def test_a_stalled_job_starts_again_as_a_whole_until_backoff_limit() -> None:
    world = World(make_job(evaluator=1, policy={"stall_timeout": 300, "backoff_limit": 2}))
    for generation in (2, 3):
        world.change("chief-0", status=Status.STALLED)
        world.settle()
        assert world.is_running()
        assert set(world.generations().values()) == {generation}
    world.change("chief-0", status=Status.STALLED)
    assert world.step().phase is Phase.FAILED
    assert world.cluster.reason == (
        "chief-0 gave no sign of life for 300 s (run_policy.stall_timeout);"
        " the job was started again 2 times, backoff_limit is 2 (run_policy.backoff_limit)"
    )
    assert world.own_faults[ReplicaId("chief", 0)] == 0


# -- servers that end


def test_a_server_that_ended_with_0_is_named_and_bounds_the_silence_of_the_job() -> None:
    world = World(make_job(policy={"start_timeout": 60, "backoff_limit": 1}))
    for generation in (1, 2):
        world.end("ps-0", DONE)
        world.settle()
        assert (world.cluster.phase, world.cluster.unserved) == (Phase.RUNNING, ("ps-0",))
        assert world.cluster.reason == "ps-0 ended with exit code 0 while the job goes on: who needs it waits for ever"
        assert world.cluster.generation == generation
        world.resume()
        world.change("chief-0", status=Status.STALLED)
        world.settle()
    assert world.cluster.phase is Phase.FAILED
    assert world.cluster.reason == (
        "ps-0 ended with exit code 0 while the job needs it: chief-0 gave no sign of life for 60 s"
        " (run_policy.start_timeout); the job was started again 1 times, backoff_limit is 1 (run_policy.backoff_limit)"
    )
    assert world.cluster.cause == {"replica": "ps-0", "end": "exit code 0"}


def test_a_server_that_ended_with_0_just_before_its_job_is_no_fault() -> None:
    world = World(make_job())
    world.end("ps-0", DONE)
    world.settle()
    world.end("chief-0", DONE)
    assert world.settle().phase is Phase.SUCCEEDED
    assert world.cluster.reason == "chief-0 ended with exit code 0"


# -- addresses


@pytest.mark.parametrize("strategy", ["parameter_server", "between_graph", "in_graph", "none"])
@pytest.mark.parametrize("name", ["worker-1", "ps-0", "chief-0"])
def test_back_at_another_address_starts_everybody_with_the_new_spec(strategy: str, name: str) -> None:
    world = World(make_job(evaluator=1, strategy=strategy))
    world.end(name, KILLED)
    world.settle()
    world.come_back(name, address="other-host:20001")
    world.settle()
    assert world.is_running()
    replica = ReplicaId.parse(name)
    assert world.cluster.spec[replica.role][replica.index] == "other-host:20001"
    generation = world.cluster.generation
    assert generation == 2  # a ps' loss and its new address cost one generation together
    assert world.generations() == {str(r): 1 if r.role == "evaluator" else generation for r in world.job.replicas}
    assert world.cluster.restarts == 1


@pytest.mark.parametrize(("first", "then"), [("Host-A:1", "host-a:1"), ("[::1]:5", "::1:5")])
def test_the_same_address_in_another_spelling_is_the_same(first: str, then: str) -> None:
    world = World(make_job(worker=1), go=False)
    for number, replica in enumerate(world.job.replicas):
        world.members[replica] = Member("a1", 1, first if replica.role == "worker" else f"h:{number + 1}", Status.READY)
    world.settle()
    world.end("worker-0", KILLED)
    world.settle()
    world.come_back("worker-0", address=then)
    world.settle()
    assert world.is_running()
    assert world.cluster.generation == 1


def test_two_replicas_at_one_address_fail_the_job_in_one_line() -> None:
    world = World(make_job(worker=1), go=False)
    for replica in world.job.replicas:
        world.members[replica] = Member("a1", 1, "h:1", Status.READY)
    assert world.step().phase is Phase.FAILED
    assert "worker-0 = h:1: is chief-0's address too" in world.cluster.reason


# -- messages


def test_messages_of_another_attempt_and_of_strangers_are_dropped() -> None:
    world = World(make_job())
    before = world.cluster
    world.members[ReplicaId("chief", 0)] = replace(
        world.at("chief-0"), attempt="a0", status=Status.EXITED, end=DONE, incarnation=9
    )
    world.members[ReplicaId("worker", 7)] = replace(world.at("worker-0"), status=Status.EXITED, end=KILLED)
    for _ in range(3):
        after = world.step()
    assert after.phase is Phase.RUNNING
    assert replace(after, elapsed=0.0) == replace(before, elapsed=0.0)


@pytest.mark.parametrize("lost", ["worker-1", "ps-0", "chief-0"])
def test_an_owner_that_lost_its_process_goes_on_from_its_message(lost: str) -> None:
    """Whenever the process is lost, the job heals the same way."""
    world = World(make_job())
    world.end(lost, KILLED)
    for moment in range(30):
        world.resume()
        world.step(0.1)
        world.obey()
        if world.states[ReplicaId.parse(lost)] == "up_for_retry":
            world.come_back(lost)
        if moment > 3 and world.is_running():
            break
    assert world.is_running()
    assert world.cluster.generation == (2 if lost == "ps-0" else 1)
    assert world.own_faults[ReplicaId.parse(lost)] == 1


def test_only_what_is_new_is_said_but_elapsed_every_half_minute() -> None:
    world = World(make_job())
    said: list[Any] = []
    for _ in range(100):
        world.now += 1.0
        if world.owner.step(world.members, world.states):
            said.append(world.now)
    assert 2 <= len(said) <= 4
