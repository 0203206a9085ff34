"""From a launch to a running container: create, hand over the secrets, start, or leave nothing."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from tf_operator.errors import LaunchError, RunnerError
from tf_operator.runners import docker_devices, docker_entry, docker_network, docker_spec
from tf_operator.runners.base import Launch
from tf_operator.runners.docker_container import Found
from tf_operator.runners.docker_engine import Client, Engine


def start_container(engine: Engine, state_dir: Path, launch: Launch, start: int, kill_after: float) -> Found:
    """Create and start. Raises LaunchError or RunnerError, and then nothing of it is left."""
    give_model_dir(launch)
    place = docker_spec.place_mark(state_dir)
    labels = docker_spec.labels_of(launch, start, place)
    config, host = docker_spec.config_of(launch, labels), docker_spec.host_config_of(launch)
    script = docker_entry.hand_over(launch, labels[f"{docker_spec.LABEL}.mark"], kill_after)
    container = None
    try:
        with docker_network.alone(state_dir, launch.identity.job_key, launch.identity):
            network = docker_network.ensure(engine, launch.identity, place)
            container = _create(engine, launch, config, host, network)
            if docker_spec.options_of(launch).get("outbound"):
                way_out = docker_network.ensure(engine, launch.identity, place, outbound=True)
                engine.call(
                    f"{launch.identity}: connecting it to the outside",
                    lambda api: api.connect_container_to_network(container, way_out),
                )
        _check_working_dir(engine, launch, container)

        def look() -> Found:
            return Found(engine.call(f"{launch.identity}: inspect", lambda api: api.inspect_container(container)))

        with docker_devices.held(launch, container, lambda pid: look().pid == pid) as tell:
            engine.call(f"{launch.identity}: starting its container", lambda api: _start(api, container, script))
            found = look()
            tell(found.pid)
        return found
    except BaseException as error:
        _undo(engine, state_dir, launch, container)
        if isinstance(error, NotFound):
            raise RunnerError(f"{launch.identity}: its container was removed while it was started") from error
        raise


def _undo(engine: Engine, state_dir: Path, launch: Launch, container: str | None) -> None:
    """Leave nothing half-made; what cannot be removed now is found by label at the next start, or by clean."""
    with contextlib.suppress(RunnerError, NotFound):
        if container:
            engine.call("removing", lambda api: api.remove_container(container, force=True, v=True))
    with contextlib.suppress(RunnerError, NotFound):
        docker_network.remove_if_last(engine, launch.identity.job_key, state_dir, launch.identity)


def _create(engine: Engine, launch: Launch, config: dict[str, Any], host: dict[str, Any], network: str) -> str:
    who = launch.identity

    def ask(api: Client) -> str:
        alias = api.create_endpoint_config(aliases=[str(who.replica)])
        made = api.create_container(
            **config,
            name=docker_spec.container_name(who),
            host_config=api.create_host_config(**host, network_mode=network),
            networking_config=api.create_networking_config({network: alias}),
            stop_timeout=docker_spec.stop_timeout(launch.termination_grace),
        )
        return str(made["Id"])

    try:
        return engine.call(f"{who}: creating its container", ask)
    except NotFound as error:
        raise RunnerError(f"{who}: creating its container: {error.explanation}") from error


def _start(api: Client, container: str, script: bytes) -> None:
    """Attached before the start, so that nothing is lost; closed after it, so that the entry sees the end."""
    stream = api.attach_socket(container, params={"stdin": 1, "stream": 1})
    raw = getattr(stream, "_sock", stream)
    try:
        api.start(container)
        raw.sendall(script)
        raw.shutdown(socket.SHUT_WR)
    except BrokenPipeError:
        pass  # it has ended already: its end tells why
    finally:
        stream.close()
        raw.close()


def _check_working_dir(engine: Engine, launch: Launch, container: str) -> None:
    """Where it is this host's it is mounted; else the image, or a mount of the job's, must have it."""
    path = launch.working_dir
    if docker_spec.is_mounted(path):
        return

    def ask(api: Client) -> int:
        return int(api.head(api._url("/containers/{0}/archive", container), params={"path": path}).status_code)

    if engine.call(f"{launch.identity}: looking for {path}", ask) != 200:
        raise LaunchError(
            f"{launch.identity}: working_dir {path} is no directory on this host, and none in image"
            f" {docker_spec.image_of(launch)}"
        )


def give_model_dir(launch: Launch) -> None:
    """Where the worker is root, the program is somebody else: what root made in the model_dir becomes that user's."""
    model_dir = launch.env.get("TF_OPERATOR_MODEL_DIR")
    if not model_dir:
        return
    uid, gid = docker_spec.user_of(docker_spec.options_of(launch))
    top = Path(model_dir)
    top.mkdir(parents=True, exist_ok=True)
    result = Path(launch.env.get("TF_OPERATOR_RESULT") or model_dir)
    for folder in (top / ".tf_operator", result.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or uid == 0:
        return
    if result.parent.stat().st_uid == uid == top.stat().st_uid:
        return
    for where, names, files in os.walk(top, topdown=False):
        for entry in (Path(where), *(Path(where, name) for name in (*names, *files))):
            with contextlib.suppress(FileNotFoundError):
                if entry.lstat().st_uid == 0:
                    os.lchown(entry, uid, gid)
