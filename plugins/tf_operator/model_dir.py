"""Whose model_dir it is: one run's at a time, told by a small file in it."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_operator import locks
from tf_operator.errors import InUseError, JobError, PreflightError
from tf_operator.identity import Identity

_TOPS = ("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys")
SYSTEM = frozenset(map(Path, ("/", "/tmp", "/usr", "/var", *_TOPS)))
PATIENCE = 30.0
"""Seconds to wait while another run asks whether the last owner is over."""


def claim(model_dir: str, owner: dict[str, str], is_over: Callable[[dict[str, str]], bool]) -> None:
    """Make the directory this run's. `owner` is as `run_life` makes it; `is_over` asks for another run's end.

    Raises PreflightError if it is not writable, InUseError if another run that has not ended holds it. No clock is
    compared: a holder that was killed is over as soon as Airflow, or its locks, say so.
    """
    check(model_dir)
    folder = Path(model_dir) / ".tf_operator"
    try:
        (folder / "results").mkdir(parents=True, exist_ok=True)
        # Of several runs that find the last owner gone, one takes its place; the next one finds that one.
        guard = locks.acquire(folder / "owner.lock", wait=PATIENCE)
        if guard is None:
            raise InUseError(f"model_dir = {model_dir}: another run is taking it at this moment; try again")
        try:
            _take(folder / "owner.json", model_dir, owner, is_over)
        finally:
            os.close(guard)
    except OSError as error:
        raise PreflightError(f"model_dir = {model_dir}: cannot be written: {error.strerror or error}") from error


def release(model_dir: str, owner: dict[str, str]) -> None:
    """The run has ended, and nobody need ask whether it has."""
    path = Path(model_dir) / ".tf_operator" / "owner.json"
    with contextlib.suppress(OSError, PreflightError):
        if (holder := _holder(path, model_dir)) and _is_owner(holder, owner):
            path.unlink()


@contextlib.contextmanager
def held(model_dir: str, identity: Identity) -> Iterator[None]:
    """Nobody takes it from the run meanwhile; JobError if somebody has: it had no program yet that showed it lives."""
    path = Path(model_dir) / ".tf_operator" / "owner.json"
    with contextlib.ExitStack() as stack:
        holder = None
        # A host that may only read it, or not even that, takes it from nobody either.
        with contextlib.suppress(OSError):
            guard = locks.acquire(path.with_suffix(".lock"), shared=True, wait=PATIENCE) if path.exists() else None
            if guard is not None:
                stack.callback(os.close, guard)
        with contextlib.suppress(OSError):
            holder = _holder(path, model_dir)
        if holder and _ids(holder) != (identity.dag_id, identity.run_id, identity.group_id):
            raise JobError(
                f"{identity.replica}: model_dir = {model_dir}: run {holder['run_id']} of {holder['dag_id']} has taken"
                " it since this run was planned; put {{ run_id }} into model_dir"
            )
        yield


def check(model_dir: str) -> None:
    """PreflightError if no job may have the folder, whoever holds it."""
    if fault := _unfit(Path(model_dir)):
        raise PreflightError(
            f"model_dir = {model_dir}: {fault}; give it a folder of its own, such as models/{{{{ run_id }}}}"
        )


def _unfit(folder: Path) -> str | None:
    """A program may write all over its model_dir, and a container's gets what root has in it."""
    folder = folder.resolve()
    if folder in SYSTEM or str(folder) == os.environ.get("HOME"):
        return "is a folder of the system, or a user's home"
    if (folder / "dags").is_dir() or (folder / "configs" / "jobs").is_dir():
        return "is a project, with DAGs or job files in it"
    return None


def _take(path: Path, model_dir: str, owner: dict[str, str], is_over: Callable[[dict[str, str]], bool]) -> None:
    holder = _holder(path, model_dir)
    if holder and not _is_owner(holder, owner):
        _check_free(holder, model_dir, owner, is_over)
    if holder == owner:
        return
    draft = path.with_name(f"owner.{uuid.uuid4().hex}.draft")
    draft.write_text(json.dumps(owner))
    draft.replace(path)


def _check_free(
    holder: dict[str, str], model_dir: str, owner: dict[str, str], is_over: Callable[[dict[str, str]], bool]
) -> None:
    if _same_run(holder, owner):
        raise PreflightError(
            f"model_dir = {model_dir}: is the group {holder['group_id']}'s of this very run;"
            " put {{ task_group_id }} into model_dir"
        )
    if not is_over(holder):
        raise InUseError(
            f"model_dir = {model_dir}: belongs to run {holder['run_id']} of {holder['dag_id']}, which has not ended;"
            " wait for it, or put {{ run_id }} into model_dir"
        )


def _holder(path: Path, model_dir: str) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads(path.read_text())
        _ids(found)
        return found
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise PreflightError(
            f"model_dir = {model_dir}: {path} is damaged, so its owner is not known; remove it if no run is in there"
        ) from None


def _ids(owner: dict[str, str]) -> tuple[str, str, str]:
    return owner["dag_id"], owner["run_id"], owner["group_id"]


def _is_owner(holder: dict[str, str], owner: dict[str, str]) -> bool:
    return _same_run(holder, owner) and _ids(holder) == _ids(owner)


def _same_run(holder: dict[str, str], owner: dict[str, str]) -> bool:
    # Two Airflows may give their runs the same ids.
    airflow = owner.get("airflow")
    return _ids(holder)[:2] == _ids(owner)[:2] and holder.get("airflow", airflow) == airflow
