"""Stand-ins for what supervision is handed: a clock, a runner, a channel, a store; and jobs to use them with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tf_operator.errors import IdentityHeldError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.rendered import RenderedJob, RenderedRunPolicy, ReplicaGroup
from tf_operator.membership import Cluster, Member, Phase
from tf_operator.runners.base import Exit, Handle, Launch, SecretBundle
from tf_operator.supervision import ChannelError


def make_job(
    chief: int = 1,
    worker: int = 2,
    ps: int = 1,
    evaluator: int = 0,
    *,
    policy: dict[str, Any] | None = None,
    **job: Any,
) -> RenderedJob:
    """A job of these counts. `policy`: run_policy; `retries`, `restart_policy`, `gpus` go to every group."""
    group = {key: job.pop(key) for key in ("retries", "restart_policy", "gpus", "command") if key in job}
    counts = {"chief": chief, "worker": worker, "ps": ps, "evaluator": evaluator}
    groups = [
        ReplicaGroup(
            task_id=role, role=role, count=count, working_dir="/", **{"command": ["train"], "retries": 1, **group}
        )
        for role, count in counts.items()
    ]
    return RenderedJob(
        **{
            "name": "job",
            "strategy": "parameter_server",
            "groups": groups,
            "model_dir": "/nowhere/model",
            "run_policy": RenderedRunPolicy(**(policy or {})),
            **job,
        }
    )


class FakeClock:
    """Time that passes only when somebody sleeps; `at` runs something then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._events: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """Run `event` once `seconds` have passed since the beginning."""
        self._events.append((1000.0 + seconds, event))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [event for event in self._events if event[0] <= self.now]
        self._events = [event for event in self._events if event[0] > self.now]
        for _, event in sorted(due, key=lambda event: event[0]):
            event()
        if self.now > 100_000:
            raise AssertionError("somebody waits for ever")


@dataclass
class FakeLease:
    """An address; `released` tells whether it was given back."""

    address: str
    released: bool = False

    def release(self) -> None:
        self.released = True


@dataclass
class FakeProgram:
    """A program of the fake runner: it ends when the test says so, or `stops_after` seconds after it was told to."""

    launch: Launch
    handle: Handle
    output: bytes = b""
    end: Exit | None = None
    stops_after: float = 0.0
    stop_asked: float | None = None
    removed: bool | None = None
    """keep_output of the removal."""
    renewals: list[tuple[SecretBundle, str | None]] = field(default_factory=list)


@dataclass
class FakeRunner:
    """Programs by identity, each with a history. `trouble` is raised by every call while it is set."""

    clock: FakeClock
    programs: list[FakeProgram] = field(default_factory=list)
    leases: list[FakeLease] = field(default_factory=list)
    trouble: Exception | None = None
    start_error: Exception | None = None
    next_port: int = 20001
    prepared: bool = True
    """Whether its image is there."""
    calls: list[str] = field(default_factory=list)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.trouble:
            raise self.trouble

    def reserve(self, identity: Identity, preferred: str | None) -> FakeLease:
        self._called("reserve")
        address = preferred or f"127.0.0.1:{self.next_port}"
        self.next_port += 1
        self.leases.append(FakeLease(address))
        return self.leases[-1]

    def find(self, identity: Identity) -> Handle | None:
        self._called("find")
        program = self.current(identity)
        return replace(program.handle, stopping=program.stop_asked is not None) if program else None

    def current(self, identity: Identity) -> FakeProgram | None:
        """The program that lives or was not removed."""
        here = [p for p in self.programs if p.launch.identity == identity and p.removed is None]
        return here[-1] if here else None

    def prepare(self, launch: Launch) -> bool:
        self._called("prepare")
        assert launch.secrets == SecretBundle(), "secrets run out while an image is fetched"
        return self.prepared

    def hurry(self, patience: float) -> None:
        self._called("hurry")

    def start(self, launch: Launch, lease: FakeLease) -> Handle:
        self._called("start")
        if self.start_error:
            raise self.start_error
        living = self.current(launch.identity)
        if living and living.end is None:
            raise IdentityHeldError(f"{launch.identity}: lives")
        number = len(self.programs)
        data = {"pid": 100 + number, "number": number}
        address = lease.address
        handle = Handle(launch.identity, launch.attempt, launch.incarnation, launch.generation, address, data)
        self.programs.append(FakeProgram(launch, handle))
        return handle

    def _of(self, handle: Handle) -> FakeProgram:
        number: int = handle.data["number"]
        return self.programs[number]

    def poll(self, handle: Handle) -> Exit | None:
        self._called("poll")
        program = self._of(handle)
        asked = program.stop_asked
        if program.end is None and asked is not None and self.clock() - asked >= program.stops_after:
            program.end = Exit(code=143, signal="SIGTERM", stopped=True)
        return program.end

    def output(self, handle: Handle, offset: int, limit: int = 65536) -> tuple[bytes, int]:
        self._called("output")
        data = self._of(handle).output[offset : offset + limit]
        return data, offset + len(data)

    def renew(self, handle: Handle, secrets: SecretBundle, signal: str | None) -> None:
        self._called("renew")
        self._of(handle).renewals.append((secrets, signal))

    def stop(self, handle: Handle, grace: float) -> None:
        self._called("stop")
        program = self._of(handle)
        if program.stop_asked is None:
            program.stop_asked = self.clock()

    def remove(self, handle: Handle, keep_output: bool = True) -> None:
        self._called("remove")
        program = self._of(handle)
        program.end = program.end or Exit(code=137, signal="SIGKILL", stopped=True)
        program.removed = keep_output


@dataclass
class FakeChannel:
    """What the owner says and what the replica said. `down` makes every call fail."""

    message: Cluster | None = None
    said: list[Member] = field(default_factory=list)
    owner: str = "alive"
    down: bool = False

    def _check(self) -> None:
        if self.down:
            raise ChannelError("API server: connection refused")

    def publish(self, member: Member) -> None:
        self._check()
        self.said.append(Member.from_json(json.loads(json.dumps(member.to_json()))))

    def cluster(self) -> Cluster | None:
        self._check()
        return self.message and Cluster.from_json(json.loads(json.dumps(self.message.to_json())))

    def owner_state(self) -> str:
        self._check()
        return self.owner


@dataclass
class FakeStore:
    """Survives watchers, as the task state store does."""

    values: dict[str, str] = field(default_factory=dict)
    down: bool = False

    def get(self, key: str) -> Any:
        if self.down:
            raise ChannelError("API server: connection refused")
        return json.loads(self.values[key]) if key in self.values else None

    def set(self, key: str, value: Any) -> None:
        if self.down:
            raise ChannelError("API server: connection refused")
        self.values[key] = json.dumps(value)


def running_cluster(job: RenderedJob, attempt: str = "a1", **change: Any) -> Cluster:
    """A cluster in which every replica of incarnation 1 may start."""
    names = [str(r) for r in job.replicas]
    spec: dict[str, list[str]] = {}
    for number, replica in enumerate(r for r in job.replicas if r.role != "evaluator"):
        spec.setdefault(replica.role, []).append(f"127.0.0.1:{20001 + number}")
    cluster = Cluster(
        attempt=attempt, phase=Phase.RUNNING, spec=spec, members=dict.fromkeys(names, 1), launch=dict.fromkeys(names, 1)
    )
    return replace(cluster, **change)


def identity_of(replica: str) -> Identity:
    """The identity of `worker-0` and so on in a run of the fake job."""
    return Identity("job", "run-1", "", ReplicaId.parse(replica))
