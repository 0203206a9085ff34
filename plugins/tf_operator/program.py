"""What a replica's program is given: its environment and its launch. Pure: the host's part is passed in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_operator.cluster_spec import tf_config_json
from tf_operator.errors import JobError
from tf_operator.gpus import device_env
from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.rendered import RenderedJob, ReplicaGroup
from tf_operator.membership import Cluster
from tf_operator.runners import result_file
from tf_operator.runners.base import Launch

INHERITED = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH")
"""What a program sees of the worker's own environment. Nothing of Airflow's or Vault's configuration is among it."""
INHERITED_BY_CONTAINERS = ("LANG", "TZ")
"""An image has paths and a home of its own."""


@dataclass(frozen=True)
class Start:
    """One start of one replica, as the cluster message allows it."""

    identity: Identity
    incarnation: int
    cluster: Cluster

    @property
    def replica(self) -> ReplicaId:
        """The replica that starts."""
        return self.identity.replica

    @property
    def generation(self) -> int:
        """The generation the program is started in."""
        return self.cluster.launch[str(self.replica)]


def result_path(model_dir: str | Path, attempt: str, replica: ReplicaId) -> Path:
    """Where a replica's program may write its result (JSON); the deciding replica's becomes the group's XCom."""
    return Path(model_dir, *result_file.FOLDER, f"{attempt}-{replica}.json")


def read_result(path: Path) -> Any:
    """What the program wrote there, NaN and infinities as null; None if it wrote nothing.

    JobError if that is no JSON, or no file to read.
    """
    try:
        return json.loads(result_file.read(path), parse_constant=lambda _: None)
    except FileNotFoundError:
        return None
    except result_file.UnfitError as error:
        raise JobError(f"{result_file.VARIABLE} = {path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        text = f"{result_file.VARIABLE} = {path}: the program wrote something that is not JSON: {error}"
        raise JobError(text) from None


def program_env(
    job: RenderedJob,
    start: Start,
    *,
    inherited: Mapping[str, str],
    devices: Sequence[str],
    device_memory: int | None = None,
) -> dict[str, str]:
    """The program's whole environment but for secrets. `devices`: leased ids, none = the program sees no device.

    `device_memory`: bytes it may use of a device it has a part of, where that is known.
    """
    group = job.group_of(start.replica)
    names = INHERITED if group.runtime.kind == "process" else INHERITED_BY_CONTAINERS
    env = {key: inherited[key] for key in names if key in inherited}
    env |= {"PYTHONUNBUFFERED": "1", "GRPC_FAIL_FAST": "use_caller"}
    env |= _threads(group)
    env |= _part(group, device_memory)
    env |= group.env
    env |= _no_proxy(start.cluster, env)
    env |= device_env(devices)
    env |= {
        "TF_OPERATOR_MODEL_DIR": job.model_dir,
        result_file.VARIABLE: str(result_path(job.model_dir, start.cluster.attempt, start.replica)),
        "TF_OPERATOR_GENERATION": str(start.generation),
    }
    config = tf_config_json(job, dict(start.cluster.spec), start.replica)
    if config is not None:
        env["TF_CONFIG"] = config
    return env


def _no_proxy(cluster: Cluster, env: Mapping[str, str]) -> dict[str, str]:
    """gRPC would send the cluster's own traffic through a proxy otherwise. What the job excludes stays excluded."""
    hosts = {address.rpartition(":")[0].strip("[]") for role in cluster.spec.values() for address in role}
    if not hosts:
        return {}
    own = env.get("no_proxy") or env.get("NO_PROXY") or ""
    text = ",".join([*([own] if own else []), *sorted(hosts)])
    return {"no_proxy": text, "NO_PROXY": text}


def _threads(group: ReplicaGroup) -> dict[str, str]:
    """For processes `cpus` sizes the thread pools; it reserves nothing."""
    if group.cpus is None or group.runtime.kind != "process":
        return {}
    threads = str(max(1, round(group.cpus)))
    return {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads}


def _part(group: ReplicaGroup, memory: int | None) -> dict[str, str]:
    """Who has a part of a device must not take all of its memory at the start, as TensorFlow does if it is not told."""
    if not 0 < group.gpus < 1:
        return {}
    limit = {} if memory is None else {"TF_OPERATOR_GPU_MEMORY_MB": str(memory >> 20)}
    return {"TF_FORCE_GPU_ALLOW_GROWTH": "true", **limit}


def make_launch(
    job: RenderedJob,
    start: Start,
    *,
    inherited: Mapping[str, str],
    devices: Sequence[str] = (),
    device_fds: Sequence[int] = (),
    device_memory: int | None = None,
) -> Launch:
    """Everything the runner needs to start the program once, but for its secrets."""
    group = job.group_of(start.replica)
    return Launch(
        identity=start.identity,
        attempt=start.cluster.attempt,
        incarnation=start.incarnation,
        generation=start.generation,
        argv=tuple(group.command),
        working_dir=group.working_dir,
        env=program_env(job, start, inherited=inherited, devices=devices, device_memory=device_memory),
        memory=group.memory,
        cpus=group.cpus,
        termination_grace=job.run_policy.termination_grace,
        orphan_timeout=job.run_policy.orphan_timeout,
        runtime=group.runtime.model_dump(),
        devices=tuple(devices),
        device_fds=tuple(device_fds),
    )
