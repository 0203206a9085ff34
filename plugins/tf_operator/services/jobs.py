"""From a job file to a run on Airflow: publish the file, wait for its DAG, trigger it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tf_operator import settings
from tf_operator.errors import ApiError, JobError, JobFileError, ServiceError
from tf_operator.job_spec.job import TensorFlowJob
from tf_operator.services.api import AirflowApi
from tf_operator.services.api_data import Run
from tf_operator.services.waiting import wait_for

DAG_SECONDS = 90.0
JOBS_DAG_FILE = "tf_jobs.py"
JOB_FILE_ENDINGS = frozenset({".yaml", ".yml", ".json"})


def api_url(project: Path) -> str:
    """Where Airflow's API is: the environment, the services of `make airflow`, airflow.cfg, Airflow's default."""
    if url := os.environ.get("AIRFLOW__API__BASE_URL"):
        return url
    found = settings.services("url", project) or settings.airflow_cfg("api", "base_url")
    return found or "http://localhost:8080"


def connect(project: Path) -> AirflowApi:
    """A client of the Airflow in reach. ServiceError naming `make airflow` if there is none."""
    api = AirflowApi(api_url(project))
    try:
        api.health()
    except ApiError as error:
        api.close()
        if error.status:
            raise
        raise ServiceError(
            f"no Airflow answers at {api.base_url}: start one with `make airflow`, or set AIRFLOW__API__BASE_URL"
        ) from None
    return api


def publish(file: Path, project: Path) -> Path:
    """Where the job file is among the project's jobs; copied there if need be. JobError if one is in its way."""
    jobs = project / "configs" / "jobs"
    job = TensorFlowJob.from_file(file)
    # The project's, where a relative path is not here.
    file, name = Path(job.source_file or file), job.name
    source = file.resolve()
    # A copy that was made before is the same job.
    same = {source} if source.is_relative_to(jobs.resolve()) else {source, (jobs / file.name).resolve()}
    for other in sorted(path for path in jobs.rglob("*") if path.suffix in JOB_FILE_ENDINGS):
        if other.resolve() not in same and _name_of(other) == name:
            raise JobFileError(f"{file}: name = {name}: the job of {other} has it; give this one another name")
    if source.is_relative_to(jobs.resolve()):
        return source
    target = jobs / file.name
    if file.suffix not in JOB_FILE_ENDINGS:
        raise JobFileError(f"{file}: is no .yaml, .yml or .json file, so no DAG is made of it in {jobs}; rename it")
    if target.exists():
        if target.read_bytes() != source.read_bytes():
            raise JobFileError(f"{file}: another file of that name is {target}; rename one of them")
        return target
    jobs.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    shutil.copyfile(source, partial)
    # At once: a half-written file would be an import error for all to see.
    partial.replace(target)
    return target


def _name_of(file: Path) -> str | None:
    with suppress(JobError):
        return TensorFlowJob.from_file(file).name
    return None


def await_dag(api: AirflowApi, dag_id: str, file: Path, deadline: float = DAG_SECONDS) -> None:
    """Wait until Airflow has read the job file as it is now. ServiceError with the import error, or too late."""
    changed = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    asked = False

    def current() -> bool:
        nonlocal asked
        dag = api.dag(dag_id)
        if dag and _read_since(dag, changed):
            return True
        for name, text in api.import_errors().items():
            if file.name in text and name.endswith((JOBS_DAG_FILE, file.name)):
                raise ServiceError(f"Airflow cannot read {file}: {text.strip().splitlines()[-1]}")
        if not asked:
            asked = _ask_for(api, dag)
        return False

    wait_for(current, deadline, f"Airflow to make the DAG {dag_id} of {file}", every=0.5)


def _read_since(dag: Mapping[str, Any], moment: datetime) -> bool:
    """Whether the reading that made the DAG began after `moment`."""
    if dag["is_stale"] or not dag["last_parsed_time"]:
        return False
    took = timedelta(seconds=dag["last_parse_duration"] or 0)
    return datetime.fromisoformat(dag["last_parsed_time"]) - took > moment


def _ask_for(api: AirflowApi, dag: Mapping[str, Any] | None) -> bool:
    """Have the file that makes the jobs' DAGs read at once, rather than in its turn."""
    sibling = dag or next((dag for dag in api.dags() if str(dag["fileloc"]).endswith(JOBS_DAG_FILE)), None)
    if sibling is not None:
        api.reparse(sibling)
    return sibling is not None


def start_run(api: AirflowApi, job: TensorFlowJob, file: Path, conf: Mapping[str, Any]) -> Run:
    """Unpause the job's DAG and trigger it with `conf`."""
    await_dag(api, job.name, file)
    api.unpause(job.name)
    return api.trigger(job.name, conf)
