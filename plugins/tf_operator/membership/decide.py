"""The owner's decision: a pure function of facts.

`decide` reads what is known of the replicas and returns what the cluster message must say next. It reads no clock,
touches no Airflow and no program; whoever calls it (the cluster trigger, `local`) only gathers facts and carries the
result out.
"""

from __future__ import annotations

from dataclasses import replace

from tf_operator.cluster_spec import cluster_spec
from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership.backoff import pause
from tf_operator.membership.facts import ENDED, GONE, Facts, Timers, deciders, end_key
from tf_operator.membership.judgement import judge_ends
from tf_operator.membership.losses import lose, start_again
from tf_operator.membership.messages import Cluster, Phase, Status
from tf_operator.membership.restart_policy import out_of_retries
from tf_operator.membership.restart_table import serves

__all__ = ["ENDED", "GONE", "Facts", "Timers", "begin", "decide"]

START_MARGIN = 60.0
"""Seconds beyond `start_timeout` for a replica that may start: its watcher's own word on devices comes first."""


def begin(job: RenderedJob, attempt: str, tries_left: int = 0, elapsed: float = 0.0) -> Cluster:
    """The first message of an attempt. `tries_left`, `elapsed` (in the attempts before it): see `Cluster`."""
    return Cluster(attempt, launch={str(r): 1 for r in job.replicas}, tries_left=tries_left, elapsed=elapsed)


