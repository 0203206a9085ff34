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
from docker_engine import IMAGE, DockerEngine, wait_until

PROBE = Path(__file__).parents[1] / "probe.py"
WORKERS = ("worker-0", "worker-1", "worker-2")
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
    """`tf-operator local` on a job of probes to its end; exit code, output, errors."""
    return ended(begin(project, engine, replicas, **job))


def ended(local: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the job's end."""
    try:
        out, err = local.communicate(timeout=110)
    finally:
        local.kill()
    return local.returncode, out, err


def begin(project: Path, engine: DockerEngine, replicas: dict[str, Any], **job: Any) -> subprocess.Popen[str]:
    """`tf-operator local` on a job of probes."""
    settings = job.pop("settings", {})
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
    settings |= {"docker_url": engine.url, "state_dir": str(project / "state")}
    env |= {f"AIRFLOW__TF_OPERATOR__{name}".upper(): value for name, value in settings.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "tf_operator.cli.main", "local", str(file)],
        env=env,
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


def test_c05_six_gpus_of_three_workers_and_a_ps_with_none(project: Path, docker_engine: DockerEngine) -> None:
    end = ["--print", "text:done"]
    bench = {
        "chief": {"replicas": 0},
        "ps": {"replicas": 1, "gpus": 0},
        # Else the job has succeeded before its ps is on record: they wait for nobody.
        "worker": {
            "replicas": 3,
            "gpus": 2,
            "command": [*PEERS[:-1], *end, "--wait-file", str(project / "out" / "ps-0-1.json")],
        },
    }
    code, out, err = run(
        project, docker_engine, bench, settings={"gpus": "6"}, success_policy="all_workers", scheduling={"pool": "gpus"}
    )
    assert (code, err) == (0, ""), out
    assert out.count("] done") == 3
    seen = {name: starts(project, name)[0]["env"]["NVIDIA_VISIBLE_DEVICES"] for name in WORKERS}
    assert len({device for devices in seen.values() for device in devices.split(",")}) == 6, seen
    (ps,) = starts(project, "ps-0")
    assert (ps["env"]["NVIDIA_VISIBLE_DEVICES"], ps["env"]["CUDA_VISIBLE_DEVICES"]) == ("void", "-1")
    cluster = json.loads(ps["tf_config"])["cluster"]
    assert {role: len(hosts) for role, hosts in cluster.items()} == {"worker": 3, "ps": 1}
    assert_nothing_left(docker_engine)


# -- what stays (C-38)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [5, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_c38_runs_of_a_small_job_leave_the_host_as_it_was(
    project: Path, docker_engine: DockerEngine, count: int
) -> None:
    small = {"chief": {"command": [*PEERS, "--print", "lines:1000"]}, "ps": {}}
    # The first one makes what is made once.
    assert run(project, docker_engine, small)[0] == 0
    before = used(docker_engine)
    for _ in range(count):
        code, out, err = run(project, docker_engine, small)
        assert (code, err) == (0, ""), out
    assert_nothing_left(docker_engine)
    assert docker_engine.api.volumes()["Volumes"] in ([], None)
    # The engine goes on removing for a moment after it has answered.
    wait_until(lambda: used(docker_engine) - before < 512, "the disk to be as it was")
    assert [path for path in (project / "state").rglob("*") if path.is_file()] == []


def used(engine: DockerEngine) -> int:
    """KiB on the engine's disk."""
    # It ends with 1 where a file goes while it looks.
    done = subprocess.run(["du", "-s", "--block-size=1k", f"{engine.root}/data"], capture_output=True, check=False)
    return int(done.stdout.split()[0])


# -- an engine that is started again in the middle


@pytest.mark.parametrize("live_restore", [True, False], ids=["live-restore", "as-installed"])
def test_a_job_outlives_a_restart_of_the_engine(project: Path, live_restore: bool) -> None:
    replicas = {
        "chief": {"command": [*PEERS[:-1], "--wait-file", str(project / "out" / "go-on")]},
        "worker": {"command": [*PEERS[:-1], "--sleep", "ever"]},
        "ps": {"command": [*PEERS[:-1], "--sleep", "ever"]},
    }
    with DockerEngine(live_restore=live_restore) as engine:
        engine.with_base_image()
        local = begin(project, engine, replicas, strategy="parameter_server")
        names = ("chief-0", "worker-0", "ps-0")
        wait_until(lambda: all(starts(project, name) for name in names), "all programs", 60)
        engine.restart()
        wanted = 1 if live_restore else 2
        wait_until(lambda: all(len(starts(project, name)) >= wanted for name in names), "all programs again", 60)
        (project / "out" / "go-on").touch()
        code, out, err = ended(local)
        assert (code, err) == (0, ""), out
        counts = [len(starts(project, name)) for name in names]
        if live_restore:
            assert counts == [1, 1, 1]
        else:
            assert "SIGTERM" in out or "SIGKILL" in out, "the end is told"
            assert max(counts) <= 4
        assert_nothing_left(engine)
