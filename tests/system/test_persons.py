"""What each button of Airflow does to a job that runs: the table "A person" of docs/recovery.md, row by row.

All jobs run beside each other in one Airflow, each as small as its row allows; every test acts on its own run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import FOREVER, probe, starts
from run_under_test import RunUnderTest, wait_for

from tf_operator.errors import ApiError

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]  # the first test's setup runs all jobs

T = TypeVar("T")
ORPHAN_TIMEOUT = 150.0
"""Seconds; plan refuses less than Airflow itself needs to notice that a watcher is lost."""
ALONE = ("orphan", "marked-success", "cluster-cleared", "paused", "run-marked", "run-failed", "deleted")
WITH_WORKER = ("marked-failed", "cleared-one")
NAMES = ("group-cleared", *ALONE, *WITH_WORKER)
TRAINS = """
import os, pathlib, sys
checkpoint = pathlib.Path(os.environ["TF_OPERATOR_MODEL_DIR"], "step")
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("begins after step", step, flush=True)
while step < 5:
    step += 1
    if step == 4 and not pathlib.Path(sys.argv[1]).exists():
        sys.exit("no data after step 3")
    checkpoint.write_text(str(step))
"""

TAKES_ALL_GPUS = """
import time
from airflow.sdk import DAG, task

with DAG("takes-all-gpus", schedule=None):

    @task(pool="gpu", pool_slots=4, retries=0)
    def hold():
        time.sleep(600)

    hold()
"""


class Jobs:
    """The jobs that run at once: what each wrote is in `out(name)`, and it ends by `end(name)`."""

    def __init__(self, airflow: AirflowUnderTest, folder: Path) -> None:
        self.airflow, self._folder = airflow, folder
        self._runs: dict[str, RunUnderTest] = {}

    def out(self, name: str) -> Path:
        return self._folder / name

    def end(self, name: str) -> None:
        (self._folder / f"{name}.stop").touch()

    def write(self, name: str, *, worker: bool = False, **change: Any) -> None:
        """A job of a chief that runs until it is told to end, perhaps with a worker that never ends."""
        flags = ("--out", str(self.out(name)), "--bind")
        until = ("--wait-file", str(self._folder / f"{name}.stop"))
        job: dict[str, Any] = {
            "strategy": "none",
            "program": {"command": probe(*flags, *until)},
            "replicas": {"chief": {}},
            "retry_delay": "1s",
            "run_policy": {
                "termination_grace": "15s",
                "orphan_timeout": f"{ORPHAN_TIMEOUT:.0f}s" if name == "orphan" else "5m",
            },
        }
        if worker:
            command = probe("--out", str(self.out(name)), *FOREVER, "--on-term", "slow:7")
            job["replicas"]["worker"] = {"command": command}
        self.airflow.write_job(name, job | change, wait=False)

    def start(self) -> None:
        """All of them, one after the other: SQLite refuses writes where many runs begin at once."""
        for name in NAMES:
            self.airflow.wait_dag(name, self.airflow.project / "configs" / "jobs" / f"{name}.yaml")
        for name in NAMES:
            self._runs[name] = insist(lambda name=name: self.airflow.trigger(name))
            wait_for(lambda name=name: self._begun(name), 120, f"{name} to run")

    def _begun(self, name: str) -> bool:
        return bool(starts(self.out(name), "chief-0")) or self._runs[name].state == "failed"

    def __getitem__(self, name: str) -> RunUnderTest:
        return self._runs[name]

    def pause(self, name: str, paused: bool = True) -> None:
        insist(lambda: self.airflow.api.request("PATCH", f"dags/{name}", body={"is_paused": paused}))

    @contextmanager
    def no_free_gpus(self) -> Iterator[None]:
        """Somebody else has all of the pool."""
        self.airflow.write_dag("takes-all-gpus", TAKES_ALL_GPUS)
        hog = insist(lambda: self.airflow.trigger("takes-all-gpus"))
        hog.wait_task("hold", "running", deadline=120)
        try:
            yield
        finally:
            insist(lambda: hog.mark("failed"))

    def holds_slots(self, name: str) -> bool:
        return (name, self._runs[name].run_id) in self.airflow.held_slots("default_pool")


def insist(act: Callable[[], T]) -> T:
    """What a person does who is refused: try again. SQLite refuses a write that crosses another one."""

    def attempt() -> tuple[T] | None:
        try:
            return (act(),)
        except ApiError as error:
            if not any(text in str(error) for text in ("Database error", "in running state")):
                raise
            return None

    return wait_for(attempt, 30, "the database to take it", every=1.0)[0]


@pytest.fixture(scope="module")
def jobs(session_airflow: AirflowUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Every job of this module, running."""
    session_airflow.revive()
    folder = tmp_path_factory.mktemp("persons")
    made = Jobs(session_airflow, folder)
    for name in (*ALONE, *WITH_WORKER):
        made.write(name, worker=name in WITH_WORKER)
    command = [sys.executable, "-c", TRAINS, str(folder / "data")]
    made.write("group-cleared", program={"command": command}, retries=0)
    made.start()
    yield made
    made.pause("orphan", False)
    session_airflow.settle()


