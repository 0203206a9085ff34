"""What is known of the replicas at one moment, and when things were first seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership.messages import Member

GONE = frozenset({"up_for_retry", "up_for_reschedule", "scheduled", "queued", "restarting"})
"""Airflow states of a replica that was running and is between two tries."""

ENDED = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
"""Airflow states a replica only has before the end of the job if a person or Airflow itself ended it."""

EndKey = tuple[str, int, int]
"""One end: replica, incarnation, generation."""


@dataclass(frozen=True)
class Facts:
    """What is known at one moment. `now` in seconds on any clock that only grows."""

    now: float
    members: Mapping[ReplicaId, Member]
    """Messages of this attempt only."""
    states: Mapping[ReplicaId, str | None] = field(default_factory=dict)
    """Airflow task states; absent where unknown."""
    since: float | None = None
    """When their reading began, on the clock of `now`; None where it takes no time."""

    @property
    def read_from(self) -> float:
        """Nothing here is older than this, but for what has not been read in this round."""
        return self.now if self.since is None else self.since

    def ended_well(self, replica: ReplicaId) -> bool:
        """True where its program ended by itself with exit code 0."""
        member = self.members.get(replica)
        return member is not None and member.ended_well


@dataclass(frozen=True)
class Timers:
    """When things were first seen, on the clock of `Facts.now`. Lost with the owner's process, which only delays."""

    ends: Mapping[EndKey, float] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)
    programs: Mapping[EndKey, float] = field(default_factory=dict)
    gone: Mapping[str, float] = field(default_factory=dict)
    """When a replica was last known to be lost."""

    def lived_through(self, replica: ReplicaId, member: Member, within: float) -> set[str]:
        """Replicas that were lost while this program lived, at most `within` seconds before its end was seen."""
        key = end_key(replica, member)
        begun, end = self.programs.get(key), self.ends.get(key)
        if begun is None or end is None:
            return set()
        return {name for name, at in self.gone.items() if begun < at and end - at <= within}

    def end_seen(self, replica: ReplicaId, member: Member) -> float:
        """When the end that `member` reports was first seen."""
        return self.ends[end_key(replica, member)]


def end_key(replica: ReplicaId, member: Member) -> EndKey:
    """Names the end that `member` reports."""
    return str(replica), member.incarnation, member.generation


def deciders(job: RenderedJob) -> list[ReplicaId]:
    """The replicas whose success is the job's."""
    if job.success_policy == "all_workers":
        return [r for r in job.replicas if r.role in ("chief", "worker")] or [job.decider]
    return [job.decider]
