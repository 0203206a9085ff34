"""What docker jobs have left on this host's engine though nobody watches them any more: for `tf-operator clean`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tf_operator import locks
from tf_operator.errors import RunnerError
from tf_operator.identity import Identity
from tf_operator.runners import docker_network
from tf_operator.runners.base import Handle
from tf_operator.runners.docker import DockerRunner
from tf_operator.runners.docker_container import Containers, Found
from tf_operator.runners.docker_end import ENDED
from tf_operator.runners.docker_engine import Client, Engine, engine_url
from tf_operator.runners.docker_spec import LABEL, place_mark
from tf_operator.runners.leftovers import Leftover, is_watched
from tf_operator.runners.run_folder import RunFolder


def leftovers(state_dir: Path, url: str | None = None) -> list[Leftover]:
    """Containers of ours no living process of this host watches, and run folders without a container."""
    engine = Engine(url or engine_url(), patience=0.0)
    try:
        found = _newest(engine, state_dir.resolve() / "docker")
    finally:
        engine.close()
    folders = state_dir.resolve() / "docker"
    left = [_describe(folders, key, one) for key, one in sorted(found.items())]
    left += [_describe(folders, path.name, None) for path in _paths(folders) if path.name not in found]
    return [one for one in left if not _is_cared_for(RunFolder(folders, one.key))]


def _is_cared_for(folder: RunFolder) -> bool:
    return is_watched(folder) or locks.is_held(folder.keeper_lock)


def _paths(folders: Path) -> list[Path]:
    runs = folders / "runs"
    return sorted(runs.iterdir()) if runs.is_dir() else []


def _newest(engine: Engine, folders: Path, key: str | None = None) -> dict[str, Found]:
    """By identity, of one or of all of this state_dir: the container that runs, else the newest."""
    filters = {
        "label": [f"{LABEL}.identity={key}" if key else f"{LABEL}.identity", f"{LABEL}.place={place_mark(folders)}"]
    }
    rows = engine.call("looking for containers", lambda api: api.containers(all=True, filters=filters))
    containers = Containers(engine)
    found = [one for row in sorted(rows, key=lambda row: row["Created"]) if (one := containers.get(row["Id"]))]
    return {one.labels.get("identity"): one for one in sorted(found, key=lambda one: _state(one) == "running")}


def _state(found: Found) -> str:
    status = found.state["Status"]
    return "lost" if status == "created" else "ended" if status in ENDED else "running"


def _describe(folders: Path, key: str, found: Found | None) -> Leftover:
    folder = RunFolder(folders, key)
    times = [path.stat().st_mtime for path in (folder.watched, folder.path) if path.exists()]
    return Leftover(
        key=key,
        identity=found.labels.identity if found else None,
        state=_state(found) if found else "output",
        pid=found.pid if found else None,
        unwatched=max(0.0, time.time() - times[0]) if times else 0.0,
        path=folder.path,
    )


def clean(state_dir: Path, chosen: Iterable[Leftover], keep_output: bool = False, url: str | None = None) -> list[str]:
    """Stop and remove the chosen ones that are still without a watcher, and networks without a container.

    Returns a line for each thing done or not done.
    """
    runner = DockerRunner(state_dir, url)
    try:
        lines = [_clean_one(runner, one, keep_output) for one in chosen]
        return lines + _clean_networks(runner.engine, runner.state_dir)
    finally:
        runner.close()


def _clean_one(runner: DockerRunner, left: Leftover, keep_output: bool) -> str:
    folder = RunFolder(runner.state_dir, left.key)
    try:
        with runner.no_start(folder) as free:
            if not free:
                return f"{left}: left alone, it is being started"
            if is_watched(folder):
                return f"{left}: left alone, somebody watches it again"
            found = _newest(runner.engine, runner.state_dir, left.key).get(left.key)
            if found is not None and _state(found) == "running" != left.state:
                return f"{left}: left alone, it runs now"
            for handle in _handles(runner, found.labels.identity) if found else ():
                runner.remove(handle, keep_output)
            folder.forget_all(keep_output)
    except (RunnerError, OSError) as error:
        return f"not removed: {error}"
    return f"removed: {left}"


def _handles(runner: DockerRunner, identity: Identity) -> list[Handle]:
    return [runner.handle_of(found) for found in runner.containers.all(identity)]


def _clean_networks(engine: Engine, state_dir: Path) -> list[str]:
    """Networks of this state_dir's runs that have no container any more.

    Those of another are between their making and their first container under a lock that is not ours.
    """

    def ask(api: Client) -> list[dict[str, dict[str, str]]]:
        return list(api.networks(filters={"label": [f"{LABEL}.job", f"{LABEL}.place={place_mark(state_dir)}"]}))

    lines = []
    for network in engine.call("looking for networks", ask):
        job_key = network["Labels"][f"{LABEL}.job"]
        if docker_network.remove_if_last(engine, job_key, state_dir, f"job {job_key}"):
            lines.append(f"removed: network {network['Name']}")
    return lines
