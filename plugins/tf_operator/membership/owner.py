"""Carries the decision through time: the clock, the elapsed time that survives a process, what is worth saying."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tf_operator.errors import JobError
from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership.decide import decide
from tf_operator.membership.facts import Facts, Timers
from tf_operator.membership.judgement import decisive, note_late
from tf_operator.membership.messages import Cluster, Member

SAY_AGAIN = 30.0
"""Seconds after which an unchanged message is said again, so that `elapsed` is not lost with the process."""


class Owner:
    """Owns the membership of one attempt. `cluster` is its present message."""

    def __init__(self, job: RenderedJob, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self.job = job
        self.cluster = cluster
        self._clock = clock
        self._timers = Timers()
        self._began = clock() - cluster.elapsed
        self._said = cluster

    def step(
        self,
        members: Mapping[ReplicaId, Member],
        states: Mapping[ReplicaId, str | None],
        since: float | None = None,
    ) -> bool:
        """Decide on these facts; True where the message has to be said (again). Other attempts' members are dropped.

        Members that make no ClusterSpec (two at one address) fail the attempt. `since`: see `Facts`.
        """
        now = self._clock()
        known = {r: m for r in self.job.replicas if (m := members.get(r)) and m.attempt == self.cluster.attempt}
        if not self.cluster.phase.terminal:
            self.cluster = replace(self.cluster, elapsed=now - self._began)
        try:
            self.cluster, self._timers = decide(self.job, self.cluster, self._timers, Facts(now, known, states, since))
        except JobError as error:
            self.fail(str(error))
        news = replace(self.cluster, elapsed=0.0) != replace(self._said, elapsed=0.0)
        if news or self.cluster.elapsed - self._said.elapsed >= SAY_AGAIN:
            self._said = self.cluster
            return True
        return False

    def decisive(self, members: Mapping[ReplicaId, Member]) -> set[ReplicaId]:
        """Those to hear now: on their word hangs what an end means that nobody has judged yet."""
        return decisive(self.job, self.cluster, members)

    def fail(self, reason: str) -> None:
        """End the attempt as failed for a reason that lies outside the replicas."""
        if not self.cluster.phase.terminal:
            self.cluster = self.cluster.failed(reason)

    def fail_for_good(self) -> None:
        """Take back that the attempt would be tried again."""
        self.cluster = replace(self.cluster, again_after=None)

    def conclude(self, members: Mapping[ReplicaId, Member]) -> bool:
        """After the last replica let go: name what the failure drew with it. True where the message has changed."""
        known = {r: m for r, m in members.items() if m.attempt == self.cluster.attempt}
        before, self.cluster = self.cluster, note_late(self.job, self.cluster, known)
        return self.cluster is not before