def decide(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> tuple[Cluster, Timers]:
    """What the cluster message says next, and the timers to pass in again. A terminal cluster never changes."""
    if cluster.phase.terminal:
        return cluster, timers
    timers = _watch(job, cluster, timers, facts)
    steps = (_success, _deadline, _ended_outside, _returned, judge_ends, _unserved, _stalled, _missing_too_long, _form)
    for step in steps:
        cluster = step(job, cluster, timers, facts)
        if cluster.phase.terminal:
            break
    return cluster, timers


def _watch(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> Timers:
    ends = {
        key: timers.ends.get(key, facts.now)
        for r, m in facts.members.items()
        if m.status is Status.EXITED and (key := end_key(r, m))
    }
    missing = {str(r): timers.missing.get(str(r), facts.now) for r in job.replicas if _is_missing(r, cluster, facts)}
    programs = {
        key: timers.programs.get(key, facts.now)
        for r, m in facts.members.items()
        if m.generation and (key := end_key(r, m))
    }
    back = [str(r) for r, m in facts.members.items() if m.incarnation > cluster.members.get(str(r), m.incarnation)]
    gone = {**timers.gone, **dict.fromkeys((*cluster.lost, *back), facts.now)}
    return Timers(ends=ends, missing=missing, programs=programs, gone=gone)


def _is_missing(replica: ReplicaId, cluster: Cluster, facts: Facts) -> bool:
    """Not there at all, known to be lost, between two tries, or not doing what it was told to.

    While the generation forms, that is to stand ready with no program; then to start one.
    """
    member = facts.members.get(replica)
    if member is None or facts.states.get(replica) in GONE or str(replica) in cluster.lost:
        return True
    if not cluster.told_to_start(replica, member):
        return False
    return cluster.phase is Phase.RUNNING or member.status is not Status.READY


def _success(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    deciding = deciders(job)
    if not all(facts.ended_well(replica) for replica in deciding):
        return cluster
    reason = f"{', '.join(map(str, deciding))} ended with exit code 0"
    return replace(cluster, phase=Phase.SUCCEEDED, reason=reason, cause=None, consequences=())


def _deadline(job: RenderedJob, cluster: Cluster, _timers: Timers, _facts: Facts) -> Cluster:
    limit = job.run_policy.active_deadline
    if limit is None or cluster.elapsed <= limit:
        return cluster
    reason = f"active_deadline: the job ran for {cluster.elapsed:.0f} s, allowed are {limit:.0f} s"
    return cluster.failed(f"{reason} (run_policy.active_deadline)", cause=None, consequences=())


def _ended_outside(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    for replica in job.replicas:
        state = facts.states.get(replica)
        if state in ENDED:
            own = ", or its watcher could not go on: its log says why" if state == "failed" else ""
            return cluster.failed(
                f"{replica}: its task became {state} while the job was {cluster.phase}:"
                f" a person set it, or Airflow gave it up{own}",
                cause={"replica": str(replica), "state": state},
                consequences=(),
            )
    return cluster


def _returned(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    """Take in replicas that came back as a new incarnation; a loss nobody saw is dealt with here."""
    for replica in job.replicas:
        member = facts.members.get(replica)
        known = cluster.members.get(str(replica))
        if member is None or known is None or member.incarnation <= known:
            continue
        group = job.group_of(replica)
        if member.failures > (0 if group.restart_policy == "never" else group.retries):
            text = out_of_retries(group, member.failures) or "restart_policy is never"
            return cluster.failed(
                f"{replica} was lost with its watcher; {text}", cause={"replica": str(replica)}, consequences=()
            )
        cluster = _take_in(job, cluster, facts, replica)
        if cluster.phase.terminal:
            break
    return cluster


def _take_in(job: RenderedJob, cluster: Cluster, facts: Facts, replica: ReplicaId) -> Cluster:
    member, name = facts.members[replica], str(replica)
    # While a generation forms, whoever is to start in it has been stopped anyway: there was nothing to lose.
    was_stopped = cluster.phase is Phase.FORMING and cluster.launch[name] == cluster.generation
    if name not in cluster.lost and not was_stopped:
        cluster = lose(job, cluster, facts, replica, f"{replica} came back as a new incarnation")
    cluster = replace(
        cluster,
        members={**cluster.members, name: member.incarnation},
        lost=tuple(other for other in cluster.lost if other != name),
    )
    if cluster.phase.terminal or replica.role == "evaluator":
        return cluster
    if _plain(member.address) == _plain(cluster.spec[replica.role][replica.index]):
        return cluster
    everybody = [r for r in job.replicas if r.role != "evaluator"]
    return start_again(job, cluster, everybody, f"{replica} is back at another address, {member.address}")


def _plain(address: str) -> str:
    """An address as it compares: the ClusterSpec holds it in lower case, IPv6 hosts in brackets."""
    return address.strip().lower().replace("[", "").replace("]", "")


def _unserved(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    """Note the servers that ended with 0. Mostly the job is about to end; if not, its silence now has a limit."""
    deciding = deciders(job)
    gone = tuple(str(r) for r in job.replicas if serves(job.strategy, r) and r not in deciding and facts.ended_well(r))
    if gone == cluster.unserved or cluster.phase is not Phase.RUNNING:
        return cluster
    text = f"{', '.join(gone)} ended with exit code 0 while the job goes on: who needs it waits for ever"
    return replace(cluster, unserved=gone, reason=text if gone else cluster.reason)


def _stalled(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    for replica, member in facts.members.items():
        if member.status is Status.STALLED and not cluster.told_to_start(replica, member):
            limit, field = job.run_policy.silence(bool(cluster.unserved))
            reason = f"{replica} gave no sign of life for {limit or 0.0:.0f} s (run_policy.{field})"
            cause = {"replica": str(replica), "end": "stalled"}
            if cluster.unserved:
                reason = f"{', '.join(cluster.unserved)} ended with exit code 0 while the job needs it: {reason}"
                cause = {"replica": cluster.unserved[0], "end": "exit code 0"}
            return start_again(job, replace(cluster, cause=cause, consequences=()), job.replicas, reason)
    return cluster


def _missing_too_long(job: RenderedJob, cluster: Cluster, timers: Timers, facts: Facts) -> Cluster:
    limit = job.run_policy.start_timeout
    late = [
        name for name, since in timers.missing.items() if facts.now - since > limit + _extra(job, cluster, facts, name)
    ]
    if not late:
        return cluster
    states = ", ".join(f"{name} ({_where(ReplicaId.parse(name), facts)})" for name in late)
    cause = cluster.cause if cluster.cause and cluster.cause.get("replica") in late else None
    reason = (
        f"start_timeout: not ready within {limit:.0f} s: {states};"
        " are there executor slots for every replica? (run_policy.start_timeout)"
    )
    again_after = None
    if cluster.tries_left:
        again_after = pause(job, cluster.attempt, max(0, job.run_policy.backoff_limit - cluster.tries_left))
        left = f"{cluster.tries_left} more at most"
        reason += f"; all is let go, to be asked for again in {again_after:.0f} s ({left})"
    return cluster.failed(reason, cause=cause, consequences=(), again_after=again_after)


def _extra(job: RenderedJob, cluster: Cluster, facts: Facts, name: str) -> float:
    """A lost replica, or a lost watcher, first waits `retry_delay`. A program whose watcher is lost trains on
    meanwhile: it is waited for as long as it lives. One that may start has a watcher that speaks for it.
    """
    replica = ReplicaId.parse(name)
    if name in cluster.lost:
        return job.retry_delay
    member = facts.members.get(replica)
    if member is not None and facts.states.get(replica) in GONE:
        # While a generation forms nobody trains: the others hold their slots for nothing.
        lives = cluster.phase is Phase.RUNNING and member.status in (Status.RUNNING, Status.STALLED)
        return job.retry_delay + (
            max(0.0, job.run_policy.orphan_timeout - job.run_policy.start_timeout) if lives else 0
        )
    return START_MARGIN if cluster.phase is Phase.RUNNING else 0.0


def _where(replica: ReplicaId, facts: Facts) -> str:
    member = facts.members.get(replica)
    return facts.states.get(replica) or (f"its program is {member.status}" if member else "not started")


def _form(job: RenderedJob, cluster: Cluster, _timers: Timers, facts: Facts) -> Cluster:
    """Open the generation once everybody who has to start stands ready, each with a program that has ended."""
    if cluster.phase is not Phase.FORMING or any(r not in facts.members for r in job.replicas):
        return cluster
    waiting = [r for r in job.replicas if _waits(r, cluster, facts)]
    if any(facts.members[r].status is not Status.READY or facts.states.get(r) in GONE for r in waiting):
        return cluster
    return replace(
        cluster,
        phase=Phase.RUNNING,
        spec=cluster_spec(job, {r: m.address for r, m in facts.members.items()}),
        members={**cluster.members, **{str(r): facts.members[r].incarnation for r in waiting}},
        lost=tuple(name for name in cluster.lost if ReplicaId.parse(name) not in waiting),
    )


def _waits(replica: ReplicaId, cluster: Cluster, facts: Facts) -> bool:
    """Whether the generation opens only with this replica: the address of one that is still away is not known.

    The evaluator has no address; once the job has begun nobody waits for it.
    """
    if cluster.launch[str(replica)] == cluster.generation:
        return True
    if replica.role == "evaluator":
        return False
    return str(replica) in cluster.lost or cluster.told_to_start(replica, facts.members[replica])
