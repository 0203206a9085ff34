"""`tf-operator plan`: what a job file becomes, worked out without Airflow, network or daemon."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tf_operator.job_spec import RenderedJob, TensorFlowJob

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
    outcome = worked_out(job, rendered, project)
    if as_json:
        typer.echo(json.dumps(outcome, indent=2))
    else:
        _show(rendered, outcome)


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
