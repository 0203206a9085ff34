"""Whatever happens in whatever order: numbers only grow, starts stay within bounds, every job comes to an end."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fakes import make_job
from membership_world import DONE, FAILED, KILLED, World

from tf_operator.identity import ReplicaId
from tf_operator.membership import Cluster, Phase, Status
from tf_operator.runners.base import Exit

SHAPES: list[dict[str, Any]] = [
    {"strategy": "parameter_server", "chief": 1, "worker": 2, "ps": 2, "evaluator": 1},
    {"strategy": "parameter_server", "chief": 0, "worker": 2, "ps": 1},
    {"strategy": "multi_worker_mirrored", "chief": 0, "worker": 3, "ps": 0},
    {"strategy": "multi_worker_mirrored", "chief": 1, "worker": 2, "ps": 0, "evaluator": 1},
    {"strategy": "between_graph", "chief": 1, "worker": 2, "ps": 1},
    {"strategy": "in_graph", "chief": 1, "worker": 1, "ps": 1},
    {"strategy": "none", "chief": 0, "worker": 2, "ps": 0},
]


def upset(world: World, rng: random.Random) -> None:
    """Let one thing go wrong, of those that can."""
    replica = rng.choice(world.job.replicas)
    name, member = str(replica), world.members[replica]
    if world.states[replica] != "running":
        return
    what = rng.choice(["killed", "failed", "failed", "vanished", "stalled", "done", "owner", "restarted", "moved"])
    alive = member.status in (Status.RUNNING, Status.STALLED)
    if what == "owner":
        world.resume()
    elif what == "vanished" and alive:
        world.come_back(name, lost=True)
    elif what == "restarted" and member.status is Status.READY:
        world.come_back(name)
    elif what == "moved" and alive:
        world.come_back(name, lost=True, address=f"host-{rng.randrange(99)}:{30000 + rng.randrange(9999)}")
    elif what == "stalled" and alive and replica == world.job.decider:
        world.change(name, status=Status.STALLED)
    elif what in ("killed", "failed") and alive:
        world.end(name, KILLED if what == "killed" else rng.choice([FAILED, Exit(code=134, signal="SIGABRT")]))
    elif what == "done" and alive and rng.random() < 0.2:
        world.end(name, DONE)


def check_growth(before: Cluster, after: Cluster) -> None:
    assert after.generation >= before.generation
    assert after.restarts >= before.restarts
    assert all(after.launch[name] >= launch for name, launch in before.launch.items())
    assert all(after.members.get(name, 0) >= incarnation for name, incarnation in before.members.items())
    assert max(after.launch.values()) <= after.generation
    if after.phase is Phase.RUNNING:
        assert after.spec
        assert set(after.members) == set(after.launch)


def run_history(job: dict[str, Any], rng: random.Random) -> World:
    """A random history, then peace: in the end the job runs as a whole, or it is over."""
    world = World(make_job(**job))
    for _ in range(rng.randint(1, 60)):
        before = world.cluster
        if rng.random() < 0.3:
            upset(world, rng)
        world.step(rng.choice([0.1, 1.0, 5.0]))
        check_growth(before, world.cluster)
        if rng.random() < 0.8:
            world.obey()
        for replica in world.job.replicas:
            if world.states[replica] == "up_for_retry" and rng.random() < 0.3:
                world.come_back(str(replica))
        if world.cluster.phase.terminal:
            ended = world.cluster
            assert world.step(1000) == ended
            return world
    return make_peace(world)


def make_peace(world: World) -> World:
    for _ in range(200):
        before = world.cluster
        world.step(1.0)
        check_growth(before, world.cluster)
        busy = world.obey()
        for replica in world.job.replicas:
            if world.states[replica] == "up_for_retry":
                world.come_back(str(replica))
                busy = True
        open_end = any(m.status is Status.EXITED and m.end != DONE for m in world.members.values())
        if world.cluster.phase.terminal or not (busy or open_end or world.cluster.phase is Phase.FORMING):
            return world
    raise AssertionError(f"no end: {world.cluster}\n{world.members}")


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_random_histories(shape: int) -> None:
    for seed in range(120):
        rng = random.Random(seed * 100 + shape)
        retries, backoff = rng.randint(0, 3), rng.randint(0, 3)
        world = run_history({**SHAPES[shape], "retries": retries, "policy": {"backoff_limit": backoff}}, rng)
        where = f"shape {shape}, seed {seed}: {world.cluster}"
        assert world.cluster.restarts <= backoff, where
        for replica, starts in world.starts.items():
            assert starts <= retries + 1 + backoff, f"{replica} started {starts} times, {where}"
            assert world.own_faults[replica] <= retries, where
        if world.cluster.phase is Phase.SUCCEEDED:
            assert world.members[world.job.decider].end == DONE, where
        elif world.cluster.phase is Phase.RUNNING:
            check_consistent(world, where)


def check_consistent(world: World, where: str) -> None:
    """Everybody who runs does so with the present spec: started after the last change of it, at its own address."""
    for replica, member in world.members.items():
        assert member.status in (Status.RUNNING, Status.EXITED), where
        if replica.role == "evaluator":
            continue
        assert world.cluster.spec[replica.role][replica.index] == member.address, where
        if member.status is Status.RUNNING:
            assert member.generation == world.cluster.launch[str(replica)], where
    if world.job.strategy == "multi_worker_mirrored":
        generations = {m.generation for r, m in world.members.items() if r.role != "evaluator" and m.end is None}
        assert len(generations) <= 1, where


def test_a_loop_of_failures_ends() -> None:
    """A ps that always fails at once uses up its retries, never more."""
    world = World(make_job(retries=3, policy={"backoff_limit": 9}))
    for _ in range(50):
        if world.cluster.phase.terminal:
            break
        world.end("ps-0", FAILED)
        world.settle()
        if world.states[ReplicaId("ps", 0)] == "up_for_retry":
            world.come_back("ps-0")
            world.settle()
    assert world.cluster.phase is Phase.FAILED
    assert world.starts[ReplicaId("ps", 0)] == 4
    assert world.starts[ReplicaId("chief", 0)] == 4
