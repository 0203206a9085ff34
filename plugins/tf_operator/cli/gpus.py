"""`tf-operator gpus`: this host's devices, who holds each, and who waits for the pool."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tf_operator import settings
from tf_operator.errors import TfOperatorError
from tf_operator.gpus import DeviceLeases, inventory


def gpus(
    pool: Annotated[str, typer.Option(help="The pool whose queue is shown.")] = "gpu",
    local: Annotated[bool, typer.Option("--local", help="Only this host's devices: ask no Airflow.")] = False,
) -> None:
    """Show where the GPUs went."""
    devices = inventory()
    held: dict[str, list[str]] = {}
    for holder in DeviceLeases(settings.state_dir(), devices).holders():
        held.setdefault(holder.device, []).append(str(holder))
    if not devices:
        typer.echo("this host has no GPU and declares none ([tf_operator] gpus)")
    for device in devices:
        memory = f", {device.memory / 2**30:.0f} GiB" if device.memory else ""
        typer.echo(f"{device.id}  {device.name}{memory}: {'; '.join(held.get(device.id, [])) or 'free'}")
    if not local:
        for line in queue(pool):
            typer.echo(line)


def queue(pool: str) -> list[str]:
    """The pool's size, and each job that holds or waits for its slots, as Airflow tells it."""
    from tf_operator.services.jobs import connect

    try:
        api = connect(settings.project_dir())
    except TfOperatorError as error:
        return [f"pool {pool}: {error}"]
    size = api.pools().get(pool)
    if size is None:
        return [f"pool {pool}: Airflow has no such pool; create it with `tf-operator pools`"]
    states = ["deferred", "running", "queued", "scheduled"]
    tasks = api.request("GET", "dags/~/dagRuns/~/taskInstances", pool=[pool], state=states, limit=100)
    lines = [f"pool {pool}: {size.slots} slots"]
    for state, word in (("deferred", "holds"), ("running", "holds"), ("queued", "holds"), ("scheduled", "waits for")):
        lines += [
            _line(task, word) for task in tasks["task_instances"] if task["state"] == state and task["pool"] == pool
        ]
    return lines


def _line(task: dict[str, Any], word: str) -> str:
    since = task["start_date"] or task["scheduled_when"] or ""
    where = f"{task['dag_id']}/{task['dag_run_id']}/{task['task_id']}"
    return f"  {word} {task['pool_slots']}: {where} ({task['state']} since {str(since)[:19]})"
