"""The same job with no Airflow: one watcher a thread, the owner in the caller's, messages in memory.

It stands in for Airflow only where Airflow is plain: a replica that fails is started again after `retry_delay`.
Everything else (membership, supervision, runner, devices, secrets) is the code that runs on Airflow.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_operator.errors import TfOperatorError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.outline import WATCHER_RETRIES
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Cluster, Member, Owner, Phase, begin
from tf_operator.program import read_result, result_path
from tf_operator.runners.away import PATIENCE, Away
from tf_operator.runners.base import Handle
from tf_operator.supervision import Host, Outcome, Result, Watcher

TICK = 0.25
"""Seconds between looks of the owner."""
ORPHAN_TIMEOUT = 60.0
"""Seconds a program lives on when this process is killed: nobody comes back to adopt it."""

INTERRUPTED = "interrupted by Ctrl-C"
AGAIN = "interrupted again: the programs are killed at once"


@dataclass
class _Board:
    """The messages, where everybody sees them."""

    cluster: Cluster
    members: dict[ReplicaId, Member] = field(default_factory=dict)
    states: dict[ReplicaId, str | None] = field(default_factory=dict)


class _Channel:
    def __init__(self, board: _Board, replica: ReplicaId) -> None:
        self._board, self._replica = board, replica

    def publish(self, member: Member) -> None:
        self._board.members[self._replica] = member

    def cluster(self) -> Cluster | None:
        return self._board.cluster

    def owner_state(self) -> str:
        return "alive"


class _Store(dict[str, Any]):
    """A replica's memory between its tries. Copied through JSON: nothing works here that Airflow would refuse."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))


@dataclass(frozen=True)
class LocalOutcome:
    """How a local run ended. `outcomes`: how each replica's last watch ended."""

    cluster: Cluster
    outcomes: Mapping[ReplicaId, Outcome]
    result: Any = None
    fault: str | None = None
    """What is wrong with a run whose success policy was met: a result that is no JSON."""
    interrupted: bool = False
    """Whether a person ended it."""

    @property
    def succeeded(self) -> bool:
        """True where the success policy was met and the result can be read."""
        return self.cluster.phase is Phase.SUCCEEDED and self.fault is None

    @property
    def reason(self) -> str:
        """Why it ended as it did, in one line."""
        return self.fault or self.cluster.reason


