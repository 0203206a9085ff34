"""Cause or consequence: what a program that ended non-zero means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership.facts import Facts, Timers
from tf_operator.membership.losses import lose, start_again
from tf_operator.membership.messages import (
    NOT_STARTED,
    Cluster,
    Judgement,
    Member,
    Phase,
    Status,
    Verdict,
    describe_end,
)
from tf_operator.membership.restart_policy import why_final
from tf_operator.membership.restart_table import can_be_drawn, may_draw

JUDGE_WINDOW = {"parameter_server": 8.0, "multi_worker_mirrored": 20.0}
"""Seconds to wait, after a program that a lost peer draws down ended non-zero, for that peer's loss to show."""
SHORT_WINDOW = 6.0
"""The same where a lost peer only might have drawn it down. A message may be a database's lock (5 s) late."""
LATE = 30.0
"""Seconds within which a program notices that a peer was lost; by then the peer may be back."""

_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM"})


def judge_ends(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> Cluster:
    """Tell cause from consequence among the programs that ended non-zero, causes first."""
    open_ends = _open_ends(job, cluster, timers, facts)
    for replica in open_ends:
        member = facts.members[replica]
        if cluster.told_to_start(replica, member) and not member.final:
            cluster = _note_consequence(cluster, replica)
        elif drawer := _lost_drawer(job, cluster, timers, replica, member):
            cluster = _note_consequence(cluster, replica)
            cluster = start_again(job, cluster, [replica], f"{replica} was drawn down by the loss of {drawer}")
        elif _is_own_fault(job, timers, facts, replica, open_ends):
            cluster = _own_fault(job, cluster, facts, replica)
        if cluster.phase.terminal:
            break
    return cluster


def _open_ends(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> list[ReplicaId]:
    """Unjudged ends, the likeliest cause first: no peer draws it, ended by its own doing, seen first."""

    def rank(replica: ReplicaId) -> tuple[bool, bool, float, tuple[int, int]]:
        member = facts.members[replica]
        drawn = can_be_drawn(job.strategy, replica, job.replicas)
        return drawn, not _own_doing(member), timers.end_seen(replica, member), replica.order

    return sorted((r for r, m in facts.members.items() if _is_open(cluster, r, m)), key=rank)


def _is_open(cluster: Cluster, replica: ReplicaId, member: Member) -> bool:
    """Whether it reports an end other than a good one that has no verdict."""
    end = member.end if member.status is Status.EXITED else None
    return (
        end is not None
        and (end.code != 0 or end.stopped)
        and cluster.verdict_on(replica, member) is None
        and member.incarnation == cluster.members.get(str(replica), member.incarnation)
    )


def _own_doing(member: Member) -> bool:
    """True where the end cannot be a peer's doing: a peer's loss is an exception, an abort or a crash, never these."""
    end = member.end
    if end is None:
        return False
    never_ran = end.code == NOT_STARTED and end.reason is not None
    return bool(member.final or never_ran or end.oom_limit or end.stopped or end.signal in _FROM_OUTSIDE)


def _lost_drawer(
    job: RenderedJob, cluster: Cluster, timers: Timers, replica: ReplicaId, member: Member
) -> ReplicaId | None:
    """A peer that is, or just was, lost and may have taken this program along, though the table does not say so."""
    if _own_doing(member):
        return None
    lost = map(ReplicaId.parse, (*cluster.lost, *sorted(timers.lived_through(replica, member, LATE))))
    return next((one for one in lost if may_draw(job.strategy, one, replica, job.replicas)), None)


def _is_own_fault(
    job: RenderedJob, timers: Timers, facts: Facts, replica: ReplicaId, open_ends: list[ReplicaId]
) -> bool:
    """False while a lost peer may still turn out to be the cause."""
    member = facts.members[replica]
    drawers = [other for other in job.replicas if may_draw(job.strategy, other, replica, job.replicas)]
    if _own_doing(member) or not drawers:
        return True

    def seen(other: ReplicaId) -> tuple[float, tuple[int, int]]:
        return timers.end_seen(other, facts.members[other]), other.order

    if any(other in open_ends and seen(other) < seen(replica) for other in drawers):
        return False
    if all(other in open_ends for other in drawers):
        return True
    drawn = can_be_drawn(job.strategy, replica, job.replicas)
    window = JUDGE_WINDOW.get(job.strategy, SHORT_WINDOW) if drawn else SHORT_WINDOW
    return facts.read_from - timers.end_seen(replica, member) >= window


def decisive(job: RenderedJob, cluster: Cluster, members: Mapping[ReplicaId, Member]) -> set[ReplicaId]:
    """Those whose word decides between cause and consequence of an end that nobody has judged yet."""
    unjudged = [
        r
        for r, m in members.items()
        if _is_open(cluster, r, m) and not _own_doing(m) and not cluster.told_to_start(r, m)
    ]
    return {other for r in unjudged for other in job.replicas if may_draw(job.strategy, other, r, job.replicas)}


def _own_fault(job: RenderedJob, cluster: Cluster, facts: Facts, replica: ReplicaId) -> Cluster:
    member = facts.members[replica]
    if member.end is None:
        raise ValueError(f"{replica} reports no end")
    final = why_final(job.group_of(replica), member)
    verdict = Verdict.FINAL if final else Verdict.RETRY
    judgement = Judgement(member.incarnation, member.generation, verdict)
    cause = {
        "replica": str(replica),
        "code": member.end.code,
        "signal": member.end.signal,
        "end": describe_end(member.end),
        "tail": list(member.tail),
    }
    cluster = replace(cluster, verdicts={**cluster.verdicts, str(replica): judgement}, cause=cause, consequences=())
    text = f"{replica} failed: {describe_end(member.end)}"
    if final:
        return cluster.failed(f"{text}; {final}" + _last_lines(member.tail))
    return lose(job, cluster, facts, replica, text)


def _last_lines(tail: Iterable[str]) -> str:
    lines = [line for line in tail if line.strip()]
    return "; last lines: " + " | ".join(lines[-5:]) if lines else ""


def note_late(job: RenderedJob, cluster: Cluster, members: Mapping[ReplicaId, Member]) -> Cluster:
    """Add the programs that the cause of a failure drew down while the word of it was on its way to them."""
    if cluster.phase is not Phase.FAILED or not cluster.cause:
        return cluster
    cause = ReplicaId.parse(str(cluster.cause["replica"]))
    for replica, member in sorted(members.items(), key=lambda item: item[0].order):
        end = member.end
        fell = member.status is Status.EXITED and end is not None and end.code != 0 and not _own_doing(member)
        known = member.incarnation == cluster.members.get(str(replica))
        unjudged = cluster.verdict_on(replica, member) is None
        if fell and known and unjudged and may_draw(job.strategy, cause, replica, job.replicas):
            cluster = _note_consequence(cluster, replica)
    return cluster


def _note_consequence(cluster: Cluster, replica: ReplicaId) -> Cluster:
    if str(replica) in cluster.consequences:
        return cluster
    return replace(cluster, consequences=(*cluster.consequences, str(replica)))
