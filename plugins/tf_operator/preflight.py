"""What can be known before any GPU is taken: is this installation able to run this job?

Plain functions over plain facts, most of which return one line that says what is wrong, or None. What looks at the
host's settings raises PreflightError.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tf_operator import settings
from tf_operator.errors import PreflightError
from tf_operator.job_spec.rendered import RenderedJob, ReplicaGroup
from tf_operator.job_spec.units import seconds

KINDS = ("process", "docker")
"""Runtime kinds that have a runner."""
RESERVE_AFTER = "10m"


@dataclass(frozen=True)
class Limits:
    """Limits of Airflow that would hold back a part of the gang. None: no such limit."""

    max_active_tasks: int | None = None
    parallelism: int | None = None
    """Executor slots of the LocalExecutor; of other executors Airflow does not know it."""
    max_map_length: int | None = None
    heartbeat_timeout: float = 300.0
    orphan_scan: float = 10.0
    slots_per_gpu: int = 1


def check(job: RenderedJob, limits: Limits, *, here: bool = True) -> None:
    """Raise PreflightError with everything that is wrong, one line each. Not `here`: nothing of this host counts."""
    faults = [fault for fault in _faults(job, limits, here) if fault]
    if faults:
        raise PreflightError("\n".join(f"job {job.name}: {fault}" for fault in faults))


def _faults(job: RenderedJob, limits: Limits, here: bool) -> Iterable[str | None]:
    yield _counts(job, limits)
    yield _orphan_timeout(job, limits)
    for group in job.groups:
        if group.count:
            yield _kind(group)
            yield _share(group, limits)
        if here and group.count and group.runtime.kind == "process":
            yield _working_dir(group)
            yield _interpreter(group)


def check_settings() -> None:
    """Raise PreflightError with every setting that the watchers could not use on this host, one line each."""
    faults = []
    for setting in (usable_state_dir, settings.port_range, reserve_after):
        try:
            setting()
        except PreflightError as error:
            faults.append(str(error))
    if faults:
        raise PreflightError("\n".join(faults))


def usable_state_dir() -> Path:
    """The folder, made where missing. PreflightError where it cannot be written."""
    path = settings.state_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise PreflightError(
            f"[tf_operator] state_dir = {path}: cannot be written ({error.strerror or error}); name a folder of this"
            " host that the user of its workers may write"
        ) from None


def reserve_after() -> float:
    """Seconds a job waits for its slots until it goes before all that come later. PreflightError if it is none."""
    text = settings.get("reserve_after") or RESERVE_AFTER
    try:
        return seconds(text)
    except ValueError as error:
        raise PreflightError(f"[tf_operator] reserve_after = {text}: {error}") from None


def _counts(job: RenderedJob, limits: Limits) -> str | None:
    count = sum(group.count for group in job.groups)
    if limits.max_active_tasks is not None and count > limits.max_active_tasks:
        return (
            f"{count} replicas must run at once, the DAG's max_active_tasks is {limits.max_active_tasks};"
            " give the count's param a maximum; in a DAG of your own raise it there, or [core] max_active_tasks_per_dag"
        )
    if limits.parallelism is not None and count > limits.parallelism:
        return (
            f"{count} replicas must run at once, [core] parallelism gives the executor {limits.parallelism} slots;"
            " raise it above the number of replicas"
        )
    longest = max((group.count for group in job.groups), default=0)
    if limits.max_map_length is not None and longest > limits.max_map_length:
        return f"{longest} replicas of one type, [core] max_map_length is {limits.max_map_length}; raise it"
    return None


def _orphan_timeout(job: RenderedJob, limits: Limits) -> str | None:
    least = limits.heartbeat_timeout + limits.orphan_scan + job.retry_delay + 60
    if job.run_policy.orphan_timeout >= least:
        return None
    return (
        f"run_policy.orphan_timeout = {job.run_policy.orphan_timeout:.0f} s: a program would end before Airflow notices"
        f" that its watcher is lost; at least {least:.0f} s (heartbeat time-out + scan + retry_delay + 60 s)"
    )


def _kind(group: ReplicaGroup) -> str | None:
    if group.runtime.kind in KINDS:
        return None
    return f"{group.task_id}: runtime.kind = {group.runtime.kind}: is not built yet; use {' or '.join(KINDS)}"


def _share(group: ReplicaGroup, limits: Limits) -> str | None:
    """A part of a device is a whole number of the pool's slots: 0.25 needs slots_per_gpu 4, 8 ..."""
    slots = group.gpus * limits.slots_per_gpu
    if group.gpus == int(group.gpus) or slots == int(slots):
        return None
    return (
        f"{group.task_id}: gpus = {group.gpus:g}: the pool has slots_per_gpu {limits.slots_per_gpu}, so the share is no"
        " whole number of slots; set slots_per_gpu in configs/pools.yaml, then `tf-operator pools`"
    )


def _working_dir(group: ReplicaGroup) -> str | None:
    if Path(group.working_dir).is_dir():
        return None
    return f"{group.task_id}: working_dir = {group.working_dir}: there is no such folder on this host"


def _interpreter(group: ReplicaGroup) -> str | None:
    program = group.command[0]
    if "/" in program:
        path = Path(group.working_dir, program)
        if path.is_file() and os.access(path, os.X_OK):
            return None
    elif shutil.which(program):
        return None
    where = "runtime.python" if program == group.runtime.python else "program.command"
    return f"{group.task_id}: {where} = {program}: there is no such program on this host; is its environment installed?"


def triggerer_health(fetch: Callable[[], str | None], pause: Callable[[], bool]) -> str | None:
    """PreflightError if the API server says that no triggerer lives: cluster and admission would wait for ever.

    `fetch` asks for the triggerer's status and raises OSError where it gets no answer yet, ValueError where it never
    will; `pause` waits a little and is False once the patience is over. Returns why the status is not known, None where
    it is healthy: who cannot ask must not fail the job for it.
    """
    while True:
        unknown, status = None, None
        try:
            status = fetch()
        except (OSError, ValueError) as error:
            unknown = f"the API server's health cannot be read: {error}"
            if isinstance(error, ValueError):
                return unknown
        if status == "healthy":
            return None
        if pause():
            continue
        if unknown:
            return unknown
        raise PreflightError(
            "no triggerer is running: cluster and admission need one; start `airflow triggerer`"
            f" (the API server says: {status})"
        )
