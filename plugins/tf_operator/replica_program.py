"""One replica's program on this host: address, devices and secrets on the way to its start, and what comes after.

Every method that changes something returns what the replica's message has to say now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tf_operator import model_dir
from tf_operator.errors import (
    DeviceError,
    ImageError,
    JobError,
    NoSuchDeviceError,
    RunnerError,
    SecretError,
    SecretUnavailableError,
    VisibleDevicesError,
)
from tf_operator.follower import Follower, ModelDirSigns
from tf_operator.identity import Identity
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Cluster, Status, deciders, describe_end
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.memory import Memory
from tf_operator.program import Start, make_launch
from tf_operator.runners.base import Exit, Handle, Launch, Lease
from tf_operator.watching import DeviceLease, Host

Change = dict[str, Any]


class ReplicaProgram:
    """All methods may raise RunnerError, and ChannelError from the memory: then nothing was started, call again."""

    def __init__(
        self,
        job: RenderedJob,
        identity: Identity,
        *,
        host: Host,
        memory: Memory,
        follower: Follower,
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._job, self._identity, self._host, self._memory = job, identity, host, memory
        self._follower, self._log, self._clock = follower, log, clock
        self._lease: Lease | None = None
        self._signs: ModelDirSigns | None = None
        self._no_device_since: float | None = None
        host.leases.bind(memory.save_leases, log)

    # -- what an earlier watcher left

    def take_up(self) -> Change:
        """Adopt the program of this attempt, or remove what is here and stand ready as a new incarnation."""
        handle = self._host.runner.find(self._identity)
        self._inherit_leases()
        if handle and self._memory.may_adopt(handle):
            return self._adopt(handle)
        stopped = handle is not None and handle.stopping
        if handle:
            why = "it was told to stop" if stopped else "it belongs to an earlier attempt or try"
            self._clear_away(handle, why)
        self._host.leases.end()
        if self._memory.next_incarnation(stopped):
            self._log(f"the last program of {self._identity.replica} was lost with its watcher; it counts as a start")
        address = self._hold_address(self._memory.address)
        self._memory.save(address=address)
        return {"incarnation": self._memory.incarnation, "status": Status.READY, "address": address}

    def _adopt(self, handle: Handle) -> Change:
        self._follower.adopt(handle, self._memory.position())
        self._watch_model_dir(self._job.run_policy.stall_timeout)
        self._log(f"adopted the program of {self._identity.replica}: its watcher was lost, the program was not")
        return {
            "status": Status.RUNNING,
            "incarnation": handle.incarnation,
            "generation": handle.generation,
            "address": handle.address,
            "pid": _pid(handle),
        }

    def remove_leftovers(self) -> None:
        """The job is over: nothing of an earlier watcher may stay."""
        self._inherit_leases()
        if handle := self._host.runner.find(self._identity):
            self._clear_away(handle, "the job is over")
        self._host.leases.end()

    def _inherit_leases(self) -> None:
        if self._job.secrets:
            self._host.leases.inherit(self._memory.leases())

    def _clear_away(self, handle: Handle, why: str) -> None:
        self._log(f"a program of {self._identity.replica} is still here; {why}: stopping and removing it")
        self._follower.clear_away(handle, self._job.run_policy.termination_grace, self._keeps_failed())

    # -- starting

    def start(self, cluster: Cluster, incarnation: int) -> Change | None:
        """Start it as the cluster says. None while its image or devices are not there; the next call tries again."""
        start = Start(self._identity, incarnation, cluster)
        devices: DeviceLease | None = None
        try:
            # The caller looks at everything again before it calls again: the job may end while an image is fetched.
            if not self._host.runner.prepare(self._make_launch(start, None)):
                self._log(f"{self._identity.replica} waits for its image")
                return None
            devices = self._host.devices()
            self._no_device_since = None
            launch = replace(self._make_launch(start, devices), secrets=self._host.secrets())
            # Written before the start: one that is lost together with its watcher is counted, too. Not earlier: what
            # comes before may take minutes, and is no start.
            self._memory.save(started=start.generation)
            return self._launch(launch)
        except NoSuchDeviceError as error:
            # Not final: its retry may be on another host.
            return self._not_started(start, str(error), final=False)
        except DeviceError as error:
            return self._without_devices(start, error)
        except (SecretError, RunnerError, JobError) as error:
            passing = isinstance(error, RunnerError | SecretUnavailableError)
            final = not passing or isinstance(error, ImageError | VisibleDevicesError)
            return self._not_started(start, str(error), final)
        finally:
            if devices:
                devices.release()

    def _make_launch(self, start: Start, devices: DeviceLease | None) -> Launch:
        return make_launch(
            self._job,
            start,
            inherited=self._host.inherited,
            devices=devices.ids if devices else (),
            device_fds=devices.fds if devices else (),
            device_memory=devices.memory if devices else None,
        )

    def _launch(self, launch: Launch) -> Change:
        if self._lease is None:
            raise RunnerError(f"{launch.identity.replica}: no address is held to start at")
        with model_dir.held(self._job.model_dir, launch.identity):
            handle = self._follower.start(launch, self._lease)
        self._watch_model_dir(self._job.run_policy.stall_timeout)
        where = f"devices {','.join(launch.devices)}" if launch.devices else "no device"
        self._log(f"started {launch.identity.replica} at {handle.address}, generation {launch.generation}, {where}")
        return {"status": Status.RUNNING, "generation": launch.generation, "pid": _pid(handle)}

    def _without_devices(self, start: Start, error: DeviceError) -> Change | None:
        now = self._clock()
        if self._no_device_since is None:
            self._no_device_since = now
        if now - self._no_device_since <= self._job.run_policy.start_timeout:
            self._log(f"waits for devices: {error}")
            return None
        self._no_device_since = None
        return self._not_started(start, str(error), final=False)

    def _not_started(self, start: Start, reason: str, final: bool) -> Change:
        self._log(reason)
        self._host.leases.end()
        end = Exit(code=NOT_STARTED, reason=reason)
        return {"status": Status.EXITED, "generation": start.generation, "end": end, "tail": (), "final": final}

    def _hold_address(self, preferred: str | None) -> str:
        """The address is ours from here to the end of the watch, so that a start in place finds it free."""
        if self._lease is None:
            self._lease = self._host.runner.reserve(self._identity, preferred)
        return self._lease.address

    def let_go(self) -> None:
        """The watch is over. A program that lives holds its address itself."""
        if self._lease:
            self._lease.release()

    # -- while it lives

    def tend_secrets(self) -> None:
        """Renew what its secrets live by; what had to be fetched anew replaces the program's files."""
        renewed = self._host.leases.tend()
        if renewed is None or self._follower.handle is None:
            return
        number = self._job.group_of(self._identity.replica).on_renewal
        try:
            self._host.runner.renew(self._follower.handle, renewed, number)
        except RunnerError as error:
            self._log(f"{error}; it is tried again")
            return
        self._host.leases.delivered()
        names = ", ".join(file.name for file in renewed.files)
        self._log(f"secret files replaced: {names}" + (f"; the program was told by {number}" if number else ""))

    # -- ending

    def revoke_secrets(self) -> None:
        """The program has ended: nobody uses any more what it was given."""
        self._host.leases.end()

    def stand_ready(self, end: Exit) -> Change:
        """The program has ended and is to start again in place: hold the address, remove what is left.

        An adopted program's address may be taken by now: at another one the replica is a new incarnation.
        """
        before, address = self._memory.address, self._hold_address(self._memory.address)
        # One write: an outage between two would leave the new address with the old incarnation.
        if address == before:
            self._memory.save(started=0)
        else:
            self._memory.next_incarnation(stopped=True, address=address)
        self._follower.remove(end.failed and self._keeps_failed())
        return {
            "status": Status.READY,
            "incarnation": self._memory.incarnation,
            "address": address,
            "end": None,
            "tail": (),
            "final": False,
        }

    def give_up(self, generation: int) -> None:
        """Its end was its own fault: count it, remove what is left."""
        self._memory.add_failure(generation)
        self._find()
        self._follower.remove(self._keeps_failed())

    def end(self, why: str, ended: Exit | None) -> None:
        """The job is over: stop the program where it has not `ended`, and remove it."""
        self._find()
        if self._follower.handle is None:
            # A start that was put off after it had its secrets.
            self._host.leases.end()
            return
        if ended is None:
            self._log(f"stopping the program: {why}")
            end = self._follower.end(self._job.run_policy.termination_grace, self.tend_secrets)
            self._log(f"stopped: {describe_end(end) if end else 'it does not end'}")
        self._host.leases.end()
        self._follower.remove(ended is not None and ended.code != 0 and self._keeps_failed())

    def _find(self) -> None:
        """A start that failed, or was broken off, may have left something all the same."""
        if self._follower.handle is None:
            self._follower.handle = self._host.runner.find(self._identity)

    def _keeps_failed(self) -> bool:
        return self._job.run_policy.clean_policy == "keep_failed"

    # -- signs of life

    def _watch_model_dir(self, limit: float | None) -> None:
        self._signs = None
        if limit is not None and self._identity.replica in deciders(self._job):
            self._signs = ModelDirSigns(self._job.model_dir, self._clock, interval=max(1.0, limit / 20))

    def is_stalled(self, unserved: bool) -> bool:
        """Whether the deciding program has given no sign of life (output, files) for as long as it may."""
        limit, _ = self._job.run_policy.silence(unserved)
        if limit is not None and self._signs is None:
            self._watch_model_dir(limit)
        if limit is None or self._signs is None:
            return False
        return self._clock() - max(self._follower.last_output, self._signs.last_change()) > limit


def _pid(handle: Handle) -> int:
    return int(handle.data.get("pid", 0) or 0)