@pytest.fixture(scope="module")
def orphan(jobs: Jobs) -> psutil.Process:
    """A program whose watcher was killed and never comes back: nobody schedules its retry."""
    run = jobs["orphan"]
    process = psutil.Process(run.wait_running("chief-0"))
    jobs.pause("orphan")
    os.kill(run.watcher("chief-0").pid, signal.SIGKILL)
    return process


def test_a_replica_marked_failed(jobs: Jobs, orphan: psutil.Process) -> None:
    run = jobs["marked-failed"]
    run.wait_running("worker-0")
    insist(lambda: run.mark_task("worker-0", "failed"))
    run.wait("failed", deadline=120)
    assert "worker-0: its task became failed while the job was running" in run.log("result")
    assert run.states()["chief"] == "skipped", "not a failure of its own"
    assert_nothing_runs(jobs, "marked-failed")


def test_a_replica_marked_success_is_no_green_run(jobs: Jobs) -> None:
    run = jobs["marked-success"]
    run.wait_running("chief-0")
    insist(lambda: run.mark_task("chief-0", "success"))
    run.wait("failed", deadline=120)
    assert "chief-0: its task became success while the job was running: a person set it" in run.log("result")
    assert_nothing_runs(jobs, "marked-success")


def test_one_replica_cleared(jobs: Jobs) -> None:
    """Its program takes longer to end than Airflow gives a task: it is removed before the next one starts."""
    run = jobs["cleared-one"]
    first, chief = run.wait_running("worker-0"), run.wait_running("chief-0")
    insist(lambda: run.clear_task("worker-0"))
    run.wait_running("worker-0", not_pid=first)
    assert not psutil.pid_exists(first)
    wait_for(lambda: "stopping and removing it" in run.logs("worker-0"), 30, "its log to say so")
    assert "a program of worker-0 is still here" in run.logs("worker-0")
    assert run.pid("chief-0") == chief, "the others do as if it had been lost"
    assert run.member("worker-0")["failures"] == 0, "no retry is spent"
    jobs.end("cleared-one")
    run.wait("success", deadline=120)
    assert [len(starts(jobs.out("cleared-one"), name)) for name in ("chief-0", "worker-0")] == [1, 2]


def test_one_replica_cleared_after_the_end(jobs: Jobs) -> None:
    run = jobs["cleared-one"]
    jobs.end("cleared-one")
    run.wait("success", deadline=120)
    tries = run.task("chief-0").try_number
    insist(lambda: run.clear_task("chief-0"))
    wait_for(lambda: run.task("chief-0").try_number > tries, 60, "the new try")
    run.wait("success", deadline=120)
    said = "the job had already succeeded when chief-0 arrived"
    wait_for(lambda: said in run.logs("chief-0"), 30, said)
    assert len(starts(jobs.out("cleared-one"), "chief-0")) == 1


def test_a_group_cleared_after_its_failure(jobs: Jobs) -> None:
    run = jobs["group-cleared"]
    run.wait("failed", deadline=120)
    assert "no data after step 3" in run.log("result")
    (jobs.out("group-cleared").parent / "data").touch()
    insist(run.clear)
    wait_for(lambda: run.state in ("running", "queued"), 20, "the run to begin again")
    run.wait("success", deadline=120)
    # At the end of a line: Airflow's record of the failed try quotes it.
    begun = re.findall(r"begins after step (\d)$", run.logs("chief-0"), re.MULTILINE)
    assert sorted(set(begun)) == ["0", "3"] and begun == sorted(begun)


def test_only_plan_cleared(jobs: Jobs) -> None:
    run = jobs["cluster-cleared"]
    pid, tries = run.wait_running("chief-0"), run.task("plan").try_number
    insist(lambda: run.clear_task("plan"))
    wait_for(lambda: (plan := run.task("plan")).try_number > tries and plan.state == "success", 60, "plan, again")
    said = "the job goes on as it was planned: clear the whole group for a new attempt"
    wait_for(lambda: said in run.logs("plan"), 30, said)
    assert run.pid("chief-0") == pid and run.state == "running"
    assert run.xcom("plan", "plan")["attempt"] == run.cluster()["attempt"]


def test_only_cluster_cleared(jobs: Jobs) -> None:
    run = jobs["cluster-cleared"]
    insist(lambda: run.clear_task("cluster"))
    run.wait("failed", deadline=120)
    assert "has had its cluster: clear the whole group" in run.log("cluster")
    assert "has had its cluster: clear the whole group" in run.log("result")
    assert_nothing_runs(jobs, "cluster-cleared")
    insist(run.clear)
    wait_for(lambda: run.state in ("running", "queued"), 20, "the run to begin again")
    jobs.end("cluster-cleared")
    run.wait("success", deadline=120)


