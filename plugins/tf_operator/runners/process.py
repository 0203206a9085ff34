"""The process runner: every program is a process tree of this host under a keeper of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from signal import SIGTERM, SIGUSR1

from tf_operator import locks
from tf_operator.errors import LaunchError, RunnerError
from tf_operator.identity import Identity
from tf_operator.ports import PortLease, PortLeases
from tf_operator.runners import process_tree, renewal, secret_files
from tf_operator.runners.base import Exit, Handle, Launch, Lease, SecretBundle
from tf_operator.runners.clearing import clear, remove, settle, take_keeper_lock
from tf_operator.runners.keeper_start import make_orders, start_keeper
from tf_operator.runners.records import handle_of, new_record, process_of
from tf_operator.runners.run_folder import RunFolder
from tf_operator.runners.watches import Watches

RENEWAL_WAIT = 5.0
"""Seconds for a keeper to replace secret files; a tick of its own is one."""


class ProcessRunner:
    """Runs programs on this host. Everything it knows is below `state_dir`, so any process can go on with it."""

    def __init__(self, state_dir: Path, port_range: tuple[int, int], host: str = "127.0.0.1") -> None:
        if not sys.platform.startswith("linux"):
            raise RunnerError(f"the process runner needs Linux, this is {sys.platform}: use runtime kind docker")
        self.state_dir = state_dir.resolve()
        self._ports = PortLeases(self.state_dir / "ports", port_range, host)
        self._watches = Watches()

    def reserve(self, identity: Identity, preferred: str | None) -> PortLease:
        """Lease a port; see `PortLeases.reserve`."""
        return self._ports.reserve(identity, preferred)

    def find(self, identity: Identity) -> Handle | None:
        """The program with this identity; what a killed keeper left is ended first."""
        folder = self._folder(identity)
        record = folder.record()
        if record is None:
            return None
        unsettled = "pid" not in record or not folder.exit(record["start"])
        if unsettled and not locks.is_held(folder.keeper_lock):
            settle(folder)
            record = folder.record()
        if record is None:
            return None
        return handle_of(record, stopping=folder.stop_request(record["start"]) is not None)

    def prepare(self, launch: Launch) -> bool:
        """Nothing to do."""
        return True

    def hurry(self, patience: float) -> None:
        """Nothing is waited for."""

    def start(self, launch: Launch, lease: Lease) -> Handle:
        """Start a program in its own session under a detached keeper, which takes over the leases."""
        if not isinstance(lease, PortLease) or not lease.fds:
            raise RunnerError(f"{launch.identity}: start needs a lease of this runner that is still held")
        _check(launch)
        folder = self._folder(launch.identity)
        held: list[int] = []
        try:
            folder.create()
            held.append(take_keeper_lock(folder, launch.identity))
            held.append(clear(folder, launch.identity))
            return self._launch(folder, launch, lease, held)
        except OSError as error:
            where = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            raise LaunchError(f"{launch.identity}: the program could not be started: {where.lower()}") from error
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _launch(self, folder: RunFolder, launch: Launch, lease: PortLease, held: list[int]) -> Handle:
        keeper_fd, identity_fd = held
        start = folder.last_start() + 1
        record = new_record(launch, lease.address, start, folder)
        folder.reserve(start)
        folder.touch_watched()
        folder.write_record(record)
        fds = [identity_fd, *lease.fds, *launch.device_fds]
        start_keeper(folder, make_orders(launch, start, record, keeper_fd, fds), launch.identity)
        self._watches.look(folder)
        return handle_of(folder.record() or record)

    def poll(self, handle: Handle) -> Exit | None:
        """None while it lives; an end that no keeper recorded is settled here."""
        folder, start = self._folder(handle.identity), handle.data["start"]
        end = folder.exit(start)
        if end is None and folder.path.is_dir():
            self._watches.look(folder)
            if locks.is_held(folder.keeper_lock):
                return None
            settle(folder)
            end = folder.exit(start)
            if end is None and locks.is_held(folder.keeper_lock):
                return None
        return Exit(**(end or {"code": 137, "stopped": True, "reason": "it was removed by somebody else"}))

    def output(self, handle: Handle, offset: int, limit: int = 65536) -> tuple[bytes, int]:
        """Masked output of this start, also after its end; nothing once it was removed."""
        path = self._folder(handle.identity).output(handle.data["start"])
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b"", offset
        try:
            data = os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)
        return data, offset + len(data)

    def renew(self, handle: Handle, secrets: SecretBundle, signal: str | None) -> None:
        """Leave the new contents for the keeper, wake it, and wait until it has put them in place."""
        folder, start = self._folder(handle.identity), handle.data["start"]
        place = secret_files.secrets_dir(folder.state_dir, folder.key)
        record = folder.record()
        if not secrets.files or record is None or record["start"] != start or folder.exit(start):
            return
        try:
            renewal.request(place, secrets, signal)
        except OSError as error:
            raise RunnerError(f"{handle.identity}: its secret files cannot be replaced: {error.strerror}") from None
        deadline = time.monotonic() + RENEWAL_WAIT
        if (keeper := process_of(record, "keeper")) is not None:
            process_tree.send(keeper, SIGUSR1)
        while renewal.is_open(place) and not folder.exit(start):
            if time.monotonic() > deadline:
                raise RunnerError(f"{handle.identity}: its keeper has not replaced its secret files; it is tried again")
            time.sleep(0.01)
        if fault := renewal.fault(place):
            raise RunnerError(f"{handle.identity}: its secret files cannot be replaced: {fault}")

    def stop(self, handle: Handle, grace: float) -> None:
        """Leave the request in the run folder and wake the keeper. A second call can only shorten the grace."""
        folder, start = self._folder(handle.identity), handle.data["start"]
        record = folder.record()
        if record is None or record["start"] != start or folder.exit(start):
            return
        folder.request_stop(start, grace)
        if (keeper := process_of(record, "keeper")) is not None:
            process_tree.send(keeper, SIGTERM)

    def remove(self, handle: Handle, keep_output: bool = True) -> None:
        """Remove what this start left; a newer start of the same identity is not touched."""
        folder = self._folder(handle.identity)
        self._watches.drop(folder)
        record = folder.record()
        if record is None or record["start"] != handle.data["start"]:
            return
        if not folder.exit(record["start"]):
            self.stop(handle, 0.0)
        remove(folder, handle.identity, handle.data["start"], keep_output)

    def close(self) -> None:
        """Stop being a watcher of anything."""
        self._watches.close()

    def _folder(self, identity: Identity) -> RunFolder:
        return RunFolder(self.state_dir, identity.key)


def _check(launch: Launch) -> None:
    if not launch.argv:
        raise LaunchError(f"{launch.identity}: the command is empty")
    if not Path(launch.working_dir).is_dir():
        raise LaunchError(f"{launch.identity}: working_dir {launch.working_dir} is no directory on this host")
    for file in launch.secrets.files:
        if file.name in ("", ".", "..") or "/" in file.name:
            raise LaunchError(f"{launch.identity}: secret file {file.name!r}: give a plain file name, no path")
