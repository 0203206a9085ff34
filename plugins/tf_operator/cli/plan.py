"""`tf-operator plan`: what a job file becomes, worked out without Airflow, network or daemon."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tf_operator.job_spec import RenderedJob, TensorFlowJob
    from tf_operator.preflight import Limits

EXAMPLE_RUN = "example"
EXAMPLE_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
"""Fixed, so that the same file and params give the same plan."""
EXAMPLE_PORT = 2222


def plan(
    file: Annotated[Path, typer.Argument(help="A job file.")],
    param: Annotated[list[str] | None, typer.Option("--param", help="name=value; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what a job becomes: tasks, pool and slots, ClusterSpec and each replica's TF_CONFIG."""
    from tf_operator import settings
    from tf_operator.cli.params import read_params
    from tf_operator.job_spec import TensorFlowJob, plain_context

    job = TensorFlowJob.from_file(file)
    project = settings.project_of(file)
    context = plain_context(job.name, EXAMPLE_RUN, EXAMPLE_MOMENT)
    rendered = job.render(context, project_dir=project, params=read_params(param or [], job.param_specs))
    check(job, rendered, file, project)
    outcome = worked_out(job, rendered, project)
    if as_json:
        typer.echo(json.dumps(outcome, indent=2))
    else:
        _show(rendered, outcome)


def check(job: TensorFlowJob, rendered: RenderedJob, file: Path, project: Path) -> None:
    """PreflightError with what the `plan` of a run would say of the job, as far as it is known without its host."""
    from tf_operator import model_dir, preflight, teams
    from tf_operator.errors import PreflightError
    from tf_operator.gang import DEFAULT_POOL_RULE, asks_for_slots, evaluate
    from tf_operator.job_spec.outline import most_tasks
    from tf_operator.pools import configured_slots_per_gpu

    pool = evaluate(job.gang(), rendered.params).pool or "default_pool"
    if pool == "default_pool" and asks_for_slots(job.gang(), rendered.params):
        raise PreflightError(f"job {job.name}: scheduling.pool = default_pool: {DEFAULT_POOL_RULE}")
    jobs = (project / "configs" / "jobs").resolve()
    if file.resolve().is_relative_to(jobs):
        known = teams.load(project)
        if found := teams.faults(known, known.of_folder(file.resolve(), [jobs]), rendered, pool):
            raise PreflightError("\n".join(f"job {job.name}: {fault}" for fault in found))
    per_gpu = configured_slots_per_gpu(project / "configs" / "pools.yaml", pool)
    preflight.check(rendered, limits(most_tasks(job), per_gpu), here=False)
    model_dir.check(rendered.model_dir)


def limits(max_active_tasks: int, slots_per_gpu: int) -> Limits:
    """Airflow's limits as they are set here, else its defaults. How many slots its executor has is not known here."""
    from tf_operator import settings
    from tf_operator.preflight import Limits

    def number(section: str, key: str, default: float) -> float:
        with contextlib.suppress(ValueError):
            text = os.environ.get(f"AIRFLOW__{section}__{key}".upper()) or settings.airflow_cfg(section, key)
            return float(text or default)
        return default

    return Limits(
        max_active_tasks=max_active_tasks,
        max_map_length=int(number("core", "max_map_length", 1024)),
        heartbeat_timeout=number("scheduler", "task_instance_heartbeat_timeout", 300),
        orphan_scan=number("scheduler", "task_instance_heartbeat_timeout_detection_interval", 10),
        slots_per_gpu=slots_per_gpu,
    )


def worked_out(job: TensorFlowJob, rendered: RenderedJob, project: Path) -> dict[str, Any]:
    """The plan as JSON: `cluster`, `pool`, `pool_slots`, `tasks`, `tf_config`, with example addresses."""
    from tf_operator.cluster_spec import cluster_spec, tf_config
    from tf_operator.gang import evaluate
    from tf_operator.pools import configured_slots_per_gpu

    spec = cluster_spec(rendered, {r: f"{r}.{rendered.name}:{EXAMPLE_PORT}" for r in rendered.replicas})
    pool = evaluate(job.gang(), rendered.params).pool
    per_gpu = configured_slots_per_gpu(project / "configs" / "pools.yaml", pool)
    return {
        "cluster": spec,
        "pool": pool or "default_pool",
        "pool_slots": evaluate(job.gang(), rendered.params, per_gpu).slots,
        "tasks": _tasks(rendered),
        "tf_config": {str(replica): tf_config(rendered, spec, replica) for replica in rendered.replicas},
    }


def _tasks(job: RenderedJob) -> list[dict[str, Any]]:
    return [
        {
            "task_id": group.task_id,
            "replica": str(replica),
            "role": replica.role,
            "index": replica.index,
            "command": group.command,
            "working_dir": group.working_dir,
            "env": group.env,
            "runtime": group.runtime.kind,
            "gpus": group.gpus,
            "cpus": group.cpus,
            "memory": group.memory,
            "retries": group.retries,
        }
        for group in job.groups
        for replica in group.replicas
    ]


def _show(job: RenderedJob, outcome: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        Text(f"job {job.name}: strategy {job.strategy}, pool {outcome['pool']}, {outcome['pool_slots']} slot(s)")
    )
    console.print(Text(f"params: {json.dumps(job.params, default=str)}"))
    console.print(Text(f"model_dir: {job.model_dir}"))
    table = Table("task", "replica", "gpus", "runtime", "command")
    for task in outcome["tasks"]:
        cells = (task["task_id"], task["replica"], f"{task['gpus']:g}", task["runtime"], json.dumps(task["command"]))
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    console.print(
        Text(f"cluster (example addresses; a run's own come from its runners): {json.dumps(outcome['cluster'])}")
    )
    for replica, config in outcome["tf_config"].items():
        console.print(Text(f"TF_CONFIG of {replica}: {json.dumps(config) if config else '(not set)'}"))
