"""Images: there, pulled, or why not; a name that cannot exist is told apart from a registry that is down."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import requests
import urllib3
from docker import auth
from docker.errors import APIError, NotFound
from docker.utils import parse_repository_tag

from tf_operator.errors import EngineUnavailableError, ImageError, RunnerError
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.runners.docker_engine import Client, Engine, engine_url

SILENCE = 300.0
"""Seconds a pull may show no progress: the engine checks a layer of many GB in silence."""
BRIEFLY = 1.0
"""Seconds to wait for what mostly takes a moment: the image is there."""

# Long enough not to be a part of somebody's image name, which is in the engine's message too.
_NEVER = (
    *("manifest unknown", "not found", "does not exist", "invalid reference", "name unknown"),
    *("access denied", "denied:", "no basic auth credentials", "unauthorized", "authentication required"),
)
_LATER = (
    *("connection refused", "i/o timeout", "timed out", "timeout exceeded", "handshake timeout", "deadline exceeded"),
    *("no such host", "unreachable", "connection reset", ": eof", "502 bad gateway", "503 service unavailable"),
    *("server misbehaving", "temporary failure", "toomanyrequests", "429 too many requests"),
)


def ensure_image(engine: Engine, image: str, policy: str | None, who: object) -> None:
    """Have the image on the engine's host. `policy`: missing (default), always, never.

    Raises ImageError where it cannot be had under this name, RunnerError where trying again may help.
    """
    policy = policy or "missing"
    if policy != "always" and _is_here(engine, image, who):
        return
    if policy == "never":
        raise ImageError(f"{who}: image {image} is not on this host, and runtime.pull_policy is never: load it first")
    _pull(engine, image, who)


class Fetch:
    """`ensure_image` on a thread and a connection of its own, so that its caller is free to end meanwhile."""

    def __init__(self, engine: Engine, image: str, policy: str | None, who: object) -> None:
        self._engine = Engine(engine.url, engine.conn_id, engine.patience)
        self._error: BaseException | None = None
        # A daemon: the engine gives a pull up when the process that asked for it is gone.
        self._thread = threading.Thread(target=self._run, args=(image, policy, who), daemon=True)
        self._thread.start()

    def _run(self, image: str, policy: str | None, who: object) -> None:
        try:
            ensure_image(self._engine, image, policy, who)
        except BaseException as error:
            self._error = error
        finally:
            self._engine.close()

    def is_done(self) -> bool:
        """Whether the image is there; waits a moment for it. Raises what `ensure_image` has raised."""
        self._thread.join(BRIEFLY)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True


def ensure_images(job: RenderedJob) -> None:
    """Have every image of the job on this host's engine; the errors name the replica types that need it."""
    wanted: dict[tuple[str, str | None, str | None], list[str]] = {}
    for group in job.groups:
        if group.count and group.runtime.kind == "docker":
            options = group.runtime.options
            key = (str(group.runtime.image), options.get("pull_policy"), options.get("docker_conn_id"))
            wanted.setdefault(key, []).append(group.task_id)
    for (image, policy, conn_id), users in wanted.items():
        engine = Engine(engine_url(), conn_id)
        try:
            ensure_image(engine, image, policy, f"job {job.name}, {', '.join(users)}")
        finally:
            engine.close()


def _is_here(engine: Engine, image: str, who: object) -> bool:
    try:
        engine.call(f"{who}: looking for image {image}", lambda api: api.inspect_image(image), patient=True)
    except NotFound:
        return False
    return True


def _pull(engine: Engine, image: str, who: object) -> None:
    repository, tag = parse_repository_tag(image)

    def pull(api: Client) -> str | None:
        # A failure after the first layer comes in the stream of an answer that began with 200.
        for step in _steps(api, repository, tag or "latest"):
            if "error" in step:
                return str(step["error"])
        return None

    doing = f"{who}: pulling image {image}"
    try:
        fault = engine.call(doing, pull, patient=True)
    except _SilenceError:
        raise RunnerError(
            f"{doing}: no progress for {SILENCE:g} s: see why the engine or the registry is stuck, or pull it by hand"
        ) from None
    except NotFound as error:
        fault = _words(error)
    except (EngineUnavailableError, ImageError):
        raise
    except RunnerError as error:
        if not isinstance(error.__cause__, APIError):
            raise
        fault = _words(error.__cause__)
    if fault is not None:
        raise explain(fault, doing)


class _SilenceError(Exception):
    """Nothing has come for too long."""


def _steps(api: Client, repository: str, tag: str) -> Iterator[dict[str, Any]]:
    """As `api.pull`, which waits for ever for an engine, or a registry behind it, that says nothing more."""
    login = auth.get_config_header(api, auth.resolve_repository_name(repository)[0])
    try:
        answer = api._post(
            api._url("/images/create"),
            params={"fromImage": repository, "tag": tag},
            headers={"X-Registry-Auth": login} if login else {},
            stream=True,
            timeout=SILENCE,
        )
        with contextlib.closing(answer):
            api._raise_for_status(answer)
            yield from api._stream_helper(answer, decode=True)
    except (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError) as error:
        raise _SilenceError from error
    except urllib3.exceptions.HTTPError as error:
        # Broken off in the middle: the SDK reads past the library that would have made its own error of it.
        raise requests.ConnectionError(error) from error


def _words(error: APIError) -> str:
    return " ".join(str(error.explanation or error).split())


def explain(fault: str, doing: str) -> RunnerError:
    """The engine's words about a pull as an error: ImageError where this name cannot be had."""
    low = fault.lower()
    if "no space left on device" in low:
        return RunnerError(f"{doing}: no space left on device: free space in the engine's data root ({fault})")
    if any(word in low for word in _LATER) and "manifest unknown" not in low:
        return RunnerError(f"{doing}: the registry cannot be reached now: {fault}")
    if any(word in low for word in _NEVER):
        return ImageError(f"{doing}: there is no such image, or it may not be pulled: {fault}; check runtime.image")
    return RunnerError(f"{doing}: {fault}")
