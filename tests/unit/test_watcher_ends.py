"""The watcher of one replica ends: with the job, by a fault of its program, or to come again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import (
    make_job,
)
from watcher_bench import Bench

from tf_operator import model_dir
from tf_operator.membership import Judgement, Phase, Status, Verdict
from tf_operator.runners.base import Exit
from tf_operator.supervision import Outcome, Result

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


def test_a_run_whose_model_dir_was_taken_starts_no_program(tmp_path: Path) -> None:
    other = {"dag_id": "other", "run_id": "run", "group_id": ""}
    model_dir.claim(str(tmp_path), other, lambda _: True)
    bench = Bench(make_job(model_dir=str(tmp_path)))
    bench.after(5, lambda: bench.judge(Verdict.FINAL))
    assert bench.run().result is Result.FAILED
    assert bench.runner.programs == []
    end = bench.channel.said[-1].end
    assert end and "run run of other has taken it" in str(end.reason)


def test_an_end_that_no_other_start_can_help_is_told_as_such() -> None:
    """A container that sees other devices than it was given."""
    bench = Bench()
    bench.after(5, lambda: bench.end(Exit(code=125, reason="given 1 GPUs, but the container has 2", final=True)))
    bench.after(10, lambda: bench.judge(Verdict.FINAL))
    assert bench.run().result is Result.FAILED
    assert bench.channel.said[-1].final


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


# -- after a start_timeout


def test_a_job_that_lets_go_takes_its_programs_along_and_they_come_again() -> None:
    bench = Bench()
    bench.after(10, lambda: bench.say(phase=Phase.FAILED, reason="start_timeout: ...", again_after=42.0))
    assert bench.run() == Outcome(Result.AGAIN, "start_timeout: ...", 42.0)
    assert bench.program.stop_asked is not None
    assert bench.nothing_left()


def test_who_arrives_while_all_is_let_go_starts_nothing_and_comes_again() -> None:
    bench = Bench()
    bench.say(phase=Phase.FAILED, reason="start_timeout: ...", again_after=42.0)
    assert bench.run().result is Result.AGAIN
    assert bench.runner.programs == []
    assert bench.nothing_left()


def test_who_arrives_before_the_slots_are_there_again_takes_no_place_meanwhile() -> None:
    bench = Bench(make_job(policy={"start_timeout": 100}))
    bench.channel.message, bench.channel.owner = None, "waiting"
    outcome = bench.run("a2")
    assert (outcome.result, outcome.delay) == (Result.AGAIN, 25.0)
    assert bench.clock.now < 1001
    assert bench.runner.programs == []
    assert bench.nothing_left()


def test_a_program_does_not_live_on_without_the_jobs_slots() -> None:
    bench = Bench()
    bench.after(10, lambda: setattr(bench.channel, "owner", "waiting"))
    assert bench.run().result is Result.AGAIN
    assert bench.program.stop_asked is not None
    assert bench.nothing_left()
