"""The restart table, and cause told from consequence."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import make_job
from membership_world import DONE, FAILED, KILLED, World

from tf_operator.identity import ReplicaId
from tf_operator.membership import Phase, Status, Verdict
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.runners.base import Exit

ALONE: set[str] = set()
EVERYBODY = {"worker-0", "worker-1", "worker-2"}
WITH_CHIEF: dict[str, Any] = {"chief": 1, "worker": 2, "ps": 2}
WORKERS: dict[str, Any] = {"chief": 0, "worker": 3, "ps": 0}


@pytest.mark.parametrize(
    ("strategy", "counts", "lost", "started_again"),
    [
        ("parameter_server", WITH_CHIEF, "worker-1", ALONE),
        ("parameter_server", WITH_CHIEF, "ps-0", {"chief-0"}),
        ("parameter_server", WITH_CHIEF, "chief-0", ALONE),
        ("parameter_server", {**WITH_CHIEF, "chief": 0}, "ps-1", {"worker-0"}),
        ("parameter_server", {**WITH_CHIEF, "chief": 0}, "worker-0", ALONE),
        ("multi_worker_mirrored", WORKERS, "worker-1", EVERYBODY - {"worker-1"}),
        ("multi_worker_mirrored", WORKERS, "worker-0", EVERYBODY - {"worker-0"}),
        ("multi_worker_mirrored", {**WORKERS, "chief": 1, "worker": 1}, "chief-0", {"worker-0"}),
        ("multi_worker_mirrored", {**WORKERS, "chief": 1, "worker": 1}, "worker-0", {"chief-0"}),
        *[
            (strategy, WITH_CHIEF, lost, ALONE)
            for strategy in ("between_graph", "in_graph", "none")
            for lost in ("worker-1", "ps-0", "chief-0")
        ],
    ],
)
def test_the_restart_table(strategy: str, counts: dict[str, Any], lost: str, started_again: set[str]) -> None:
    world = World(make_job(**counts, evaluator=1, strategy=strategy))
    world.end(lost, KILLED)
    world.settle()
    assert world.states[ReplicaId.parse(lost)] == "up_for_retry"
    world.come_back(lost)
    world.settle()
    assert world.is_running()
    again = {str(r) for r, starts in world.starts.items() if starts == 2}
    assert again == started_again | {lost}
    assert world.own_faults == {r: int(str(r) == lost) for r in world.job.replicas}
    assert world.cluster.generation == (2 if started_again else 1)


@pytest.mark.parametrize("lost", ["worker-1", "ps-0", "chief-0"])
def test_a_loss_that_nobody_saw_is_dealt_with_at_the_return(lost: str) -> None:
    """Watcher and program vanish together with their machine."""
    world = World(make_job())
    world.come_back(lost, lost=True)
    world.settle()
    assert world.is_running()
    assert world.cluster.generation == (2 if lost == "ps-0" else 1)


@pytest.mark.parametrize(("policy", "retries"), [("on_failure", 0), ("never", 3)])
def test_a_vanished_program_counts_as_a_start(policy: str, retries: int) -> None:
    world = World(make_job(retries=retries, restart_policy=policy))
    world.come_back("worker-1", lost=True)
    assert world.step().phase is Phase.FAILED
    assert world.cluster.reason.startswith("worker-1 was lost with its watcher; ")


def test_an_adopted_program_is_no_loss() -> None:
    world = World(make_job())
    world.states[ReplicaId("ps", 0)] = "up_for_retry"
    world.step()
    world.states[ReplicaId("ps", 0)] = "running"
    assert world.settle().generation == 1
    assert world.starts[ReplicaId("ps", 0)] == 1


# -- cause and consequence


@pytest.mark.parametrize("chief_first", [True, False])
@pytest.mark.parametrize("ps_end", [KILLED, FAILED])
def test_a_chief_that_a_lost_ps_took_along_is_a_consequence(chief_first: bool, ps_end: Exit) -> None:
    world = World(make_job())
    for name in ("chief-0", "ps-0") if chief_first else ("ps-0", "chief-0"):
        world.end(name, FAILED if name == "chief-0" else ps_end, f"last words of {name}")
        for _ in range(4):
            world.step(0.5)
    assert world.cluster.cause is not None
    assert world.cluster.cause["replica"] == "ps-0"
    assert world.cluster.consequences == ("chief-0",)
    world.settle()
    world.come_back("ps-0")
    world.settle()
    assert world.is_running()
    assert world.own_faults[ReplicaId("chief", 0)] == 0


def test_a_chief_that_fails_by_itself_is_judged_after_a_short_time() -> None:
    world = World(make_job())
    world.end("chief-0", FAILED)
    for _ in range(7):
        world.step()
        assert world.cluster.verdict_on(ReplicaId("chief", 0), world.at("chief-0")) is None
    world.step(3)
    assert world.cluster.verdict_on(ReplicaId("chief", 0), world.at("chief-0")) is Verdict.RETRY
    assert world.cluster.generation == 1


def test_case_21_workers_that_lose_their_ps_are_consequences() -> None:
    """ps-0 fails, a second later both workers give up; the message names ps-0, its code and its last lines."""
    world = World(make_job(retries=1))
    lines = [f"line {n}" for n in range(9)] + ["ValueError: loss is nan"]
    world.end("ps-0", FAILED, *lines)
    world.step()
    world.end("worker-0", FAILED, "lost connection")
    world.end("worker-1", FAILED, "lost connection")
    world.end("chief-0", FAILED, "lost connection")
    world.settle()
    assert world.cluster.cause is not None
    assert world.cluster.cause["replica"] == "ps-0"
    assert set(world.cluster.consequences) == {"chief-0", "worker-0", "worker-1"}
    assert world.cluster.generation == 2
    world.come_back("ps-0")
    world.settle()
    assert world.is_running()
    assert world.own_faults == {r: int(r.role == "ps") for r in world.job.replicas}
    world.end("ps-0", FAILED, *lines)
    assert world.step().phase is Phase.FAILED
    assert world.cluster.reason == (
        "ps-0 failed: exit code 1; started 2 times, retries is 1;"
        " last lines: line 5 | line 6 | line 7 | line 8 | ValueError: loss is nan"
    )


def test_workers_seen_before_their_ps_are_consequences_too() -> None:
    world = World(make_job(strategy="between_graph"))
    world.end("worker-0", FAILED)
    world.step()
    world.end("ps-0", FAILED)
    world.step()
    assert world.cluster.cause is not None
    assert world.cluster.cause["replica"] == "ps-0"
    world.settle()
    world.come_back("ps-0")
    world.settle()
    assert world.is_running()
    assert world.own_faults[ReplicaId("worker", 0)] == 0
    assert world.generations() == {"chief-0": 1, "worker-0": 2, "worker-1": 1, "ps-0": 1}


def test_a_worker_that_the_failed_chief_took_along_waits_for_the_chiefs_verdict() -> None:
    world = World(make_job())
    world.end("chief-0", FAILED)
    world.step()
    world.end("worker-0", FAILED)
    for _ in range(6):
        world.step()
        assert world.cluster.cause is None
    world.step(3)
    assert world.cluster.cause is not None
    assert world.cluster.cause["replica"] == "chief-0"
    world.step()
    assert world.cluster.consequences == ("worker-0",)


def test_a_worker_that_fails_by_itself_is_judged_within_seconds() -> None:
    world = World(make_job())
    world.end("worker-0", FAILED)
    world.step()
    world.step(6)
    assert world.cluster.verdict_on(ReplicaId("worker", 0), world.at("worker-0")) is Verdict.RETRY


def test_mirrored_workers_that_end_together_have_one_cause_the_first() -> None:
    world = World(make_job(**WORKERS, strategy="multi_worker_mirrored"))
    world.end("worker-1", FAILED)
    world.step()
    assert world.cluster.cause is None
    for name in ("worker-0", "worker-2"):
        world.end(name, Exit(code=134, signal="SIGABRT"))
    world.step()
    assert world.cluster.cause is not None, "nobody is left that could be the cause: no need to wait"
    assert world.cluster.cause["replica"] == "worker-1"
    world.settle()
    assert world.cluster.consequences == ("worker-0", "worker-2")
    world.come_back("worker-1")
    world.settle()
    assert world.is_running()
    assert world.own_faults == {r: int(r.index == 1) for r in world.job.replicas}


def test_mirrored_workers_that_end_at_once_with_a_kill_among_them() -> None:
    world = World(make_job(**WORKERS, strategy="multi_worker_mirrored"))
    world.end("worker-0", FAILED)
    world.end("worker-2", KILLED)
    world.end("worker-1", FAILED)
    world.step()
    assert world.cluster.cause is not None
    assert world.cluster.cause["replica"] == "worker-2"


def test_one_mirrored_worker_that_gives_up_alone_is_judged_after_its_window() -> None:
    world = World(make_job(**WORKERS, strategy="multi_worker_mirrored"))
    world.end("worker-1", FAILED)
    world.step()
    world.step(18)
    assert world.cluster.cause is None
    world.step(2)
    assert world.cluster.cause is not None
    assert world.cluster.launch == {"worker-0": 2, "worker-1": 2, "worker-2": 2}


@pytest.mark.parametrize(
    "end",
    [
        KILLED,
        Exit(code=137, oom_limit=2**26),
        Exit(code=143, signal="SIGTERM"),
        Exit(code=1, stopped=True, reason="no watcher for 60 s"),
        Exit(code=NOT_STARTED, reason="working_dir /x is no directory on this host"),
    ],
)
def test_ends_that_no_peer_can_cause_are_judged_at_once(end: Exit) -> None:
    world = World(make_job())
    world.end("chief-0", end)
    world.step()
    assert world.cluster.verdict_on(ReplicaId("chief", 0), world.at("chief-0")) is Verdict.RETRY


@pytest.mark.parametrize("signal", ["SIGABRT", "SIGSEGV"])
def test_a_crash_may_be_a_peers_doing(signal: str) -> None:
    world = World(make_job())
    world.end("chief-0", Exit(code=134, signal=signal))
    world.step()
    world.end("ps-0", KILLED)
    world.step(5)
    assert world.cluster.cause and world.cluster.cause["replica"] == "ps-0"
    assert world.cluster.consequences == ("chief-0",)


def test_a_window_ends_with_what_was_read_after_it() -> None:
    """Reading a large job takes seconds: what was read at the beginning is no word on what came after."""
    world = World(make_job(**WITH_CHIEF, strategy="between_graph"))
    world.end("worker-1", FAILED)
    world.step(4, reading=4)
    world.step(8, reading=4)
    assert world.cluster.cause is None, "its peers were heard 4 s after the end was seen"
    world.end("ps-0", KILLED)
    world.step(4, reading=4)
    assert world.cluster.cause and world.cluster.cause["replica"] == "ps-0"
    assert world.cluster.verdict_on(ReplicaId("worker", 1), world.at("worker-1")) is None


@pytest.mark.parametrize("strategy", ["between_graph", "in_graph", "parameter_server"])
def test_who_notices_a_loss_late_is_no_less_drawn_down(strategy: str) -> None:
    """The ps is back, and taken in, before the worker's connection has broken for good."""
    world = World(make_job(strategy=strategy))
    world.end("ps-0", KILLED)
    world.settle()
    world.come_back("ps-0")
    world.settle()
    world.end("worker-0", FAILED)
    world.settle()
    assert world.cluster.cause and world.cluster.cause["replica"] == "ps-0"
    assert world.own_faults[ReplicaId("worker", 0)] == 0 and world.is_running()
    world.end("worker-0", FAILED)
    world.step()
    world.step(6)
    assert world.cluster.cause["replica"] == "worker-0", "its new program has seen no loss"


