"""The owner's decision: a pure function of facts.

`decide` reads what is known of the replicas and returns what the cluster message must say next. It reads no clock,
touches no Airflow and no program; whoever calls it (the cluster trigger, `local`) only gathers facts and carries the
result out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tf_operator.cluster_spec import cluster_spec
from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob, ReplicaGroup
from tf_operator.membership.messages import Cluster, Judgement, Member, Phase, Status, Verdict, describe_end
from tf_operator.membership.restart_table import can_be_drawn, peers_of

JUDGE_WINDOW = {"parameter_server": 8.0, "multi_worker_mirrored": 20.0}
"""Seconds to wait, after a program that a lost peer can draw down ended non-zero, for that peer's loss to show."""

GONE = frozenset({"up_for_retry", "up_for_reschedule", "scheduled", "queued", "restarting"})
"""Airflow states of a replica that was running and is between two tries."""

ENDED = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
"""Airflow states a replica only has before the end of the job if a person or Airflow itself ended it."""


@dataclass(frozen=True)
class Facts:
    """What is known at one moment. `now` in seconds on any clock that only grows."""

    now: float
    members: Mapping[ReplicaId, Member]
    """Messages of this attempt only."""
    states: Mapping[ReplicaId, str | None] = field(default_factory=dict)
    """Airflow task states; absent where unknown."""


@dataclass(frozen=True)
class Timers:
    """When things were first seen, on the clock of `Facts.now`. Lost with the owner's process, which only delays."""

    ends: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)


def begin(job: RenderedJob, attempt: str) -> Cluster:
    """The first message of an attempt."""
    return Cluster(attempt=attempt, launch={str(r): 1 for r in job.replicas})


