"""Where things are on this host: `[tf_operator]` of airflow.cfg, or `AIRFLOW__TF_OPERATOR__*` in the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def get(key: str) -> str | None:
    """One option of the `[tf_operator]` section; None if unset.

    airflow.cfg is read only where Airflow is loaded already, so that what needs no Airflow does not pay for it.
    """
    value = os.environ.get(f"AIRFLOW__TF_OPERATOR__{key.upper()}")
    if value is None and "airflow.configuration" in sys.modules:
        value = sys.modules["airflow.configuration"].conf.get("tf_operator", key, fallback=None)
    return value or None


def project_dir(start: Path | None = None) -> Path:
    """Where relative paths of a job file start: `project_dir`, else the nearest folder upwards with `configs/jobs`."""
    if configured := get("project_dir"):
        return Path(configured).expanduser().resolve()
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "configs" / "jobs").is_dir():
            return folder
    return here if here.is_dir() else here.parent


def state_dir() -> Path:
    """One folder per host, shared by every Airflow on it: identity locks, device locks, port leases, run folders."""
    if configured := get("state_dir"):
        return Path(configured).expanduser().resolve()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "tf_operator"


def port_range() -> tuple[int, int]:
    """First and last port of the range ports are leased from; the default lies below Linux' ephemeral range."""
    first, _, last = (get("port_range") or "20000-29999").partition("-")
    return int(first), int(last)
