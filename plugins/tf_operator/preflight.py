"""What can be known before any GPU is taken: is this installation able to run this job?

Plain functions over plain facts; each returns one line that says what is wrong, or None.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tf_operator.errors import PreflightError
from tf_operator.job_spec.rendered import RenderedJob, ReplicaGroup


@dataclass(frozen=True)
class Limits:
    """Limits of Airflow that would hold back a part of the gang. None: no such limit."""

    max_active_tasks: int | None = None
    parallelism: int | None = None
    """Executor slots of the LocalExecutor; of other executors Airflow does not know it."""
    max_map_length: int | None = None
    heartbeat_timeout: float = 300.0
    orphan_scan: float = 10.0


def check(job: RenderedJob, limits: Limits) -> None:
    """Raise PreflightError with everything that is wrong, one line each."""
    faults = [fault for fault in _faults(job, limits) if fault]
    if faults:
        raise PreflightError("\n".join(f"job {job.name}: {fault}" for fault in faults))


def _faults(job: RenderedJob, limits: Limits) -> Iterable[str | None]:
    yield _counts(job, limits)
    yield _orphan_timeout(job, limits)
    for group in job.groups:
        if group.count and group.runtime.kind == "process":
            yield _working_dir(group)
            yield _interpreter(group)


def _counts(job: RenderedJob, limits: Limits) -> str | None:
    count = len(job.replicas)
    if limits.max_active_tasks is not None and count > limits.max_active_tasks:
        return (
            f"{count} replicas must run at once, the DAG's max_active_tasks is {limits.max_active_tasks};"
            " raise it in the DAG, or [core] max_active_tasks_per_dag"
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


def triggerer_health(fetch: Callable[[], dict[str, dict[str, str]]], pause: Callable[[], bool]) -> None:
    """PreflightError if no triggerer is alive: cluster and admission would wait for ever.

    `fetch` asks the API server's health; `pause` waits a little and is False once the patience is over.
    """
    while True:
        try:
            status = fetch().get("triggerer", {}).get("status")
        except (OSError, ValueError) as error:
            raise PreflightError(f"the API server's health cannot be read: {error}") from error
        if status == "healthy":
            return
        if not pause():
            raise PreflightError(
                "no triggerer is running: cluster and admission need one; start `airflow triggerer`"
                f" (the API server says: {status})"
            )
