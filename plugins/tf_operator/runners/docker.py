"""The docker runner: every program in a container of its own, in a network of the run's own.

A container is found by its labels, never by its name. What the engine cannot keep is below `state_dir`: the masked
output, the ends of removed containers, requests to stop, and who watches.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_operator import locks
from tf_operator.errors import EngineUnavailableError, IdentityHeldError, LaunchError, RunnerError
from tf_operator.identity import Identity
from tf_operator.runners import docker_entry, docker_network, docker_spec
from tf_operator.runners.base import Exit, Handle, Launch, Lease, SecretBundle
from tf_operator.runners.clearing import BRIEFLY
from tf_operator.runners.docker_container import Containers, Found
from tf_operator.runners.docker_end import ENDED, end_of
from tf_operator.runners.docker_engine import Engine, engine_url
from tf_operator.runners.docker_images import Fetch
from tf_operator.runners.docker_logs import Logs
from tf_operator.runners.docker_output import Spool
from tf_operator.runners.docker_start import start_container
from tf_operator.runners.run_folder import RunFolder
from tf_operator.runners.watches import Watches

START_WAIT = 120.0
"""Seconds to wait for another start of the same replica: it may be pulling."""
PATIENCE = 60.0
"""Seconds an engine may be away (a restart) before a watch ends for it."""
KILL_MARGIN = 10.0
"""Seconds past the grace before the container's own watchdog kills, for a watcher that died meanwhile."""


@dataclass(frozen=True)
class NameLease:
    """A place in the run's network: nobody else can have it, so there is nothing to hold."""

    identity: Identity

    @property
    def address(self) -> str:
        """`worker-0:2222`."""
        return docker_spec.address_of(self.identity)

    def release(self) -> None:
        """Nothing to do."""


