"""The watcher of one replica: launches its program when the cluster allows it, follows it, stops it, adopts it.

It is the same object in an Airflow task and in `local`: clock, runner, channel and store are handed in. It decides
nothing about the others; what its program's end means is the owner's to say.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from tf_operator.errors import DeviceError, RunnerError, SecretError, SecretUnavailableError, TfOperatorError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Cluster, Member, Phase, Status, Verdict, describe_end
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.output import OutputLines
from tf_operator.program import Start, make_launch
from tf_operator.runners.base import Exit, Handle, Lease, Runner, SecretBundle

TICK = 0.25
"""Seconds between looks at the program."""
CHANNEL_TICK = 1.0
"""Seconds between looks at the cluster message: each costs the API server a call."""
SLOW_TICK = 5.0
"""Seconds between looks at what changes rarely: the owner's state, the newest watcher, the saved output offset."""
VERDICT_PATIENCE = 180.0
"""Seconds an ended program waits for the owner's word before its end is taken for its own fault."""
SETTLE = 3.0
"""Seconds a program that ended with 0 lets the owner see that before it obeys a call to start again."""


class ChannelError(TfOperatorError):
    """The channel cannot be reached now. An outage, not an answer."""


class Channel(Protocol):
    """How a replica and the owner hear of each other. Every method may raise ChannelError."""

    def publish(self, member: Member) -> None:
        """Make this replica's message known."""
        ...

    def cluster(self) -> Cluster | None:
        """The owner's message of this attempt; None while there is none."""
        ...

    def owner_state(self) -> str:
        """`alive`, or why there is no owner any more in one phrase."""
        ...


class Store(Protocol):
    """What a replica remembers from one try to the next. JSON values; may raise ChannelError."""

    def get(self, key: str) -> Any:
        """The value, or None."""
        ...

    def set(self, key: str, value: Any) -> None:
        """Write or overwrite."""
        ...


