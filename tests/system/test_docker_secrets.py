"""A secret of a docker job, with its container running and after: nowhere the engine or this host would show it."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest
from airflow_under_test import AirflowUnderTest
from docker_engine import DockerEngine
from docker_jobs import all_texts, argvs, in_containers
from run_under_test import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.docker]


def test_no_secret_is_in_what_the_engine_shows_in_arguments_or_on_the_disk(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    airflow, out, stop = docker_airflow, tmp_path / "out", tmp_path / "out" / "stop"
    value = f"S3cr3t-{secrets.token_urlsafe(18)}"
    assert airflow.openbao
    airflow.openbao.client().secrets.kv.v2.create_or_update_secret(
        path="training/docker", secret={"token": value, "file": f"{value}-file"}, mount_point="secret"
    )
    use = "test -n $TOKEN && test -s $TF_OPERATOR_SECRETS_DIR/token.txt && echo has $TOKEN"
    wait = f"while [ ! -e {stop} ]; do sleep .2; done"
    job = in_containers({"replicas": {"worker": {"command": ["sh", "-c", f"{use} && {wait}"]}}}, out)
    job["secrets"] = [
        {"vault": "secret/training/docker#token", "env": "TOKEN"},
        {"vault": "secret/training/docker#file", "file": "token.txt"},
    ]
    airflow.write_job("docker-secret", job)
    run = airflow.trigger("docker-secret")
    run.wait_running("worker-0")
    wait_for(lambda: "has ***" in run.log("worker-0"), 30, "the program to have both")
    assert_nowhere(airflow, docker_engine, value, printed=True)
    stop.touch()
    run.wait("success", deadline=60)
    assert_nowhere(airflow, docker_engine, value, printed=False)


def assert_nowhere(airflow: AirflowUnderTest, engine: DockerEngine, value: str, printed: bool) -> None:
    """`printed`: the program has printed it, and the engine's copy of its output is there as long as the container."""
    assert value not in all_texts(engine) + airflow.dump_db()
    assert not any(value.encode() in argv for argv in argvs())
    places = (engine.root, airflow.home, airflow.state_dir, airflow.project, Path("/dev/shm"))
    found = subprocess.run(["grep", "-rlsF", value, *map(str, places)], capture_output=True, text=True, check=False)
    hits = [hit for hit in found.stdout.splitlines() if "/openbao" not in hit]
    if printed:
        assert len(hits) == 1 and "/local-logs/" in hits[0], hits
    else:
        assert hits == []
