"""What plan asks of Airflow and of the host: thin calls around `preflight`, `secrets` and `model_dir`."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf

from tf_operator import airflow_io, model_dir, preflight, run_life, teams
from tf_operator.errors import PreflightError
from tf_operator.job_spec import RenderedJob
from tf_operator.plan import GroupRef, Plan

if TYPE_CHECKING:
    import httpx

POLICY_KEY = "policy"
"""Where the cluster policy leaves its marks, in the state stores of the cluster and the plan task."""
UNSEEN = (
    "the tf_operator cluster policy has not seen this run: is the package installed where the scheduler and the API"
    " server run? (entry point group airflow.policy); then clear the whole group"
)
HEALTH_PATIENCE = 45.0
"""Seconds for a triggerer to come up: Airflow's components start in any order."""


def limits(max_active_tasks: int, executor: str | None, slots_per_gpu: int) -> preflight.Limits:
    """What of Airflow's configuration could hold back a part of the gang."""
    first = executor or conf.get("core", "executor").split(",")[0].strip()
    return preflight.Limits(
        max_active_tasks=max_active_tasks,
        parallelism=conf.getint("core", "parallelism") if first.endswith("LocalExecutor") else None,
        max_map_length=conf.getint("core", "max_map_length", fallback=1024),
        heartbeat_timeout=conf.getfloat("scheduler", "task_instance_heartbeat_timeout", fallback=300.0),
        orphan_scan=conf.getfloat("scheduler", "task_instance_heartbeat_timeout_detection_interval", fallback=10.0),
        slots_per_gpu=slots_per_gpu,
    )


def policy(store: airflow_io.AirflowStore) -> None:
    """PreflightError where no cluster policy saw the run: its cluster would ask for slots of another size, and find
    out only once it has them.
    """
    if store.get(POLICY_KEY) is None:
        raise PreflightError(UNSEEN)


def team(project: Path, name: str | None, plan: Plan) -> None:
    """PreflightError with everything the job uses that is not its team's, one line each; the file is read anew."""
    known = teams.load(project)
    if name is not None and name not in known.teams:
        raise PreflightError(f"{project / teams.FILE}: there is no team {name} any more, whose folder the job is in")
    if found := teams.faults(known, name, plan.job, plan.pool):
        raise PreflightError("\n".join(f"job {plan.job.name}: {fault}" for fault in found))


def living_plan(ref: GroupRef) -> Plan | None:
    """The plan in force where plan was cleared alone: a new attempt would take the living job's replicas from it.

    PreflightError where nobody has it any more.
    """
    cluster = ref.task("cluster")
    state = airflow_io.task_states(ref, [cluster]).get(cluster)
    queued = state in airflow_io.QUEUED
    if not queued and state not in ("deferred", "running"):
        return None
    plan = airflow_io.kept_plan(ref)
    if queued:
        # Between two attempts. Before the first nobody goes by a plan yet.
        return plan if plan is not None and plan.again else None
    if plan is None:
        raise PreflightError(f"{cluster} of this run is alive: clear the whole group for a new attempt")
    return plan


def triggerer(warn: Callable[[str], None]) -> None:
    """PreflightError if no triggerer is running. Where that cannot be asked, `warn` says so."""
    import httpx

    url = health_url()
    deadline = time.monotonic() + HEALTH_PATIENCE

    def fetch() -> str | None:
        try:
            answer = httpx.get(url, timeout=10, verify=_trusted())
            answer.raise_for_status()
            status: str | None = answer.json()["triggerer"]["status"]
        except httpx.HTTPError as error:
            kind = OSError if _may_pass(error) else ValueError
            raise kind(f"{url}: {str(error).partition(chr(10))[0] or type(error).__name__}") from error
        except (httpx.InvalidURL, OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{url}: {type(error).__name__}: {error}") from error
        return status

    def pause() -> bool:
        time.sleep(1.0)
        return time.monotonic() < deadline

    if unknown := preflight.triggerer_health(fetch, pause):
        warn(unknown)


def _may_pass(error: httpx.HTTPError) -> bool:
    """Whether a later call may be answered: not where a person has to set something right first."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause is None and not isinstance(error, httpx.UnsupportedProtocol)


def _trusted() -> ssl.SSLContext:
    """Whom the Task SDK's own client of this server trusts, and who it is itself."""
    import httpx

    context = httpx.create_ssl_context()
    context.load_default_certs()
    for option in ("ssl_ca_file", "ssl_cert"):
        if path := conf.get("api", option, fallback=None):
            context.load_verify_locations(path)
    if own := conf.get("api", "client_ssl_cert", fallback=None):
        context.load_cert_chain(own, conf.get("api", "client_ssl_key", fallback=None) or None)
    return context


def health_url() -> str:
    """Where tasks reach the API server: the Execution API's address, which is not always the one people use."""
    return f"{_server_url()}/api/v2/monitor/health"


def _server_url() -> str:
    execution = conf.get("core", "execution_api_server_url", fallback="") or ""
    base = execution.rstrip("/").removesuffix("/execution") or conf.get("api", "base_url", fallback="") or ""
    return base.rstrip("/") or "http://localhost:8080"


def secrets(job: RenderedJob) -> None:
    """Every secret is there and may be read; no value is kept."""
    if job.secrets:
        from tf_operator.secrets import check
        from tf_operator.secrets.airflow_login import login_airflow

        check(job.secrets, login_airflow)


def images(job: RenderedJob) -> None:
    """A name that cannot exist is said before anything starts; what can be pulled is, while no GPU waits for it."""
    if any(group.count and group.runtime.kind == "docker" for group in job.groups):
        from tf_operator.runners.docker_images import ensure_images

        ensure_images(job)


def claim(job: RenderedJob, ref: GroupRef) -> None:
    """Make model_dir this run's."""
    airflow = run_life.installation(_server_url(), socket.gethostname())
    owner = run_life.owner_of(ref.dag_id, ref.run_id, ref.group_id, airflow)

    def is_over(holder: run_life.Owner) -> bool:
        has_ended = partial(airflow_io.run_is_over, holder["dag_id"], holder["run_id"])
        return run_life.is_over(job.model_dir, holder, owner, has_ended)

    model_dir.claim(job.model_dir, owner, is_over)
