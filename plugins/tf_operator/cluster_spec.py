"""From a rendered job and its replicas' addresses to the ClusterSpec and each replica's TF_CONFIG. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tf_operator.errors import JobError
from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob

MEMBERS = ("chief", "worker", "ps")
"""Replica types that belong to the cluster. TensorFlow waits for every member: an evaluator opens no server."""


def members(job: RenderedJob) -> list[ReplicaId]:
    """The replicas that belong to the cluster, in role order, then index order."""
    return [replica for replica in job.replicas if replica.role in MEMBERS]


def cluster_spec(job: RenderedJob, addresses: Mapping[ReplicaId, str]) -> dict[str, list[str]]:
    """Addresses by role, in index order, without empty roles. JobError if one is missing, malformed or used twice."""
    spec: dict[str, list[str]] = {}
    owners: dict[str, ReplicaId] = {}
    for replica in members(job):
        if replica not in addresses:
            raise JobError(f"job {job.name}: {replica} has no address; every member of the cluster needs one")
        address = _normalized(job, replica, addresses[replica])
        if address in owners:
            raise JobError(
                f"job {job.name}: {replica} = {address}: is {owners[address]}'s address too; give each its own port"
            )
        owners[address] = replica
        spec.setdefault(replica.role, []).append(address)
    return spec


def tf_config(job: RenderedJob, spec: Mapping[str, Sequence[str]], replica: ReplicaId) -> dict[str, Any] | None:
    """TF_CONFIG of one replica; None where the job has `tf_config: false`."""
    job.group_of(replica)
    if not job.tf_config:
        return None
    cluster = {role: list(spec[role]) for role in MEMBERS if spec.get(role)}
    return {"cluster": cluster, "task": {"type": replica.role, "index": replica.index}}


def tf_config_json(job: RenderedJob, spec: Mapping[str, Sequence[str]], replica: ReplicaId) -> str | None:
    """TF_CONFIG as the program gets it: the cluster's bytes are the same for every replica of the job."""
    config = tf_config(job, spec, replica)
    return None if config is None else json.dumps(config, separators=(",", ":"))


def _normalized(job: RenderedJob, replica: ReplicaId, address: str) -> str:
    host, _, port = address.strip().rpartition(":")
    host = host.lower()
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise JobError(f'job {job.name}: {replica} = "{address}": must be host:port with a port of 1 to 65535')
    return f"{host}:{int(port)}"
