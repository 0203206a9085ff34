"""Deadlines on a real Airflow: each says so in its own words, and everything is let go soon after.

`schedule_timeout` is in test_gang.py, `orphan_timeout` in test_persons.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import FOREVER, probe, starts
from run_under_test import RunUnderTest, wait_for

pytestmark = pytest.mark.airflow

SOON = 15.0
"""Seconds from the end of a job until its slots are free."""


def job(out: Path, workers: int = 1, **policy: Any) -> dict[str, Any]:
    """A job that never ends by itself and holds two slots of the pool `gpu`."""
    return {
        "strategy": "none",
        "program": {"command": probe("--out", str(out), *FOREVER)},
        "replicas": {"chief": {}, "worker": {"replicas": workers}},
        "scheduling": {"pool": "gpu", "slots": 2},
        "retry_delay": "5s",
        "run_policy": {"termination_grace": "5s", "orphan_timeout": "5m", **policy},
    }


def assert_let_go(run: RunUnderTest) -> None:
    begun = time.monotonic()
    wait_for(lambda: not slots(run), SOON, "its slots to be free")
    wait_for(lambda: not run.airflow.programs(), SOON, "its programs to end")
    assert time.monotonic() - begun < SOON


def slots(run: RunUnderTest) -> int:
    return run.airflow.held_slots("gpu").get((run.dag_id, run.run_id), 0)


def test_active_deadline_and_stall_timeout(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    airflow.write_job("too-long", job(tmp_path / "a", active_deadline="10s"), wait=False)
    airflow.write_job("stalls", job(tmp_path / "b", stall_timeout="15s", backoff_limit=1))
    airflow.wait_dag("too-long", airflow.project / "configs" / "jobs" / "too-long.yaml")
    stalls = airflow.trigger("stalls")
    wait_for(lambda: starts(tmp_path / "b", "chief-0"), 120, lambda: f"the chief to run: {stalls.states()}")
    too_long = airflow.trigger("too-long")

    too_long.wait("failed", deadline=150)
    why = too_long.log("result")
    ran = re.search(r"active_deadline: the job ran for (\d+) s", why)
    assert ran and int(ran[1]) >= 10 and "allowed are 10 s" in why, why
    assert not slots(too_long)

    stalls.wait("failed", deadline=150)
    assert (
        "chief-0 gave no sign of life for 15 s (run_policy.stall_timeout);"
        " the job was started again 1 times, backoff_limit is 1 (run_policy.backoff_limit)"
    ) in stalls.log("result")
    assert [len(starts(tmp_path / "b", name)) for name in ("chief-0", "worker-0")] == [2, 2], "together, in place"
    assert stalls.failures("chief-0", "worker-0") == {"chief-0": 0, "worker-0": 0}
    assert_let_go(stalls)


HOG = """
import time
from airflow.sdk import DAG, task

with DAG("hog", schedule=None):

    @task(pool_slots=2, retries=0)
    def hold():
        time.sleep(600)

    hold()
"""


@contextmanager
def room_for_two_tasks(airflow: AirflowUnderTest) -> Iterator[None]:
    """Others have the places of all but two tasks, though there would be enough for a whole job."""

    def resize(size: int) -> None:
        body = {"pool": "default_pool", "slots": size}
        airflow.api.request("PATCH", "pools/default_pool", body=body, update_mask=["slots"])

    airflow.write_dag("hog", HOG)
    hog = airflow.trigger("hog")
    hog.wait_task("hold", "running", deadline=120)
    resize(4)
    try:
        yield
    finally:
        resize(128)
        hog.mark("failed")


@pytest.mark.timeout(600)
def test_after_a_start_timeout_all_is_let_go_and_asked_for_again(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    patient = job(tmp_path / "out", workers=2, start_timeout="40s", backoff_limit=2) | {"retry_delay": "20s"}
    patient["replicas"]["chief"]["command"] = probe("--out", str(tmp_path / "out"), "--bind", "--wait-file", str(stop))
    airflow.write_job("patient", patient)
    with room_for_two_tasks(airflow):
        run = airflow.trigger("patient")
        run.wait_task("cluster", "up_for_reschedule", deadline=240)
        assert not slots(run), "no GPU is held while it stays away"
        first = run.xcom("cluster", "cluster")
        assert not airflow.programs()
        places = ("running", "queued")
        wait_for(lambda: not {task.state for task in run.tasks()} & {*places}, 10, "no place of the executor either")
        assert first["reason"].startswith("start_timeout: not ready within 40 s: ")
        assert "(scheduled)" in first["reason"] and "asked for again in" in first["reason"]
    for name in ("chief-0", "worker-0", "worker-1"):
        run.wait_running(name, deadline=120)
    assert run.cluster()["attempt"] != first["attempt"]
    stop.touch()
    run.wait("success", deadline=60)
    assert run.xcom("result")["attempt"] == run.cluster()["attempt"]
    assert run.task("cluster").try_number == 1
    for name in ("chief-0", "worker-0", "worker-1"):
        spent = [log for log in run.try_logs(name) if "adopted the program" not in log]
        assert len(spent) == 1, "no try is spent but for a watcher that was lost"


@pytest.mark.long
def test_a_start_timeout_without_another_try_is_red_at_once(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    airflow.write_job("impatient", job(tmp_path, workers=2, start_timeout="8s", backoff_limit=0))
    with room_for_two_tasks(airflow):
        run = airflow.trigger("impatient")
        run.wait("failed", deadline=150)
    why = run.log("result")
    assert "start_timeout: not ready within 8 s: " in why and "are there executor slots for every replica?" in why
    assert not starts(tmp_path, "chief-0"), "nothing was started without the others"
    assert_let_go(run)
