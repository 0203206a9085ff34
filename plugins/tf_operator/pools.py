"""The pools an installation needs (`configs/pools.yaml`), and what a pool's description tells the cluster policy.

Airflow keeps no settings with a pool but its description, so `slots_per_gpu` is written there, as
`tf_operator slots_per_gpu=2` at its end, after whatever text a person gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainValidator

from tf_operator.project_file import read_project_file

_MARK = re.compile(r"\s*\[?tf_operator slots_per_gpu=(\d+)\]?\s*$")


def _whole(least: int, most: int, *words: str) -> PlainValidator:
    """Pydantic takes true, 2.0 and "2" for numbers."""
    allowed = " or ".join([*words, f"a whole number from {least} to {most}"])

    def check(value: Any) -> Any:
        if value in words or (type(value) is int and least <= value <= most):
            return value
        raise ValueError(f"must be {allowed}; change it")

    return PlainValidator(check)


class _PoolConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    slots: Annotated[int | Literal["auto"], _whole(0, 2_000_000_000, "auto")] = "auto"
    slots_per_gpu: Annotated[int, _whole(1, 1000)] = 1
    description: str = ""
    team: str | None = None
    """Airflow's own team of the pool, where its multi-team mode is on."""


class _PoolsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: dict[str, _PoolConfig]


@dataclass(frozen=True)
class WantedPool:
    """A pool as Airflow shall have it. Deferred tasks count: a job holds its slots from the triggerer."""

    name: str
    slots: int
    description: str
    include_deferred: bool = True
    because: str = ""
    """Where the slots come from, if they were counted."""
    team: str | None = None


def slots_per_gpu(description: str | None) -> int:
    """What a pool's description says; 1 where it says nothing."""
    found = _MARK.search(description or "")
    return int(found[1]) if found else 1


def configured_slots_per_gpu(path: Path, pool: str | None) -> int:
    """What the file says of a pool; 1 where it says nothing, or there is none."""
    if pool is None or not path.exists():
        return 1
    return next((slots_per_gpu(each.description) for each in wanted_pools(path, lambda: 0) if each.name == pool), 1)


def describe(text: str, per_gpu: int) -> str:
    """The description `slots_per_gpu` reads back. A text copied from Airflow has a mark already."""
    return f"{_MARK.sub('', text).strip()} [tf_operator slots_per_gpu={per_gpu}]".strip()


def wanted_pools(path: Path, count_gpus: Callable[[], int]) -> list[WantedPool]:
    """Read the file. `count_gpus` is asked only where a pool says `auto`. PreflightError naming the faulty field."""
    pools = read_project_file(path, _PoolsFile, "pools").pools
    return [_wanted(name, pool, count_gpus) for name, pool in pools.items()]


def _wanted(name: str, pool: _PoolConfig, count_gpus: Callable[[], int]) -> WantedPool:
    description = describe(pool.description, pool.slots_per_gpu)
    if pool.slots != "auto":
        return WantedPool(name, pool.slots, description, team=pool.team)
    here = count_gpus()
    because = f" ({here} GPUs on this host x slots_per_gpu {pool.slots_per_gpu})"
    return WantedPool(name, here * pool.slots_per_gpu, description, because=because, team=pool.team)


def disagreements(wanted: list[WantedPool], actual: Mapping[str, Any]) -> list[str]:
    """One line per pool that differs; `actual` holds Airflow's pools by name, with the same attributes."""
    return [line for pool in wanted if (line := _difference(pool, actual.get(pool.name)))]


def _difference(pool: WantedPool, found: Any) -> str | None:
    if found is None:
        return f"pool {pool.name}: missing, wanted with {pool.slots} slots{pool.because}"
    faults = []
    if found.slots != pool.slots:
        faults.append(f"has {found.slots} slots, wanted {pool.slots}{pool.because}")
    if found.description != pool.description:
        faults.append(f"description is {found.description!r}, wanted {pool.description!r}")
    if found.include_deferred != pool.include_deferred:
        faults.append("does not count deferred tasks (include_deferred): jobs would share GPUs")
    if pool.team and getattr(found, "team_name", None) != pool.team:
        faults.append(f"is not team {pool.team}'s in Airflow")
    return f"pool {pool.name}: {'; '.join(faults)}" if faults else None
