"""What replicas and the owner tell each other: `Member` (one replica says) and `Cluster` (the owner says).

Both travel as JSON. Every message carries the attempt; a reader drops any other attempt's, because messages of the
last one stay visible until a new process has begun. Numbers only grow within an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from tf_operator.identity import ReplicaId
from tf_operator.runners.base import Exit


class Phase(StrEnum):
    """forming → running → succeeded | failed; running → forming again while peers are started anew."""

    FORMING = "forming"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        """True once nothing can change any more."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class Status(StrEnum):
    """Where a replica's program is: ready → running → (stalled →) exited → ready."""

    READY = "ready"
    """No program lives; the address is held; it waits to be told to start."""
    RUNNING = "running"
    STALLED = "stalled"
    """It lives and has given no sign of life for `stall_timeout`."""
    EXITED = "exited"
    """It ended by itself; the replica waits to be told what that means."""


@dataclass(frozen=True)
class Member:
    """One replica's message. `generation` is that of the program last started in this incarnation, 0 for none."""

    attempt: str
    incarnation: int
    address: str
    status: Status
    generation: int = 0
    failures: int = 0
    """Own faults counted in this attempt, before the end reported here."""
    end: Exit | None = None
    tail: tuple[str, ...] = ()
    """Last lines the program printed, once it has ended."""
    final: bool = False
    """True where another try cannot help (a forbidden secret, a program that is not there)."""
    host: str = ""
    pid: int = 0

    @property
    def ended_well(self) -> bool:
        """True where its program ended by itself with exit code 0."""
        end = self.end if self.status is Status.EXITED else None
        return end is not None and end.code == 0 and not end.stopped

    def to_json(self) -> dict[str, Any]:
        """JSON form; `from_json` reads it."""
        return {**asdict(self), "status": str(self.status), "tail": list(self.tail)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Member:
        """Read the form that `to_json` writes."""
        end = data.get("end")
        return cls(
            **{
                **_known(cls, data),
                "status": Status(data["status"]),
                "end": Exit(**_known(Exit, end)) if end else None,
                "tail": tuple(data.get("tail", ())),
            }
        )


class Verdict(StrEnum):
    """What the owner says of a program that ended non-zero by its own fault."""

    RETRY = "retry"
    """Fail the task; Airflow's retry brings the replica back."""
    FINAL = "final"
    """Fail the task for good."""


@dataclass(frozen=True)
class Judgement:
    """A verdict on the end of one start, told apart by incarnation and generation."""

    incarnation: int
    generation: int
    verdict: Verdict


@dataclass(frozen=True)
class Cluster:
    """The owner's message: the membership as it stands, and what each replica is to do."""

    attempt: str
    generation: int = 1
    phase: Phase = Phase.FORMING
    spec: Mapping[str, list[str]] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)
    """Replica → incarnation the spec was made with."""
    launch: Mapping[str, int] = field(default_factory=dict)
    """Replica → generation its program must have been started in; a higher one than its own means: start again."""
    verdicts: Mapping[str, Judgement] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    """Replicas known to be gone, whose effect on the others has been dealt with."""
    reason: str = ""
    cause: Mapping[str, Any] | None = None
    """The first failure: replica, code, signal, reason, tail."""
    consequences: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()
    """Servers that ended with 0 while the job goes on: whoever still needs one waits for ever."""
    restarts: int = 0
    """Generations begun beyond the first, for whatever cause: bounded by `backoff_limit`."""
    elapsed: float = 0.0
    """Seconds the job has held its slots, in all attempts; kept here so that they survive the owner's process."""
    tries_left: int = 0
    """How often the job may still let go of everything after a start_timeout, to try again."""
    again_after: float | None = None
    """Failed, but not for good: everybody lets go, and a new attempt begins after so many seconds."""

    def to_json(self) -> dict[str, Any]:
        """JSON form; `from_json` reads it."""
        return {
            **asdict(self),
            "phase": str(self.phase),
            "verdicts": {k: {**asdict(v), "verdict": str(v.verdict)} for k, v in self.verdicts.items()},
            "lost": list(self.lost),
            "consequences": list(self.consequences),
            "unserved": list(self.unserved),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """Read the form that `to_json` writes."""
        verdicts = {
            key: Judgement(v["incarnation"], v["generation"], Verdict(v["verdict"]))
            for key, v in data.get("verdicts", {}).items()
        }
        return cls(
            **{
                **_known(cls, data),
                "phase": Phase(data["phase"]),
                "verdicts": verdicts,
                "lost": tuple(data.get("lost", ())),
                "consequences": tuple(data.get("consequences", ())),
                "unserved": tuple(data.get("unserved", ())),
            }
        )

    def verdict_on(self, replica: ReplicaId, member: Member) -> Verdict | None:
        """The verdict on the end `member` reports, if there is one."""
        judgement = self.verdicts.get(str(replica))
        if judgement and (judgement.incarnation, judgement.generation) == (member.incarnation, member.generation):
            return judgement.verdict
        return None

    def failed_for_good(self, replica: ReplicaId) -> bool:
        """True where the replica's own fault ended the job, whichever watcher reported it."""
        judgement = self.verdicts.get(str(replica))
        return self.phase is Phase.FAILED and judgement is not None and judgement.verdict is Verdict.FINAL

    def told_to_start(self, replica: ReplicaId, member: Member) -> bool:
        """True where `member`'s program is older than the generation it must have been started in."""
        return self.launch.get(str(replica), 0) > member.generation

    def may_start(self, replica: ReplicaId, member: Member) -> bool:
        """True where `member` may start its program now: the spec holds its own incarnation."""
        return (
            self.phase is Phase.RUNNING
            and member.status is Status.READY
            and self.members.get(str(replica)) == member.incarnation
            and self.told_to_start(replica, member)
        )

    def failed(self, reason: str, **change: Any) -> Cluster:
        """The same cluster, failed."""
        return replace(self, phase=Phase.FAILED, reason=reason, **change)


def _known(form: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Without what another version of this package says besides: installations are not upgraded all at once."""
    names = {each.name for each in fields(form)}
    return {key: value for key, value in data.items() if key in names}


NOT_STARTED = 125
"""Exit code of a program that could not even be started (as container tools use it); the reason says why."""


def describe_end(end: Exit) -> str:
    """One end in words: `exit code 137 (SIGKILL)`, `out of memory, limit 64 MiB (exit code 137)`."""
    if end.code == NOT_STARTED and end.reason:
        return end.reason
    if end.oom_limit is not None:
        return f"out of memory, limit {end.oom_limit / 2**20:.0f} MiB (exit code {end.code})"
    text = f"exit code {end.code}" + (f" ({end.signal})" if end.signal else "")
    return f"{text}: {end.reason}" if end.reason else text
