"""The settings an Airflow of the services runs with: a profile of `configs/airflow`, and what only a start can know."""

from __future__ import annotations

import configparser
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tf_operator.errors import ServiceError


@dataclass(frozen=True)
class Setup:
    """What the Airflow to start is like.

    `home` is its AIRFLOW_HOME, `project` the folder with `configs/` and `dags/`. `options` are further settings,
    `{"core.parallelism": "8"}`; `connections` are Airflow connections as URIs; `gpus` the declared inventory.
    """

    home: Path
    project: Path
    profile: Literal["base", "short"] = "base"
    dags: Path | None = None
    state_dir: Path | None = None
    gpus: str | None = None
    port: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)


def environment(setup: Setup, home: Path, url: str) -> dict[str, str]:
    """The components' environment: ours without its Airflow and Vault settings, plus the profile's options."""
    foreign = ("AIRFLOW", "VAULT_", "BAO_", "_AIRFLOW")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env |= {f"AIRFLOW__{key.replace('.', '__')}".upper(): value for key, value in _options(setup, home, url).items()}
    env |= {f"AIRFLOW_CONN_{name.upper()}": uri for name, uri in setup.connections.items()}
    binaries = str(Path(sys.executable).parent)
    return env | {
        "AIRFLOW_HOME": str(home),
        "PATH": f"{binaries}{os.pathsep}{env.get('PATH', os.defpath)}",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
    }


def _options(setup: Setup, home: Path, url: str) -> dict[str, str]:
    options: dict[str, str] = {}
    names = ["base"] if setup.profile == "base" else ["base", setup.profile]
    for name in names:
        options |= read_profile(setup.project / "configs" / "airflow" / f"{name}.cfg")
    options |= {
        "core.dags_folder": str((setup.dags or setup.project / "dags").resolve()),
        "core.plugins_folder": str(home / "plugins"),
        "api.base_url": url,
        # One for all components; a new one each time, so a token of an earlier start is worth nothing.
        "api_auth.jwt_secret": secrets.token_urlsafe(32),
        "logging.worker_log_server_port": str(free_port()),
        "logging.trigger_log_server_port": str(free_port()),
        "tf_operator.project_dir": str(setup.project.resolve()),
        "tf_operator.state_dir": str((setup.state_dir or home / "state").resolve()),
    }
    if setup.gpus is not None:
        options["tf_operator.gpus"] = setup.gpus
    return options | dict(setup.options)


def read_profile(path: Path) -> dict[str, str]:
    """The options of a file of `configs/airflow`: `section.key` → value."""
    parser = configparser.ConfigParser(interpolation=None)
    if not parser.read(path):
        raise ServiceError(f"{path}: no such file; the services take Airflow's settings from it")
    return {f"{section}.{key}": value for section in parser.sections() for key, value in parser.items(section)}


def free_port() -> int:
    """A loopback port that is free at this moment, and so is its next one: OpenBao takes that for its cluster."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
