"""Who has to start again when a replica is lost: by strategy and role, as measured with TensorFlow 2.21.

| lost | parameter_server | multi_worker_mirrored | between_graph, in_graph, none |
|---|---|---|---|
| worker | it alone | everybody | it alone |
| ps | it and the chief; workers stay | - | it alone |
| chief | it alone | everybody | it alone |

The evaluator is in nobody's cluster: it comes back alone and draws nobody. A replica that comes back at another
address makes everybody start again, whatever the strategy: the ClusterSpec has changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tf_operator.identity import ReplicaId

_EVERYBODY = ("chief", "worker", "ps")

_PEERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("parameter_server", "ps"): ("chief",),
    ("multi_worker_mirrored", "worker"): _EVERYBODY,
    ("multi_worker_mirrored", "chief"): _EVERYBODY,
}

_SERVERS: dict[str, tuple[str, ...]] = {
    "parameter_server": ("ps", "worker"),
    "between_graph": ("ps",),
    "in_graph": ("ps", "worker"),
}
"""Replica types that only serve the others and never end by themselves."""


def peers_of(strategy: str, lost: ReplicaId, replicas: Iterable[ReplicaId]) -> list[ReplicaId]:
    """The other replicas whose programs must start again when `lost` is lost.

    A ParameterServerStrategy without a chief is coordinated by worker 0: then that is the one a ps draws down.
    """
    replicas = list(replicas)
    roles = _PEERS.get((strategy, lost.role), ())
    peers = [replica for replica in replicas if replica.role in roles and replica != lost]
    if strategy == "parameter_server" and lost.role == "ps" and not peers:
        peers = [replica for replica in replicas if replica == ReplicaId("worker", 0)]
    return peers


def serves(strategy: str, replica: ReplicaId) -> bool:
    """True where the replica only serves: the others need it for as long as they run."""
    return replica.role in _SERVERS.get(strategy, ())


def can_be_drawn(strategy: str, replica: ReplicaId, replicas: Iterable[ReplicaId]) -> bool:
    """True where the loss of some other replica ends the program of `replica`."""
    replicas = list(replicas)
    return any(replica in peers_of(strategy, lost, replicas) for lost in replicas if lost != replica)


def may_draw(strategy: str, lost: ReplicaId, other: ReplicaId, replicas: Iterable[ReplicaId]) -> bool:
    """True where a program of `other` that ends non-zero may do so because of the loss of `lost`.

    Wider than the table: TensorFlow's own servers survive the loss of a chief, and workers that of a ps, but a
    training program may give up when its connection breaks.
    """
    if lost == other or strategy == "none" or "evaluator" in (lost.role, other.role):
        return False
    if other in peers_of(strategy, lost, replicas):
        return True
    return (lost.role, other.role) in (("ps", "worker"), ("ps", "chief"), ("chief", "worker"))
