"""`tf-operator run`: one job file, one command; on Airflow, followed to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tf_operator import settings
from tf_operator.cli.params import read_params
from tf_operator.errors import JobError
from tf_operator.job_spec.job import TensorFlowJob
from tf_operator.job_spec.params import effective


def run(
    file: Annotated[Path, typer.Argument(help="A job file. One outside configs/jobs is copied there.")],
    param: Annotated[list[str] | None, typer.Option("--param", help="name=value; may be repeated.")] = None,
) -> None:
    """Run the job on Airflow and follow it; the exit code is 0 only if it succeeded."""
    from tf_operator.services import jobs

    job = TensorFlowJob.from_file(file)
    project = _project(file)
    conf = _conf(job, param or [])
    api = jobs.connect(project)
    try:
        published = jobs.publish(file, project)
        started = jobs.start_run(api, job, published, conf)
        code = follow_to_end(api, started.dag_id, started.run_id, Console())
    except KeyboardInterrupt:
        typer.echo("no longer followed; what was triggered runs on")
        raise
    finally:
        api.close()
    raise typer.Exit(code)


def _project(file: Path) -> Path:
    """What Airflow reads. JobError if there is none."""
    project = settings.project_of(file)
    if settings.is_project(project):
        return project
    raise JobError(f"{file}: {project} is no project: it has no configs/jobs; go to one, or put the file into one")


def follow_to_end(api: Any, dag_id: str, run_id: str, console: Console) -> int:
    """Show progress, then how it ended; 0 if the run succeeded."""
    from tf_operator.services.follow import failure_reason, follow, progress

    where = f"{api.base_url}/dags/{dag_id}/runs/{run_id}"
    console.print(f"{dag_id}: {where}", highlight=False, soft_wrap=True)
    with progress(console) as show:
        ended = follow(api, dag_id, run_id, show)
    if ended.state == "success":
        console.print(f"{dag_id}: success")
        return 0
    reason = failure_reason(api, dag_id, run_id)
    console.print(f"{dag_id}: {ended.state}: {reason}", highlight=False, markup=False, soft_wrap=True)
    return 1


def _conf(job: TensorFlowJob, pairs: list[str]) -> dict[str, Any]:
    """The run's conf. JobError naming the param that is unknown or does not fit, before anything is triggered."""
    conf = read_params(pairs, job.param_specs)
    _, faults = effective(job.param_specs, conf)
    if faults:
        name, value, rule = faults[0]
        raise JobError(f"job {job.name}: params.{name} = {value!r}: {rule}")
    return conf
