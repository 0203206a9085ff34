"""The cluster policy: gives a job's `cluster` task the slots its run's params ask for.

Airflow loads this module in every process (entry point group `airflow.policy`) and calls the hook where a run is made
or cleared: in the API server, the CLI and the scheduler. It reads the run's conf and the pool, never a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import airflow.settings
from airflow.policies import hookimpl

from tf_operator.errors import JobError
from tf_operator.gang import evaluate
from tf_operator.pools import slots_per_gpu

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
    gang = getattr(getattr(task_instance, "task", None), "gang", None)
    if gang is None or dag_run is None:
        return
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    mark = decide(json.loads(gang), dag_run.conf or {}, session)
    task_instance.pool = "default_pool" if "refused" in mark else mark["pool"]
    task_instance.pool_slots = 1 if "refused" in mark else mark["slots"]
    if session is not None:
        _leave(mark, task_instance, dag_run, session)


def decide(gang: Mapping[str, Any], conf: Mapping[str, Any], session: Session | None) -> dict[str, Any]:
    """`{pool, slots}` of this run, or `{refused: why}` in one line."""
    try:
        pool = evaluate(gang, conf).pool
        if pool is None or session is None:
            demand = evaluate(gang, conf)
            return {"pool": demand.pool or "default_pool", "slots": demand.slots}
        row = _pool(pool, session)
        if row is None:
            return {
                "refused": f"scheduling.pool = {pool}: Airflow has no such pool; create it with `tf-operator pools`"
            }
        size, description, include_deferred = row
        demand = evaluate(gang, conf, slots_per_gpu(description))
    except JobError as error:
        return {"refused": str(error)}
    if not include_deferred:
        return {
            "refused": f"scheduling.pool = {pool}: the pool does not count deferred tasks, so two jobs could hold the"
            " same GPUs; set include_deferred with `tf-operator pools`"
        }
    if 0 <= size < demand.slots:
        return {
            "refused": f"the job needs {demand.slots} slots, pool {pool} has {size} in all: it can never start; ask for"
            " fewer replicas or GPUs, or enlarge the pool"
        }
    return {"pool": pool, "slots": demand.slots}


def _pool(name: str, session: Session) -> tuple[int, str | None, bool] | None:
    from airflow.models.pool import Pool
    from sqlalchemy import select

    with session.no_autoflush:
        row = session.execute(
            select(Pool.slots, Pool.description, Pool.include_deferred).where(Pool.pool == name)
        ).first()
    return None if row is None else (int(row[0]), row[1], bool(row[2]))


def _leave(mark: Mapping[str, Any], task_instance: TaskInstance, dag_run: DagRun, session: Session) -> None:
    """The task reads from its state store what was decided, so that a policy that did not run is noticed."""
    from airflow.state import TaskScope, get_state_backend

    scope = TaskScope(dag_run.dag_id, dag_run.run_id, task_instance.task_id, map_index=-1)
    get_state_backend().set(scope, "policy", json.dumps(mark), session=session)
