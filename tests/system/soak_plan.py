"""The faults of a soak: a list made from a seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

STRATEGIES = {
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
    "multi_worker_mirrored": {"chief": 1, "worker": 2},
    "between_graph": {"chief": 1, "worker": 2, "ps": 1},
}
KINDS = {"program": 5, "task": 3, "supervisor": 2, "triggerer": 1, "scheduler": 1}
"""What is killed (always SIGKILL), and how often in proportion."""
COMPONENTS = ("triggerer", "scheduler")
PAUSE = (2.0, 9.0)
"""Seconds before a fault, at least and at most."""


@dataclass(frozen=True)
class Fault:
    """One fault: what is killed, of which replica (None for a component of Airflow), after how many seconds."""

    kind: str
    replica: str | None
    pause: float


@dataclass(frozen=True)
class Plan:
    """One run and the faults it has to bear, in order."""

    strategy: str
    faults: tuple[Fault, ...]


def make_plans(seed: int, runs: int, faults: int) -> list[Plan]:
    """The whole soak, from the seed alone; every kind of fault is in it where there are enough of them."""
    rng = random.Random(seed)
    kinds = list(KINDS)[:faults]
    kinds += rng.choices(list(KINDS), list(KINDS.values()), k=faults - len(kinds))
    rng.shuffle(kinds)
    strategies = list(STRATEGIES)
    plans = []
    for number in range(runs):
        strategy = strategies[number % len(strategies)]
        mine = kinds[number::runs]
        plans.append(Plan(strategy, tuple(_fault(rng, kind, strategy) for kind in mine)))
    return plans


def _fault(rng: random.Random, kind: str, strategy: str) -> Fault:
    pause = round(rng.uniform(*PAUSE), 1)
    return Fault(kind, None if kind in COMPONENTS else rng.choice(replica_names(strategy)), pause)


def replica_names(strategy: str) -> list[str]:
    """The replicas of a run."""
    return [f"{role}-{index}" for role, count in STRATEGIES[strategy].items() for index in range(count)]
