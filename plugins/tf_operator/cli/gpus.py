"""`tf-operator gpus`: this host's devices, who holds each, and who waits for the pool."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_operator import settings
from tf_operator.errors import TfOperatorError
from tf_operator.gpus import DeviceLeases, Holder

if TYPE_CHECKING:
    from tf_operator.services.api import AirflowApi

HOLDING = ("deferred", "running", "queued")
"""States of a task that has its slots. The pools count deferred tasks."""


def gpus(
    pool: Annotated[str, typer.Option(help="The pool whose queue is shown.")] = "gpu",
    local: Annotated[bool, typer.Option("--local", help="Only this host's devices: ask no Airflow.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show where the GPUs went."""
    found: dict[str, Any] = {"devices": devices(DeviceLeases(settings.state_dir()))}
    if not local:
        found["pool"] = queue(pool)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for line in [*device_lines(found["devices"]), *(pool_lines(found["pool"]) if not local else ())]:
        typer.echo(line)


# -- the host's devices


def devices(leases: DeviceLeases) -> list[dict[str, Any]]:
    """Each device with who holds it, and the processes on it that hold no lease."""
    held, strangers = leases.holders(), leases.strangers()
    return [
        {
            "id": device.id,
            "name": device.name,
            "memory": device.memory,
            "mig": device.mig,
            "holders": [_holder(holder) for holder in held if holder.device == device.id],
            "strangers": [stranger.who for stranger in strangers if stranger.device == device.id],
        }
        for device in leases.devices
    ]


def _holder(holder: Holder) -> dict[str, Any]:
    who = holder.identity
    return {
        "who": holder.who,
        "dag_id": who and who.dag_id,
        "run_id": who and who.run_id,
        "group_id": who and who.group_id,
        "role": who and who.replica.role,
        "index": who and who.replica.index,
        "part_of": None if holder.part is None else holder.parts,
        "since": None if holder.since is None else datetime.fromtimestamp(holder.since, UTC).isoformat(),
    }


def device_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each device; a part's holders follow one another."""
    if not found:
        return ["this host has no GPU and declares none ([tf_operator] gpus)"]
    return [_device_line(device) for device in found]


def _device_line(device: Mapping[str, Any]) -> str:
    memory = f", {device['memory'] / 2**30:.0f} GiB" if device["memory"] else ""
    slice_ = ", MIG slice" if device["mig"] else ""
    uses = [
        f"{holder['who']}{_part(holder['part_of'])}{_since(holder['since'])}" for holder in _merged(device["holders"])
    ]
    uses += [f"{text}: not tf_operator's, so the device is given to nobody" for text in device["strangers"]]
    return f"{device['id']}  {device['name']}{memory}{slice_}: {'; '.join(uses) or 'free'}"


def _merged(holders: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A replica with several parts of one device is named once."""
    found: dict[str, dict[str, Any]] = {}
    for holder in holders:
        number = found[holder["who"]]["parts"] + 1 if holder["who"] in found else 1
        text = holder["part_of"] and f"{number}/{holder['part_of']}"
        found[holder["who"]] = {**holder, "parts": number, "part_of": text}
    return list(found.values())


def _part(text: str | None) -> str:
    return f" ({text} of it)" if text else ""


def _since(moment: str | None) -> str:
    return f" since {moment[:19].replace('T', ' ')} UTC" if moment else ""


# -- the pool's queue


def queue(pool: str) -> dict[str, Any]:
    """The pool's size, and each task that holds or waits for its slots; `error` where Airflow does not tell."""
    from tf_operator.services.jobs import connect

    try:
        api = connect(settings.project_dir())
        size = api.pools().get(pool)
        if size is None:
            return {"name": pool, "error": "Airflow has no such pool; create it with `tf-operator pools`"}
        states = [*HOLDING, "scheduled"]
        tasks = list(api.entries("dags/~/dagRuns/~/taskInstances", "task_instances", pool=[pool], state=states))
        first = _go_first(api, pool)
    except TfOperatorError as error:
        return {"name": pool, "error": str(error)}
    open_slots = size.slots - size.held
    holding = [_job(task, None) for task in tasks if task["state"] in HOLDING]
    waiting = sorted((task for task in tasks if task["state"] == "scheduled"), key=_order)
    return {
        "name": pool,
        "slots": size.slots,
        "open": open_slots,
        "holding": holding,
        "waiting": [
            _job(task, waits_for(task["pool_slots"], open_slots, size.slots))
            | {"goes_first": (task["dag_id"], task["dag_run_id"]) in first}
            for task in waiting
        ],
    }


def _go_first(api: AirflowApi, pool: str) -> set[tuple[str, str]]:
    """The runs that others wait behind before they even ask for slots: they have waited for long."""
    prefix = f"tf_operator/turn/{pool}/"
    found = api.entries("variables", "variables", variable_key_pattern=f"{prefix}%")
    # The pattern is one of SQL, found anywhere in a key.
    values = [json.loads(entry["value"]) for entry in found if entry["key"].startswith(prefix)]
    return {(value["dag_id"], value["run_id"]) for value in values}


def waits_for(slots: int, open_slots: int, size: int) -> str:
    """What has to happen before a waiting job starts."""
    if slots > size >= 0:
        return f"for ever: the pool has {size} slots in all"
    if slots > open_slots:
        return f"{slots - open_slots} more free slots, all {slots} at once"
    return "the scheduler's next look"


def _order(task: Mapping[str, Any]) -> tuple[int, str]:
    return -int(task.get("priority_weight") or 0), str(task.get("scheduled_when") or "")


def _job(task: Mapping[str, Any], waits: str | None) -> dict[str, Any]:
    return {
        "dag_id": task["dag_id"],
        "run_id": task["dag_run_id"],
        "task_id": task["task_id"],
        "state": task["state"],
        "slots": task["pool_slots"],
        "priority": task.get("priority_weight"),
        "since": (task["start_date"] if waits is None else task["scheduled_when"]) or task["scheduled_when"],
        "waits_for": waits,
    }


def pool_lines(found: Mapping[str, Any]) -> list[str]:
    """The pool, who holds its slots, and the queue in the order Airflow looks at it."""
    if "error" in found:
        return [f"pool {found['name']}: {found['error']}"]
    lines = [f"pool {found['name']}: {found['slots']} slots, {found['open']} free"]
    lines += [f"  {_named(job)} holds {job['slots']}{_since(job['since'])}" for job in found["holding"]]
    lines += [
        f"  {_named(job)} waits for {job['slots']}{_since(job['since'])}: {job['waits_for']}"
        f"{'; goes first: jobs that come now wait behind it' if job['goes_first'] else ''}"
        for job in found["waiting"]
    ]
    return lines


def _named(job: Mapping[str, Any]) -> str:
    return f"{job['dag_id']}/{job['run_id']}/{job['task_id']}"