def test_a_fault_long_after_a_loss_is_an_own_one() -> None:
    world = World(make_job(strategy="between_graph"))
    world.end("ps-0", KILLED)
    world.settle()
    world.come_back("ps-0")
    world.settle()
    world.step(31)
    world.end("worker-0", FAILED)
    world.step()
    world.step(6)
    assert world.cluster.cause and world.cluster.cause["replica"] == "worker-0"


def test_who_decides_on_an_end() -> None:
    world = World(make_job(**WITH_CHIEF))
    assert world.owner.decisive(world.members) == set()
    world.end("worker-1", FAILED)
    assert world.owner.decisive(world.members) == {ReplicaId.parse(name) for name in ("chief-0", "ps-0", "ps-1")}
    world.end("worker-1", KILLED)
    assert world.owner.decisive(world.members) == set(), "no peer does that"


def test_a_server_that_ended_with_0_too_early_starts_again_with_whoever_needs_it() -> None:
    world = World(make_job())
    world.end("ps-0", DONE)
    world.end("worker-1", DONE)
    world.step(60)
    assert world.cluster.phase is Phase.RUNNING, "it may be the end of the training"
    world.end("chief-0", FAILED)
    world.step()
    world.step(9)
    world.settle()
    world.come_back("chief-0")
    world.settle()
    assert world.is_running()
    assert world.generations() == {"chief-0": 2, "worker-0": 1, "worker-1": 2, "ps-0": 2}


