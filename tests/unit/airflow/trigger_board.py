"""Airflow as the triggers see it, in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tf_operator import airflow_io
from tf_operator.job_spec import RenderedJob
from tf_operator.job_spec.rendered import RenderedRunPolicy, ReplicaGroup
from tf_operator.membership import Cluster, Member, Status
from tf_operator.plan import GroupRef, Plan
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


def events(subject: BaseTrigger) -> list[TriggerEvent]:
    async def collect() -> list[TriggerEvent]:
        return [event async for event in subject.run()]

    return asyncio.run(asyncio.wait_for(collect(), 20))


def member(status: Status, end: Exit | None = None, generation: int = 1) -> Member:
    return Member("a1", 1, "127.0.0.1:20000", status, generation=generation, end=end)
