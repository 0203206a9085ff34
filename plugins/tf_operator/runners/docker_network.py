"""One private network per run: the fence around ports that have no authentication of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from docker.errors import APIError, NotFound

from tf_operator import locks
from tf_operator.errors import RunnerError
from tf_operator.identity import Identity
from tf_operator.runners.docker_engine import Client, Engine
from tf_operator.runners.docker_spec import LABEL, job_labels, network_name

WAIT = 60.0
"""Seconds to wait for other replicas of the run at the network: each takes some tenths."""


@contextlib.contextmanager
def alone(state_dir: Path, job_key: str, who: object) -> Iterator[None]:
    """Nobody else on this host makes, fills or removes the run's network meanwhile."""
    folder = state_dir / "locks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{job_key}.network"
    descriptor = locks.acquire(path, wait=WAIT)
    if descriptor is None:
        raise RunnerError(f"{who}: the run's network has been locked for {WAIT:g} s ({path}): see who with fuser")
    try:
        yield
    finally:
        os.close(descriptor)


def ensure(engine: Engine, identity: Identity) -> str:
    """The id of the run's network, made where missing. Call it `alone`, and fill it before letting go."""

    def ask(api: Client) -> str:
        found = api.networks(filters=_ours(identity.job_key))
        if found:
            return str(found[0]["Id"])
        name = network_name(identity)
        made = api.create_network(name, driver="bridge", labels=job_labels(identity), check_duplicate=True)
        return str(made["Id"])

    return engine.call(f"{identity}: making the run's network", ask, patient=True)


def remove_if_last(engine: Engine, job_key: str, state_dir: Path, who: object) -> bool:
    """Remove the run's network unless a container of the run is left; True if that was done. Absence is normal."""

    def ask(api: Client) -> bool:
        if api.containers(all=True, filters=_ours(job_key), quiet=True):
            return False
        networks = api.networks(filters=_ours(job_key))
        for network in networks:
            with contextlib.suppress(NotFound):
                _remove(api, network["Id"])
        return bool(networks)

    with alone(state_dir, job_key, who):
        done = engine.call(f"{who}: removing the run's network", ask)
        (state_dir / "locks" / f"{job_key}.network").unlink(missing_ok=True)
    return done


def _remove(api: Client, network: str) -> None:
    try:
        api.remove_network(network)
    except APIError as error:
        # A stranger was connected to it by hand: theirs to end.
        if "active endpoints" not in str(error.explanation):
            raise


def _ours(job_key: str) -> dict[str, list[str]]:
    return {"label": [f"{LABEL}.job={job_key}"]}
