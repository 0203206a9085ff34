"""`tf-operator run`: one job file, one command; on Airflow, followed to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tf_operator import settings
from tf_operator.errors import JobError
from tf_operator.job_spec.job import TensorFlowJob


def run(
    file: Annotated[Path, typer.Argument(help="A job file. One outside configs/jobs is copied there.")],
    param: Annotated[list[str] | None, typer.Option("--param", help="name=value; may be repeated.")] = None,
) -> None:
    """Run the job on Airflow and follow it; the exit code is 0 only if it succeeded."""
    from tf_operator.services import jobs

    project = settings.project_dir()
    job = TensorFlowJob.from_file(file)
    conf = read_params(job, param or [])
    api = jobs.connect(project)
    try:
        published = jobs.publish(file, project)
        started = jobs.start_run(api, job, published, conf)
        code = follow_to_end(api, started.dag_id, started.run_id, Console())
    finally:
        api.close()
    raise typer.Exit(code)


def follow_to_end(api: Any, dag_id: str, run_id: str, console: Console) -> int:
    """Show progress, then how it ended; 0 if the run succeeded, 130 if the watcher was interrupted."""
    from tf_operator.services.follow import failure_reason, follow, progress

    where = f"{api.base_url}/dags/{dag_id}/runs/{run_id}"
    console.print(f"{dag_id}: {where}", highlight=False, soft_wrap=True)
    try:
        with progress(console) as show:
            ended = follow(api, dag_id, run_id, show)
    except KeyboardInterrupt:
        console.print(f"no longer followed; it runs on: {where}", highlight=False, soft_wrap=True)
        return 130
    if ended.state == "success":
        console.print(f"{dag_id}: success")
        return 0
    reason = failure_reason(api, dag_id, run_id)
    console.print(f"{dag_id}: {ended.state}: {reason}", highlight=False, markup=False, soft_wrap=True)
    return 1


def read_params(job: TensorFlowJob, given: list[str]) -> dict[str, Any]:
    """`name=value` pairs as the job's params, with the types their schemas ask for. JobError naming the faulty one."""
    import yaml

    conf: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            raise JobError(f"--param {pair}: has no value; write it as name=value")
        spec = job.param_specs.get(name)
        if spec is None:
            known = ", ".join(job.param_specs) or "none"
            raise JobError(f"--param {pair}: job {job.name} has no param {name}; it has: {known}")
        try:
            conf[name] = spec.accept(text if spec.schema.get("type") == "string" else yaml.safe_load(text))
        except (ValueError, yaml.YAMLError) as error:
            raise JobError(f"--param {pair}: {' '.join(str(error).split())}") from None
    return conf
