"""What the runner asks an engine about our containers, one question a method. Absence is None, never an error."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound

from tf_operator.errors import RunnerError
from tf_operator.identity import Identity
from tf_operator.runners import docker_entry, result_file
from tf_operator.runners.docker_end import ENDED
from tf_operator.runners.docker_engine import Client, Engine
from tf_operator.runners.docker_spec import LABEL, Labels, container_name

SCRIPT_WAIT = 15.0
"""Seconds for a script of a few lines to end."""
KILL_WAIT = 20.0
"""Seconds for a killed container to be gone."""


@dataclass(frozen=True)
class Found:
    """One of our containers as `inspect` has it."""

    raw: dict[str, Any]

    @property
    def id(self) -> str:
        """Container id."""
        return str(self.raw["Id"])

    @property
    def name(self) -> str:
        """Container name, for people."""
        return str(self.raw["Name"]).lstrip("/")

    @property
    def state(self) -> dict[str, Any]:
        """`State`."""
        state: dict[str, Any] = self.raw["State"]
        return state

    @property
    def pid(self) -> int | None:
        """The pid on the engine's host of the container's init; None where it has ended."""
        return int(self.state.get("Pid") or 0) or None

    @property
    def labels(self) -> Labels:
        """Our labels."""
        return Labels(self.raw["Config"].get("Labels") or {})

    @property
    def result(self) -> Path | None:
        """Where its program may leave its result; the model_dir is mounted where it is on the host."""
        given = (entry.partition("=") for entry in self.raw["Config"].get("Env") or ())
        return next((Path(value) for name, _, value in given if name == result_file.VARIABLE), None)

    @property
    def memory(self) -> int:
        """Limit in bytes, 0 for none."""
        return int(self.raw["HostConfig"].get("Memory") or 0)


class Containers:
    """The containers of one engine that carry our labels."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self, identity: Identity) -> list[Found]:
        """All with this identity, newest first."""
        filters = {"label": [f"{LABEL}.identity={identity.key}"]}
        rows = self._engine.call(
            f"{identity}: looking for its container",
            lambda api: api.containers(all=True, filters=filters),
            patient=True,
        )
        found = [self.get(row["Id"]) for row in sorted(rows, key=lambda row: -row["Created"])]
        return [container for container in found if container is not None]

    def newest(self, identity: Identity) -> Found | None:
        """The living one, else the newest."""
        found = self.all(identity)
        return next(
            (one for one in found if one.state["Status"] not in (*ENDED, "created")), found[0] if found else None
        )

    def get(self, container: str) -> Found | None:
        """One by its id."""
        try:
            return Found(self._engine.call(f"container {container[:12]}", lambda api: api.inspect_container(container)))
        except NotFound:
            return None

    def check_name(self, identity: Identity) -> None:
        """RunnerError where somebody else's container has our name: it is not ours to remove."""
        name = container_name(identity)
        found = self.get(name)
        if found is not None and found.labels.get("identity") != identity.key:
            raise RunnerError(
                f"{identity}: the name {name} is taken by container {found.id[:12]}"
                f" (image {found.raw['Config']['Image']}), which is not of this job: rename or remove it"
            )

    def signal(self, container: str, name: str) -> bool:
        """Send a signal to the container's init, which passes it on; False where it has ended."""

        def ask(api: Client) -> bool:
            try:
                api.kill(container, name)
            except APIError as error:
                if error.status_code not in (404, 409):
                    raise
                return False
            return True

        return self._engine.call(f"container {container[:12]}: sending {name}", ask)

    def unpause(self, container: str) -> None:
        """Have it go on."""
        with contextlib.suppress(NotFound, RunnerError):
            self._engine.call(f"container {container[:12]}: unpausing", lambda api: api.unpause(container))

    def kill_and_wait(self, found: Found) -> Found | None:
        """Kill it and wait for its end."""
        if found.state.get("Paused"):
            self.unpause(found.id)
        self.signal(found.id, "SIGKILL")
        deadline = time.monotonic() + KILL_WAIT
        while True:
            now = self.get(found.id)
            if now is None or now.state["Status"] in ENDED:
                return now
            if time.monotonic() > deadline:
                raise RunnerError(
                    f"{found.labels.identity}: container {found.name} does not end within {KILL_WAIT:g} s"
                )
            time.sleep(0.05)

    def remove(self, container: str) -> None:
        """Remove it with its anonymous volumes."""

        def ask(api: Client) -> None:
            try:
                api.remove_container(container, v=True, force=True)
            except APIError as error:
                # Somebody else is at it, or was.
                if error.status_code not in (404, 409):
                    raise

        self._engine.call(f"container {container[:12]}: removing", ask, patient=True)

    def beat(self, container: str) -> None:
        """Leave the watchdog a sign."""
        text = f"echo {time.monotonic_ns()} >{docker_entry.BEAT_FILE}"

        def ask(api: Client) -> None:
            with contextlib.suppress(APIError):
                api.exec_start(api.exec_create(container, ["/bin/sh", "-c", text]), detach=True)

        self._engine.call(f"container {container[:12]}: heartbeat", ask)

    def run_script(self, container: str, script: bytes) -> int | None:
        """Have a shell in it run what it gets on standard input; its exit code, None where it could not."""

        def ask(api: Client) -> int | None:
            made = api.exec_create(container, ["/bin/sh"], stdin=True)["Id"]
            stream = api.exec_start(made, socket=True)
            raw = getattr(stream, "_sock", stream)
            try:
                raw.settimeout(SCRIPT_WAIT)
                raw.sendall(script)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(4096):
                    pass
            finally:
                stream.close()
                raw.close()
            code = api.exec_inspect(made)["ExitCode"]
            return None if code is None else int(code)

        with contextlib.suppress(NotFound):
            return self._engine.call(f"container {container[:12]}: running a script", ask)
        return None

    def mask(self, container: str) -> Sequence[str] | None:
        """The texts to mask, out of the container's memory; None where it has ended."""

        def ask(api: Client) -> bytes:
            made = api.exec_create(container, ["/bin/sh", "-c", f"cat {docker_entry.MASK_FILE}"], stderr=False)
            return bytes(api.exec_start(made))

        with contextlib.suppress(RunnerError, NotFound, ValueError, TypeError):
            texts = json.loads(self._engine.call(f"container {container[:12]}: reading masks", ask))
            return [str(text) for text in texts]
        return None