def test_between_graph_workers_that_are_done_stay_so() -> None:
    world = World(make_job(strategy="between_graph"))
    world.end("worker-1", DONE)
    world.end("chief-0", KILLED)
    world.settle()
    world.come_back("chief-0")
    world.settle()
    assert world.at("worker-1").status is Status.EXITED
    assert world.starts[ReplicaId("worker", 1)] == 1


def test_losses_that_come_together_cost_one_generation() -> None:
    world = World(make_job(ps=3, policy={"backoff_limit": 1}))
    for name in ("ps-0", "ps-1", "ps-2"):
        world.end(name, KILLED)
        world.step()
    world.settle()
    for name in ("ps-0", "ps-1", "ps-2"):
        world.come_back(name)
        world.settle()
    assert world.is_running()
    assert world.cluster.generation == 2
    assert world.cluster.restarts == 1


def test_a_generation_waits_for_a_replica_that_was_lost_before_it() -> None:
    """The address of one that is still away is not known: it may come back elsewhere."""
    world = World(make_job())
    world.end("worker-1", KILLED)
    world.settle()
    world.end("ps-0", KILLED)
    world.settle()
    world.come_back("ps-0")
    world.settle()
    assert world.cluster.phase is Phase.FORMING
    world.come_back("worker-1", address="elsewhere:1")
    world.settle()
    assert world.is_running()
    assert world.cluster.restarts == 1