class DockerRunner:
    """Runs programs on one engine. `masks` gives the texts to mask where the container can no longer be asked."""

    def __init__(
        self,
        state_dir: Path,
        url: str | None = None,
        conn_id: str | None = None,
        masks: Callable[[], Sequence[str]] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.state_dir = state_dir.resolve() / "docker"
        self.url = url or engine_url()
        self.engine = Engine(self.url, conn_id, patience)
        self.containers = Containers(self.engine)
        self._logs = Logs(self.url, self.containers, masks)
        self._watches = Watches()
        self._beats: dict[str, float] = {}
        self._prepared: tuple[str, int, int] | None = None
        self._fetch: tuple[tuple[str, int, int], Fetch] | None = None
        self._away_since: float | None = None

    # -- before and at the start

    def reserve(self, identity: Identity, preferred: str | None) -> NameLease:
        """The replica's name in its run's network; always the same."""
        return NameLease(identity)

    def find(self, identity: Identity) -> Handle | None:
        """The container with this identity's labels, living or ended. One that was never started is removed."""
        found = self.containers.newest(identity)
        if found is None:
            return None
        folder = self._folder(identity)
        # Without it a watcher could not say that it looks; see `Spool.acquire` for where it may have gone.
        folder.create()
        if found.state["Status"] == "created":
            self._remove_unstarted(folder, identity)
            return None
        return self.handle_of(found)

    def _remove_unstarted(self, folder: RunFolder, identity: Identity) -> None:
        """Its starter has died, or is at it under the lock: then it is left alone."""
        with self.no_start(folder) as free:
            for found in self.containers.all(identity) if free else ():
                if found.state["Status"] == "created":
                    self.remove(self.handle_of(found), keep_output=False)

    @contextlib.contextmanager
    def no_start(self, folder: RunFolder) -> Iterator[bool]:
        """Whether nobody is starting this replica; if so, nobody begins to meanwhile."""
        folder.create()
        descriptor = locks.acquire(folder.keeper_lock, wait=BRIEFLY)
        if descriptor is None:
            yield False
            return
        try:
            yield True
        finally:
            folder.keeper_lock.unlink(missing_ok=True)
            os.close(descriptor)

    def prepare(self, launch: Launch) -> bool:
        """Have the image, once for each start."""
        wanted = (launch.identity.key, launch.incarnation, launch.generation)
        if self._prepared == wanted:
            return True
        if self._fetch is None or self._fetch[0] != wanted:
            policy = docker_spec.options_of(launch).get("pull_policy")
            self._fetch = wanted, Fetch(self.engine, docker_spec.image_of(launch), policy, launch.identity)
        fetch = self._fetch[1]
        try:
            if not fetch.is_done():
                return False
        except BaseException:
            self._fetch = None
            raise
        self._prepared, self._fetch = wanted, None
        return True

    def start(self, launch: Launch, lease: Lease) -> Handle:
        """Start a container; an ended one of this identity is put on record and removed first."""
        if not isinstance(lease, NameLease):
            raise RunnerError(f"{launch.identity}: start needs a lease of this runner")
        docker_spec.check(launch)
        while not self.prepare(launch):
            pass
        self._prepared = None
        folder = self._folder(launch.identity)
        try:
            folder.create()
            with self._alone(folder, launch.identity):
                # Who had the lock before may have removed the folder.
                folder.create()
                self._clear(folder, launch.identity)
                return self._launch(folder, launch)
        except OSError as error:
            where = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            raise LaunchError(f"{launch.identity}: the program could not be started: {where.lower()}") from error

    @contextlib.contextmanager
    def _alone(self, folder: RunFolder, identity: Identity) -> Any:
        descriptor = locks.acquire(folder.keeper_lock, wait=START_WAIT)
        if descriptor is None:
            raise IdentityHeldError(f"{identity}: another start of it has been under way for {START_WAIT:g} s")
        try:
            yield
        finally:
            os.close(descriptor)

    def _clear(self, folder: RunFolder, identity: Identity) -> None:
        """Only one program may have the identity: a living one stays, anything else of ours goes."""
        for found in self.containers.all(identity):
            status = found.state["Status"]
            if status not in (*ENDED, "created"):
                raise IdentityHeldError(
                    f"{identity}: its container {found.name} (pid {found.pid}) lives: stop it, or see tf-operator clean"
                )
            if status != "created":
                self._record(folder, found)
            self.containers.remove(found.id)
        self.containers.check_name(identity)

    def _launch(self, folder: RunFolder, launch: Launch) -> Handle:
        start = folder.last_start() + 1
        folder.reserve(start)
        folder.touch_watched()
        self._watches.look(folder)
        found = start_container(self.engine, self.state_dir, launch, start, launch.termination_grace + KILL_MARGIN)
        folder.write_record({"container": found.id, "start": start, "pid": found.pid})
        self._logs.know(found.id, launch.secrets.mask)
        self._beats[found.id] = time.monotonic()
        return self.handle_of(found)

    # -- while it lives

    def poll(self, handle: Handle) -> Exit | None:
        """None while it lives, or while the engine is briefly away. Carries out what of a stop is due."""
        folder, start = self._folder(handle.identity), int(handle.data["start"])
        if end := folder.exit(start):
            return Exit(**end)
        try:
            found = self.containers.get(handle.data["container"])
        except EngineUnavailableError:
            self._be_patient()
            return None
        self._away_since = None
        if found is None:
            return Exit(code=137, signal="SIGKILL", reason="its container was removed by somebody else")
        if found.state["Status"] in ENDED:
            return self._record(folder, found)
        self._watches.look(folder)
        with contextlib.suppress(RunnerError):
            self._beat(found)
            self._carry_out_stop(folder, found, start)
        return None

    def _be_patient(self) -> None:
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since > self.engine.patience:
            raise EngineUnavailableError(
                f"the Docker engine at {self.url} has not answered for {self.engine.patience:g} s"
            )

    def _beat(self, found: Found) -> None:
        """A sign for the watchdog; rare, because it costs a process in the container."""
        now = time.monotonic()
        if now - self._beats.get(found.id, 0.0) >= found.labels.orphan_timeout / 5:
            self._beats[found.id] = now
            self.containers.beat(found.id)

    def _carry_out_stop(self, folder: RunFolder, found: Found, start: int) -> None:
        """TERM, unless it was sent, then KILL once it is due."""
        request = folder.stop_request(start)
        if request is None or request.get("killed") or self._term(folder, found, start, request):
            return
        if time.monotonic() < request["kill_at"]:
            return
        if request["grace"] > 0:
            folder.request_stop(start, **{**request, "killed": True})
        self.containers.signal(found.id, "SIGKILL")

    def _term(self, folder: RunFolder, found: Found, start: int, request: dict[str, Any]) -> bool:
        """Whether it was sent now. Noted after that, and the grace counts from it: the engine may have been away."""
        if request.get("termed") or request["grace"] <= 0 or not self.containers.signal(found.id, "SIGTERM"):
            return False
        kill_at = time.monotonic() + request["grace"]
        folder.request_stop(start, **{**request, "termed": True, "kill_at": kill_at})
        # A frozen program does not see a TERM.
        self.containers.signal(found.id, "SIGCONT")
        return True

    def output(self, handle: Handle, offset: int, limit: int = 65536) -> tuple[bytes, int]:
        """Masked output of this start, also after its end and its removal."""
        folder, start, container = self._folder(handle.identity), int(handle.data["start"]), handle.data["container"]
        if folder.exit(start) is None:
            with contextlib.suppress(RunnerError):
                self._logs.tend(folder, container, lambda: self.containers.get(container))
        data = Spool(folder.output(start)).read(offset, limit)
        return data, offset + len(data)

    def renew(self, handle: Handle, secrets: SecretBundle, signal: str | None) -> None:
        """By a shell in the container, which gets everything on its standard input."""
        found = self.containers.get(handle.data["container"])
        if not secrets.files or found is None or found.state["Status"] in ENDED:
            return
        masks = self._logs.add(self._folder(handle.identity), found, secrets.mask)
        if masks is None:
            raise RunnerError(f"{handle.identity}: its secret files are not replaced: what is masked now is not known")
        code = self.containers.run_script(found.id, docker_entry.renewal(secrets, masks, signal))
        if code == 0:
            return
        now = self.containers.get(found.id)
        if now is not None and now.state["Status"] not in ENDED:
            why = "could not be run" if code is None else f"ended with {code}"
            raise RunnerError(f"{handle.identity}: its secret files cannot be replaced: a shell in it {why}")

    # -- the end

    def stop(self, handle: Handle, grace: float) -> None:
        """Leave the request on record, send TERM; `poll` sends what is due later, else the watchdog sends KILL."""
        folder, start = self._folder(handle.identity), int(handle.data["start"])
        found = self.containers.get(handle.data["container"])
        if found is None or found.state["Status"] in ENDED or folder.exit(start):
            return
        folder.create()
        earlier = folder.stop_request(start) or {}
        kill_at = min(time.monotonic() + grace, earlier.get("kill_at", float("inf")))
        if not earlier or kill_at < earlier["kill_at"]:
            folder.request_stop(start, **{**earlier, "grace": grace, "kill_at": kill_at})
        if found.state.get("Paused"):
            self.containers.unpause(found.id)
        self._carry_out_stop(folder, found, start)

    def hurry(self, patience: float) -> None:
        """Read anew by every call that waits."""
        self.engine.patience = min(patience, self.engine.patience)

    def remove(self, handle: Handle, keep_output: bool = True) -> None:
        """Remove container and records of this start, and the run's network with its last container."""
        folder = self._folder(handle.identity)
        self._watches.drop(folder)
        found = self.containers.get(handle.data["container"])
        if found is not None:
            if found.state["Status"] not in (*ENDED, "created"):
                folder.create()
                folder.request_stop(found.labels.start, 0.0, kill_at=0.0, killed=False)
                found = self.containers.kill_and_wait(found)
            if found is not None:
                if found.state["Status"] != "created":
                    self._record(folder, found)
                if keep_output:
                    self._keep_facts(folder, found)
                self.containers.remove(found.id)
        self._forget(folder, handle, keep_output)
        job_key = handle.identity.job_key
        docker_network.remove_if_last(self.engine, job_key, self.state_dir, handle.identity)

    def _keep_facts(self, folder: RunFolder, found: Found) -> None:
        # The container itself would hold its name and its run's network.
        with contextlib.suppress(OSError):
            folder.create()
            folder.write_facts(found.labels.start, found.raw)

    def _forget(self, folder: RunFolder, handle: Handle, keep_output: bool) -> None:
        container, start = handle.data["container"], int(handle.data["start"])
        self._logs.forget(container)
        self._beats.pop(container, None)
        Spool(folder.output(start)).forget(keep_output)
        record = folder.record()
        if record is None or record["start"] <= start:
            folder.forget(start if keep_output else None)
            self._drop_lock(folder)
        elif keep_output:
            folder.keep(start)

    def _drop_lock(self, folder: RunFolder) -> None:
        """The start's lock, unless the next start has it already."""
        with contextlib.suppress(FileNotFoundError):
            if (descriptor := locks.acquire(folder.keeper_lock)) is not None:
                folder.keeper_lock.unlink(missing_ok=True)
                os.close(descriptor)

    def _record(self, folder: RunFolder, found: Found) -> Exit:
        """The end of a container, on record once its log is complete: it is gone with the container."""
        start = found.labels.start
        if known := folder.exit(start):
            return Exit(**known)
        told, trouble = self._logs.finish(folder, found)
        withheld = self._logs.mask_result(found)
        end = end_of(
            found.state,
            limit=found.memory,
            told=told,
            orphan_timeout=found.labels.orphan_timeout,
            stop=folder.stop_request(start),
        )
        record = {**end.__dict__, "reason": "; ".join(filter(None, (end.reason, trouble, withheld))) or None}
        folder.create()
        folder.write_exit(start, record)
        return Exit(**record)

    # -- small parts

    def handle_of(self, found: Found) -> Handle:
        """One of our containers in the form of the contract."""
        labels = found.labels
        folder = self._folder(labels.identity)
        record = folder.record() or {}
        pid = record.get("pid") if record.get("container") == found.id else found.pid
        return Handle(
            labels.identity,
            labels.get("attempt"),
            int(labels.get("incarnation")),
            int(labels.get("generation")),
            docker_spec.address_of(labels.identity),
            {"container": found.id, "start": labels.start, "pid": pid},
            stopping=folder.stop_request(labels.start) is not None,
        )

    def close(self) -> None:
        """Stop being a watcher of anything."""
        self._logs.close()
        self._watches.close()
        self.engine.close()

    def _folder(self, identity: Identity) -> RunFolder:
        return RunFolder(self.state_dir, identity.key)
