"""One private network per run: the fence around ports that have no authentication of their own.

It is internal: the engine itself drops what comes from anywhere else, whatever the host's own forwarding rules are. Who
asks for `runtime.outbound` gets a second network beside it, with a way out; where TensorFlow listens there too, the
host's FORWARD policy is the fence against other machines.
"""

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


def ensure(engine: Engine, identity: Identity, place: str, outbound: bool = False) -> str:
    """The id of the run's network, or of its way out, made where missing, as of this `place_mark`.

    Call it `alone`, and fill it before letting go.
    """
    kind = "outbound" if outbound else "private"

    def ask(api: Client) -> str:
        found = api.networks(filters={"label": [*_ours(identity.job_key)["label"], f"{LABEL}.network={kind}"]})
        if found:
            return str(found[0]["Id"])
        made = api.create_network(
            network_name(identity) + ("-out" if outbound else ""),
            driver="bridge",
            internal=not outbound,
            labels=job_labels(identity) | {f"{LABEL}.network": kind, f"{LABEL}.place": place},
            check_duplicate=True,
        )
        return str(made["Id"])

    return engine.call(f"{identity}: making the run's network", ask, patient=True)


def remove_if_last(engine: Engine, job_key: str, state_dir: Path, who: object) -> bool:
    """Remove the run's networks unless a container of the run is left; True if that was done. Absence is normal."""

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
