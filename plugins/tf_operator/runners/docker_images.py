"""Images: there, pulled, or why not; a name that cannot exist is told apart from a registry that is down."""

from __future__ import annotations

from docker.errors import APIError, NotFound
from docker.utils import parse_repository_tag

from tf_operator.errors import EngineUnavailableError, ImageError, RunnerError
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.runners.docker_engine import Client, Engine, engine_url

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
        for step in api.pull(repository, tag or "latest", stream=True, decode=True):
            if "error" in step:
                return str(step["error"])
        return None

    doing = f"{who}: pulling image {image}"
    try:
        fault = engine.call(doing, pull, patient=True)
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