def decide(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> tuple[Cluster, Timers]:
    """What the cluster message says next, and the timers to pass in again. A terminal cluster never changes."""
    if cluster.phase.terminal:
        return cluster, timers
    timers = _watch(job, cluster, timers, facts)
    for step in (_deadline, _ended_outside, _success, _returned, _judge_ends, _stalled, _missing_too_long, _form):
        cluster = step(job, cluster, timers, facts)
        if cluster.phase.terminal:
            break
    return cluster, timers


def _watch(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> Timers:
    ends = {
        key: timers.ends.get(key, facts.now)
        for r, m in facts.members.items()
        if m.status is Status.EXITED and (key := (str(r), m.incarnation, m.generation))
    }
    missing = {str(r): timers.missing.get(str(r), facts.now) for r in job.replicas if _is_missing(r, cluster, facts)}
    return Timers(ends=ends, missing=missing)


def _is_missing(replica: ReplicaId, cluster: Cluster, facts: Facts) -> bool:
    """Not there at all, known to be lost, between two tries, or not yet ready for the generation being formed."""
    member = facts.members.get(replica)
    if member is None or facts.states.get(replica) in GONE:
        return True
    if str(replica) in cluster.lost:
        return True
    return cluster.phase is Phase.FORMING and cluster.told_to_start(replica, member) and member.status != Status.READY


def _deadline(job: RenderedJob, cluster: Cluster, _timers: Timers, _facts: Facts) -> Cluster:
    limit = job.run_policy.active_deadline
    if limit is not None and cluster.elapsed > limit:
        return cluster.failed(
            f"active_deadline: the job ran for {cluster.elapsed:.0f} s, allowed are {limit:.0f} s"
            " (run_policy.active_deadline)"
        )
    return cluster


def _ended_outside(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    for replica in job.replicas:
        state = facts.states.get(replica)
        if state in ENDED:
            return cluster.failed(
                f"{replica}: its task became {state} while the job was {cluster.phase}: a person set it, or Airflow gave it up",
                cause={"replica": str(replica), "state": state},
            )
    return cluster


def _exited_well(replica: ReplicaId, facts: Facts) -> bool:
    member = facts.members.get(replica)
    return bool(
        member
        and member.status is Status.EXITED
        and member.end
        and member.end.code == 0
        and not member.end.stopped
    )


def _success(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    deciding = [job.decider]
    if job.success_policy == "all_workers":
        deciding = [r for r in job.replicas if r.role in ("chief", "worker")] or deciding
    if all(_exited_well(replica, facts) for replica in deciding):
        names = ", ".join(map(str, deciding))
        return replace(
            cluster, phase=Phase.SUCCEEDED, reason=f"{names} ended with exit code 0", cause=None, consequences=()
        )
    return cluster


def _returned(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    """Take in replicas that came back as a new incarnation; a loss nobody saw is dealt with here."""
    for replica in job.replicas:
        member = facts.members.get(replica)
        known = cluster.members.get(str(replica))
        if member is None or known is None or member.incarnation <= known:
            continue
        if str(replica) not in cluster.lost:
            cluster = _lose(job, cluster, replica, f"{replica} came back as a new incarnation")
        if cluster.phase.terminal:
            return cluster
        cluster = replace(
            cluster,
            members={**cluster.members, str(replica): member.incarnation},
            lost=tuple(name for name in cluster.lost if name != str(replica)),
        )
        if replica.role != "evaluator" and member.address != cluster.spec[replica.role][replica.index]:
            everybody = [r for r in job.replicas if r.role != "evaluator"]
            cluster = _new_generation(job, cluster, everybody, f"{replica} is back at another address, {member.address}")
    return cluster


def _judge_ends(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> Cluster:
    """Tell cause from consequence among the programs that ended non-zero, causes first."""
    for replica in _ends_in_order(job, cluster, timers, facts):
        member = facts.members[replica]
        if cluster.told_to_start(replica, member):
            cluster = _note_consequence(cluster, replica)
            continue
        seen = timers.ends[(str(replica), member.incarnation, member.generation)]
        if not _is_own_fault(job, cluster, replica, facts, waited=facts.now - seen):
            continue
        cluster = _own_fault(job, cluster, replica, member)
        if cluster.phase.terminal:
            return cluster
    return cluster


def _ends_in_order(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> list[ReplicaId]:
    """Unjudged ends, the likeliest cause first: nobody can draw it, killed from outside, seen first."""

    def rank(replica: ReplicaId) -> tuple[bool, bool, float]:
        member = facts.members[replica]
        drawn = can_be_drawn(job.strategy, replica, job.replicas)
        return drawn, not _killed(member), timers.ends[(str(replica), member.incarnation, member.generation)]

    open_ends = [
        r
        for r, m in facts.members.items()
        if m.status is Status.EXITED
        and m.end
        and (m.end.code != 0 or m.end.stopped)
        and cluster.verdict_on(r, m) is None
        and m.incarnation == cluster.members.get(str(r), m.incarnation)
    ]
    return sorted(open_ends, key=rank)


def _killed(member: Member) -> bool:
    """True where the end cannot be a peer's doing: a peer's loss is an exception or an abort, never these."""
    end = member.end
    return bool(end and (end.oom_limit or end.stopped or end.signal in ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGBUS")))


def _is_own_fault(job: RenderedJob, cluster: Cluster, replica: ReplicaId, facts: Facts, waited: float) -> bool:
    """False while a lost peer may still turn out to be the cause."""
    if _killed(facts.members[replica]) or not can_be_drawn(job.strategy, replica, job.replicas):
        return True
    return waited >= JUDGE_WINDOW.get(job.strategy, 0.0)


def _own_fault(job: RenderedJob, cluster: Cluster, replica: ReplicaId, member: Member) -> Cluster:
    if member.end is None:
        raise ValueError(f"{replica} reports no end")
    group = job.group_of(replica)
    final = _why_final(group, member)
    verdict = Verdict.FINAL if final else Verdict.RETRY
    judgement = Judgement(member.incarnation, member.generation, verdict)
    cause = {
        "replica": str(replica),
        "code": member.end.code,
        "signal": member.end.signal,
        "end": describe_end(member.end),
        "tail": list(member.tail),
    }
    cluster = replace(
        cluster, verdicts={**cluster.verdicts, str(replica): judgement}, cause=cause, consequences=()
    )
    text = f"{replica} failed: {describe_end(member.end)}"
    if final:
        return cluster.failed(f"{text}; {final}" + _last_lines(member.tail))
    return _lose(job, cluster, replica, text)


def _why_final(group: ReplicaGroup, member: Member) -> str | None:
    if member.final:
        return "trying again cannot help"
    if group.restart_policy == "never":
        return "restart_policy is never"
    if group.restart_policy == "exit_code" and member.end and 1 <= member.end.code <= 127:
        return f"restart_policy is exit_code and {member.end.code} is final (1-127)"
    if member.failures >= group.retries:
        return f"started {member.failures + 1} times, retries is {group.retries}"
    return None


def _last_lines(tail: Iterable[str]) -> str:
    lines = [line for line in tail if line.strip()]
    return "; last lines: " + " | ".join(lines[-5:]) if lines else ""


def _note_consequence(cluster: Cluster, replica: ReplicaId) -> Cluster:
    if str(replica) in cluster.consequences:
        return cluster
    return replace(cluster, consequences=(*cluster.consequences, str(replica)))


def _lose(job: RenderedJob, cluster: Cluster, replica: ReplicaId, reason: str) -> Cluster:
    """Deal with a loss: the peers it draws down start again in a new generation."""
    cluster = replace(cluster, lost=tuple(dict.fromkeys((*cluster.lost, str(replica)))))
    peers = peers_of(job.strategy, replica, job.replicas)
    if not peers:
        return replace(cluster, reason=reason)
    return _new_generation(job, cluster, [replica, *peers], reason)


def _new_generation(job: RenderedJob, cluster: Cluster, again: Iterable[ReplicaId], reason: str) -> Cluster:
    limit = job.run_policy.backoff_limit
    if cluster.restarts >= limit:
        return cluster.failed(
            f"{reason}; the job was started again {cluster.restarts} times, backoff_limit is {limit}"
            " (run_policy.backoff_limit)"
        )
    generation = cluster.generation + 1
    return replace(
        cluster,
        generation=generation,
        restarts=cluster.restarts + 1,
        phase=Phase.FORMING,
        launch={**cluster.launch, **{str(r): generation for r in again}},
        reason=reason,
    )


def _stalled(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    for replica, member in facts.members.items():
        if member.status is Status.STALLED and not cluster.told_to_start(replica, member):
            reason = f"{replica} gave no sign of life for {job.run_policy.stall_timeout:.0f} s (run_policy.stall_timeout)"
            return _new_generation(job, cluster, job.replicas, reason)
    return cluster


def _missing_too_long(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> Cluster:
    limit = job.run_policy.start_timeout
    late = [name for name, since in timers.missing.items() if facts.now - since > limit]
    if not late:
        return cluster
    states = ", ".join(f"{name} ({facts.states.get(ReplicaId.parse(name)) or 'not started'})" for name in late)
    return cluster.failed(
        f"start_timeout: not ready within {limit:.0f} s: {states};"
        " are there executor slots for every replica? (run_policy.start_timeout)"
    )


def _form(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    """Open the generation once everybody who has to start in it stands ready, each with a program that has ended."""
    if cluster.phase is not Phase.FORMING:
        return cluster
    waiting = [r for r in job.replicas if cluster.launch[str(r)] == cluster.generation]
    ready = [m for r in waiting if (m := facts.members.get(r)) and m.status is Status.READY]
    if len(ready) < len(waiting) or len(facts.members) < len(job.replicas):
        return cluster
    if any(facts.states.get(r) in GONE for r in waiting):
        return cluster
    return replace(
        cluster,
        phase=Phase.RUNNING,
        spec=cluster_spec(job, {r: m.address for r, m in facts.members.items()}),
        members={**cluster.members, **{str(r): facts.members[r].incarnation for r in waiting}},
        lost=tuple(name for name in cluster.lost if ReplicaId.parse(name) not in waiting),
    )

