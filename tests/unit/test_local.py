"""LocalRun: threads, the owner and their end, with a fake runner (programs that end when they are told)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, FakeRunner, make_job

from tf_operator.errors import EngineUnavailableError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.local import LocalOutcome, LocalRun, new_run_id
from tf_operator.membership import Cluster, Member, Phase, Status
from tf_operator.program import result_path
from tf_operator.runners.base import Exit, SecretBundle
from tf_operator.supervision import Host, Result


class RealClock(FakeClock):
    def __call__(self) -> float:
        return time.monotonic()


class LocalBench:
    """A local run on fake runners, one a replica; `script` sees every change and may end programs."""

    def __init__(self, job: RenderedJob, script: Callable[[LocalBench, Mapping[ReplicaId, Member]], None]) -> None:
        self.runners: dict[str, FakeRunner] = {}
        self.script = script
        self.logged: list[str] = []
        self.ports = iter(range(20001, 21000))
        self.host_error: Exception | None = None
        self.run = LocalRun(
            job,
            new_run_id(),
            host_for=self.host,
            emit=lambda replica, line: None,
            log=lambda replica, line: self.logged.append(f"{replica}: {line}"),
            on_change=self.changed,
        )

    def host(self, replica: ReplicaId, identity: Identity) -> Host:
        if self.host_error:
            raise self.host_error
        runner = FakeRunner(RealClock(), next_port=next(self.ports))
        self.runners[str(replica)] = runner
        return Host(runner=runner, secrets=SecretBundle, devices=lambda: None)  # type: ignore[arg-type]

    def changed(self, _cluster: Cluster, members: Mapping[ReplicaId, Member]) -> None:
        if members and all(m.status is Status.RUNNING for m in members.values()):
            self.script(self, members)

    def end(self, name: str, code: int, number: int = -1) -> None:
        self.runners[name].programs[number].end = Exit(code=code)

    def nothing_left(self) -> bool:
        programs = [program for runner in self.runners.values() for program in runner.programs]
        leases = [lease for runner in self.runners.values() for lease in runner.leases]
        threads = [thread.name for thread in threading.enumerate()]
        return (
            all(program.removed is not None for program in programs)
            and all(lease.released for lease in leases)
            and not any(name.startswith(("chief-", "worker-", "ps-")) for name in threads)
        )


def test_success_and_result(tmp_path: Path) -> None:
    job = make_job(worker=1, model_dir=str(tmp_path))

    def script(bench: LocalBench, _members: Any) -> None:
        env = bench.runners["chief-0"].programs[-1].launch.env
        Path(env["TF_OPERATOR_RESULT"]).parent.mkdir(parents=True, exist_ok=True)
        Path(env["TF_OPERATOR_RESULT"]).write_text('{"accuracy": 0.97}')
        bench.end("chief-0", 0)

    bench = LocalBench(job, script)
    outcome = bench.run.run()
    assert outcome.succeeded
    assert outcome.result == {"accuracy": 0.97}
    assert {str(r): o.result for r, o in outcome.outcomes.items()} == dict.fromkeys(
        ["chief-0", "worker-0", "ps-0"], Result.SUCCESS
    )
    assert bench.nothing_left()
    launch = bench.runners["ps-0"].programs[0].launch
    assert launch.orphan_timeout == 60, "a SIGKILL of the whole run leaves nothing for long"


def test_a_result_that_is_no_json_is_no_success(tmp_path: Path) -> None:
    job = make_job(worker=0, ps=0, model_dir=str(tmp_path), strategy="none")

    def script(bench: LocalBench, _members: Any) -> None:
        path = result_path(tmp_path, bench.runners["chief-0"].programs[-1].launch.attempt, ReplicaId("chief", 0))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0.97 or so")
        bench.end("chief-0", 0)

    outcome = LocalBench(job, script).run.run()
    assert not outcome.succeeded
    assert "not JSON" in outcome.reason


def test_a_final_fault_skips_the_others(tmp_path: Path) -> None:
    job = make_job(worker=1, retries=0, model_dir=str(tmp_path))
    bench = LocalBench(job, lambda bench, _: bench.end("ps-0", 3))
    outcome = bench.run.run()
    assert outcome.cluster.phase is Phase.FAILED
    assert outcome.reason == "ps-0 failed: exit code 3; started 1 time, retries is 0"
    results = {str(r): o.result for r, o in outcome.outcomes.items()}
    assert results == {"chief-0": Result.SKIPPED, "worker-0": Result.SKIPPED, "ps-0": Result.FAILED}
    assert bench.nothing_left()


def test_a_fault_is_tried_again_and_a_new_incarnation_takes_its_place(tmp_path: Path) -> None:
    job = make_job(chief=0, worker=2, ps=0, strategy="none", retry_delay=0.1, model_dir=str(tmp_path))

    def script(bench: LocalBench, members: Mapping[ReplicaId, Member]) -> None:
        again = members[ReplicaId("worker", 1)].incarnation == 2
        bench.end("worker-0" if again else "worker-1", 0 if again else 9)

    bench = LocalBench(job, script)
    outcome = bench.run.run()
    assert outcome.succeeded
    assert len(bench.runners["worker-1"].programs) == 2
    assert len(bench.runners["worker-0"].programs) == 1
    assert bench.nothing_left()


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_leaves_nothing(interrupts: int, tmp_path: Path) -> None:
    job = make_job(worker=1, model_dir=str(tmp_path))

    def script(bench: LocalBench, _members: Any) -> None:
        for runner in bench.runners.values():
            runner.programs[-1].stops_after = 0.5
        for _ in range(interrupts):
            bench.run.interrupt()

    bench = LocalBench(job, script)
    outcome = bench.run.run()
    assert outcome.reason == "interrupted by Ctrl-C"
    assert not outcome.succeeded
    assert bench.nothing_left()


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_does_not_wait_for_an_image(interrupts: int, tmp_path: Path) -> None:
    bench = LocalBench(make_job(worker=1, model_dir=str(tmp_path)), lambda *_: None)
    original = bench.run._host_for

    def host(replica: ReplicaId, identity: Identity) -> Host:
        made = original(replica, identity)
        made.runner.prepared = False  # type: ignore[attr-defined]
        return made

    bench.run._host_for = host
    for number in range(interrupts):
        threading.Timer(1.0 + number, bench.run.interrupt).start()
    began = time.monotonic()
    assert bench.run.run().reason == "interrupted by Ctrl-C"
    assert time.monotonic() - began < 10
    assert all(runner.programs == [] for runner in bench.runners.values())


def test_an_error_of_our_own_thread_ends_everything(tmp_path: Path) -> None:
    def script(_bench: LocalBench, _members: Any) -> None:
        raise BrokenPipeError("the terminal is gone")

    bench = LocalBench(make_job(worker=1, model_dir=str(tmp_path)), script)
    with pytest.raises(BrokenPipeError):
        bench.run.run()
    assert bench.nothing_left()


def test_watchers_that_can_never_work_end_the_job(tmp_path: Path) -> None:
    bench = LocalBench(make_job(worker=1, retry_delay=0.01, model_dir=str(tmp_path)), lambda *_: None)
    bench.host_error = RuntimeError("no such runner")
    outcome: LocalOutcome = bench.run.run()
    assert outcome.cluster.phase is Phase.FAILED
    assert outcome.reason.endswith("the watcher ended: RuntimeError: no such runner")


@pytest.mark.parametrize("act", ["_kill", "_wind_up"])
def test_an_engine_that_is_away_is_asked_once_at_the_end(act: str, tmp_path: Path) -> None:
    bench = LocalBench(make_job(worker=6, model_dir=str(tmp_path)), lambda *_: None)
    for replica in bench.run._job.replicas:
        host = bench.host(replica, bench.run.identity(replica))
        host.runner.trouble = None  # type: ignore[attr-defined]
        bench.run._hosts[replica] = host
    asked: list[str] = []

    def find(identity: Identity) -> None:
        asked.append(str(identity))
        raise EngineUnavailableError("away")

    for runner in bench.runners.values():
        runner.find = find  # type: ignore[method-assign]
    getattr(bench.run, act)(*([[]] if act == "_wind_up" else []))
    assert len(asked) == 1
    assert all("hurry" in runner.calls for runner in bench.runners.values())


def test_run_ids_differ() -> None:
    assert len({new_run_id() for _ in range(100)}) == 100