class LocalRun:
    """Runs a rendered job on this machine. `emit(replica, line)` gets output, `log(replica, line)` what we do.

    `say` gets what a person who interrupts it should know.
    """

    def __init__(
        self,
        job: RenderedJob,
        run_id: str,
        *,
        host_for: Callable[[ReplicaId, Identity], Host],
        emit: Callable[[ReplicaId, str], None],
        log: Callable[[ReplicaId, str], None],
        say: Callable[[str], None] = lambda _line: None,
        on_change: Callable[[Cluster, Mapping[ReplicaId, Member]], None] = lambda _cluster, _members: None,
    ) -> None:
        policy = job.run_policy.model_copy(update={"orphan_timeout": ORPHAN_TIMEOUT})
        self._job, self._run_id = job.model_copy(update={"run_policy": policy}), run_id
        self._host_for, self._emit, self._log, self._on_change = host_for, emit, log, on_change
        # Said by the loop: a signal handler may have broken into the printing of another line.
        self._say_line, self._unsaid = say, deque[str]()
        self._owner = Owner(job, begin(job, uuid.uuid4().hex))
        self._board = _Board(self._owner.cluster)
        self._hosts: dict[ReplicaId, Host] = {}
        self._outcomes: dict[ReplicaId, Outcome] = {}
        self._over = threading.Event()
        self._stop_reason: str | None = None
        self._killing = False

    def identity(self, replica: ReplicaId) -> Identity:
        """Who the replica is on this host."""
        return Identity(self._job.name, self._run_id, "", replica)

    def stop(self, reason: str) -> None:
        """End the job as failed; the programs are stopped within the grace. From any thread or signal handler."""
        if self._stop_reason is None:
            self._stop_reason = reason

    def interrupt(self) -> None:
        """Ctrl-C: the first one stops the job, the second one kills its programs at once."""
        self._killing = self._stop_reason is not None
        grace = self._job.run_policy.termination_grace
        first = (
            f"interrupted: the programs have {grace:g} s to end (termination_grace); Ctrl-C again kills them at once"
        )
        self._unsaid.append(AGAIN if self._killing else first)
        self.stop(INTERRUPTED)

    def run(self) -> LocalOutcome:
        """Run to the end. Whatever goes wrong on the way, no program outlives this call."""
        threads = [
            threading.Thread(target=self._replica, args=(replica,), name=str(replica)) for replica in self._job.replicas
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                try:
                    self._tick(threads)
                except KeyboardInterrupt:
                    self.interrupt()
            self._decide()
        finally:
            self._wind_up(threads)
        self._owner.conclude(self._board.members)
        return self._outcome()

    def _decide(self) -> None:
        if self._stop_reason is not None:
            self._owner.fail(self._stop_reason)
        self._owner.step(dict(self._board.members), dict(self._board.states))
        self._say()

    def _say(self) -> None:
        self._board.cluster = self._owner.cluster
        if self._owner.cluster.phase.terminal:
            self._over.set()

    def _tick(self, threads: list[threading.Thread]) -> None:
        while self._unsaid:
            self._say_line(self._unsaid.popleft())
        self._decide()
        if self._killing:
            self._kill()
        self._on_change(self._owner.cluster, dict(self._board.members))
        deadline = time.monotonic() + TICK
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _kill(self) -> None:
        away = Away()
        for replica, host in self._hurried():
            with contextlib.suppress(TfOperatorError, OSError):
                if handle := self._find(replica, host, away):
                    host.runner.stop(handle, 0.0)

    def _hurried(self) -> list[tuple[ReplicaId, Host]]:
        """All hosts; an engine that is away holds nobody up for long any more, the watchers neither."""
        found = list(self._hosts.items())
        for _, host in found:
            host.runner.hurry(PATIENCE)
        return found

    def _find(self, replica: ReplicaId, host: Host, away: Away) -> Handle | None:
        return away.ask(self._job.group_of(replica), lambda: host.runner.find(self.identity(replica)))

    def _wind_up(self, threads: list[threading.Thread]) -> None:
        """After the end, or after an error in this thread: the watchers end, and what one left is removed."""
        self._owner.fail("the run was broken off by an error of its own")
        self._say()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        away = Away()
        for replica, host in self._hurried():
            try:
                if handle := self._find(replica, host, away):
                    host.runner.remove(handle, keep_output=False)
            except TfOperatorError as error:
                self._log(replica, str(error))

    def _replica(self, replica: ReplicaId) -> None:
        store = _Store()
        tries = self._job.group_of(replica).retries + WATCHER_RETRIES
        for left in range(tries, -1, -1):
            self._board.states[replica] = "running"
            outcome = self._watch(replica, store)
            self._outcomes[replica] = outcome
            if outcome.result is not Result.RETRY:
                break
            self._log(replica, outcome.text)
            # An engine that is away would be asked again for minutes, after a Ctrl-C too.
            if self._over.is_set():
                break
            if left:
                self._board.states[replica] = "up_for_retry"
                self._over.wait(self._job.retry_delay)
        if not self._over.is_set():
            self.stop(self._outcomes[replica].text)

    def _watch(self, replica: ReplicaId, store: _Store) -> Outcome:
        try:
            if replica not in self._hosts:
                self._hosts[replica] = self._host_for(replica, self.identity(replica))
            return Watcher(
                self._job,
                self._owner.cluster.attempt,
                self.identity(replica),
                host=self._hosts[replica],
                channel=_Channel(self._board, replica),
                store=store,
                emit=lambda line: self._emit(replica, line),
                log=lambda line: self._log(replica, line),
            ).run()
        except Exception as error:  # a fault of ours must not leave the others waiting for ever
            return Outcome(Result.RETRY, f"{replica}: the watcher ended: {type(error).__name__}: {error}")

    def _outcome(self) -> LocalOutcome:
        cluster, outcomes = self._owner.cluster, dict(self._outcomes)
        if cluster.phase is not Phase.SUCCEEDED:
            return LocalOutcome(cluster, outcomes, interrupted=cluster.reason == INTERRUPTED)
        try:
            path = result_path(self._job.model_dir, cluster.attempt, self._job.decider)
            return LocalOutcome(cluster, outcomes, result=read_result(path))
        except TfOperatorError as error:
            return LocalOutcome(cluster, outcomes, fault=str(error))


def new_run_id() -> str:
    """A run id for a local run: `local__`, the time, and something that tells two of the same second apart."""
    return time.strftime("local__%Y-%m-%dT%H-%M-%S", time.localtime()) + f"-{uuid.uuid4().hex[:6]}"