@pytest.mark.parametrize("policy", ["on_failure", "exit_code", "never"])
def test_a_consequence_starts_again_in_place_whatever_its_code_and_policy(policy: str) -> None:
    job = make_job(strategy="between_graph")
    groups = [
        group.model_copy(update={"restart_policy": policy}) if group.role == "worker" else group for group in job.groups
    ]
    world = World(job.model_copy(update={"groups": groups}))
    world.end("ps-0", KILLED)
    world.step()
    world.end("worker-0", FAILED)
    world.settle()
    world.come_back("ps-0")
    world.settle()
    assert world.is_running()
    assert world.own_faults[ReplicaId("worker", 0)] == 0
    assert world.starts[ReplicaId("worker", 0)] == 2


def test_c21_what_falls_while_the_word_of_the_failure_is_on_its_way_is_a_consequence() -> None:
    world = World(make_job(retries=0, strategy="between_graph"))
    world.end("ps-0", FAILED, "ValueError: loss is nan")
    assert world.step().phase is Phase.FAILED
    world.end("worker-0", FAILED, "lost connection")
    world.end("worker-1", Exit(code=143, signal="SIGTERM", stopped=True))
    assert world.owner.conclude(world.members)
    assert world.cluster.consequences == ("worker-0",), "the other one we stopped ourselves"
    assert not world.owner.conclude(world.members)
