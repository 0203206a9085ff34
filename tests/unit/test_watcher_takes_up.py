"""The watcher of one replica takes it up: what it may start, adopt, must remove, and what it needs for it."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import (
    FakeLease,
    make_job,
    running_cluster,
)
from watcher_bench import Bench, FakeDevices, Killed, raises

from tf_operator.errors import (
    DeviceError,
    EngineUnavailableError,
    LaunchError,
    NoSuchDeviceError,
    PreflightError,
    SecretError,
    SecretUnavailableError,
)
from tf_operator.membership import Cluster, Member, Phase, Status, Verdict
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.runners.base import Exit, SecretBundle
from tf_operator.supervision import Outcome, Result

# -- a host that cannot


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (
            PermissionError(13, "Permission denied", "/state/locks"),
            Outcome(
                Result.RETRY,
                "worker-1: [Errno 13] Permission denied: '/state/locks'; is [tf_operator] state_dir of this host"
                " writable?",
            ),
        ),
        (PreflightError("port_range = 1: no"), Outcome(Result.FAILED, "worker-1: port_range = 1: no")),
    ],
)
def test_a_host_that_cannot_hold_an_address_is_one_line(error: Exception, outcome: Outcome) -> None:
    bench = Bench()
    bench.runner.trouble = error
    assert bench.run() == outcome
    assert bench.runner.programs == []


# -- when it may start


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


def test_a_program_that_was_told_to_stop_is_not_gone_on_with_and_is_no_fault() -> None:
    """A clear takes the old try's row away: its watcher stops the program, and has nowhere left to write that down."""
    bench = Bench()
    watcher = bench.until(5)
    bench.store.down = True
    watcher.stop_by_person()
    bench.store.down = False
    first = bench.program
    assert first.end is None, "it takes its time"
    bench.until(10)
    assert first.removed is not None
    said = bench.channel.said[-1]
    assert (said.status, said.incarnation, said.failures) == (Status.READY, 2, 0)
    assert any("is still here; it was told to stop: stopping and removing it" in line for line in bench.logged)


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


def test_a_program_that_a_person_ended_is_not_adopted_though_it_could_not_be_stopped() -> None:
    bench = Bench()
    watcher = bench.until(5)
    bench.runner.trouble = EngineUnavailableError("the engine is away")
    with pytest.raises(EngineUnavailableError):
        watcher.stop_by_person()
    bench.runner.trouble = None
    first = bench.program
    bench.until(5)
    assert first.removed is not None
    said = bench.channel.said[-1]
    assert (said.incarnation, said.failures) == (2, 0)


# -- an image that takes its time


def test_a_job_that_ends_while_an_image_is_fetched_starts_nothing() -> None:
    bench = Bench(make_job(gpus=1))
    bench.runner.prepared = False
    bench.after(50, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert bench.clock() < 1060
    assert bench.runner.programs == []
    assert bench.logged.count("worker-1 waits for its image") == 1


@pytest.mark.parametrize("what", ["image", "secrets"])
def test_a_watcher_lost_before_the_program_could_start_counts_nothing(what: str) -> None:
    bench = Bench(make_job(retries=0))
    if what == "image":
        bench.runner.prepared = False
    else:
        bench.secrets = raises(Killed())  # type: ignore[arg-type]
    if what == "image":
        bench.until(50)
    else:
        with pytest.raises(Killed):
            bench.run()
    bench.runner.prepared, bench.secrets = True, SecretBundle
    bench.until(5)
    assert bench.channel.said[-1].failures == 0


def test_a_newer_watcher_that_came_while_an_image_was_fetched_has_the_replica() -> None:
    bench = Bench()
    bench.runner.prepared = False
    bench.after(20, lambda: bench.store.set("watcher", "newer"), lambda: setattr(bench.runner, "prepared", True))
    assert bench.run().result is Result.SUPERSEDED
    assert bench.runner.programs == []


def test_devices_are_held_by_nobody_who_waits_for_an_image() -> None:
    bench = Bench(make_job(gpus=1))
    bench.runner.prepared = False
    bench.devices = raises(AssertionError("it has no image yet"))  # type: ignore[arg-type]
    bench.after(20, bench.finish)
    assert bench.run().result is Result.SUCCESS


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
        (NoSuchDeviceError("asks for 4 GPUs, this host has 2"), False),
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


def test_members_say_where_they_are() -> None:
    bench = Bench()
    bench.after(3, bench.finish)
    bench.run()
    assert {(member.attempt, member.host) for member in bench.channel.said} == {("a1", "host-1")}
    assert isinstance(bench.channel.said[0], Member)
