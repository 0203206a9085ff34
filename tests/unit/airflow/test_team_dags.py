"""Whose a job is, told by where its file is; and what the policy gets to know of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk import DAG

from tf_operator.job_spec import TensorFlowJob
from tf_operator.task_group import as_dag

JOB = "name: j\nprogram: {command: [python, x.py]}\nreplicas: {worker: {gpus: 1}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "configs" / "jobs" / "vision").mkdir(parents=True)
    (tmp_path / "dags" / "speech").mkdir(parents=True)
    (tmp_path / "configs" / "teams.yaml").write_text("teams: {vision: {pools: [gpu]}, speech: {}}")
    return tmp_path


def test_a_job_file_belongs_to_its_folder(project: Path) -> None:
    file = project / "configs" / "jobs" / "vision" / "j.yaml"
    file.write_text(JOB)
    dag = as_dag(TensorFlowJob.from_file(file), project_dir=project)
    assert dag.get_task("train.plan").team == "vision"
    fence = json.loads(dag.get_task("train.cluster").gang)["fence"]
    assert fence == {"team": "vision", "own": ["gpu"], "owners": {"gpu": ["vision"]}}


def test_a_job_in_a_dag_is_that_dag_s_folder_s_wherever_its_file_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__PROJECT_DIR", str(project))
    file = project / "configs" / "jobs" / "vision" / "j.yaml"
    file.write_text(JOB)
    dag = DAG("mine", schedule=None)
    dag.fileloc = str(project / "dags" / "speech" / "mine.py")
    with dag:
        TensorFlowJob.from_file(file).as_task_group("train")
    assert dag.get_task("train.plan").team == "speech"


def test_without_teams_there_is_no_fence(tmp_path: Path) -> None:
    file = tmp_path / "j.yaml"
    file.write_text(JOB)
    dag = as_dag(TensorFlowJob.from_file(file), project_dir=tmp_path)
    assert dag.get_task("train.plan").team is None
    assert "fence" not in json.loads(dag.get_task("train.cluster").gang)
