"""A launch as the container it becomes. Nothing here talks to an engine."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_operator.errors import LaunchError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners import docker_entry
from tf_operator.runners.base import Launch

LABEL = "tf_operator"
PORT = 2222
"""Every replica has a network address of its own, so all may use the one port TensorFlow's documents use."""
DEFAULT_UID = 10001
"""Who programs run as where the worker is root."""
SYSTEM = ("", "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")
"""Top directories every image has of its own."""
LOG_CONFIG: dict[str, Any] = {"type": "local", "config": {"max-size": "64m", "max-file": "4", "compress": "false"}}
"""The engine's copy of the output, bounded. Ours is complete unless nobody reads while 192 MiB are printed.

Not json-file: it replaces every byte that is no UTF-8.
"""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def container_name(identity: Identity) -> str:
    """For people, and so that the engine refuses a second one; never used to find anything."""
    return f"tfop-{identity.key}"


def network_name(identity: Identity) -> str:
    """For people: networks too are found by label."""
    return f"tfop-{identity.job_key}"


def address_of(identity: Identity) -> str:
    """The replica's place in the ClusterSpec, resolvable in the run's network only."""
    return f"{identity.replica}:{PORT}"


def job_labels(identity: Identity) -> dict[str, str]:
    """What everything of one run carries."""
    return {
        f"{LABEL}.job": identity.job_key,
        f"{LABEL}.dag": identity.dag_id,
        f"{LABEL}.run": identity.run_id,
        f"{LABEL}.group": identity.group_id,
    }


def place_mark(state_dir: Path) -> str:
    """Which host's `state_dir` a container belongs to: an engine may serve more than one."""
    try:
        host = Path("/etc/machine-id").read_text().strip()
    except OSError:
        host = ""
    return hashlib.sha256(f"{host or platform.node()}:{state_dir}".encode()).hexdigest()[:16]


def labels_of(launch: Launch, start: int, place: str) -> dict[str, str]:
    """What identifies one start."""
    replica = launch.identity.replica
    own = {
        "identity": launch.identity.key,
        "role": replica.role,
        "index": str(replica.index),
        "attempt": launch.attempt,
        "incarnation": str(launch.incarnation),
        "generation": str(launch.generation),
        "start": str(start),
        "devices": ",".join(launch.devices),
        "masked": str(int(bool(launch.secrets.mask))),
        "orphan_timeout": f"{launch.orphan_timeout:g}",
        "place": place,
        "mark": f"tf_operator:{uuid.uuid4().hex}",
    }
    return job_labels(launch.identity) | {f"{LABEL}.{key}": value for key, value in own.items()}


@dataclass(frozen=True)
class Labels:
    """The labels of one of our containers, read back."""

    raw: Mapping[str, str]

    def get(self, key: str) -> str:
        """One label; empty where it is missing."""
        return self.raw.get(f"{LABEL}.{key}", "")

    @property
    def identity(self) -> Identity:
        """Who the container is."""
        replica = ReplicaId(self.get("role"), int(self.get("index")))
        return Identity(self.get("dag"), self.get("run"), self.get("group"), replica)

    @property
    def start(self) -> int:
        """Which start of the replica on this host."""
        return int(self.get("start") or 0)

    @property
    def orphan_timeout(self) -> float:
        """Seconds."""
        return float(self.get("orphan_timeout") or 900)


# -- from the launch to the engine's terms


def user_of(options: Mapping[str, Any]) -> tuple[int, int]:
    """uid and gid of the program: as the job says, else the worker's, else (for a root worker) 10001."""
    if text := str(options.get("user") or ""):
        uid, _, gid = text.partition(":")
        if not uid.isdigit() or (gid and not gid.isdigit()):
            raise LaunchError(f"runtime.user = {text!r}: must be numbers, uid or uid:gid")
        return int(uid), int(gid or uid)
    if os.geteuid() == 0:
        return DEFAULT_UID, DEFAULT_UID
    return os.geteuid(), os.getegid()


def options_of(launch: Launch) -> dict[str, Any]:
    """The runtime options, wherever in `runtime` they are."""
    return {**launch.runtime, **(launch.runtime.get("options") or {})}


def image_of(launch: Launch) -> str:
    """The image; LaunchError where none is named."""
    image = launch.runtime.get("image")
    if not image:
        raise LaunchError(f"{launch.identity}: runtime.image is missing: name an image")
    return str(image)


def config_of(launch: Launch, labels: Mapping[str, str]) -> dict[str, Any]:
    """The body of the engine's call, but for host and network."""
    uid, gid = user_of(options_of(launch))
    argv = list(launch.argv)
    python = launch.runtime.get("python")
    if python and argv[0] == "python":
        argv[0] = str(python)
    return {
        "image": image_of(launch),
        "entrypoint": ["/bin/sh", "-c", docker_entry.ENTRY, "tf_operator"],
        "command": argv,
        "environment": environment_of(launch),
        "user": f"{uid}:{gid}",
        "labels": dict(labels),
        "hostname": str(launch.identity.replica),
        "working_dir": "/",
        "stdin_open": True,
        "stop_signal": "SIGTERM",
    }


