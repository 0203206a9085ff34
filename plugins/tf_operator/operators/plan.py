"""plan: makes an attempt. Renders the job, checks it again, and checks the installation before any GPU is taken."""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.timezone import coerce_datetime

from tf_operator import airflow_io, preflight, turns
from tf_operator.errors import (
    ImageError,
    InUseError,
    JobError,
    PreflightError,
    RunnerError,
    SecretError,
    SecretUnavailableError,
)
from tf_operator.gang import evaluate
from tf_operator.job_spec import RenderedJob, TensorFlowJob, dates
from tf_operator.job_spec.templates import nearest
from tf_operator.operators import checks
from tf_operator.operators.reasons import clearing, quotable
from tf_operator.plan import GroupRef, Plan
from tf_operator.pools import configured_slots_per_gpu
from tf_operator.supervision import ChannelError

NEAR = 0.8
"""How alike a conf's key and a param have to be in a DAG that has other tasks: `wrokers` is refused for `workers`,
`worker_pool` may be somebody else's.
"""


def render(job: TensorFlowJob, context: Context, group_id: str, project_dir: str, prefix: str) -> RenderedJob:
    """The job with this run's params. AirflowFailException with one line if they cannot be used.

    The date of a run that has none, as one that was triggered, is the time it was asked for.
    """
    given = {key.removeprefix(prefix): value for key, value in context["params"].items() if key.startswith(prefix)}
    params = {key: value for key, value in given.items() if key in job.params}
    try:
        return job.render(
            {
                **dates(coerce_datetime(context["dag_run"].run_after)),
                **context,
                "params": params,
                "task_group_id": group_id,
            },
            project_dir=Path(project_dir),
            params=params,
        )
    except JobError as error:
        raise AirflowFailException(str(error)) from None


