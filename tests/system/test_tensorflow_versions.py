"""Two TensorFlow versions at once on one Airflow: in containers, and as processes with an interpreter each."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from airflow_under_test import AirflowUnderTest
from docker_engine import DockerEngine
from docker_jobs import tensorflow_image, tensorflow_runtime
from older_tensorflow import VERSION, older, packages
from run_under_test import RunUnderTest

# The first test makes the older one's environment.
pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.long, pytest.mark.timeout(600)]


def homes() -> dict[str, Path]:
    """Version → virtual environment."""
    return {version("tensorflow"): Path(sys.prefix), VERSION: older()}


def assert_both_report(runs: dict[str, RunUnderTest]) -> None:
    """Each was trained by its own version, at the same time as the other."""
    for run in runs.values():
        run.wait("success", deadline=240)
    for wanted, run in runs.items():
        metrics = run.xcom("result")["metrics"]
        assert metrics["tensorflow"] == wanted
        assert metrics["accuracy"] > 0.8
    one, other = (run.task("chief-0").raw for run in runs.values())
    assert one["start_date"] < other["end_date"] and other["start_date"] < one["end_date"]


@pytest.mark.docker
def test_two_versions_at_once_in_containers(docker_airflow: AirflowUnderTest, docker_engine: DockerEngine) -> None:
    airflow, runs = docker_airflow, {}
    for wanted, home in homes().items():
        runtime = tensorflow_runtime(airflow, tensorflow_image(docker_engine, wanted), packages(home))
        name = f"docker-{wanted}"
        runs[wanted] = start(airflow, name, runtime)
    assert_both_report(runs)


def test_two_versions_at_once_as_processes(airflow: AirflowUnderTest) -> None:
    runs = {
        wanted: start(airflow, f"process-{wanted}", {"kind": "process", "python": str(home / "bin" / "python")})
        for wanted, home in homes().items()
    }
    assert_both_report(runs)


def start(airflow: AirflowUnderTest, name: str, runtime: dict[str, object]) -> RunUnderTest:
    """A run of the digits job with one worker."""
    airflow.copy_job("digits_ps.yaml", name=name, schedule=None, runtime=runtime)
    return airflow.trigger(name, workers=1, epochs=4)
