"""What Airflow's REST API tells of runs, task instances and pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

RUN_END = frozenset({"success", "failed"})
TASK_END = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


def _time(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value) if value else None


@dataclass(frozen=True)
class Run:
    """One DAG run."""

    dag_id: str
    run_id: str
    state: str
    conf: Mapping[str, Any]
    start: datetime | None
    end: datetime | None
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """From the API's JSON."""
        return cls(
            raw["dag_id"],
            raw["dag_run_id"],
            raw["state"],
            raw.get("conf") or {},
            _time(raw.get("start_date")),
            _time(raw.get("end_date")),
            raw,
        )

    @property
    def finished(self) -> bool:
        """True once the run cannot change by itself."""
        return self.state in RUN_END


@dataclass(frozen=True)
class TaskState:
    """One task instance, in its newest try. `label` is its name in the UI's grid: `worker [worker-1]`."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    start: datetime | None
    end: datetime | None
    hostname: str
    pool: str
    pool_slots: int
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """From the API's JSON."""
        return cls(
            raw["task_id"],
            raw["map_index"],
            raw["state"],
            raw["try_number"],
            _time(raw.get("start_date")),
            _time(raw.get("end_date")),
            raw.get("hostname") or "",
            raw["pool"],
            raw["pool_slots"],
            raw,
        )

    @property
    def finished(self) -> bool:
        """True once this try cannot change by itself."""
        return self.state in TASK_END

    @property
    def name(self) -> str:
        """The last part of the task id; of a mapped one the label, `worker-1`, or what stands for it as yet."""
        short = self.task_id.rpartition(".")[2]
        if self.map_index < 0:
            return short
        label = str(self.raw.get("rendered_map_index") or self.map_index)
        return f"{short}-{label}" if label.isdigit() else label


@dataclass(frozen=True)
class Pool:
    """One pool: its size, and the slots held by what runs, waits in the executor's queue or is deferred."""

    name: str
    slots: int
    held: int
    open: int
    description: str
    include_deferred: bool

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """From the API's JSON. `held` counts deferred tasks only where the pool does."""
        held = raw["running_slots"] + raw["queued_slots"]
        if raw["include_deferred"]:
            held += raw["deferred_slots"]
        return cls(
            raw["name"], raw["slots"], held, raw["open_slots"], raw.get("description") or "", raw["include_deferred"]
        )