class DeviceLease(Protocol):
    """Devices held for a replica; the program's keeper holds them too once it was started with their `fds`."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Device ids."""
        ...

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors of the kernel locks."""
        ...

    def release(self) -> None:
        """Close our hold."""
        ...


class Result(StrEnum):
    """How a watch ends."""

    SUCCESS = "success"
    SKIPPED = "skipped"
    """Stopped because of something else: not a fault of this replica."""
    RETRY = "retry"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    """A newer watcher has the replica; nothing was touched."""


@dataclass(frozen=True)
class Outcome:
    """How a watch ended, and why in one line."""

    result: Result
    text: str


@dataclass(frozen=True)
class Host:
    """What the watcher uses of the machine it runs on."""

    runner: Runner
    secrets: Callable[[], SecretBundle]
    devices: Callable[[], DeviceLease | None]
    """Lease what this replica asked for, without waiting; None where it asked for none. Raises DeviceError."""
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    name: str = field(default_factory=socket.gethostname)


class Watcher:
    """Watches one replica of one attempt until the job, the owner or a fault of its own ends the watch."""

    def __init__(
        self,
        job: RenderedJob,
        attempt: str,
        identity: Identity,
        *,
        host: Host,
        channel: Channel,
        store: Store,
        emit: Callable[[str], None],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job, self._attempt, self._identity = job, attempt, identity
        self._host, self._channel, self._store = host, channel, store
        self._emit, self._log, self._clock, self._sleep = emit, log, clock, sleep
        self._token = uuid.uuid4().hex
        self._handle: Handle | None = None
        self._lease: Lease | None = None
        self._lines = OutputLines(emit, clock)
        self._offset = 0
        self._member = Member(attempt, 0, "", Status.READY)
        self._ended_at = self._sign_of_life = self._ready_at = clock()
        self._next_channel = self._next_slow = 0.0
        self._cluster: Cluster | None = None
        self._stopping: str | None = None
        self._told = ""
        self._saved_offset = -1

    @property
    def replica(self) -> ReplicaId:
        """The replica that is watched."""
        return self._identity.replica

    # -- the watch

    def run(self) -> Outcome:
        """Watch until the end. Raises ChannelError only if the very first look fails."""
        cluster = self._channel.cluster()
        if cluster and cluster.phase.terminal:
            return self._arrived_late(cluster)
        self._store.set("watcher", self._token)
        try:
            self._take_up()
            while True:
                if outcome := self._step():
                    return outcome
                self._sleep(TICK)
        except RunnerError as error:
            return Outcome(Result.RETRY, str(error))
        finally:
            if self._lease:
                self._lease.release()

    def stop_by_person(self) -> None:
        """A person ended the task: stop the program. Returns at once; the keeper carries it out."""
        handle = self._handle or self._host.runner.find(self._identity)
        if handle:
            self._host.runner.stop(handle, self._job.run_policy.termination_grace)

    def alive(self) -> bool:
        """True while the program this watcher knows of has not ended."""
        return self._handle is not None and self._host.runner.poll(self._handle) is None

    def _step(self) -> Outcome | None:
        """One look at everything. Public state changes are published as they happen."""
        self._follow_program()
        if self._due("_next_slow", SLOW_TICK) and (outcome := self._look_slowly()):
            return outcome
        if not self._due("_next_channel", CHANNEL_TICK):
            return None
        try:
            self._cluster = self._channel.cluster() or self._cluster
        except ChannelError as error:
            self._say(f"the cluster message cannot be read now ({error}); the program is left alone")
            return None
        if self._cluster is None:
            return None
        if self._cluster.phase.terminal:
            return self._finish(self._cluster)
        return self._obey(self._cluster)

    def _due(self, name: str, interval: float) -> bool:
        now = self._clock()
        if now < getattr(self, name):
            return False
        setattr(self, name, now + interval)
        return True

    def _say(self, text: str) -> None:
        """Log what is new; the same line is not repeated."""
        if text != self._told:
            self._told = text
            self._log(text)

    # -- taking up: what an earlier watcher left

    def _arrived_late(self, cluster: Cluster) -> Outcome:
        """The job is over: never start, and leave nothing of an earlier watcher behind."""
        self._remove_old("the job is over")
        text = f"the job had already {cluster.phase} when {self.replica} arrived: {cluster.reason}"
        return Outcome(Result.SUCCESS if cluster.phase is Phase.SUCCEEDED else Result.SKIPPED, text)

    def _take_up(self) -> None:
        stored = self._store.get("replica") or {}
        same_attempt = stored.get("attempt") == self._attempt
        incarnation = int(stored.get("incarnation", 0))
        failures = int(stored.get("failures", 0)) if same_attempt else 0
        handle = self._host.runner.find(self._identity)
        if handle and same_attempt and (handle.attempt, handle.incarnation) == (self._attempt, incarnation):
            self._adopt(handle, failures)
        else:
            self._remove_old("it belongs to an earlier attempt or try")
            self._member = replace(self._member, incarnation=incarnation + 1, failures=failures)
            self._reserve(stored.get("address"))
            self._publish(status=Status.READY)
        self._remember()

    def _adopt(self, handle: Handle, failures: int) -> None:
        self._handle = handle
        saved = self._store.get("output") or {}
        same = (saved.get("incarnation"), saved.get("generation")) == (handle.incarnation, handle.generation)
        self._offset = int(saved.get("offset", 0)) if same else 0
        self._member = replace(
            self._member,
            incarnation=handle.incarnation,
            generation=handle.generation,
            address=handle.address,
            failures=failures,
        )
        self._log(f"adopted the running program of {self.replica}: its watcher was lost, the program was not")
        self._publish(status=Status.RUNNING, pid=int(handle.data.get("pid", 0) or 0))

    def _remove_old(self, why: str) -> None:
        handle = self._host.runner.find(self._identity)
        if handle is None:
            return
        self._log(f"a program of {self.replica} is still here; {why}: stopping and removing it")
        self._await_end(handle)
        self._host.runner.remove(handle)

    def _await_end(self, handle: Handle) -> None:
        grace = self._job.run_policy.termination_grace
        self._host.runner.stop(handle, grace)
        deadline = self._clock() + grace + 15.0
        while self._host.runner.poll(handle) is None:
            if self._clock() > deadline:
                raise RunnerError(f"{self.replica}: its old program does not end within {grace + 15:.0f} s of KILL")
            self._sleep(TICK)

    def _reserve(self, preferred: str | None) -> None:
        self._lease = self._host.runner.reserve(self._identity, preferred)
        self._member = replace(self._member, address=self._lease.address)

    def _remember(self) -> None:
        member = self._member
        self._store.set(
            "replica",
            {
                "attempt": self._attempt,
                "incarnation": member.incarnation,
                "address": member.address,
                "failures": member.failures,
            },
        )

    # -- the program

    def _follow_program(self) -> None:
        if self._handle is None or self._member.status is Status.EXITED:
            return
        end = self._host.runner.poll(self._handle)
        self._read_output(self._handle)
        if end is not None:
            self._read_output(self._handle, to_the_end=True)
            self._lines.close()
            self._on_end(end)
        elif self._stopping is None:
            self._check_stalled()

    def _read_output(self, handle: Handle, to_the_end: bool = False) -> None:
        while True:
            data, self._offset = self._host.runner.output(handle, self._offset)
            if data:
                self._sign_of_life = self._clock()
                self._lines.feed(data)
            if not data or (not to_the_end and len(data) < 65536):
                return

    def _on_end(self, end: Exit) -> None:
        self._ended_at = self._clock()
        if self._stopping is not None:
            self._log(f"stopped ({self._stopping}): {describe_end(end)}")
            self._stand_ready()
            return
        self._log(f"{self.replica}: the program ended: {describe_end(end)}")
        self._publish(status=Status.EXITED, end=end, tail=self._lines.tail)

    def _check_stalled(self) -> None:
        limit = self._job.run_policy.stall_timeout
        if limit is None or self.replica != self._job.decider or self._member.status is Status.STALLED:
            return
        newest = self._newest_file_age()
        quiet = self._clock() - self._sign_of_life
        if quiet > limit and (newest is None or newest > limit):
            self._publish(status=Status.STALLED)

    def _newest_file_age(self) -> float | None:
        """Seconds since anything in model_dir changed; file times against this host's clock only."""
        times = [entry.stat().st_mtime for entry in Path(self._job.model_dir).glob("*")]
        return time.time() - max(times) if times else None

    def _stand_ready(self) -> None:
        """The program has ended and is to start again: hold the address, remove what is left, say so."""
        if self._handle:
            if self._lease is None:
                self._reserve(self._member.address)
            self._host.runner.remove(self._handle)
        self._handle, self._stopping = None, None
        self._ready_at = self._clock()
        self._publish(status=Status.READY, end=None, tail=(), final=False)

    def _publish(self, **change: Any) -> None:
        self._member = replace(self._member, host=self._host.name, **change)
        deadline = self._clock() + VERDICT_PATIENCE
        while True:
            try:
                return self._channel.publish(self._member)
            except ChannelError as error:
                self._say(f"this replica's message cannot be published now ({error}); trying again")
                if self._clock() > deadline:
                    raise
                self._sleep(CHANNEL_TICK)

    # -- the owner's word

    def _obey(self, cluster: Cluster) -> Outcome | None:
        member = self._member
        if member.status is Status.EXITED:
            return self._after_end(cluster)
        if member.status is Status.READY:
            if cluster.may_start(self.replica, member):
                self._start(cluster)
            return None
        if cluster.told_to_start(self.replica, member) and self._stopping is None:
            self._stop(f"generation {cluster.generation}: {cluster.reason}")
        return None

    def _after_end(self, cluster: Cluster) -> Outcome | None:
        member, waited = self._member, self._clock() - self._ended_at
        if member.end is None:
            return None
        verdict = cluster.verdict_on(self.replica, member)
        if verdict is None and cluster.told_to_start(self.replica, member):
            if member.end.code == 0 and waited < SETTLE:
                return None
            self._log(f"drawn down by a peer, not a fault of its own; starting again: {cluster.reason}")
            self._stand_ready()
            return None
        if verdict is None and member.end.code != 0 and waited > VERDICT_PATIENCE:
            verdict = Verdict.RETRY
        if verdict is None:
            return None
        return self._own_fault(verdict, member.end)

    def _own_fault(self, verdict: Verdict, end: Exit) -> Outcome:
        text = f"{self.replica} failed: {describe_end(end)}"
        if self._handle:
            self._host.runner.remove(self._handle)
        self._handle = None
        self._member = replace(self._member, failures=self._member.failures + 1)
        self._remember()
        return Outcome(Result.RETRY if verdict is Verdict.RETRY else Result.FAILED, text)

    def _start(self, cluster: Cluster) -> None:
        start = Start(self._identity, self._member.incarnation, cluster)
        self._member = replace(self._member, generation=start.generation)
        try:
            self._launch(start)
        except DeviceError as error:
            self._wait_for_devices(error)
        except (SecretError, RunnerError) as error:
            final = isinstance(error, SecretError) and not isinstance(error, SecretUnavailableError)
            self._log(str(error))
            self._ended_at = self._clock()
            end = Exit(code=NOT_STARTED, reason=str(error))
            self._publish(status=Status.EXITED, end=end, final=final)

    def _launch(self, start: Start) -> None:
        if self._lease is None:
            raise RunnerError(f"{self.replica}: there is no address to start at")
        lease = self._host.devices()
        try:
            launch = make_launch(
                self._job,
                start,
                inherited=self._host.inherited,
                secrets=self._host.secrets(),
                devices=lease.ids if lease else (),
                device_fds=lease.fds if lease else (),
            )
            self._handle = self._host.runner.start(launch, self._lease)
        finally:
            if lease:
                lease.release()
        self._lease.release()
        self._lease = None
        self._lines, self._offset, self._saved_offset = OutputLines(self._emit, self._clock), 0, -1
        self._sign_of_life = self._clock()
        where = f"devices {','.join(launch.devices)}" if launch.devices else "no device"
        self._log(f"started {self.replica} at {self._member.address}, generation {start.generation}, {where}")
        self._publish(status=Status.RUNNING, pid=int(self._handle.data.get("pid", 0) or 0))

    def _wait_for_devices(self, error: DeviceError) -> None:
        """Not started after all; the next look at the cluster tries again until `start_timeout`."""
        self._say(f"waits for devices: {error}")
        waited = self._clock() - self._ready_at
        if waited > self._job.run_policy.start_timeout:
            self._ended_at = self._clock()
            self._publish(status=Status.EXITED, end=Exit(code=NOT_STARTED, reason=str(error)))
        else:
            self._member = replace(self._member, generation=self._member.generation - 1)

    def _stop(self, why: str) -> None:
        self._stopping = why
        self._log(f"stopping the program: {why}")
        if self._handle:
            self._host.runner.stop(self._handle, self._job.run_policy.termination_grace)

    # -- the end

    def _finish(self, cluster: Cluster) -> Outcome:
        """The job is over: stop the program, keep its output, say whose end it was."""
        if cluster.phase is Phase.SUCCEEDED and self.replica.role == "evaluator":
            self._evaluator_tail()
        self._end_program(f"the job has {cluster.phase}: {cluster.reason}")
        if cluster.phase is Phase.SUCCEEDED:
            return Outcome(Result.SUCCESS, f"the job succeeded: {cluster.reason}")
        if cluster.verdict_on(self.replica, self._member) is Verdict.FINAL:
            return Outcome(Result.FAILED, cluster.reason)
        return Outcome(Result.SKIPPED, f"stopped because the job failed: {cluster.reason}")

    def _evaluator_tail(self) -> None:
        deadline = self._clock() + self._job.run_policy.evaluator_grace
        while self._handle and self._member.status is not Status.EXITED and self._clock() < deadline:
            self._follow_program()
            self._sleep(TICK)

    def _end_program(self, why: str) -> None:
        handle = self._handle
        if handle is None:
            return
        if self._member.status is not Status.EXITED:
            self._stop(why)
            deadline = self._clock() + self._job.run_policy.termination_grace + 15.0
            while (end := self._host.runner.poll(handle)) is None and self._clock() < deadline:
                self._read_output(handle)
                self._sleep(TICK)
            self._read_output(handle, to_the_end=True)
            self._lines.close()
            if end:
                self._log(f"{self.replica} was stopped because {why} ({describe_end(end)})")
        self._host.runner.remove(handle)
        self._handle = None

    def _look_slowly(self) -> Outcome | None:
        try:
            if self._store.get("watcher") not in (None, self._token):
                return Outcome(Result.SUPERSEDED, f"a newer watcher has {self.replica}; this one leaves it alone")
            owner = self._channel.owner_state()
            self._save_offset()
        except ChannelError:
            return None
        if owner == "alive":
            return None
        return self._without_owner(owner)

    def _without_owner(self, owner: str) -> Outcome | None:
        """The owner is gone. Its last word counts if it said one; else nobody holds the GPUs for this program."""
        cluster = self._channel.cluster()
        if cluster and cluster.phase.terminal:
            return self._finish(cluster)
        self._end_program(f"nobody leads the job any more: {owner}")
        return Outcome(Result.SKIPPED, f"stopped because nobody leads the job any more: {owner}")

    def _save_offset(self) -> None:
        if self._handle and self._offset != self._saved_offset:
            handle = self._handle
            self._store.set(
                "output",
                {"incarnation": handle.incarnation, "generation": handle.generation, "offset": self._offset},
            )
            self._saved_offset = self._offset