class _JobOperator(BaseOperator):
    """What plan and the index task share: the job as written, and how its params are named in the DAG."""

    def __init__(self, *, job: TensorFlowJob, group_id: str, project_dir: str, prefix: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.group_id = group_id
        self.project_dir = project_dir
        self.prefix = prefix

    def rendered(self, context: Context) -> RenderedJob:
        """The job with this run's params."""
        return render(self.job, context, self.group_id, self.project_dir, self.prefix)


class IndexOperator(_JobOperator):
    """The indexes of a role whose count is a param; Airflow maps only over a task's return value."""

    def __init__(self, *, of: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of = of

    def execute(self, context: Context) -> list[int]:
        """Indexes from 0 within the mapped task."""
        return indexes(self.rendered(context), self.of)


def indexes(job: RenderedJob, task_id: str) -> list[int]:
    """Map indexes of one task of the group."""
    return next(list(range(group.count)) for group in job.groups if group.task_id == task_id)


class PlanOperator(_JobOperator):
    """Gives the attempt its id and hands out the plan. Returns the indexes of `of`, if a role is mapped over it."""

    def __init__(
        self, *, of: str | None, policy: Mapping[str, Any], strict_conf: bool, team: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.of = of
        self.team = team
        self.policy = dict(policy)
        self.strict_conf = strict_conf
        self.awaits_policy = True

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """By this the cluster policy knows the task, to leave its mark."""
        fields: frozenset[str] = BaseOperator.get_serialized_fields()  # type: ignore[no-untyped-call]
        return fields | {"awaits_policy"}

    def execute(self, context: Context) -> list[int] | None:
        """Fails for good on what a person has to change, and lets Airflow retry what may pass."""
        ref = GroupRef(context["ti"].dag_id, str(context["ti"].run_id), self.group_id)
        with quotable(ref, "plan", clearing(context)):
            return self._begin(ref, context)

    def _begin(self, ref: GroupRef, context: Context) -> list[int] | None:
        ti = context["ti"]
        try:
            if living := checks.living_plan(ref):
                ti.xcom_push(airflow_io.PLAN_KEY, living.model_dump(mode="json"))
                self.log.warning("the job goes on as it was planned: clear the whole group for a new attempt")
                return indexes(living.job, self.of) if self.of else None
            checks.policy(airflow_io.AirflowStore(context["task_state_store"]))
            self._check_conf(context)
            job = self.rendered(context)
            self.log.info("effective params: %s", job.params)
            plan = self._plan(job)
            self._check(plan, ref, context)
        except (SecretUnavailableError, InUseError, OSError) as error:
            # A run that was just marked failed is not over before its cleanup: its folder is free in some seconds.
            raise AirflowException(str(error)) from None
        except (PreflightError, ImageError, SecretError) as error:
            raise AirflowFailException(str(error)) from None
        except (RunnerError, ChannelError) as error:
            raise AirflowException(str(error)) from None
        ti.xcom_push(airflow_io.PLAN_KEY, plan.model_dump(mode="json"))
        self.log.info(
            "attempt %s: %s, %d slots of pool %s, model_dir %s",
            plan.attempt,
            ", ".join(map(str, job.replicas)),
            plan.slots,
            plan.pool,
            job.model_dir,
        )
        self._wait_for_turn(plan, ref)
        return indexes(job, self.of) if self.of else None

    def _wait_for_turn(self, plan: Plan, ref: GroupRef) -> None:
        """Leave the worker while a job that has waited for long goes first: see `turns`."""
        priority = plan.job.scheduling.priority
        found = [] if plan.pool == "default_pool" else turns.before(plan.pool, ref, priority)
        if not found:
            return
        self.log.info("waits %s", turns.describe(found, plan.pool))
        timeout = plan.job.run_policy.schedule_timeout
        trigger = turns.TurnTrigger(plan.pool, ref.dag_id, ref.run_id, ref.group_id, priority, timeout)
        self.defer(trigger=trigger, method_name="its_turn")

    def its_turn(self, context: Context, event: Any = None) -> list[int] | None:
        """Nobody goes first any more, or too late."""
        ref = GroupRef(context["ti"].dag_id, str(context["ti"].run_id), self.group_id)
        told = event if isinstance(event, dict) else {}
        with quotable(ref, "plan", clearing(context)):
            if told.get("too_late"):
                raise AirflowFailException(told["too_late"])
            plan = airflow_io.read_plan(ref)
            if plan is None:
                raise AirflowFailException(f"{ref.task('plan')} has left no plan: clear the whole group")
        if waited := told.get("waited"):
            plan = plan.model_copy(update={"waited": waited})
            context["ti"].xcom_push(airflow_io.PLAN_KEY, plan.model_dump(mode="json"))
        return indexes(plan.job, self.of) if self.of else None

    def _plan(self, job: RenderedJob) -> Plan:
        values = {f"{self.prefix}{name}": value for name, value in job.params.items()}
        pool = evaluate(self.policy, values).pool
        per_gpu = configured_slots_per_gpu(Path(self.project_dir) / "configs" / "pools.yaml", pool)
        demand = evaluate(self.policy, values, per_gpu)
        return Plan(
            attempt=uuid.uuid4().hex,
            job=job,
            pool=demand.pool or "default_pool",
            slots=demand.slots,
            slots_per_gpu=per_gpu,
        )

    def _check(self, plan: Plan, ref: GroupRef, context: Context) -> None:
        """The cheap and local first; model_dir last, as that leaves something behind."""
        preflight.check_settings()
        checks.team(Path(self.project_dir), self.team, plan)
        limits = checks.limits(context["dag"].max_active_tasks, self.executor, plan.slots_per_gpu)
        preflight.check(plan.job, limits)
        checks.triggerer(self.log.warning)
        checks.secrets(plan.job)
        checks.images(plan.job)
        checks.claim(plan.job, ref)

    def _check_conf(self, context: Context) -> None:
        """Airflow lets a run be made with params the DAG does not have; to run with defaults instead would be a lie."""
        conf_given = getattr(context["dag_run"], "conf", None) or {}
        if fault := conf_fault(conf_given, context["dag"].params, self.job.params, self.prefix, self.strict_conf):
            raise AirflowFailException(f"job {self.job.name}: {fault}")


def conf_fault(
    given: Mapping[str, Any], declared: Container[str], own: Iterable[str], prefix: str, strict: bool
) -> str | None:
    """What is wrong with the keys of a run's conf. `declared`: the DAG's params; `own`: the job's.

    Where the DAG has more than the job (not `strict`), a key may be meant for its other tasks: only what is all but the
    name of a param of the job is a typing error.
    """
    names = [prefix + name for name in own]
    for key in given:
        if key in declared:
            continue
        if strict:
            return f"conf.{key} = {given[key]!r}: the job has no such param; it has {', '.join(names) or 'none'}"
        if near := nearest(key, names, NEAR):
            return (
                f"conf.{key} = {given[key]!r}: the DAG has no such param; {near} A key that is meant for other tasks"
                " has to be among the DAG's params"
            )
    return None