def environment_of(launch: Launch) -> dict[str, str]:
    """What `inspect` may show. TINI_KILL_PROCESS_GROUP is for the container's init, and is gone before the program."""
    env = dict(launch.env)
    for name in (*env, *launch.secrets.env):
        if not _ENV_NAME.fullmatch(name):
            raise LaunchError(f"{launch.identity}: env {name!r}: the container's shell would drop it; use A-Z, 0-9, _")
    env.setdefault("HOME", "/tmp")
    if launch.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(_inside(launch.devices))
    else:
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    return env | {"TINI_KILL_PROCESS_GROUP": "1"}


def _inside(devices: Sequence[str]) -> list[str]:
    """What CUDA calls them in a container that has no others: numbers begin at 0 again, uuids stay."""
    return [str(place) if name.isdigit() else name for place, name in enumerate(devices)]


def host_config_of(launch: Launch) -> dict[str, Any]:
    """Limits, mounts, rights: keyword arguments of the SDK's `create_host_config`."""
    import docker.types

    options = options_of(launch)
    uid, gid = user_of(options)
    tmpfs = {docker_entry.HOME: f"size=32m,mode=0700,uid={uid},gid={gid}"}
    if options.get("read_only"):
        tmpfs["/tmp"] = "mode=1777"
    config: dict[str, Any] = {
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": bool(options.get("read_only")),
        "tmpfs": tmpfs,
        "mounts": [docker.types.Mount(**mount) for mount in mounts_of(launch)],
        "log_config": docker.types.LogConfig(**LOG_CONFIG),
        "ulimits": [docker.types.Ulimit(**limit) for limit in ulimits_of(options)],
    }
    if launch.memory:
        # The same twice: no swap on top.
        config |= {"mem_limit": launch.memory, "memswap_limit": launch.memory}
    if launch.cpus:
        config["nano_cpus"] = int(launch.cpus * 1e9)
    if options.get("shm_size"):
        config["shm_size"] = int(options["shm_size"])
    if launch.devices:
        config["device_requests"] = [
            docker.types.DeviceRequest(device_ids=list(launch.devices), capabilities=[["gpu"]])
        ]
    return config


def mounts_of(launch: Launch) -> list[dict[str, Any]]:
    """The job's own mounts, the working directory to read, the model directory to write, each at the same path."""
    wanted: dict[str, dict[str, Any]] = {}
    if is_mounted(launch.working_dir):
        wanted[launch.working_dir] = _bind(launch.working_dir, launch.working_dir, read_only=True)
    if model_dir := launch.env.get("TF_OPERATOR_MODEL_DIR"):
        wanted[model_dir] = _bind(model_dir, model_dir, read_only=False)
    for mount in options_of(launch).get("mounts") or ():
        target = os.path.normpath(mount["target"])
        wanted[target] = _bind(mount["source"], target, bool(mount.get("read_only")))
    # Outer ones first: the engine mounts in this order, and an outer one would hide what is mounted below it.
    mounts = [wanted[target] for target in sorted(wanted)]
    for mount in mounts:
        if not Path(mount["source"]).exists():
            raise LaunchError(f"{launch.identity}: mount {mount['source']}: there is no such path on this host")
    return mounts


def is_mounted(working_dir: str) -> bool:
    """Whether it is this host's: not the image's, and no part of the system, which would hide the image's own."""
    path = Path(os.path.normpath(working_dir))
    top = path.parts[1] if len(path.parts) > 1 else ""
    return path.is_dir() and top not in SYSTEM


def _bind(source: str, target: str, read_only: bool) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "read_only": read_only}


def ulimits_of(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`{nofile: 65536}` or `{nofile: "1024:65536"}`."""
    limits = []
    for name, value in (options.get("ulimits") or {}).items():
        soft, _, hard = str(value).partition(":")
        limits.append({"name": name, "soft": int(soft), "hard": int(hard or soft)})
    return limits


def stop_timeout(grace: float) -> int:
    """Seconds as the engine takes them, for a `docker stop` by hand."""
    return max(1, math.ceil(grace))


def check(launch: Launch) -> None:
    """LaunchError for what no engine needs to be asked about."""
    if not launch.argv:
        raise LaunchError(f"{launch.identity}: the command is empty")
    for file in launch.secrets.files:
        if file.name in ("", ".", "..") or "/" in file.name:
            raise LaunchError(f"{launch.identity}: secret file {file.name!r}: give a plain file name, no path")
    json.dumps(dict(launch.env))
