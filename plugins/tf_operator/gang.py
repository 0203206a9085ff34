"""What a job asks of its Airflow pool, worked out from the run's conf alone.

Loaded by the cluster policy in every Airflow process, so it needs nothing but the standard library. A gang is what
`TensorFlowJob.gang()` writes: `pool`, `slots`, `terms` of `count` and `gpus` (each a literal or `{"param": name}`),
`defaults` of the params named there, and `job`, its name for messages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_operator.errors import JobError

DEFAULT_POOL = "gpu"
"""The pool of a job that asks for GPUs, or for slots, and names no pool."""
DEFAULT_POOL_RULE = (
    "the replicas' own tasks run there, so it can grant no GPUs or slots; name a pool of configs/pools.yaml"
)


@dataclass(frozen=True)
class Demand:
    """The pool a run's cluster task belongs to, and its slots there. `pool` None is Airflow's default pool."""

    pool: str | None
    slots: int


def evaluate(gang: Mapping[str, Any], conf: Mapping[str, Any] | None, slots_per_gpu: int = 1) -> Demand:
    """Work out the demand of a run started with `conf`. JobError names the param whose value cannot be used."""
    read = _Reader(gang.get("job"), gang.get("defaults") or {}, conf or {})
    pool = read.pool(gang.get("pool"))
    slots = read.slots(gang.get("slots"))
    if slots is None:
        terms = [(read.count(term.get("count")), read.gpus(term.get("gpus"))) for term in gang.get("terms", ())]
        slots = sum(count * math.ceil(gpus * slots_per_gpu) for count, gpus in terms)
    if pool is None and slots > 0:
        pool = DEFAULT_POOL
    return Demand(pool, max(slots, 1))


def asks_for_slots(gang: Mapping[str, Any], conf: Mapping[str, Any] | None) -> bool:
    """Whether the run asks for GPUs, or for a number of slots. JobError as `evaluate`."""
    return evaluate({**gang, "pool": None}, conf).pool is not None


def count_replicas(gang: Mapping[str, Any], conf: Mapping[str, Any] | None) -> int:
    """How many replicas the run has. JobError as `evaluate`."""
    read = _Reader(gang.get("job"), gang.get("defaults") or {}, conf or {})
    return sum(read.count(term.get("count")) for term in gang.get("terms", ()))


@dataclass(frozen=True)
class _Reader:
    """Reads literals and params; each method checks what it returns."""

    job: str | None
    defaults: Mapping[str, Any]
    conf: Mapping[str, Any]

    def pool(self, source: Any) -> str | None:
        value = self._value(source)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self._fault(source, value, "must be the name of a pool")

    def slots(self, source: Any) -> int | None:
        value = self._value(source)
        if value is None:
            return None
        return self._whole(source, value, at_least=1)

    def count(self, source: Any) -> int:
        return self._whole(source, self._value(source), at_least=0)

    def gpus(self, source: Any) -> float:
        value = self._value(source)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self._fault(source, value, "must be a number of GPUs, 0 or more")
        return value

    def _whole(self, source: Any, value: Any, at_least: int) -> int:
        # JSON has one kind of number: 3.0 from a form is the integer 3.
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < at_least:
            raise self._fault(source, value, f"must be a whole number, {at_least} or more")
        return int(value)

    def _value(self, source: Any) -> Any:
        if not isinstance(source, Mapping):
            return source
        return self.conf.get(source["param"], self.defaults.get(source["param"]))

    def _fault(self, source: Any, value: Any, rule: str) -> JobError:
        job = f"job {self.job}: " if self.job else ""
        name = f"params.{source['param']}" if isinstance(source, Mapping) else "value"
        return JobError(f"{job}{name} = {json.dumps(value, default=repr)}: {rule}; start the run with such a value")
