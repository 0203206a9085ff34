"""The API server is away for two minutes, on an Airflow with the settings of `configs/airflow/base.cfg`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow_under_test import AirflowUnderTest, make_project
from probe_jobs import probe, probe_job, starts

pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(600)]

AWAY = 120.0
"""Seconds; Airflow's own default gives up after 40."""
REPLICAS = ("chief-0", "worker-0", "worker-1", "ps-0")


@pytest.fixture
def patient_airflow(tmp_path: Path) -> Iterator[AirflowUnderTest]:
    """A second Airflow: the short profile of the other tests gives up a task within seconds."""
    make_project(tmp_path / "project")
    under_test = AirflowUnderTest(tmp_path, profile="base")
    with under_test.airflow:
        yield under_test


def test_two_minutes_without_the_api_server_cost_nothing(patient_airflow: AirflowUnderTest, tmp_path: Path) -> None:
    airflow, out = patient_airflow, tmp_path / "out"
    job = probe_job(out, run_policy={"termination_grace": "5s", "orphan_timeout": "15m"})
    stop = tmp_path / "stop"
    chief = probe("--out", str(out), "--bind", "--wait-file", str(stop))
    job["replicas"]["chief"]["command"] = chief
    airflow.write_job("outage", job)
    run = airflow.trigger("outage")
    pids = {name: run.wait_running(name) for name in REPLICAS}

    os.kill(airflow.pid("api-server"), signal.SIGKILL)
    airflow.airflow.stop_component("api-server")
    ended = time.monotonic() + AWAY
    while time.monotonic() < ended:
        assert {process.pid for process in airflow.programs()} >= set(pids.values()), "training goes on"
        time.sleep(5)
    airflow.airflow.start_component("api-server")

    stop.touch()
    run.wait("success", deadline=180)
    assert {name: len(starts(out, name)) for name in REPLICAS} == dict.fromkeys(REPLICAS, 1)
    assert run.xcom("result")["generation"] == 1
    assert {task.try_number for task in run.tasks()} == {1}, "no task was given up"
