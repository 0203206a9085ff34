"""How often a program, and the job, is tried again."""

from __future__ import annotations

import pytest
from fakes import make_job
from membership_world import KILLED, World

from tf_operator.identity import ReplicaId
from tf_operator.membership import Phase, Verdict
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.runners.base import Exit


def test_failures_are_counted_against_retries() -> None:
    world = World(make_job(retries=2))
    for start in (1, 2):
        world.end("worker-0", KILLED)
        world.settle()
        world.come_back("worker-0")
        world.settle()
        assert world.is_running()
        assert world.at("worker-0").failures == start
    world.end("worker-0", KILLED, "a", "", "b")
    assert world.step().phase is Phase.FAILED
    assert world.cluster.reason == (
        "worker-0 failed: exit code 137 (SIGKILL); started 3 times, retries is 2; last lines: a | b"
    )
    assert world.cluster.verdict_on(ReplicaId("worker", 0), world.at("worker-0")) is Verdict.FINAL


def test_backoff_limit_bounds_generations() -> None:
    world = World(make_job(retries=9, policy={"backoff_limit": 2}))
    for _ in range(2):
        world.end("ps-0", KILLED)
        world.settle()
        world.come_back("ps-0")
        world.settle()
    assert world.is_running()
    world.end("ps-0", KILLED)
    assert world.step().phase is Phase.FAILED
    assert world.cluster.reason == (
        "ps-0 failed: exit code 137 (SIGKILL); the job was started again 2 times, backoff_limit is 2"
        " (run_policy.backoff_limit)"
    )
    assert world.cluster.cause is not None
    assert world.cluster.cause["replica"] == "ps-0"


@pytest.mark.parametrize(
    ("policy", "end", "final"),
    [
        ("on_failure", Exit(code=1), None),
        ("on_failure", Exit(code=127), None),
        ("on_failure", Exit(code=255), None),
        ("on_failure", KILLED, None),
        ("exit_code", Exit(code=1), "restart_policy is exit_code and 1 is final (1-127)"),
        ("exit_code", Exit(code=127), "restart_policy is exit_code and 127 is final (1-127)"),
        ("exit_code", Exit(code=128), None),
        ("exit_code", KILLED, None),
        ("exit_code", Exit(code=139, signal="SIGSEGV"), None),
        ("exit_code", Exit(code=255), None),
        ("exit_code", Exit(code=137, oom_limit=1), None),
        ("exit_code", Exit(code=NOT_STARTED, reason="Vault is sealed"), None),
        ("exit_code", Exit(code=NOT_STARTED), "restart_policy is exit_code and 125 is final (1-127)"),
        ("never", KILLED, "restart_policy is never"),
        ("never", Exit(code=1), "restart_policy is never"),
    ],
)
def test_which_ends_are_tried_again(policy: str, end: Exit, final: str | None) -> None:
    world = World(make_job(chief=0, worker=1, ps=0, strategy="none", restart_policy=policy))
    world.end("worker-0", end)
    cluster = world.step()
    assert cluster.phase is (Phase.FAILED if final else Phase.RUNNING)
    assert cluster.verdict_on(ReplicaId("worker", 0), world.at("worker-0")) is (
        Verdict.FINAL if final else Verdict.RETRY
    )
    if final:
        assert final in cluster.reason


def test_what_trying_again_cannot_help_is_final_at_once_even_in_a_new_generation() -> None:
    world = World(make_job(retries=5))
    world.end("ps-0", KILLED)
    world.step()
    world.end("chief-0", Exit(code=NOT_STARTED, reason="secret/x: forbidden"), final=True)
    assert world.step().phase is Phase.FAILED
    assert world.cluster.reason == "chief-0 failed: secret/x: forbidden; trying again cannot help"


def test_an_end_is_judged_once() -> None:
    world = World(make_job())
    world.end("worker-0", KILLED)
    for _ in range(30):
        world.step()
    assert world.cluster.phase is Phase.RUNNING
    assert world.cluster.generation == 1
    assert len(world.cluster.verdicts) == 1


def test_a_stopped_replica_that_vanishes_while_the_generation_forms_loses_nothing() -> None:
    world = World(make_job())
    world.end("ps-0", KILLED)
    world.settle()
    world.come_back("chief-0")
    world.step()
    assert world.cluster.reason == "ps-0 failed: exit code 137 (SIGKILL)"
    assert world.cluster.lost == ("ps-0",)
    world.come_back("ps-0")
    world.settle()
    assert world.is_running()
    assert world.cluster.restarts == 1
