"""The watcher of one replica, against a fake runner, channel, store and clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import (
    FakeChannel,
    FakeClock,
    FakeLease,
    FakeProgram,
    FakeRunner,
    FakeStore,
    identity_of,
    make_job,
    running_cluster,
)

from tf_operator.errors import DeviceError, LaunchError, RunnerError, SecretError, SecretUnavailableError
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.membership import Cluster, Judgement, Member, Phase, Status, Verdict
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.runners.base import Exit, SecretBundle
from tf_operator.supervision import ChannelError, Host, Outcome, Result, Watcher
from tf_operator.watching import DeviceLease


@dataclass
class FakeDevices:
    """A device lease that says whether it was given back."""

    ids: tuple[str, ...] = ("3",)
    fds: tuple[int, ...] = (33,)
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
        self.devices: Callable[[], DeviceLease | None] = lambda: None

    def watcher(self, attempt: str = "a1") -> Watcher:
        host = Host(
            runner=self.runner,  # type: ignore[arg-type]
            secrets=lambda: self.secrets(),
            devices=lambda: self.devices(),
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


# -- start and end


def test_a_replica_runs_and_is_stopped_when_the_job_has_succeeded() -> None:
    bench = Bench()
    bench.after(2, lambda: setattr(bench.program, "output", b"one\ntwo\nrest"))
    bench.after(10, bench.finish)
    outcome = bench.run()
    assert outcome == Outcome(Result.SUCCESS, "the job succeeded: chief-0 ended with exit code 0")
    assert bench.statuses == [Status.READY, Status.RUNNING]
    assert bench.program.stop_asked is not None
    assert bench.output == ["one", "two", "rest"]
    assert bench.nothing_left()
    assert bench.program.removed is False
    launch = bench.program.launch
    assert (launch.incarnation, launch.generation, launch.attempt) == (1, 1, "a1")
    assert "VAULT_TOKEN" not in launch.env
    assert bench.channel.said[-1].pid == 100


@pytest.mark.parametrize(
    "message",
    [
        None,
        Cluster("a1", launch={"worker-1": 1}),
        running_cluster(make_job(), members={"worker-1": 2}),
        running_cluster(make_job(), members={}),
    ],
)
def test_nothing_is_launched_without_a_spec_that_holds_the_own_incarnation(message: Cluster | None) -> None:
    bench = Bench()
    bench.channel.message = message
    bench.after(50, lambda: setattr(bench.channel, "owner", "the task cluster is failed"))
    outcome = bench.run()
    assert outcome == Outcome(
        Result.SKIPPED, "stopped because nobody leads the job any more: the task cluster is failed"
    )
    assert bench.runner.programs == []
    assert bench.nothing_left()


@pytest.mark.parametrize(("phase", "result"), [(Phase.SUCCEEDED, Result.SUCCESS), (Phase.FAILED, Result.SKIPPED)])
def test_arriving_after_the_end_starts_nothing_and_leaves_nothing(phase: Phase, result: Result) -> None:
    bench = Bench()
    bench.until(5)
    bench.finish(phase, "it is over")
    outcome = bench.run()
    assert outcome.result is result
    assert outcome.text == f"the job had already {phase} when worker-1 arrived: it is over"
    assert len(bench.runner.programs) == 1
    assert bench.nothing_left()


def test_the_replica_whose_fault_ended_the_job_fails_though_its_watcher_was_replaced() -> None:
    bench = Bench()
    bench.finish(Phase.FAILED, "worker-1 failed: exit code 1")
    judgement = Judgement(1, 1, Verdict.FINAL)
    bench.channel.message = replace(bench.channel.message, verdicts={"worker-1": judgement})  # type: ignore[type-var]
    assert bench.run() == Outcome(Result.FAILED, "worker-1 failed: exit code 1")
    assert bench.runner.programs == []


def test_the_owner_that_is_gone_may_have_said_its_last_word() -> None:
    bench = Bench()

    def gone() -> None:
        bench.channel.owner = "the task cluster is success"
        bench.finish()

    bench.after(7.1, gone)
    assert bench.run().result is Result.SUCCESS


def test_an_owner_that_is_gone_without_a_word_takes_the_program_along() -> None:
    bench = Bench()
    bench.after(7, lambda: setattr(bench.channel, "owner", "the task cluster is cleared"))
    assert bench.run().result is Result.SKIPPED
    assert bench.nothing_left()


def test_exit_0_of_a_replica_that_does_not_decide_waits_for_the_end() -> None:
    bench = Bench()
    bench.after(3, lambda: bench.end(Exit(code=0), b"done\n"))
    bench.after(500, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.statuses == [Status.READY, Status.RUNNING, Status.EXITED]
    assert bench.clock.now >= 1500
    assert bench.nothing_left()


@pytest.mark.parametrize(("verdict", "result"), [(Verdict.RETRY, Result.RETRY), (Verdict.FINAL, Result.FAILED)])
@pytest.mark.parametrize("clean_policy", ["all", "keep_failed"])
def test_an_own_fault(verdict: Verdict, result: Result, clean_policy: str) -> None:
    bench = Bench(make_job(policy={"clean_policy": clean_policy}))
    bench.after(3, lambda: bench.end(Exit(code=3), b"Traceback\nValueError: no\n"))
    phase = Phase.FAILED if verdict is Verdict.FINAL else Phase.RUNNING
    bench.after(8, lambda: bench.judge(verdict, phase=phase, reason="worker-1 failed: exit code 3; for good"))
    outcome = bench.run()
    assert outcome.result is result
    assert outcome.text.startswith("worker-1 failed: exit code 3")
    said = bench.channel.said[-1]
    assert (said.status, said.end, said.failures) == (Status.EXITED, Exit(code=3), 0)
    assert said.tail == ("Traceback", "ValueError: no")
    assert bench.nothing_left()
    assert bench.program.removed is (clean_policy == "keep_failed")


def test_the_next_try_counts_the_fault_and_is_a_new_incarnation_at_the_same_address() -> None:
    bench = Bench()
    bench.after(3, lambda: bench.end(Exit(code=3)))
    bench.after(8, lambda: bench.judge(Verdict.RETRY))
    bench.run()
    bench.after(5, bench.finish)
    bench.run()
    said = bench.channel.said[-1]
    assert (said.status, said.incarnation, said.failures) == (Status.READY, 2, 1)
    assert len({member.address for member in bench.channel.said}) == 1


def test_another_attempt_counts_from_the_beginning_but_for_the_incarnation() -> None:
    bench = Bench()
    bench.after(3, lambda: bench.end(Exit(code=3)))
    bench.after(8, lambda: bench.judge(Verdict.RETRY))
    bench.run()
    bench.channel.message = None
    bench.until(5, attempt="a2")
    said = bench.channel.said[-1]
    assert (said.attempt, said.incarnation, said.failures) == ("a2", 2, 0)


def test_an_end_that_nobody_judges_is_an_own_fault_after_a_while() -> None:
    bench = Bench()
    bench.after(3, lambda: bench.end(Exit(code=1)))
    assert bench.run().result is Result.RETRY
    assert 180 < bench.clock.now - 1003 < 190


def test_a_failed_job_stops_the_others_as_skipped() -> None:
    bench = Bench()
    bench.after(10, lambda: bench.finish(Phase.FAILED, "ps-0 failed: exit code 1"))
    assert bench.run() == Outcome(Result.SKIPPED, "stopped because the job failed: ps-0 failed: exit code 1")
    assert bench.nothing_left()


def test_what_a_stopped_program_printed_last_is_in_the_log() -> None:
    bench = Bench()
    bench.after(10, bench.finish)
    original = bench.runner.stop

    def stop(handle: Any, grace: float) -> None:
        bench.program.output += b"TERM: saving\nsaved"
        original(handle, grace)

    bench.runner.stop = stop  # type: ignore[method-assign]
    bench.run()
    assert bench.output == ["TERM: saving", "saved"]


def test_a_program_that_ignores_term_is_killed_in_bounded_time() -> None:
    bench = Bench()
    bench.after(10, lambda: setattr(bench.program, "stops_after", 1e9), lambda: bench.finish())
    assert bench.run().result is Result.SUCCESS
    assert bench.clock.now - 1010 < 50
    assert bench.nothing_left()


# -- generations


def test_start_again_in_place_with_the_next_generation() -> None:
    bench = Bench()

    def next_generation() -> None:
        launch = {**bench.channel.message.launch, "worker-1": 2}  # type: ignore[union-attr]
        bench.say(generation=2, phase=Phase.FORMING, launch=launch, reason="ps-0 failed")

    bench.after(5, next_generation)
    bench.after(15, lambda: bench.say(phase=Phase.RUNNING))
    bench.after(25, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.statuses == [Status.READY, Status.RUNNING, Status.READY, Status.RUNNING]
    assert [p.launch.generation for p in bench.runner.programs] == [1, 2]
    assert [p.launch.incarnation for p in bench.runner.programs] == [1, 1]
    assert len(bench.runner.leases) == 1, "the address was held all the time"
    assert {member.failures for member in bench.channel.said} == {0}
    assert bench.nothing_left()


def test_a_consequence_starts_again_whatever_its_code_and_costs_no_retry() -> None:
    bench = Bench()
    bench.after(5, lambda: bench.end(Exit(code=1)))
    bench.after(7, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"worker-1": 2}, reason="ps-0 failed"))
    bench.after(9, lambda: bench.say(phase=Phase.RUNNING))
    bench.after(15, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.statuses == [Status.READY, Status.RUNNING, Status.EXITED, Status.READY, Status.RUNNING]
    assert bench.channel.said[-1].failures == 0


def test_a_decider_that_was_done_as_the_call_to_start_again_came_is_done() -> None:
    bench = Bench(name="chief-0")
    bench.after(5, lambda: bench.end(Exit(code=0)))
    bench.after(5, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"chief-0": 2}))
    bench.after(12, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert len(bench.runner.programs) == 1


def test_done_before_our_term_reached_it_is_done() -> None:
    bench = Bench(name="chief-0")
    original = bench.runner.stop

    def stop(handle: Any, grace: float) -> None:
        bench.program.end = bench.program.end or Exit(code=0)
        original(handle, grace)

    bench.runner.stop = stop  # type: ignore[method-assign]
    bench.after(5, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"chief-0": 2}))
    bench.after(12, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.statuses == [Status.READY, Status.RUNNING, Status.EXITED]


# -- adoption


def test_a_second_watcher_adopts_the_program() -> None:
    bench = Bench()
    bench.after(3, lambda: setattr(bench.program, "output", b"one\ntwo\nthr"))
    bench.until(12)
    assert bench.output == ["one", "two"]
    assert bench.program.end is None
    bench.after(3, lambda: setattr(bench.program, "output", b"one\ntwo\nthree\nfour\n"))
    bench.after(9, lambda: bench.end(Exit(code=1)))
    bench.after(12, lambda: bench.judge(Verdict.RETRY))
    assert bench.run().result is Result.RETRY
    assert bench.output == ["one", "two", "three", "four"]
    assert {member.incarnation for member in bench.channel.said} == {1}
    assert bench.channel.said[-1].tail == ("one", "two", "three", "four"), "the last lines reach back before the loss"
    assert len(bench.runner.programs) == 1
    assert bench.nothing_left()


def test_a_program_that_ended_while_nobody_watched_is_adopted_too() -> None:
    bench = Bench(name="chief-0")
    bench.until(12)
    bench.end(Exit(code=0), b"accuracy 0.97\n")
    bench.after(9, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.output == ["accuracy 0.97"]
    assert bench.channel.said[-1].end == Exit(code=0)


def test_a_program_of_another_attempt_is_removed_first() -> None:
    bench = Bench()
    bench.until(5)
    bench.channel.message = running_cluster(bench.job, "a2", members={"worker-1": 2})
    bench.after(10, bench.finish)
    assert bench.run("a2").result is Result.SUCCESS
    first, second = bench.runner.programs
    assert first.stop_asked is not None
    assert first.removed is not None
    assert (second.launch.attempt, second.launch.incarnation) == ("a2", 2)


def test_an_old_program_that_does_not_end_is_a_reason_to_try_again() -> None:
    bench = Bench()
    bench.until(5)
    bench.program.stops_after = 1e9
    outcome = bench.run("a2")
    assert outcome.result is Result.RETRY
    assert "does not end" in outcome.text
    assert len(bench.runner.programs) == 1


def test_a_program_that_vanished_with_its_watcher_counts_as_a_start() -> None:
    bench = Bench()
    bench.until(5)
    bench.program.end, bench.program.removed = Exit(code=137), False
    bench.say(members={"worker-1": 1})
    bench.until(5)
    said = bench.channel.said[-1]
    assert (said.incarnation, said.status, said.failures) == (2, Status.READY, 1)


def test_a_watcher_lost_between_stop_and_start_counts_nothing() -> None:
    bench = Bench()
    bench.after(3, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"worker-1": 2}))
    bench.until(10)
    bench.until(3)
    said = bench.channel.said[-1]
    assert (said.incarnation, said.status, said.failures) == (2, Status.READY, 0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_fault_counts_once_though_the_watcher_dies_while_it_writes_it_down(moment: str) -> None:
    bench = Bench()
    original = bench.store.set

    def dies(key: str, value: Any) -> None:
        if key == "replica" and value["failed"]:
            if moment == "after":
                original(key, value)
            bench.store.set = original  # type: ignore[method-assign]
            raise Killed
        original(key, value)

    bench.store.set = dies  # type: ignore[method-assign]
    bench.after(3, lambda: bench.end(Exit(code=3)))
    bench.after(8, lambda: bench.judge(Verdict.RETRY))
    with pytest.raises(Killed):
        bench.run()
    if moment == "before":
        assert bench.run().result is Result.RETRY
    bench.until(3)
    said = bench.channel.said[-1]
    assert (said.incarnation, said.failures) == (2, 1)


def test_an_adopted_program_whose_address_is_taken_comes_back_as_a_new_incarnation() -> None:
    bench = Bench()
    bench.until(5)
    bench.after(3, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"worker-1": 2}))
    bench.runner.reserve = lambda *_: FakeLease("127.0.0.1:29999")  # type: ignore[method-assign]
    bench.until(10)
    said = bench.channel.said[-1]
    assert (said.incarnation, said.address, said.failures) == (2, "127.0.0.1:29999", 0)


# -- two watchers, a person


def test_a_superseded_watcher_touches_nothing() -> None:
    bench = Bench()
    bench.after(7, lambda: bench.store.set("watcher", "a newer one"))
    bench.after(7, bench.runner.calls.clear)
    outcome = bench.run()
    assert outcome.result is Result.SUPERSEDED
    assert bench.program.end is None
    assert not {"stop", "remove", "start"} & set(bench.runner.calls)


@pytest.mark.parametrize("moment", ["start", "verdict"])
def test_a_superseded_watcher_neither_starts_nor_removes_in_the_seconds_before_it_knows(moment: str) -> None:
    bench = Bench()
    if moment == "start":
        bench.say(phase=Phase.FORMING)
        bench.after(1.5, lambda: bench.store.set("watcher", "newer"), lambda: bench.say(phase=Phase.RUNNING))
    else:
        bench.after(5.3, lambda: bench.end(Exit(code=3)))
        bench.after(6.3, lambda: bench.store.set("watcher", "newer"), lambda: bench.judge(Verdict.RETRY))
    assert bench.run().result is Result.SUPERSEDED
    assert all(program.removed is None for program in bench.runner.programs)
    assert len(bench.runner.programs) == (0 if moment == "start" else 1)


def test_a_person_stops_the_program_and_the_next_try_is_no_fault() -> None:
    bench = Bench()
    watcher = bench.until(5)
    assert watcher.alive()
    watcher.stop_by_person()
    assert bench.program.stop_asked is not None
    assert not watcher.alive()
    bench.until(5)
    said = bench.channel.said[-1]
    assert (said.incarnation, said.status, said.failures) == (2, Status.READY, 0)
    assert bench.program.removed is not None


def test_stop_by_person_finds_a_program_it_never_saw() -> None:
    bench = Bench()
    bench.until(5)
    bench.store.down = True
    bench.watcher().stop_by_person()
    assert bench.program.stop_asked is not None


# -- outages


def test_an_outage_leaves_the_program_alone_and_loses_nothing() -> None:
    bench = Bench()
    bench.after(5, lambda: setattr(bench.channel, "down", True), lambda: setattr(bench.store, "down", True))
    bench.after(300, lambda: setattr(bench.program, "output", b"in the dark\n"))
    bench.after(900, lambda: setattr(bench.channel, "down", False), lambda: setattr(bench.store, "down", False))
    bench.after(950, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.output == ["in the dark"]
    assert len(bench.runner.programs) == 1
    assert len([line for line in bench.logged if "cannot be reached" in line]) == 1


def test_an_end_in_an_outage_is_told_when_the_channel_is_back() -> None:
    bench = Bench(name="chief-0")
    bench.after(5, lambda: setattr(bench.channel, "down", True))
    bench.after(20, lambda: bench.end(Exit(code=0)))
    bench.after(140, lambda: setattr(bench.channel, "down", False))
    bench.after(145, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.statuses == [Status.READY, Status.RUNNING, Status.EXITED]


def test_after_a_long_outage_an_ended_program_is_left_for_the_next_try() -> None:
    bench = Bench(name="chief-0")
    bench.after(5, lambda: setattr(bench.channel, "down", True))
    bench.after(20, lambda: bench.end(Exit(code=0)))
    outcome = bench.run()
    assert outcome.result is Result.RETRY
    assert "out of reach for 180 s" in outcome.text
    bench.channel.down = False
    bench.after(5, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert len(bench.runner.programs) == 1
    assert bench.channel.said[-1].end == Exit(code=0)


def test_a_store_that_fails_at_the_start_starts_later_and_leaves_no_device() -> None:
    bench = Bench(make_job(gpus=1))
    leases: list[FakeDevices] = []

    def lease() -> FakeDevices:
        leases.append(FakeDevices())
        return leases[-1]

    bench.devices = lease
    bench.say(phase=Phase.FORMING)
    bench.after(3, lambda: setattr(bench.store, "down", True), lambda: bench.say(phase=Phase.RUNNING))
    bench.after(30, lambda: setattr(bench.store, "down", False))
    bench.after(40, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert len(bench.runner.programs) == 1
    assert all(lease.released for lease in leases)


def test_the_first_look_may_fail_and_nothing_was_touched() -> None:
    bench = Bench()
    bench.channel.down = True
    with pytest.raises(ChannelError):
        bench.run()
    assert bench.runner.programs == []
    assert bench.nothing_left()


def test_a_runner_that_does_not_answer_for_a_while_is_borne() -> None:
    bench = Bench()
    bench.after(5, lambda: setattr(bench.runner, "trouble", RunnerError("the daemon does not answer")))
    bench.after(40, lambda: setattr(bench.runner, "trouble", None))
    bench.after(45, bench.finish)
    assert bench.run().result is Result.SUCCESS


def test_a_runner_that_never_answers_again_ends_the_watch_and_leaves_the_program() -> None:
    bench = Bench()
    bench.after(5, lambda: setattr(bench.runner, "trouble", RunnerError("the daemon does not answer")))
    outcome = bench.run()
    assert outcome == Outcome(Result.RETRY, "the daemon does not answer")
    bench.runner.trouble = None
    bench.after(5, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert len(bench.runner.programs) == 1, "it was adopted"


# -- devices and secrets


def test_devices_reach_the_program_and_our_hold_is_given_up() -> None:
    bench = Bench(make_job(gpus=1))
    lease = FakeDevices()
    bench.devices = lambda: lease
    bench.after(10, bench.finish)
    bench.run()
    launch = bench.program.launch
    assert (launch.devices, launch.device_fds) == (("3",), (33,))
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "3"
    assert lease.released


def test_a_replica_waits_for_its_devices_and_says_who_has_them() -> None:
    bench = Bench(make_job(gpus=1))
    bench.devices = raises(DeviceError("0: held by job-2"))
    bench.after(300, lambda: setattr(bench, "devices", FakeDevices))
    bench.after(320, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.logged.count("waits for devices: 0: held by job-2") == 1
    assert bench.statuses == [Status.READY, Status.RUNNING]
    assert bench.channel.said[-1].generation == 1


def test_devices_that_never_come_are_a_fault_that_may_pass() -> None:
    bench = Bench(make_job(gpus=1, policy={"start_timeout": 100}))
    bench.devices = raises(DeviceError("0: held by job-2"))
    bench.say(phase=Phase.FORMING)
    bench.after(90, lambda: bench.say(phase=Phase.RUNNING))
    bench.after(150, lambda: bench.say(reason="still running"))
    bench.after(200, lambda: bench.judge(Verdict.RETRY))
    outcome = bench.run()
    assert outcome == Outcome(Result.RETRY, "worker-1 failed: 0: held by job-2")
    said = bench.channel.said[-1]
    assert (said.status, said.generation, said.final) == (Status.EXITED, 1, False)
    assert bench.nothing_left()


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (SecretUnavailableError("Vault is sealed"), False),
        (SecretError("secret/x: forbidden"), True),
        (LaunchError("no such working_dir"), False),
    ],
)
def test_a_program_that_cannot_be_started(error: Exception, final: bool) -> None:
    bench = Bench(make_job(gpus=1))
    lease = FakeDevices()
    bench.devices = lambda: lease
    if isinstance(error, SecretError):
        bench.secrets = raises(error)
    else:
        bench.runner.start_error = error
    bench.after(10, lambda: bench.judge(Verdict.RETRY))
    outcome = bench.run()
    assert outcome == Outcome(Result.RETRY, f"worker-1 failed: {error}")
    said = bench.channel.said[-1]
    assert said.end == Exit(code=NOT_STARTED, reason=str(error))
    assert said.final is final
    assert lease.released
    assert bench.nothing_left()


# -- evaluator, stall


def evaluator(grace: float) -> Bench:
    return Bench(make_job(evaluator=1, policy={"evaluator_grace": grace}), "evaluator-0")


def test_the_evaluator_has_a_tail() -> None:
    bench = evaluator(60)
    bench.after(10, bench.finish)
    bench.after(15, lambda: setattr(bench.channel, "owner", "the task cluster is success"))
    bench.after(30, lambda: setattr(bench.program, "output", b"evaluated\n"))
    bench.after(40, lambda: bench.end(Exit(code=0)))
    assert bench.run().result is Result.SUCCESS
    assert bench.output == ["evaluated"]
    assert 1040 <= bench.clock.now < 1045
    assert bench.program.stop_asked is None


@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_the_tail_ends(grace: float) -> None:
    bench = evaluator(grace)
    bench.after(10, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert grace <= bench.clock.now - 1010 < grace + 5
    assert bench.program.stop_asked is not None


def test_a_failed_job_has_no_tail() -> None:
    bench = evaluator(60)
    bench.after(10, lambda: bench.finish(Phase.FAILED, "no"))
    assert bench.run().result is Result.SKIPPED
    assert bench.clock.now < 1015


@pytest.mark.parametrize(
    ("name", "policy", "stalls"),
    [("chief-0", "chief", True), ("worker-1", "chief", False), ("worker-1", "all_workers", True)],
)
def test_the_deciders_stall_without_output_and_files(name: str, policy: str, stalls: bool, tmp_path: Path) -> None:
    job = make_job(policy={"stall_timeout": 100}, model_dir=str(tmp_path), success_policy=policy)
    bench = Bench(job, name)
    bench.after(80, lambda: setattr(bench.program, "output", b"step 1\n"))
    (tmp_path / "ckpt").mkdir()
    bench.after(160, lambda: (tmp_path / "ckpt" / "1").touch())
    checked: list[bool] = []
    bench.after(250, lambda: checked.append(Status.STALLED not in bench.statuses))
    bench.after(290, bench.finish)
    bench.run()
    assert checked == [True]
    assert (Status.STALLED in bench.statuses) is stalls


def raises(error: Exception) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


def test_members_say_where_they_are() -> None:
    bench = Bench()
    bench.after(3, bench.finish)
    bench.run()
    assert {(member.attempt, member.host) for member in bench.channel.said} == {("a1", "host-1")}
    assert isinstance(bench.channel.said[0], Member)