def test_a_paused_dag(jobs: Jobs) -> None:
    run = jobs["paused"]
    jobs.pause("paused")
    jobs.end("paused")
    run.wait_task("cluster", "success")
    assert run.task("chief-0").state == "success"
    assert_nothing_runs(jobs, "paused")
    assert run.state == "running" and run.task("result").state is None
    jobs.pause("paused", False)
    run.wait("success", deadline=120)


def test_a_run_marked_success(jobs: Jobs) -> None:
    run = jobs["run-marked"]
    insist(lambda: run.mark("success"))
    assert_nothing_runs(jobs, "run-marked")
    run.wait("success", deadline=60)
    assert run.xcom("result") is None
    assert "a person marked the run success before the job had ended" in run.log("result")


def test_a_run_marked_failed(jobs: Jobs) -> None:
    run = jobs["run-failed"]
    insist(lambda: run.mark("failed"))
    assert_nothing_runs(jobs, "run-failed")
    run.wait("failed", deadline=60)
    assert "the job was ended from outside while it was running" in run.log("result")
    assert run.states()["cleanup"] == "success"


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_run_marked_while_it_waits_for_its_slots(jobs: Jobs, state: Literal["failed", "success"]) -> None:
    airflow, name = jobs.airflow, f"waits-{state}"
    jobs.write(name, scheduling={"pool": "gpu"}, replicas={"chief": {"gpus": 1}})
    airflow.wait_dag(name, airflow.project / "configs" / "jobs" / f"{name}.yaml")
    with jobs.no_free_gpus():
        run = insist(lambda: airflow.trigger(name))
        run.wait_task("admission", "deferred", deadline=120)
        insist(lambda: run.mark(state))
        run.wait(state, deadline=60)
    assert run.states()["chief"] == "skipped" and not starts(jobs.out(name), "chief-0")
    told = {"failed": "a person ended the run while it waited", "success": "a person marked the run success"}
    assert told[state] in run.log("result")


def test_a_run_marked_failed_before_anything_began(jobs: Jobs) -> None:
    jobs.pause("run-failed")
    run = insist(lambda: jobs.airflow.trigger("run-failed"))
    insist(lambda: run.mark("failed"))
    jobs.pause("run-failed", False)
    run.wait("failed", deadline=60)
    assert "the run was ended from outside before its job began" in run.log("result")
    assert run.states()["plan"] == "skipped"


def test_a_run_deleted(jobs: Jobs) -> None:
    run = jobs["deleted"]
    pid = run.wait_running("chief-0")
    path = f"dags/deleted/dagRuns/{run.run_id}"
    with pytest.raises(ApiError, match="cannot be deleted in running state"):
        jobs.airflow.api.request("DELETE", path)

    def delete() -> None:
        """The way around that refusal; the scheduler makes a queued run a running one within a second."""
        jobs.airflow.api.mark_run("deleted", run.run_id, "queued")
        jobs.airflow.api.request("DELETE", path)

    insist(delete)
    wait_for(lambda: not psutil.pid_exists(pid), 60, "its program to end")
    assert not jobs.holds_slots("deleted")
    health = jobs.airflow.api.health
    wait_for(lambda: health()["triggerer"]["status"] == "healthy", 60, "the triggerer to be healthy")


def test_a_program_whose_watcher_never_comes_back_ends_by_itself(jobs: Jobs, orphan: psutil.Process) -> None:
    run = jobs["orphan"]
    assert run.task("chief-0").state == "up_for_retry", "a paused DAG: nobody schedules it"
    listed = jobs.airflow.tf_operator("clean").stdout
    if orphan.is_running():
        assert f"running, pid {orphan.pid}" in listed and "kept: --running would stop it" in listed
    wait_for(lambda: not orphan.is_running(), ORPHAN_TIMEOUT + 60, "it to end")
    runs = jobs.airflow.state_dir / "runs"
    # Its keeper writes that down a moment later.
    (folder,) = wait_for(lambda: [each for each in runs.iterdir() if _ended_as_orphan(each)], 30, "its end to be noted")
    removed = jobs.airflow.tf_operator("clean", "--yes").stdout
    assert "removed: orphan/" in removed, removed
    assert not folder.exists()


def _ended_as_orphan(folder: Path) -> bool:
    # Other runs' folders may vanish meanwhile.
    with suppress(FileNotFoundError):
        ends = [json.loads(file.read_text()) for file in folder.glob("exit.*.json")]
        return any(f"no watcher for {ORPHAN_TIMEOUT:g} s" in (end["reason"] or "") for end in ends)
    return False


def assert_nothing_runs(jobs: Jobs, name: str) -> None:
    """Its programs end within their grace, its slots are free."""
    pids = [start["pid"] for replica in ("chief-0", "worker-0") for start in starts(jobs.out(name), replica)]
    assert pids
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), 40, f"the programs of {name} to end")
    wait_for(lambda: not jobs.holds_slots(name), 20, f"the slots of {name} to be free")
