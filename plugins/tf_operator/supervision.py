"""The watcher of one replica: launches its program when the cluster allows it, follows it, stops it, adopts it.

It is the same object in an Airflow task and in `local`: clock, runner, channel and store are handed in. It decides
nothing about the others; what its program's end means is the owner's to say.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tf_operator.errors import EngineUnavailableError, PreflightError, RunnerError
from tf_operator.follower import TICK, Follower
from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Cluster, Member, Phase, Status, Verdict, describe_end
from tf_operator.memory import Memory
from tf_operator.pace import pause
from tf_operator.replica_program import ReplicaProgram
from tf_operator.runners.base import Exit
from tf_operator.watching import WAITING, Channel, ChannelError, DeviceLease, Host, Outcome, Result, Store

__all__ = ["Channel", "ChannelError", "DeviceLease", "Host", "Outcome", "Result", "Store", "Watcher"]

SLOW_TICK = 5.0
"""Seconds between looks at what changes rarely: the owner's state, the newest watcher, the saved output offset."""
PATIENCE = 180.0
"""Seconds a replica without a living program waits for the owner's word, or for a channel that is down."""
WAITING_TICK = 30.0
"""Seconds between two looks whether the job has its slots again; none of them holds a place in between."""
SETTLE = 10.0
"""Seconds a program that ended with 0 lets the owner see that before it obeys a call to start again."""


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
        self._host, self._channel = host, channel
        self._log, self._clock, self._sleep = log, clock, sleep
        self._memory = Memory(store, attempt, uuid.uuid4().hex)
        self._follower = Follower(host.runner, emit=emit, log=self._say, clock=clock, sleep=sleep)
        self._program = ReplicaProgram(
            job, identity, host=host, memory=self._memory, follower=self._follower, log=self._say, clock=clock
        )
        self._member = Member(attempt, 0, "", Status.READY, host=host.name)
        self._unsaid = False
        self._stopping: str | None = None
        self._unserved = False
        self._ended_at = clock()
        self._outage_since: float | None = None
        self._tail_until: float | None = None
        self._next_channel = self._next_slow = 0.0
        self._told = ""

    @property
    def replica(self) -> ReplicaId:
        """The replica that is watched."""
        return self._identity.replica

    def alive(self) -> bool:
        """True while the program this watcher knows of has not ended."""
        handle = self._follower.handle
        return handle is not None and self._host.runner.poll(handle) is None

    def stop_by_person(self) -> None:
        """A person ended the task: stop the program. Returns at once; the keeper carries it out.

        May raise RunnerError; the next try ends the program then.
        """
        # First: a stop may fail, or take longer than Airflow gives this process.
        self._memory.ended_by_person()
        if handle := self._follower.handle or self._host.runner.find(self._identity):
            self._host.runner.stop(handle, self._job.run_policy.termination_grace)

    def revoke_secrets(self) -> None:
        """For who stopped it from outside, once it has ended."""
        self._program.revoke_secrets()

    # -- the watch

    def run(self) -> Outcome:
        """Watch until the end. Raises ChannelError only while it takes up the replica: nothing was started then."""
        try:
            cluster = self._channel.cluster()
            if cluster and cluster.phase.terminal:
                return self._arrived_late(cluster)
            self._memory.claim()
            self._publish(**self._program.take_up())
            while not (outcome := self._step()):
                self._sleep(TICK)
            return outcome
        except RunnerError as error:
            return Outcome(Result.RETRY, str(error))
        except PreflightError as error:
            return Outcome(Result.FAILED, f"{self.replica}: {error}")
        except OSError as error:
            # Retryable: another host may be better, and a disk that is full may not stay so.
            return Outcome(Result.RETRY, f"{self.replica}: {error}; is [tf_operator] state_dir of this host writable?")
        finally:
            self._program.let_go()

    def _step(self) -> Outcome | None:
        """One look at everything. Changes are published as they happen, or when the channel is back."""
        try:
            self._look_at_program()
            if self._due("_next_slow", SLOW_TICK) and (outcome := self._look_slowly()):
                return outcome
            if not self._due("_next_channel", self._channel_pause()):
                return None
            if self._unsaid:
                self._channel.publish(self._member)
                self._unsaid = False
            cluster = self._channel.cluster()
            self._outage_since = None
            if cluster is None:
                return None
            return self._finish(cluster) if cluster.phase.terminal else self._obey(cluster)
        except ChannelError as error:
            return self._bear(error)

    def _due(self, name: str, interval: float) -> bool:
        now = self._clock()
        if now < getattr(self, name):
            return False
        setattr(self, name, now + interval)
        return True

    def _channel_pause(self) -> float:
        """Seconds between looks at the cluster message."""
        ready = self._member.status is Status.READY
        return pause(self._clock() - self._ended_at if ready else None)

    def _bear(self, error: ChannelError) -> Outcome | None:
        """An outage: a living program is left alone; with none, another try costs nothing and may find the way."""
        now = self._clock()
        if self._outage_since is None:
            self._outage_since = now
        self._say(f"the owner cannot be reached now ({error}); the program is left alone")
        if self._member.status in (Status.READY, Status.EXITED) and now - self._outage_since > PATIENCE:
            return Outcome(Result.RETRY, f"{self.replica}: the owner was out of reach for {PATIENCE:.0f} s: {error}")
        return None

    def _say(self, text: str) -> None:
        """Log what is new; the same line is not repeated."""
        if text != self._told:
            self._told = text
            self._log(text)

    def _publish(self, **change: Any) -> None:
        self._member, self._unsaid = replace(self._member, failures=self._memory.failures, **change), True
        try:
            self._channel.publish(self._member)
            self._unsaid = False
        except ChannelError as error:
            self._say(f"this replica's message cannot be published now ({error}); trying again")

    def _arrived_late(self, cluster: Cluster) -> Outcome:
        """The job is over: never start."""
        self._program.remove_leftovers()
        if cluster.again_after is not None:
            return Outcome(Result.AGAIN, cluster.reason, cluster.again_after)
        if cluster.failed_for_good(self.replica):
            return Outcome(Result.FAILED, cluster.reason)
        text = f"the job had already {cluster.phase} when {self.replica} arrived: {cluster.reason}"
        return Outcome(Result.SUCCESS if cluster.phase is Phase.SUCCEEDED else Result.SKIPPED, text)

    # -- the program

    def _look_at_program(self) -> None:
        if self._member.status in (Status.READY, Status.EXITED):
            return
        end = self._follower.look()
        if end is not None:
            self._on_end(end)
            return
        self._program.tend_secrets()
        if (
            self._stopping is None
            and self._member.status is Status.RUNNING
            and self._program.is_stalled(self._unserved)
        ):
            self._publish(status=Status.STALLED)

    def _on_end(self, end: Exit) -> None:
        self._ended_at = self._clock()
        self._tell_end(end)
        self._program.revoke_secrets()

    def _tell_end(self, end: Exit) -> None:
        # One that was done before our TERM reached it is done.
        if self._stopping is not None and (end.stopped or end.code != 0):
            self._say(f"stopped ({self._stopping}): {describe_end(end)}")
            self._stand_ready(end)
            return
        self._stopping = None
        self._log(f"{self.replica}: the program ended: {describe_end(end)}")
        self._publish(status=Status.EXITED, end=end, tail=self._follower.tail, final=end.final)

    def _stand_ready(self, end: Exit) -> None:
        change = self._program.stand_ready(end)
        self._stopping = None
        self._publish(**change)

    # -- the owner's word

    def _obey(self, cluster: Cluster) -> Outcome | None:
        member, self._unserved = self._member, bool(cluster.unserved)
        if member.status is Status.EXITED:
            return self._after_end(cluster)
        if member.status is Status.READY:
            return self._start(cluster) if cluster.may_start(self.replica, member) else None
        if cluster.told_to_start(self.replica, member) and self._stopping is None:
            self._stop(f"generation {cluster.generation}: {cluster.reason}")
        return None

    def _stop(self, why: str) -> None:
        self._say(f"stopping the program: {why}")
        try:
            self._follower.stop(self._job.run_policy.termination_grace)
        except EngineUnavailableError:
            # How long an engine may be away is for who follows the program to say; the next look tries again.
            return
        self._stopping = why

    def _after_end(self, cluster: Cluster) -> Outcome | None:
        member, waited = self._member, self._clock() - self._ended_at
        if member.end is None:
            return None
        verdict = cluster.verdict_on(self.replica, member)
        if verdict is None and cluster.told_to_start(self.replica, member):
            if member.end.code == 0 and waited < SETTLE:
                return None
            self._log(f"drawn down by a peer, not a fault of its own; starting again: {cluster.reason}")
            self._stand_ready(member.end)
            return None
        if verdict is None and member.end.code != 0 and waited > PATIENCE:
            verdict = Verdict.RETRY
        return self._own_fault(verdict, member.end) if verdict else None

    def _own_fault(self, verdict: Verdict, end: Exit) -> Outcome:
        if outcome := self._superseded():
            return outcome
        self._program.give_up(self._member.generation)
        text = f"{self.replica} failed: {describe_end(end)}"
        return Outcome(Result.RETRY if verdict is Verdict.RETRY else Result.FAILED, text)

    def _start(self, cluster: Cluster) -> Outcome | None:
        if outcome := self._superseded():
            return outcome
        if change := self._program.start(cluster, self._member.incarnation):
            self._ended_at = self._clock()
            self._publish(**change)
        return None

    # -- the end

    def _finish(self, cluster: Cluster) -> Outcome | None:
        """The job is over: stop the program, keep its output, say whose end it was."""
        if cluster.phase is Phase.SUCCEEDED and self._has_tail():
            return None
        self._program.end(f"the job has {cluster.phase}: {cluster.reason}", self._member.end)
        if cluster.phase is Phase.SUCCEEDED:
            return Outcome(Result.SUCCESS, f"the job succeeded: {cluster.reason}")
        if cluster.again_after is not None:
            return Outcome(Result.AGAIN, cluster.reason, cluster.again_after)
        if cluster.failed_for_good(self.replica):
            return Outcome(Result.FAILED, cluster.reason)
        return Outcome(Result.SKIPPED, f"stopped because the job failed: {cluster.reason}")

    def _has_tail(self) -> bool:
        """Whether an evaluator still has time to finish what it does."""
        grace, now = self._job.run_policy.evaluator_grace, self._clock()
        if self.replica.role != "evaluator" or self._follower.handle is None or self._member.status is Status.EXITED:
            return False
        if self._tail_until is None:
            self._tail_until = now + grace
            self._say(f"the job has succeeded; the evaluator has {grace:.0f} s more (run_policy.evaluator_grace)")
        return now < self._tail_until

    def _look_slowly(self) -> Outcome | None:
        if outcome := self._superseded():
            return outcome
        owner = self._channel.owner_state()
        self._memory.save_position(self._follower.position)
        return None if owner == "alive" else self._without_owner(owner)

    def _superseded(self) -> Outcome | None:
        if self._memory.is_claimed():
            return None
        return Outcome(Result.SUPERSEDED, f"a newer watcher has {self.replica}; this one leaves it alone")

    def _without_owner(self, owner: str) -> Outcome | None:
        """The owner is gone. Its last word counts if it said one; else nobody holds the GPUs for this program."""
        cluster = self._channel.cluster()
        if cluster and cluster.phase.terminal:
            return self._finish(cluster)
        self._program.end(f"nobody leads the job now: {owner}", self._member.end)
        if owner == WAITING:
            delay = min(WAITING_TICK, self._job.run_policy.start_timeout / 4)
            return Outcome(Result.AGAIN, "the job waits for its slots again; no place is taken meanwhile", delay)
        return Outcome(Result.SKIPPED, f"stopped because nobody leads the job any more: {owner}")
