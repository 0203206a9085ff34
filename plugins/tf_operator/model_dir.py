"""Whose model_dir it is: one run's at a time, told by a small file in it."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from tf_operator.errors import PreflightError


def claim(model_dir: str, owner: dict[str, str], is_over: Callable[[dict[str, str]], bool]) -> None:
    """Make the directory this run's. `owner` names dag_id, run_id, group_id; `is_over` asks for another run's end.

    Raises PreflightError if it is not writable or another run that has not ended holds it. No clock is compared:
    a holder that was killed is over as soon as Airflow says so.
    """
    folder = Path(model_dir) / ".tf_operator"
    path = folder / "owner.json"
    try:
        (folder / "results").mkdir(parents=True, exist_ok=True)
        holder = _create_or_read(path, owner)
        if holder != owner:
            if not is_over(holder):
                raise PreflightError(
                    f"model_dir = {model_dir}: belongs to run {holder.get('run_id')} of {holder.get('dag_id')}, which"
                    " has not ended; wait for it, or put {{ run_id }} into model_dir"
                )
            _replace(path, owner)
    except OSError as error:
        raise PreflightError(f"model_dir = {model_dir}: cannot be written: {error.strerror or error}") from error
    if json.loads(path.read_text()) != owner:
        raise PreflightError(f"model_dir = {model_dir}: another run took it at the same moment; try again")


def _create_or_read(path: Path, owner: dict[str, str]) -> dict[str, str]:
    """Only one creator wins, on a shared file system too: a link to a finished file either is made or exists."""
    draft = _draft(path, owner)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        found: dict[str, str] = json.loads(path.read_text())
        return found
    finally:
        draft.unlink()


def _replace(path: Path, owner: dict[str, str]) -> None:
    _draft(path, owner).replace(path)


def _draft(path: Path, owner: dict[str, str]) -> Path:
    draft = path.with_name(f"owner.{uuid.uuid4().hex}.draft")
    draft.write_text(json.dumps(owner))
    return draft
