"""`tf-operator run` and `tf-operator pools` against a real Airflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from airflow_under_test import AirflowUnderTest
from probe_jobs import probe, probe_job

pytestmark = pytest.mark.airflow


def write(path: Path, name: str, job: dict[str, object]) -> Path:
    path.write_text(yaml.safe_dump({"name": name} | job))
    return path


@pytest.mark.timeout(900)
def test_a_file_from_elsewhere_becomes_a_dag_and_is_followed(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path / "out", params={"note": {"type": "string", "default": "none"}})
    file = write(tmp_path / "brought.yaml", "brought", job)
    ended = airflow.tf_operator("run", str(file), "--param", "note=3", timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"chief-0|chief +running", ended.stdout), ended.stdout
    assert ended.stdout.rstrip().endswith("brought: success")
    assert (airflow.project / "configs/jobs/brought.yaml").read_bytes() == file.read_bytes()
    (run,) = airflow.api.runs("brought")
    assert run.conf == {"note": "3"}, "a param of type string stays one"

    # The same file once more, changed where it is now: the run is made of the file as it is, not as it was parsed.
    published = airflow.project / "configs/jobs/brought.yaml"
    write(
        published,
        "brought",
        job | {"replicas": {"worker": {"replicas": 1, "command": probe("--exit", "3")}}, "retries": 0},
    )
    ended = airflow.tf_operator("run", str(published), timeout=300)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    last = ended.stdout.rstrip().splitlines()[-1]
    assert last.startswith("brought: failed: ") and "worker-0" in last and "3" in last


def test_what_is_wrong_is_said_before_anything_is_triggered(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path / "out", params={"n": {"type": "integer", "default": 1}})
    file = write(tmp_path / "strict.yaml", "strict", job)
    for given, told in (("n=two", "params.n = 'two'"), ("m=2", "params.m = 2"), ("n", "must be name=value")):
        ended = airflow.tf_operator("run", str(file), "--param", given)
        assert ended.returncode == 2
        assert told in ended.stderr and len(ended.stderr.splitlines()) == 1, ended.stderr
    assert airflow.api.dag("strict") is None
    assert not (airflow.project / "configs/jobs/strict.yaml").exists()


def test_pools_are_compared_and_set(airflow: AirflowUnderTest) -> None:
    assert airflow.tf_operator("pools", "--check").returncode == 0
    airflow.api.set_pool("gpu", 1, "by hand", include_deferred=False)
    try:
        differing = airflow.tf_operator("pools", "--check")
        assert differing.returncode == 1
        (line,) = differing.stdout.splitlines()
        assert line.startswith("pool gpu: has 1 slots, wanted 4")
        assert "description" in line and "include_deferred" in line
    finally:
        done = airflow.tf_operator("pools")
    assert done.returncode == 0, done.stderr
    pool = airflow.api.pools()["gpu"]
    assert (pool.slots, pool.include_deferred) == (4, True)
    assert "slots_per_gpu=1" in pool.description
