"""One replica on a fake machine, for the tests of its watcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fakes import (
    FakeChannel,
    FakeClock,
    FakeProgram,
    FakeRunner,
    FakeStore,
    identity_of,
    make_job,
    running_cluster,
)

from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Judgement, Phase, Status, Verdict
from tf_operator.runners.base import Exit, SecretBundle
from tf_operator.supervision import Host, Outcome, Watcher
from tf_operator.watching import DeviceLease, Leases, NoLeases


@dataclass
class FakeDevices:
    """A device lease that says whether it was given back."""

    ids: tuple[str, ...] = ("3",)
    fds: tuple[int, ...] = (33,)
    memory: int | None = None
    released: bool = False

    def release(self) -> None:
        self.released = True


@dataclass
class Bench:
    """One replica on a fake machine; watchers come and go, runner, store and channel stay."""

    job: RenderedJob = field(default_factory=make_job)
    name: str = "worker-1"
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.runner = FakeRunner(self.clock)
        self.channel = FakeChannel(running_cluster(self.job))
        self.store = FakeStore()
        self.output: list[str] = []
        self.logged: list[str] = []
        self.secrets: Callable[[], SecretBundle] = SecretBundle
        self.leases: Leases = NoLeases()
        self.devices: Callable[[], DeviceLease | None] = lambda: None

    def watcher(self, attempt: str = "a1") -> Watcher:
        host = Host(
            runner=self.runner,  # type: ignore[arg-type]
            secrets=lambda: self.secrets(),
            devices=lambda: self.devices(),
            leases=self.leases,
            inherited={"PATH": "/bin", "VAULT_TOKEN": "no"},
            name="host-1",
        )
        return Watcher(
            self.job,
            attempt,
            identity_of(self.name),
            host=host,
            channel=self.channel,
            store=self.store,
            emit=self.output.append,
            log=self.logged.append,
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def run(self, attempt: str = "a1") -> Outcome:
        return self.watcher(attempt).run()

    def until(self, seconds: float, attempt: str = "a1") -> Watcher:
        """A watcher that is killed after so many seconds, as `kill -9` would."""
        watcher = self.watcher(attempt)
        self.after(seconds, self._kill)
        with pytest.raises(Killed):
            watcher.run()
        return watcher

    @staticmethod
    def _kill() -> None:
        raise Killed

    def after(self, seconds: float, *events: Callable[[], Any]) -> None:
        """Let something happen so many seconds from now."""
        for event in events:
            self.clock.at(self.clock.now - 1000.0 + seconds, event)

    def say(self, **change: Any) -> None:
        """The owner's message changes."""
        assert self.channel.message
        self.channel.message = replace(self.channel.message, **change)

    def finish(self, phase: Phase = Phase.SUCCEEDED, reason: str = "chief-0 ended with exit code 0") -> None:
        self.say(phase=phase, reason=reason)

    def end(self, end: Exit, output: bytes = b"") -> None:
        """The program ends."""
        self.program.output += output
        self.program.end = end

    def judge(self, verdict: Verdict, **change: Any) -> None:
        last = self.channel.said[-1]
        judgement = Judgement(last.incarnation, last.generation, verdict)
        self.say(verdicts={self.name: judgement}, **change)

    @property
    def program(self) -> FakeProgram:
        return self.runner.programs[-1]

    @property
    def statuses(self) -> list[Status]:
        return [member.status for member in self.channel.said]

    def nothing_left(self) -> bool:
        """No program, nothing not removed, every lease given back."""
        return self.runner.current(identity_of(self.name)) is None and all(x.released for x in self.runner.leases)


class Killed(BaseException):
    """The watcher's process is gone."""


def raises(error: Exception) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function
