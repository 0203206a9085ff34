"""Watchers die, programs live: Airflow loses a task, the training does not notice."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import FOREVER, probe, probe_job, starts
from run_under_test import RunUnderTest, wait_for

pytestmark = pytest.mark.airflow

REPLICAS = ("chief-0", "worker-0", "worker-1", "ps-0")


def long_job(out: Path, stop: Path) -> dict[str, object]:
    job = probe_job(out)
    job["replicas"]["chief"]["command"] = probe("--out", str(out), "--bind", "--wait-file", str(stop))
    return job


def running(airflow: AirflowUnderTest, name: str, out: Path, stop: Path) -> RunUnderTest:
    """A run of the long job, all its programs living."""
    airflow.write_job(name, long_job(out, stop))
    run = airflow.trigger(name)
    for replica in REPLICAS:
        run.wait_running(replica)
    return run


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def assert_each_ran_once(run: RunUnderTest, out: Path) -> None:
    counts = {name: len(starts(out, name)) for name in REPLICAS}
    assert counts == dict.fromkeys(REPLICAS, 1), counts
    assert run.cluster()["generation"] == 1


@pytest.mark.parametrize("victim", ["task", "supervisor"])
def test_c27_a_lost_watcher_is_replaced_and_its_program_adopted(
    airflow: AirflowUnderTest, tmp_path: Path, victim: str
) -> None:
    stop = tmp_path / "stop"
    run = running(airflow, f"adopt-{victim}", tmp_path, stop)
    pid, process = run.pid("worker-1"), run.watcher("worker-1")
    os.kill(process.pid if victim == "task" else process.ppid(), signal.SIGKILL)
    wait_for(lambda: (task := run.task("worker-1")).try_number > 1 and task.state == "running", 150, "the retry")
    wait_for(lambda: "adopted the program of worker-1" in run.logs("worker-1"), 60, "the adoption")
    assert psutil.pid_exists(pid) and run.pid("worker-1") == pid
    stop.touch()
    run.wait("success", deadline=90)
    assert_each_ran_once(run, tmp_path)
    wait_for(lambda: not process.is_running(), 30, "the old watcher to end")


def test_a_killed_triggerer_costs_nothing(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    run = running(airflow, "triggerer-dies", tmp_path, stop)
    os.kill(airflow.pid("triggerer"), signal.SIGKILL)
    assert airflow.held_slots("default_pool").get(("triggerer-dies", run.run_id)), "the slots stay held"
    airflow.airflow.stop_component("triggerer")
    airflow.airflow.start_component("triggerer")
    stop.touch()
    run.wait("success", deadline=120)
    assert_each_ran_once(run, tmp_path)


@pytest.mark.parametrize("away", [0.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_c27_a_killed_scheduler_runs_nothing_twice(airflow: AirflowUnderTest, tmp_path: Path, away: float) -> None:
    stop = tmp_path / "stop"
    run = running(airflow, f"scheduler-dies-{away:.0f}", tmp_path, stop)
    pids = {name: run.pid(name) for name in REPLICAS}
    os.kill(airflow.pid("scheduler"), signal.SIGKILL)
    airflow.airflow.stop_component("scheduler")
    time.sleep(away)
    airflow.airflow.start_component("scheduler")
    wait_for(lambda: all(run.task(name).state == "running" for name in REPLICAS), 180, lambda: f"all: {run.states()}")
    assert {name: run.pid(name) for name in REPLICAS} == pids
    stop.touch()
    run.wait("success", deadline=120)
    assert_each_ran_once(run, tmp_path)


def test_a_killed_api_server_costs_nothing(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    run = running(airflow, "api-dies", tmp_path, stop)
    pids = {name: run.pid(name) for name in REPLICAS}
    os.kill(airflow.pid("api-server"), signal.SIGKILL)
    airflow.airflow.stop_component("api-server")
    stop.touch()
    wait_for(lambda: not psutil.pid_exists(pids["chief-0"]), 90, "the chief to end while nobody can be told")
    assert all(psutil.pid_exists(pids[name]) for name in REPLICAS[1:])
    airflow.airflow.start_component("api-server")
    run.wait("success", deadline=120)
    assert_each_ran_once(run, tmp_path)


def test_trap_6_a_program_gets_its_grace_though_airflow_gives_its_task_5_s(
    airflow: AirflowUnderTest, tmp_path: Path
) -> None:
    job = probe_job(tmp_path, run_policy={"termination_grace": "20s", "orphan_timeout": "5m"})
    job["replicas"]["chief"]["command"] = probe("--out", str(tmp_path), *FOREVER)
    job["replicas"]["worker"]["command"] = probe("--out", str(tmp_path), *FOREVER, "--on-term", "slow:8")
    airflow.write_job("grace", job)
    run = airflow.trigger("grace")
    for name in REPLICAS:
        run.wait_running(name)
    program = psutil.Process(run.pid("worker-1"))
    marked = time.monotonic()
    run.mark_task("worker-1", "failed")
    wait_for(lambda: not lives(program), 60, "its end")
    assert time.monotonic() - marked > 7, "it ended by itself, in its own time"
    run.wait("failed", deadline=60)
