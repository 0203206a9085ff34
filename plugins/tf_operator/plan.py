"""The plan of one attempt: what plan hands to the cluster, the admission, the replicas and the result."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.rendered import RenderedJob, ReplicaGroup


class Plan(BaseModel):
    """One attempt at the job. Travels as JSON; holds references to secrets, never a value.

    What another version of this package says besides is passed over, here and in the job.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    attempt: str
    job: RenderedJob
    pool: str
    slots: int
    slots_per_gpu: int = 1
    again: int = 0
    """How many attempts before this one let go after a start_timeout."""
    elapsed: float = 0.0
    """Seconds those have held their slots."""
    waited: float = 0.0
    """Seconds it stood behind a job that goes first: a part of its schedule_timeout."""

    def next_attempt(self, elapsed: float) -> Plan:
        """The plan of the attempt that comes after this one has let go, `elapsed` seconds into the job."""
        return self.model_copy(update={"attempt": uuid.uuid4().hex, "again": self.again + 1, "elapsed": elapsed})


@dataclass(frozen=True)
class GroupRef:
    """The task group of one job in one run. `group_id` is empty where the tasks are the DAG's own."""

    dag_id: str
    run_id: str
    group_id: str

    def task(self, name: str) -> str:
        """The full id of one of the group's tasks."""
        return f"{self.group_id}.{name}" if self.group_id else name

    def identity(self, replica: ReplicaId) -> Identity:
        """The identity of one of the job's replicas."""
        return Identity(self.dag_id, self.run_id, self.group_id, replica)

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}" + (f"/{self.group_id}" if self.group_id else "")


@dataclass(frozen=True)
class Place:
    """Where a replica is in Airflow: its task and map index, -1 where the task is not mapped."""

    task_id: str
    map_index: int

    @property
    def state_key(self) -> str:
        """Its key among the task states that Airflow answers with."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"


def is_mapped(role: str, literal_count: int | None) -> bool:
    """A role of one replica that can never be more is a plain task; everything else is mapped over its indexes."""
    return not (literal_count == 1 and role in ("chief", "evaluator"))


def places(ref: GroupRef, job: RenderedJob, mapped: set[str]) -> Iterator[tuple[ReplicaId, Place]]:
    """Every replica with its place; `mapped` holds the names of the mapped tasks, without the group."""
    for group in job.groups:
        for replica in group.replicas:
            yield replica, place_of(ref, group, replica, group.task_id in mapped)


def place_of(ref: GroupRef, group: ReplicaGroup, replica: ReplicaId, mapped: bool) -> Place:
    """The place of one replica."""
    return Place(ref.task(group.task_id), replica.index - group.offset if mapped else -1)
