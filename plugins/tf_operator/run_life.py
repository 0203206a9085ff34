"""Whether the run that holds a model_dir has ended. On one host its locks tell, whichever Airflow runs it, or none.

A database tells only of its own runs: one that is not in it may live in another, or have lived in one that was reset.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from tf_operator import locks, settings
from tf_operator.errors import PreflightError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners.run_folder import RunFolder

LOCAL = "local__"
"""What the ids of local runs begin with."""
NEAR = ("localhost", "127.0.0.1", "::1", "0.0.0.0")

Owner = dict[str, str]
"""`dag_id`, `run_id`, `group_id`; also `host`, `state_dir` and `airflow` where it was written by this version."""


def owner_of(dag_id: str, run_id: str, group_id: str, airflow: str = "") -> Owner:
    """Who we are, for others to judge whether we live. `airflow`: which installation runs us, empty for none."""
    place = {"host": socket.gethostname(), "state_dir": str(settings.state_dir())}
    return {"dag_id": dag_id, "run_id": run_id, "group_id": group_id, "airflow": airflow} | place


def installation(url: str, host: str) -> str:
    """Which Airflow it is whose API server has this address; one that each host calls the same is each host's own."""
    return f"{url} on {host}" if urlsplit(url).hostname in NEAR else url


def is_over(model_dir: str, holder: Owner, claimant: Owner, has_ended: Callable[[], bool]) -> bool:
    """Whether the holder has ended. `has_ended` asks the claimant's Airflow, which knows its own runs only.

    PreflightError where that cannot be known here.
    """
    here = holder.get("host", claimant["host"]) == claimant["host"]
    if not is_local(holder) and holder.get("airflow", claimant["airflow"]) == claimant["airflow"]:
        return has_ended() and not (here and lives_here(holder))
    if not here:
        raise unknown(model_dir, holder, f"on host {holder['host']}")
    return not lives_here(holder)


def is_local(owner: Owner) -> bool:
    """Whether it is a run of `tf-operator local`."""
    return owner["run_id"].startswith(LOCAL)


def unknown(model_dir: str, holder: Owner, where: str) -> PreflightError:
    """The error where nobody here can tell whether the holder lives."""
    return PreflightError(
        f"model_dir = {model_dir}: belongs to run {holder['run_id']} of {holder['dag_id']} {where}, and"
        " whether that has ended is not known here; put {{ run_id }} into model_dir, or, if it has,"
        " remove .tf_operator/owner.json in it"
    )


def lives_here(owner: Owner) -> bool:
    """Whether its process, if it is a local run, or a program of it lives on this host."""
    return locks.is_held(local_lock(owner)) or has_programs(owner)


def local_lock(owner: Owner) -> Path:
    """What a local run holds for as long as its process lives."""
    return _state_dir(owner) / "local" / _key(owner)


def has_programs(owner: Owner) -> bool:
    """Whether a process or a container of it lives, or is just being started."""
    state_dir, mine = _state_dir(owner), f"{_key(owner)}-*"
    kept = (path for folder in (state_dir, state_dir / "docker") for path in (folder / "locks").glob(f"{mine}.keeper"))
    containers = (RunFolder(state_dir / "docker", path.name) for path in (state_dir / "docker" / "runs").glob(mine))
    return any(map(locks.is_held, kept)) or any(map(_has_container, containers))


def _has_container(folder: RunFolder) -> bool:
    from tf_operator.runners.leftovers import is_watched

    record = folder.record()
    if record is None or folder.exit(record["start"]):
        return False
    return is_watched(folder) or Path(f"/proc/{record.get('pid') or 'none'}").exists()


def _state_dir(owner: Owner) -> Path:
    return Path(owner.get("state_dir") or settings.state_dir())


def _key(owner: Owner) -> str:
    nobody = ReplicaId("chief", 0)
    return Identity(owner["dag_id"], owner["run_id"], owner["group_id"], nobody).job_key
