"""The watcher of one replica obeys the owner, through generations and outages, and tells of a stall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import (
    FakeLease,
    make_job,
)
from watcher_bench import Bench, FakeDevices

from tf_operator.errors import EngineUnavailableError, RunnerError
from tf_operator.membership import Phase, Status
from tf_operator.runners.base import Exit
from tf_operator.supervision import ChannelError, Outcome, Result

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


@pytest.mark.parametrize(("end", "kept"), [(Exit(code=1), True), (None, False)])
def test_keep_failed_keeps_what_a_peer_drew_down_not_what_we_stopped(end: Exit | None, kept: bool) -> None:
    bench = Bench(make_job(policy={"clean_policy": "keep_failed"}))
    if end:
        bench.after(5, lambda: bench.end(end))
    bench.after(7, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"worker-1": 2}, reason="ps-0 failed"))
    bench.after(15, lambda: bench.say(phase=Phase.RUNNING))
    bench.after(25, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert [program.removed for program in bench.runner.programs] == [kept, False]


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


def test_a_runner_that_has_waited_for_its_engine_is_not_waited_for_again() -> None:
    bench = Bench()
    began = bench.clock()
    bench.after(5, lambda: setattr(bench.runner, "trouble", EngineUnavailableError("the engine has not answered")))
    assert bench.run() == Outcome(Result.RETRY, "the engine has not answered")
    assert bench.clock() - began < 10


def test_a_stop_that_meets_an_engine_that_is_away_is_tried_again() -> None:
    """How long it may be away is what following the program says; the program must not lose its TERM."""
    bench = Bench()
    original = bench.runner.stop

    def away(handle: Any, grace: float) -> None:
        raise EngineUnavailableError("the engine is being restarted")

    bench.runner.stop = away  # type: ignore[method-assign]
    bench.after(5, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"worker-1": 2}, reason="ps-0 failed"))
    bench.after(30, lambda: setattr(bench.runner, "stop", original))
    bench.after(40, lambda: bench.say(phase=Phase.RUNNING))
    bench.after(50, bench.finish)
    assert bench.run().result is Result.SUCCESS
    assert [p.launch.generation for p in bench.runner.programs] == [1, 2]
    assert bench.logged.count("stopping the program: generation 2: ps-0 failed") == 1
    assert bench.channel.said[-1].failures == 0


def test_an_adopted_program_at_another_address_is_a_new_incarnation_also_after_an_outage() -> None:
    bench = Bench()
    bench.until(5)
    bench.runner.reserve = lambda *_: FakeLease("127.0.0.1:29999")  # type: ignore[method-assign]
    original, writes = bench.store.set, []

    def second_fails(key: str, value: Any) -> None:
        if key == "replica" and value["address"] == "127.0.0.1:29999":
            writes.append(value)
            if len(writes) == 2:
                raise ChannelError("API server: connection refused")
        original(key, value)

    bench.store.set = second_fails  # type: ignore[method-assign]
    bench.after(3, lambda: bench.say(generation=2, phase=Phase.FORMING, launch={"worker-1": 2}))
    bench.until(10)
    said = bench.channel.said[-1]
    assert (said.incarnation, said.address, said.failures) == (2, "127.0.0.1:29999", 0)


# -- stall


@pytest.mark.parametrize("quiet", [False, True])
def test_a_decider_is_watched_for_silence_once_a_server_has_ended(quiet: bool, tmp_path: Path) -> None:
    bench = Bench(make_job(policy={"start_timeout": 100}, model_dir=str(tmp_path)), "chief-0")
    bench.after(300, lambda: bench.say(unserved=("ps-0",)))
    if not quiet:
        bench.after(380, lambda: (tmp_path / "ckpt").touch())
    bench.after(450, bench.finish)
    bench.run()
    assert (Status.STALLED in bench.statuses) is quiet


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
