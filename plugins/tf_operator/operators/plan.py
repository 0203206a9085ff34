"""plan: makes an attempt. Renders the job, checks it again, and checks the installation before any GPU is taken."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tf_operator import airflow_io, model_dir, preflight
from tf_operator.errors import (
    ImageError,
    JobError,
    PreflightError,
    RunnerError,
    SecretError,
    SecretUnavailableError,
)
from tf_operator.gang import evaluate
from tf_operator.job_spec import RenderedJob, TensorFlowJob
from tf_operator.plan import Plan
from tf_operator.pools import configured_slots_per_gpu

HEALTH_PATIENCE = 45.0


def render(job: TensorFlowJob, context: Context, group_id: str, project_dir: str, prefix: str) -> RenderedJob:
    """The job with this run's params. AirflowFailException with one line if they cannot be used."""
    given = {key.removeprefix(prefix): value for key, value in context["params"].items() if key.startswith(prefix)}
    params = {key: value for key, value in given.items() if key in job.params}
    try:
        return job.render(
            {**context, "params": params, "task_group_id": group_id}, project_dir=Path(project_dir), params=params
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

    def __init__(self, *, of: str | None, policy: Mapping[str, Any], strict_conf: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of = of
        self.policy = dict(policy)
        self.strict_conf = strict_conf

    def execute(self, context: Context) -> list[int] | None:
        """Fails for good on what a person has to change, and lets Airflow retry what may pass."""
        self._check_conf(context)
        job = self.rendered(context)
        self.log.info("effective params: %s", job.params)
        ti = context["ti"]
        try:
            preflight.check(job, self._limits(context))
            self._check_triggerer()
            self._claim(job, context)
            self._check_secrets(job)
            self._check_images(job)
        except (PreflightError, ImageError) as error:
            raise AirflowFailException(str(error)) from None
        except (SecretUnavailableError, RunnerError, OSError) as error:
            raise AirflowException(str(error)) from None
        except SecretError as error:
            raise AirflowFailException(str(error)) from None
        plan = self._plan(job)
        ti.xcom_push(airflow_io.PLAN_KEY, plan.model_dump(mode="json"))
        self.log.info(
            "attempt %s: %s, %d slots of pool %s, model_dir %s",
            plan.attempt,
            ", ".join(map(str, job.replicas)),
            plan.slots,
            plan.pool,
            job.model_dir,
        )
        return indexes(job, self.of) if self.of else None

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

    def _check_conf(self, context: Context) -> None:
        """Airflow lets a run be made with params the DAG does not have; to run with defaults instead would be a lie."""
        conf_given = getattr(context["dag_run"], "conf", None) or {}
        unknown = [key for key in conf_given if key.removeprefix(self.prefix) not in self.job.params]
        if self.strict_conf and unknown:
            raise AirflowFailException(
                f"job {self.job.name}: conf.{unknown[0]} = {conf_given[unknown[0]]!r}: the job has no such param;"
                f" it has {', '.join(self.job.params) or 'none'}"
            )

    def _limits(self, context: Context) -> preflight.Limits:
        local = (self.executor or conf.get("core", "executor")).endswith("LocalExecutor")
        return preflight.Limits(
            max_active_tasks=context["dag"].max_active_tasks,
            parallelism=conf.getint("core", "parallelism") if local else None,
            max_map_length=conf.getint("core", "max_map_length", fallback=1024),
            heartbeat_timeout=conf.getfloat("scheduler", "task_instance_heartbeat_timeout", fallback=300.0),
            orphan_scan=conf.getfloat("scheduler", "task_instance_heartbeat_timeout_detection_interval", fallback=10.0),
        )

    def _claim(self, job: RenderedJob, context: Context) -> None:
        ti = context["ti"]
        owner = {"dag_id": ti.dag_id, "run_id": ti.run_id, "group_id": self.group_id}
        model_dir.claim(job.model_dir, owner, lambda other: airflow_io.run_is_over(other["dag_id"], other["run_id"]))

    def _check_secrets(self, job: RenderedJob) -> None:
        if job.secrets:
            from tf_operator.secrets import check
            from tf_operator.secrets.airflow_login import login_airflow

            check(job.secrets, login_airflow)

    def _check_images(self, job: RenderedJob) -> None:
        """A name that cannot exist is said before anything starts; what can be pulled is, while no GPU waits for it."""
        if any(group.count and group.runtime.kind == "docker" for group in job.groups):
            from tf_operator.runners.docker_images import ensure_images

            ensure_images(job)

    def _check_triggerer(self) -> None:
        import httpx

        url = conf.get("api", "base_url", fallback="").rstrip("/")
        if not url:
            return
        deadline = time.monotonic() + HEALTH_PATIENCE

        def fetch() -> dict[str, dict[str, str]]:
            try:
                answer: dict[str, dict[str, str]] = httpx.get(f"{url}/api/v2/monitor/health", timeout=10).json()
            except httpx.HTTPError as error:
                raise OSError(f"{url}: {error}") from error
            return answer

        def pause() -> bool:
            time.sleep(1.0)
            return time.monotonic() < deadline

        preflight.triggerer_health(fetch, pause)
