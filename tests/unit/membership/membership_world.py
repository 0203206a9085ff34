"""A job's replicas as the owner sees them, moved by hand: each does what the cluster message tells it to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tf_operator.identity import ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Cluster, Member, Owner, Phase, Status, Verdict, begin
from tf_operator.runners.base import Exit

KILLED = Exit(code=137, signal="SIGKILL")
FAILED = Exit(code=1)
DONE = Exit(code=0)


class World:
    """Replicas, their messages and the owner. `step` lets time pass; `obey` lets replicas do what they are told."""

    def __init__(self, job: RenderedJob, *, go: bool = True) -> None:
        self.job = job
        self.now = 0.0
        self.owner = Owner(job, begin(job, "a1"), clock=lambda: self.now)
        self.members: dict[ReplicaId, Member] = {}
        self.states: dict[ReplicaId, str | None] = dict.fromkeys(job.replicas, "running")
        self.starts: dict[ReplicaId, int] = dict.fromkeys(job.replicas, 0)
        self.own_faults: dict[ReplicaId, int] = dict.fromkeys(job.replicas, 0)
        if go:
            for number, replica in enumerate(job.replicas):
                self.members[replica] = Member("a1", 1, f"127.0.0.1:{20001 + number}", Status.READY)
            self.settle()

    @property
    def cluster(self) -> Cluster:
        return self.owner.cluster

    def at(self, name: str) -> Member:
        return self.members[ReplicaId.parse(name)]

    def change(self, name: str, **change: Any) -> None:
        replica = ReplicaId.parse(name)
        self.members[replica] = replace(self.members[replica], **change)

    def step(self, seconds: float = 1.0, reading: float = 0.0) -> Cluster:
        """Let time pass, then let the owner decide on what is known; it took `reading` seconds to read it."""
        self.now += seconds
        self.owner.step(dict(self.members), dict(self.states), self.now - reading)
        return self.cluster

    def obey(self) -> bool:
        """Every replica does the next thing it is told; True where one did something."""
        did = [self._obey(replica) for replica in self.job.replicas]
        return any(did)

    def _obey(self, replica: ReplicaId) -> bool:
        member, name = self.members.get(replica), str(replica)
        if member is None or self.states[replica] != "running":
            return False
        if member.status is Status.EXITED and self.cluster.verdict_on(replica, member) is Verdict.RETRY:
            self.own_faults[replica] += 1
            self.states[replica] = "up_for_retry"
            return True
        if self.cluster.may_start(replica, member):
            self.starts[replica] += 1
            self.change(name, status=Status.RUNNING, generation=self.cluster.launch[name])
            return True
        if member.status is not Status.READY and self.cluster.told_to_start(replica, member):
            self.change(name, status=Status.READY, end=None, tail=())
            return True
        return False

    def settle(self) -> Cluster:
        """Let owner and replicas talk until nobody has anything to do."""
        for _ in range(50):
            self.step(0.1)
            if not self.obey():
                return self.cluster
        raise AssertionError(f"no end: {self.cluster}")

    def end(self, name: str, end: Exit, *tail: str, **change: Any) -> None:
        """Its program ends."""
        self.change(name, status=Status.EXITED, end=end, tail=tail, **change)

    def come_back(self, name: str, *, address: str | None = None, lost: bool = False) -> None:
        """A new watcher with no program: after an own fault, or (`lost`) after watcher and program vanished."""
        replica = ReplicaId.parse(name)
        old = self.members[replica]
        failures = old.failures + 1 if old.status is Status.EXITED or lost else old.failures
        self.members[replica] = Member(
            "a1", old.incarnation + 1, address or old.address, Status.READY, failures=failures
        )
        self.states[replica] = "running"

    def resume(self) -> None:
        """The owner's process is lost; the next one has only the last message, as JSON."""
        data = json.loads(json.dumps(self.cluster.to_json()))
        self.owner = Owner(self.job, Cluster.from_json(data), clock=lambda: self.now)

    def generations(self) -> dict[str, int]:
        """The generation each replica's program was started in."""
        return {str(r): m.generation for r, m in self.members.items()}

    def is_running(self) -> bool:
        """Whether the job runs and everybody's program with it."""
        alive = all(m.status is Status.RUNNING for m in self.members.values())
        return self.cluster.phase is Phase.RUNNING and alive
