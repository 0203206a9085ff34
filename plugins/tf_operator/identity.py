"""Who a replica is: its place in the job, and its name on the host."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

ROLES = ("chief", "worker", "ps", "evaluator")
"""Replica types in the order in which everything lists them."""


@dataclass(frozen=True)
class ReplicaId:
    """Replica type and index. `str()` is the form used in messages and as a key: `worker-1`."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> ReplicaId:
        """Read the form that `str()` writes."""
        role, _, index = text.rpartition("-")
        return cls(role, int(index))

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: role order first, then index."""
        return ROLES.index(self.role), self.index


@dataclass(frozen=True)
class Identity:
    """One replica of one run of one job: at most one live program may have it (invariant 4)."""

    dag_id: str
    run_id: str
    group_id: str
    replica: ReplicaId

    @property
    def job_key(self) -> str:
        """Names the run of the job on this host: a short hash, safe in a path. Ids may hold any character."""
        text = "\0".join((self.dag_id, self.run_id, self.group_id))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        """Names the replica on this host: safe in a path, a container name and an environment value."""
        return f"{self.job_key}-{self.replica}"

    def __str__(self) -> str:
        group = f"/{self.group_id}" if self.group_id else ""
        return f"{self.dag_id}/{self.run_id}{group}/{self.replica}"
