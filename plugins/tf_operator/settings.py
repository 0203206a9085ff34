"""Where things are on this host: `[tf_operator]` of airflow.cfg, or `AIRFLOW__TF_OPERATOR__*` in the environment."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import sys
from pathlib import Path

from tf_operator.errors import PreflightError


def get(key: str) -> str | None:
    """One option of the `[tf_operator]` section; None if unset."""
    value = os.environ.get(f"AIRFLOW__TF_OPERATOR__{key.upper()}")
    if value is None and "airflow.configuration" in sys.modules:
        value = sys.modules["airflow.configuration"].conf.get("tf_operator", key, fallback=None)
    elif value is None:
        value = airflow_cfg("tf_operator", key) or services(key)
    return value or None


DISCOVERY_FILE = Path(".airflow") / "services.json"
"""What the services of `make airflow` say of themselves while they run, below the project."""


def services(key: str, project: Path | None = None) -> str | None:
    """The option as the services that run in the project (default: the one we stand in) have it; also their `url`."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = json.loads(((project or nearest_project(Path.cwd())) / DISCOVERY_FILE).read_text()).get(key)
        return str(found) if found else None
    return None


def airflow_cfg(section: str, key: str) -> str | None:
    """One option as airflow.cfg has it, without loading Airflow, which takes seconds."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    with contextlib.suppress(configparser.Error, OSError, UnicodeDecodeError, RuntimeError):
        home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
        parser.read(os.environ.get("AIRFLOW_CONFIG") or home / "airflow.cfg", encoding="utf-8")
    return parser.get(section, key, fallback=None)


def project_dir(start: Path | None = None) -> Path:
    """The project: `project_dir`, else the nearest folder upwards with `configs/jobs`."""
    if configured := get("project_dir"):
        return Path(configured).expanduser().resolve()
    return nearest_project(start or Path.cwd())


def project_of(file: Path) -> Path:
    """Where a job file's relative paths start: `project_dir`, else the project it lies in, else the one we stand in."""
    folder = file.absolute().parent
    found = [project_dir(folder), project_dir()]
    return next((project for project in found if is_project(project)), found[0])


def is_project(folder: Path) -> bool:
    """Whether job files are looked for in it."""
    return (folder / "configs" / "jobs").is_dir()


def nearest_project(start: Path) -> Path:
    """The nearest folder upwards with `configs/jobs`, else where it starts."""
    here = start.resolve()
    for folder in (here, *here.parents):
        if is_project(folder):
            return folder
    return here if here.is_dir() else here.parent


def state_dir() -> Path:
    """One folder per host, shared by every Airflow on it: identity locks, device locks, port leases, run folders."""
    configured = get("state_dir")
    path = Path(configured or os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    try:
        return path.expanduser().resolve() if configured else path.expanduser() / "tf_operator"
    except RuntimeError:
        raise PreflightError(
            f"[tf_operator] state_dir = {path}: this host knows no such user's home; write the path out"
        ) from None


def port_range() -> tuple[int, int]:
    """First and last port of the range ports are leased from; the default lies below Linux' ephemeral range.

    PreflightError if it is none.
    """
    text = get("port_range") or "20000-29999"
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if 1 <= first <= last <= 65535:
        return first, last
    raise PreflightError(
        f"[tf_operator] port_range = {text}: must be the first and the last port, from 1 to 65535;"
        " write for example 20000-29999"
    )
