"""Whole jobs in containers, with no Airflow: the ClusterSpec of names, restarts, and nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker_engine import IMAGE, DockerEngine

PROBE = Path(__file__).parents[1] / "probe.py"
PEERS = ["python", "/probe/probe.py", "--out", "{{ params.out }}", "--bind", "--wait-peers"]

pytestmark = pytest.mark.docker


@pytest.fixture
def project(tmp_path: Path, docker_engine: DockerEngine) -> Iterator[Path]:
    """A project folder whose jobs find the engine."""
    (tmp_path / "configs" / "jobs").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    tmp_path.chmod(0o755)
    yield tmp_path
    for one in docker_engine.containers():
        docker_engine.api.remove_container(one["Id"], force=True, v=True)


def run(project: Path, engine: DockerEngine, replicas: dict[str, Any], **job: Any) -> tuple[int, str, str]:
    """`tf-operator local` on a job of probes; exit code, output, errors."""
    out = project / "out"
    mounts = [{"source": str(out), "target": str(out)}, {"source": str(PROBE.parent), "target": "/probe"}]
    written = {
        "name": "probe",
        "params": {"out": str(out)},
        "program": {"command": [*PEERS, "--sleep", "ever"]},
        "runtime": {"kind": "docker", "image": IMAGE, "pull_policy": "never", "mounts": mounts},
        "retry_delay": "1s",
        "replicas": replicas,
    }
    file = project / "configs" / "jobs" / "probe.yaml"
    file.write_text(yaml.safe_dump(written | job))
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "DOCKER"))}
    env |= {"AIRFLOW__TF_OPERATOR__DOCKER_URL": engine.url, "AIRFLOW__TF_OPERATOR__STATE_DIR": str(project / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "tf_operator.cli.main", "local", str(file)],
        env=env,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def starts(project: Path, replica: str) -> list[dict[str, Any]]:
    """What each start of a replica recorded, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((project / "out").glob(f"{replica}-*.json"))]


def assert_nothing_left(engine: DockerEngine) -> None:
    assert (engine.containers(), engine.networks()) == ([], [])


def test_replicas_meet_by_name_and_the_job_succeeds(project: Path, docker_engine: DockerEngine) -> None:
    end = ["--print", "text:met", "--result", '{"accuracy": 0.9}']
    replicas = {"chief": {"command": [*PEERS, *end]}, "worker": {"replicas": 2, "cpus": 1}, "ps": {"memory": "64MiB"}}
    code, out, err = run(project, docker_engine, replicas)
    assert (code, err) == (0, ""), out
    assert "[chief-0] met" in out
    assert 'result: {"accuracy": 0.9}' in out
    (chief,) = starts(project, "chief-0")
    assert json.loads(chief["tf_config"])["cluster"] == {
        "chief": ["chief-0:2222"],
        "worker": ["worker-0:2222", "worker-1:2222"],
        "ps": ["ps-0:2222"],
    }
    assert chief["uid"] == (os.geteuid() or 10001)
    assert [name for name in chief["env"] if name.startswith(("AIRFLOW", "VAULT", "TINI", "tf_"))] == []
    assert_nothing_left(docker_engine)


def test_a_failed_replica_comes_back_at_its_address(project: Path, docker_engine: DockerEngine) -> None:
    alone = PEERS[:-1]
    replicas = {
        "chief": {"command": [*alone, "--wait-file", str(project / "out" / "worker-0-2.json"), "--sleep", "1"]},
        "worker": {"command": [*alone, "--fail-times", "1", "--exit", "9"]},
        "ps": {"command": [*alone, "--sleep", "ever"]},
    }
    code, out, err = run(project, docker_engine, replicas)
    assert (code, err) == (0, ""), out
    first, second = starts(project, "worker-0")
    assert first["tf_config"] == second["tf_config"]
    assert "exit code 9" in out
    assert len(starts(project, "chief-0")) == 1
    assert_nothing_left(docker_engine)


def test_an_image_nobody_has_is_not_tried_again(project: Path, docker_engine: DockerEngine) -> None:
    runtime = {"kind": "docker", "image": "nobody/has:1", "pull_policy": "never"}
    code, out, err = run(project, docker_engine, {"chief": {}, "ps": {}, "worker": {"runtime": runtime}}, retries=3)
    assert code == 1
    assert "worker-0" in err
    assert "image nobody/has:1 is not on this host" in err
    assert "trying again cannot help" in err
    assert_nothing_left(docker_engine)
