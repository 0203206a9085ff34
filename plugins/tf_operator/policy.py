"""The cluster policy: gives a job's `cluster` task the slots its run's params ask for.

Airflow loads this module in every process (entry point group `airflow.policy`) and calls the hook where a run is made
or cleared: in the API server, the CLI and the scheduler. It reads the run's conf and the pool, never a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import airflow.settings
from airflow.policies import hookimpl

from tf_operator.errors import JobError
from tf_operator.gang import DEFAULT_POOL_RULE, asks_for_slots, count_replicas, evaluate
from tf_operator.pools import slots_per_gpu
from tf_operator.teams import pool_fault

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

# Airflow only stops treating the hook as absent when an airflow_local_settings module exists; without this line run
# creation bulk-inserts the tasks and never calls us.
airflow.settings.task_instance_mutation_hook.is_noop = False  # type: ignore[attr-defined]


@hookimpl
def task_instance_mutation_hook(task_instance: TaskInstance, dag_run: DagRun | None) -> None:
    """Set pool and slots of a job's cluster task. A run that can never fit is let through, to fail at once."""
    task = getattr(task_instance, "task", None)
    gang = getattr(task, "gang", None)
    awaited = getattr(task, "awaits_policy", False)
    if dag_run is None or (gang is None and not awaited):
        return
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if gang is None:
        if session is not None:
            _leave({"seen": True}, task_instance, dag_run, session)
        return
    mark = decide(json.loads(gang), dag_run.conf or {}, session, lambda: _team_of(dag_run.dag_id, session))
    task_instance.pool = "default_pool" if "refused" in mark else mark["pool"]
    task_instance.pool_slots = 1 if "refused" in mark else mark["slots"]
    if session is not None:
        _leave(mark, task_instance, dag_run, session)


def decide(
    gang: Mapping[str, Any],
    conf: Mapping[str, Any],
    session: Session | None,
    team: Callable[[], str | None] = lambda: None,
) -> dict[str, Any]:
    """`{pool, slots}` of this run, or `{refused: why}` in one line. `team` asks for the DAG's Airflow team."""
    try:
        pool = evaluate(gang, conf).pool or "default_pool"
        if session is None:
            return {"pool": pool, "slots": evaluate(gang, conf).slots}
        row = _pool(pool, session)
        if row is None:
            return {
                "refused": f"scheduling.pool = {pool}: Airflow has no such pool; create it with `tf-operator pools`"
            }
        slots = evaluate(gang, conf, slots_per_gpu(row.description)).slots
        why = (
            pool_fault(gang.get("fence"), pool)
            or _airflow_team_fault(row, team)
            or _pool_fault(row, slots, asks_for_slots(gang, conf))
            or _default_pool_fault(count_replicas(gang, conf), session)
        )
    except JobError as error:
        return {"refused": str(error)}
    return {"refused": why} if why else {"pool": pool, "slots": slots}


def _pool_fault(pool: _Pool, slots: int, asks: bool) -> str | None:
    if pool.name == "default_pool":
        return f"scheduling.pool = default_pool: {DEFAULT_POOL_RULE}" if asks else None
    if not pool.include_deferred:
        return (
            f"scheduling.pool = {pool.name}: the pool does not count deferred tasks, so two jobs could hold the"
            " same GPUs; set include_deferred with `tf-operator pools`"
        )
    if 0 <= pool.slots < slots:
        return (
            f"the job needs {slots} slots, pool {pool.name} has {pool.slots} in all: it can never start; ask for"
            " fewer replicas or GPUs, or enlarge the pool"
        )
    return None


def _airflow_team_fault(pool: _Pool, team: Callable[[], str | None]) -> str | None:
    """In multi-team mode the scheduler passes over such a task without a word, for ever."""
    if not pool.team or (mine := team()) == pool.team:
        return None
    return (
        f"scheduling.pool = {pool.name}: it is the pool of Airflow's team {pool.team}, the DAG is"
        f" {f'team {mine}' if mine else 'nobody'}'s (its bundle tells): Airflow would never start it"
    )


def _default_pool_fault(replicas: int, session: Session) -> str | None:
    """The replicas' own tasks: a part of them would start and wait for the rest."""
    row = _pool("default_pool", session)
    if row is None or row.slots < 0 or replicas <= row.slots:
        return None
    return (
        f"{replicas} replicas must run at once, each in a slot of default_pool, which has {row.slots};"
        " enlarge it, or ask for fewer replicas"
    )


class _Pool(NamedTuple):
    name: str
    slots: int
    description: str | None
    include_deferred: bool
    team: str | None


def _pool(name: str, session: Session) -> _Pool | None:
    from airflow.configuration import conf
    from airflow.models.pool import Pool
    from sqlalchemy import select

    with session.no_autoflush:
        row = session.execute(
            select(Pool.slots, Pool.description, Pool.include_deferred, Pool.team_name).where(Pool.pool == name)
        ).first()
    if row is None:
        return None
    team = row[3] if conf.getboolean("core", "multi_team", fallback=False) else None
    return _Pool(name, int(row[0]), row[1], bool(row[2]), team)


def _team_of(dag_id: str, session: Session | None) -> str | None:
    from airflow.models.dag import DagModel

    if session is None:
        return None
    with session.no_autoflush:
        team: str | None = DagModel.get_team_name(dag_id, session=session)
    return team


def _leave(mark: Mapping[str, Any], task_instance: TaskInstance, dag_run: DagRun, session: Session) -> None:
    """The task reads from its state store what was decided, so that a policy that did not run is noticed."""
    from airflow.state import TaskScope, get_state_backend

    scope = TaskScope(dag_run.dag_id, dag_run.run_id, task_instance.task_id, map_index=-1)
    get_state_backend().set(scope, "policy", json.dumps(mark), session=session)
