"""Puts together what a watcher uses of the machine it runs on: the runner, the devices, the secrets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tf_operator import settings
from tf_operator.errors import DeviceError, RunnerError
from tf_operator.identity import Identity
from tf_operator.job_spec.rendered import RenderedJob, ReplicaGroup
from tf_operator.runners.base import Runner, SecretBundle
from tf_operator.supervision import DeviceLease, Host

Login = Callable[[str], Any]


def runner_for(group: ReplicaGroup, masks: Callable[[], Sequence[str]] | None = None) -> Runner:
    """The runner of a group's runtime kind; `masks` gives the texts to mask, for output of a container that has ended.

    RunnerError where this version has none.
    """
    if group.runtime.kind == "process":
        from tf_operator.runners.process import ProcessRunner

        return ProcessRunner(settings.state_dir(), settings.port_range())
    if group.runtime.kind == "docker":
        from tf_operator.runners.docker import DockerRunner

        return DockerRunner(settings.state_dir(), conn_id=group.runtime.options.get("docker_conn_id"), masks=masks)
    raise RunnerError(f"runtime.kind = {group.runtime.kind}: there is no such runner here; use process or docker")


def host_for(job: RenderedJob, identity: Identity, slots_per_gpu: int, *, login: Login) -> Host:
    """What the watcher of one replica needs. Nothing is reached before it is used."""
    group = job.group_of(identity.replica)

    def masks() -> Sequence[str]:
        from tf_operator.secrets import resolve

        # Refused for what lives by a lease: another read would give another value.
        return resolve(job.secrets, login).mask

    def devices() -> DeviceLease | None:
        if not group.gpus:
            return None
        from tf_operator.gpus import DeviceLeases
        from tf_operator.runners.clearing import settle_dead

        leases = DeviceLeases(settings.state_dir())
        try:
            return leases.acquire(identity, group.gpus, slots_per_gpu)
        except DeviceError:
            # What a killed keeper left may hold devices on, and its own watcher may be dead, too.
            if not settle_dead(settings.state_dir(), leases.held_keys()):
                raise
        return leases.acquire(identity, group.gpus, slots_per_gpu)

    runner = runner_for(group, masks)
    if not job.secrets:
        return Host(runner=runner, secrets=SecretBundle, devices=devices)
    from tf_operator.secrets.custody import Custody
    from tf_operator.secrets.ledger import Ledger

    custody = Custody(job.secrets, login, identity, Ledger(settings.state_dir(), identity.key))
    return Host(runner=runner, secrets=custody.fetch, devices=devices, leases=custody)
