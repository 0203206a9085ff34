"""The connection to a Docker engine, and its errors in our words."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.utils import kwargs_from_env

from tf_operator import settings
from tf_operator.errors import EngineUnavailableError, ImageError, LaunchError, RunnerError

TIMEOUT = 60
"""Seconds for one call: creating a container on a busy disk takes a few."""
SOCKET = "unix:///var/run/docker.sock"
T = TypeVar("T")
Client = Any
"""`docker.APIClient`; its stubs lack half of what it can do."""


def engine_url() -> str:
    """`[tf_operator] docker_url`, else DOCKER_HOST, else the local socket."""
    return settings.get("docker_url") or os.environ.get("DOCKER_HOST") or SOCKET


def connect(url: str, conn_id: str | None = None, doing: str = "connecting") -> Client:
    """A client; with `conn_id` through Airflow's Docker hook, logged in to that connection's registry.

    Raises ImageError where that connection cannot be used.
    """
    reach(url, doing)
    tls = kwargs_from_env().get("tls") if not url.startswith("unix") else None
    try:
        client = docker.APIClient(base_url=url, version="auto", tls=tls or False, timeout=TIMEOUT)
        if not conn_id:
            return client
        # Only its making can tell why an engine is out of reach; the hook just says that it is.
        client.close()
        return _logged_in(url, tls, conn_id, doing)
    except (DockerException, requests.RequestException) as error:
        raise explain(error, doing, url) from error


def _logged_in(url: str, tls: Any, conn_id: str, doing: str) -> Client:
    from airflow.providers.docker.hooks.docker import DockerHook
    from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

    try:
        hook = DockerHook(docker_conn_id=conn_id, base_url=url, version="auto", tls=tls, timeout=TIMEOUT)
        return hook.get_conn()
    except AirflowNotFoundException as error:
        raise ImageError(
            f"{doing}: runtime.docker_conn_id = {conn_id}: {_text(error)}: it must name an Airflow connection of type"
            " docker that has the registry as host, a login and a password; create it, or correct the name"
        ) from error
    except AirflowException as error:
        raise EngineUnavailableError(f"{doing}: the Docker engine at {url} does not answer: {_text(error)}") from error


def reach(url: str, doing: str = "connecting") -> None:
    """Connect to a local engine's socket, for an error that says which of its reasons it is; the SDK's has lost it."""
    kind, _, path = url.partition("://")
    if kind != "unix":
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TIMEOUT)
        try:
            probe.connect(path)
        except OSError as error:
            raise explain(error, doing, url) from error


class Engine:
    """Calls to one engine, connected at the first. Not for two threads at once."""

    def __init__(self, url: str, conn_id: str | None = None, patience: float = 60.0) -> None:
        self.url = url
        self.conn_id = conn_id
        self.patience = patience
        self._client: Client | None = None

    def call(self, doing: str, ask: Callable[[Client], T], patient: bool = False) -> T:
        """Ask the engine something; errors say what was done. `patient` waits for an engine that is being restarted.

        NotFound passes through: absence is an answer.
        """
        began = time.monotonic()
        while True:
            try:
                return self._once(doing, ask)
            except EngineUnavailableError:
                if not patient or time.monotonic() - began >= self.patience:
                    raise
                time.sleep(0.5)

    def _once(self, doing: str, ask: Callable[[Client], T]) -> T:
        try:
            if self._client is None:
                self._client = connect(self.url, self.conn_id, doing)
            return ask(self._client)
        except NotFound:
            raise
        except (DockerException, requests.RequestException, OSError) as error:
            fault = explain(error, doing, self.url)
            if isinstance(fault, EngineUnavailableError):
                self.close()
            raise fault from error

    def close(self) -> None:
        """Give the connections up; the next call makes new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def explain(error: BaseException, doing: str, url: str) -> RunnerError:
    """The engine's error as one of ours: out of reach, not allowed, no space, or its own words."""
    text = _text(error)
    low = text.lower()
    if "permission denied" in low and not isinstance(error, APIError):
        return RunnerError(
            f"{doing}: permission denied on {url}: add the worker's user to the group that owns the engine's socket"
        )
    if "no space left on device" in low:
        return RunnerError(f"{doing}: no space left on device ({text}): free space in the engine's data root")
    if not isinstance(error, APIError):
        return EngineUnavailableError(f"{doing}: the Docker engine at {url} does not answer: {text}")
    if error.status_code is not None and error.status_code >= 500 and "shutting down" in low:
        return EngineUnavailableError(f"{doing}: the Docker engine at {url} is shutting down")
    if "address pool" in low:
        return RunnerError(
            f"{doing}: the engine has no free network address left ({text}): remove unused networks"
            " (tf-operator clean), or enlarge default-address-pools in its daemon.json"
        )
    if error.status_code == 400:
        return LaunchError(f"{doing}: {text}")
    return RunnerError(f"{doing}: {text}")


def _text(error: BaseException) -> str:
    """One line; of a chain of connection errors the innermost."""
    if isinstance(error, APIError):
        return " ".join(str(error.explanation or error).split())
    inner: Any = error
    while True:
        causes = [arg for arg in getattr(inner, "args", ()) if isinstance(arg, BaseException)]
        reason = getattr(inner, "reason", None)
        if isinstance(reason, BaseException):
            causes.append(reason)
        if not causes:
            break
        inner = causes[-1]
    text = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
    return " ".join(str(text).split()) or type(inner).__name__
