"""Jobs in containers on a real Airflow: they train, heal, are adopted, and leave nothing."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from airflow_under_test import AirflowUnderTest
from docker_engine import IMAGE, DockerEngine
from docker_jobs import in_containers, tensorflow_image, tensorflow_runtime, watched
from older_tensorflow import packages
from probe_jobs import probe, probe_job, starts
from run_under_test import RunUnderTest, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.docker]

REPLICAS = ("chief-0", "worker-0", "worker-1", "ps-0")


@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_the_digits_job_heals_from_the_loss_of_worker_ps_and_chief(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine
) -> None:
    airflow = docker_airflow
    runtime = tensorflow_runtime(airflow, tensorflow_image(docker_engine, "here"), packages(Path(sys.prefix)))
    name = airflow.copy_job("digits_ps.yaml", name="digits-docker", schedule=None, runtime=runtime)
    run = airflow.trigger(name, epochs=10, step_delay=0.05)
    for replica in REPLICAS:
        run.wait_running(replica, deadline=150)
    wait_for(lambda: re.search(r"epoch \S+ step \d+", run.logs("chief-0")), 150, "the first steps", every=1.0)
    spec = run.cluster()["spec"]
    assert spec == {"chief": ["chief-0:2222"], "worker": ["worker-0:2222", "worker-1:2222"], "ps": ["ps-0:2222"]}

    worker, chief, untouched = run.kill("worker-1"), run.pid("chief-0"), run.pid("worker-0")
    run.wait_running("worker-1", not_pid=worker, deadline=90)
    assert run.pid("chief-0") == chief, "the chief goes on"
    assert run.failures("worker-1") == {"worker-1": 1}

    ps = run.kill("ps-0")
    run.wait_running("ps-0", not_pid=ps, deadline=90)
    run.wait_running("chief-0", not_pid=chief, deadline=90)
    assert run.failures("chief-0") == {"chief-0": 0}, "no retry of its own"
    wait_for(lambda: "restored step" in run.logs("chief-0"), 120, "the checkpoint", every=1.0)

    chief = run.kill("chief-0")
    run.wait_running("chief-0", not_pid=chief, deadline=90)
    assert run.failures("chief-0") == {"chief-0": 1}
    assert run.pid("worker-0") == untouched, "never started again"
    run.wait("success", deadline=240)
    assert run.logs("chief-0").count("restored step") >= 2, "each of its two later starts did"
    result = run.xcom("result")
    assert result["metrics"]["accuracy"] > 0.9 and result["generation"] == 2
    assert run.cluster()["spec"] == spec, "the same addresses all along"
    assert docker_engine.left() == []


def long_job(out: Path, stop: Path) -> dict[str, Any]:
    """As long as there is no file `stop`."""
    job = probe_job(out)
    job["replicas"]["chief"]["command"] = probe("--out", str(out), "--bind", "--wait-file", str(stop))
    return in_containers(job, out)


def running(airflow: AirflowUnderTest, name: str, job: dict[str, Any]) -> RunUnderTest:
    """A run of the job, all its programs living."""
    airflow.write_job(name, job)
    run = airflow.trigger(name)
    for replica in REPLICAS:
        run.wait_running(replica)
    return run


def test_c27_lost_watchers_are_replaced_and_their_containers_adopted(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    stop, out = tmp_path / "out" / "stop", tmp_path / "out"
    run = running(docker_airflow, "docker-adopts", long_job(out, stop))
    pids = {name: run.pid(name) for name in REPLICAS}
    with watched(docker_engine) as samples:
        os.kill(run.watcher("worker-0").pid, signal.SIGKILL)
        os.kill(run.watcher("worker-1").ppid(), signal.SIGKILL)
        for name in ("worker-0", "worker-1"):
            said = f"adopted the program of {name}"
            wait_for(lambda name=name, said=said: said in run.logs(name), 150, said)
        assert {name: run.pid(name) for name in REPLICAS} == pids
        stop.touch()
        run.wait("success", deadline=90)
    assert samples and all(len(set(living)) == len(living) for living in samples), "never two of one identity"
    assert [len(starts(out, name)) for name in REPLICAS] == [1, 1, 1, 1]
    assert run.cluster()["generation"] == 1


@pytest.mark.long
def test_c27_a_killed_scheduler_starts_no_container_twice(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    stop, out = tmp_path / "out" / "stop", tmp_path / "out"
    run = running(docker_airflow, "docker-scheduler-dies", long_job(out, stop))
    with watched(docker_engine) as samples:
        os.kill(docker_airflow.pid("scheduler"), signal.SIGKILL)
        docker_airflow.airflow.stop_component("scheduler")
        time.sleep(60)  # the case: a scheduler that is away for a minute
        docker_airflow.airflow.start_component("scheduler")
        wait_for(lambda: all(run.task(name).state == "running" for name in REPLICAS), 120, lambda: f"{run.states()}")
        stop.touch()
        run.wait("success", deadline=120)
    assert samples and all(len(set(living)) == len(living) for living in samples), "never two of one identity"
    assert [len(starts(out, name)) for name in REPLICAS] == [1, 1, 1, 1]


def test_c28_a_replica_a_person_ended_leaves_nothing_and_the_run_can_be_cleared(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    stop, out, api = tmp_path / "out" / "stop", tmp_path / "out", docker_engine.api
    run = running(docker_airflow, "docker-cleared", long_job(out, stop))
    raw = {one["Labels"]["tf_operator.role"] + one["Labels"]["tf_operator.index"]: one for one in api.containers()}
    run.mark_task("worker-0", "failed")
    run.wait("failed", deadline=60)
    wait_for(lambda: docker_engine.left() == [], 30, lambda: f"nothing to be left: {docker_engine.left()}")

    # One of ours that a dead worker left, under our name; and a stranger's under the name of another replica.
    name, taken = (raw[replica]["Names"][0].strip("/") for replica in ("worker0", "worker1"))
    stale = api.create_container(IMAGE, ["true"], name=name, labels=raw["worker0"]["Labels"])["Id"]
    stranger = api.create_container(IMAGE, ["sleep", "600"], name=taken)["Id"]
    api.start(stranger)
    run.clear()
    said = f"the name {taken} is taken by container {stranger[:12]}"
    wait_for(lambda: run.find("worker-1") and said in run.logs("worker-1"), 60, said)
    assert api.inspect_container(stranger)["State"]["Running"]
    api.remove_container(stranger, force=True)
    run.wait_running("worker-1", deadline=90)
    stop.touch()
    run.wait("success", deadline=90)
    assert stale not in {one["Id"] for one in docker_engine.containers()}
