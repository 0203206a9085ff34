"""Where a job file goes before it runs, and where Airflow is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tf_operator.errors import ApiError, JobFileError, ServiceError
from tf_operator.services.jobs import api_url, connect, publish

JOB = "name: {}\nprogram: {{command: [python, -c, pass]}}\nreplicas: {{worker: {{replicas: 1}}}}\n"


@pytest.fixture(autouse=True)
def no_airflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "nowhere"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "configs" / "jobs").mkdir(parents=True)
    return tmp_path


def write(path: Path, name: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(JOB.format(name))
    return path


def test_a_file_among_the_jobs_stays_where_it_is(project: Path) -> None:
    file = write(project / "configs" / "jobs" / "mine.yaml", "mine")
    assert publish(file, project) == file


def test_a_path_from_the_project_is_known_in_its_folders(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(project / "configs" / "jobs" / "mine.yaml", "mine")
    monkeypatch.chdir(file.parent)
    assert publish(Path("configs/jobs/mine.yaml"), project) == file


def test_another_file_is_copied_once(project: Path) -> None:
    file = write(project / "drafts" / "mine.yaml", "mine")
    published = publish(file, project)
    assert published == project / "configs" / "jobs" / "mine.yaml"
    assert published.read_bytes() == file.read_bytes()
    assert publish(file, project) == published
    assert [path.name for path in published.parent.iterdir()] == ["mine.yaml"]


def test_a_different_file_of_that_name_is_refused(project: Path) -> None:
    kept = write(project / "configs" / "jobs" / "mine.yaml", "mine")
    with pytest.raises(JobFileError, match="another file of that name"):
        publish(write(project / "drafts" / "mine.yaml", "other"), project)
    assert kept.read_text() == JOB.format("mine")


def test_a_job_name_that_two_files_have_is_nobody_s(project: Path) -> None:
    """Airflow has a DAG of one of them, who knows of which."""
    write(project / "configs" / "jobs" / "first.yaml", "mine")
    with pytest.raises(JobFileError, match=r"second\.yaml: name = mine: the job of .*first\.yaml has it"):
        publish(write(project / "configs" / "jobs" / "second.yaml", "mine"), project)
    (project / "configs" / "jobs" / "second.yaml").unlink()
    with pytest.raises(JobFileError, match=r"team/first\.yaml: name = mine: the job of .*jobs/first\.yaml has it"):
        publish(write(project / "configs" / "jobs" / "team" / "first.yaml", "mine"), project)


@pytest.mark.parametrize("url", ["http://[bad", "http://127.0.0.1:no"])
def test_what_is_no_url_is_one_line(monkeypatch: pytest.MonkeyPatch, project: Path, url: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
    with pytest.raises(ApiError, match="is no URL .* see AIRFLOW__API__BASE_URL"):
        connect(project)


def test_a_job_name_that_is_taken_is_refused(project: Path) -> None:
    write(project / "configs" / "jobs" / "first.yaml", "mine")
    with pytest.raises(JobFileError, match=r"name = mine: the job of .*first\.yaml has it"):
        publish(write(project / "drafts" / "second.yaml", "mine"), project)
    assert not (project / "configs" / "jobs" / "second.yaml").exists()


def test_a_file_no_dag_would_be_made_of_is_refused(project: Path) -> None:
    with pytest.raises(JobFileError, match="rename it"):
        publish(write(project / "drafts" / "mine.txt", "mine"), project)


def test_the_api_is_looked_for_from_near_to_far(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_url(project) == "http://localhost:8080"
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "airflow.cfg").write_text("[api]\nbase_url = http://configured:1\n")
    assert api_url(project) == "http://configured:1"
    (project / ".airflow").mkdir()
    (project / ".airflow" / "services.json").write_text(json.dumps({"url": "http://services:2"}))
    assert api_url(project) == "http://services:2"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://said:3")
    assert api_url(project) == "http://said:3"


def test_no_airflow_is_one_line_with_the_way_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(ServiceError, match=r"no Airflow answers at http://127.0.0.1:9: start one with `make airflow`"):
        connect(project)
