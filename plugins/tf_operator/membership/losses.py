"""A replica is lost: whose programs start again, and in which generation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership.facts import Facts
from tf_operator.membership.messages import Cluster, Phase
from tf_operator.membership.restart_table import peers_of, serves


def lose(job: RenderedJob, cluster: Cluster, facts: Facts, replica: ReplicaId, reason: str) -> Cluster:
    """Deal with a loss: the peers it draws down start again in a new generation.

    So do servers that ended with 0 too early: whoever comes back would wait for them for ever.
    """
    cluster = replace(cluster, lost=tuple(dict.fromkeys((*cluster.lost, str(replica)))))
    again = peers_of(job.strategy, replica, job.replicas)
    if replica.role != "evaluator":
        again += [r for r in job.replicas if serves(job.strategy, r) and facts.ended_well(r) and r not in again]
    if not again:
        return replace(cluster, reason=reason)
    return start_again(job, cluster, [replica, *again], reason)


def start_again(job: RenderedJob, cluster: Cluster, again: Iterable[ReplicaId], reason: str) -> Cluster:
    """Let the programs of `again` start in a generation that nobody has started in yet.

    That is the present one while it is still forming, so that losses that come together cost one generation.
    """
    generation, restarts = cluster.generation, cluster.restarts
    if cluster.phase is not Phase.FORMING:
        limit = job.run_policy.backoff_limit
        if restarts >= limit:
            return cluster.failed(
                f"{reason}; the job was started again {restarts} times, backoff_limit is {limit}"
                " (run_policy.backoff_limit)"
            )
        generation, restarts = generation + 1, restarts + 1
    return replace(
        cluster,
        generation=generation,
        restarts=restarts,
        phase=Phase.FORMING,
        launch={**cluster.launch, **{str(r): generation for r in again}},
        reason=reason,
    )
