"""The same job with no Airflow: one watcher a thread, the owner in the caller's, messages in memory.

It stands in for Airflow only where Airflow is plain: a replica that fails is started again after `retry_delay`.
Everything else (membership, supervision, runner, devices, secrets) is the code that runs on Airflow.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Cluster, Member, Owner, Phase, begin
from tf_operator.program import result_path
from tf_operator.supervision import Host, Outcome, Result, Watcher

TICK = 0.5
WATCHER_RETRIES = 10
"""Tries beyond the job's own, for watchers that end by an error of ours; as Airflow's `retries` are set."""


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

    @property
    def succeeded(self) -> bool:
        """True where the success policy was met."""
        return self.cluster.phase is Phase.SUCCEEDED


class LocalRun:
    """Runs a rendered job on this machine. `emit(replica, line)` gets output, `log(replica, line)` what we do."""

    def __init__(
        self,
        job: RenderedJob,
        run_id: str,
        *,
        host_for: Callable[[ReplicaId, Identity], Host],
        emit: Callable[[ReplicaId, str], None],
        log: Callable[[ReplicaId, str], None],
        on_change: Callable[[Cluster, Mapping[ReplicaId, Member]], None] = lambda _cluster, _members: None,
    ) -> None:
        self._job, self._run_id = job, run_id
        self._host_for, self._emit, self._log, self._on_change = host_for, emit, log, on_change
        self._owner = Owner(job, begin(job, uuid.uuid4().hex))
        self._board = _Board(self._owner.cluster)
        self._outcomes: dict[ReplicaId, Outcome] = {}
        self._over = threading.Event()

    def stop(self, reason: str) -> None:
        """End the job as failed; the programs are stopped within the grace. For Ctrl-C and for tests."""
        self._owner.fail(reason)
        self._say()

    def run(self) -> LocalOutcome:
        """Run to the end. KeyboardInterrupt stops everything first, then counts as a failure."""
        threads = [
            threading.Thread(target=self._replica, args=(replica,), name=str(replica)) for replica in self._job.replicas
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                self._tick(threads)
            except KeyboardInterrupt:
                self.stop("interrupted by Ctrl-C")
        return LocalOutcome(self._owner.cluster, dict(self._outcomes), self._read_result())

    def _tick(self, threads: list[threading.Thread]) -> None:
        if not self._owner.cluster.phase.terminal:
            self._owner.step(dict(self._board.members), dict(self._board.states))
            self._say()
        self._on_change(self._owner.cluster, dict(self._board.members))
        for thread in threads:
            thread.join(TICK / len(threads))

    def _say(self) -> None:
        self._board.cluster = self._owner.cluster
        if self._owner.cluster.phase.terminal:
            self._over.set()

    def _replica(self, replica: ReplicaId) -> None:
        identity = Identity("local", self._run_id, self._job.name, replica)
        store = _Store()
        tries = self._job.group_of(replica).retries + WATCHER_RETRIES
        for left in range(tries, -1, -1):
            self._board.states[replica] = "running"
            outcome = self._watch(replica, identity, store)
            self._outcomes[replica] = outcome
            self._log(replica, outcome.text)
            if outcome.result is not Result.RETRY:
                break
            self._board.states[replica] = "up_for_retry" if left else "failed"
            self._over.wait(self._job.retry_delay)
        if not self._over.is_set() and self._outcomes[replica].result is Result.FAILED:
            self._board.states[replica] = "failed"

    def _watch(self, replica: ReplicaId, identity: Identity, store: _Store) -> Outcome:
        try:
            return Watcher(
                self._job,
                self._owner.cluster.attempt,
                identity,
                host=self._host_for(replica, identity),
                channel=_Channel(self._board, replica),
                store=store,
                emit=lambda line: self._emit(replica, line),
                log=lambda line: self._log(replica, line),
            ).run()
        except Exception as error:  # a fault of ours must not leave the others waiting for ever
            return Outcome(Result.RETRY, f"{replica}: the watcher ended: {type(error).__name__}: {error}")

    def _read_result(self) -> Any:
        path = result_path(self._job.model_dir, self._owner.cluster.attempt, self._job.decider)
        if self._owner.cluster.phase is not Phase.SUCCEEDED or not path.exists():
            return None
        return json.loads(path.read_text())


def new_run_id() -> str:
    """A run id for a local run: `local__` and the time, to the millisecond."""
    now = time.time()
    return time.strftime("local__%Y-%m-%dT%H-%M-%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
