"""The record of one start, as the run folder keeps it and as the contract's handle."""

from __future__ import annotations

from typing import Any

from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners import process_tree
from tf_operator.runners.base import Handle, Launch
from tf_operator.runners.run_folder import RunFolder


def new_record(launch: Launch, address: str, start: int, folder: RunFolder) -> dict[str, Any]:
    """The record of an intended start. The keeper adds `pid`, `program` and `keeper` once there is a program."""
    who = launch.identity
    return {
        "identity": [who.dag_id, who.run_id, who.group_id, str(who.replica)],
        "attempt": launch.attempt,
        "incarnation": launch.incarnation,
        "generation": launch.generation,
        "address": address,
        "devices": list(launch.devices),
        "start": start,
        "output": str(folder.output(start)),
        "boot": process_tree.boot_id(),
    }


def identity_of(record: dict[str, Any]) -> Identity:
    """Who the record is about."""
    dag_id, run_id, group_id, replica = record["identity"]
    return Identity(dag_id, run_id, group_id, ReplicaId.parse(replica))


def handle_of(record: dict[str, Any], stopping: bool = False) -> Handle:
    """The record in the form of the contract."""
    data = {key: record.get(key) for key in ("start", "pid")}
    return Handle(
        identity_of(record),
        record["attempt"],
        record["incarnation"],
        record["generation"],
        record["address"],
        data,
        stopping,
    )


def process_of(record: dict[str, Any] | None, key: str) -> process_tree.Process | None:
    """A process the record names, unless the machine was started anew since."""
    if record is None or not record.get(key) or record["boot"] != process_tree.boot_id():
        return None
    return process_tree.Process(*record[key])
