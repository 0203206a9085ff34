"""dags/tf_jobs.py: a faulty file has a DAG that says so, and takes no other with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

SOUND = "name: {name}\nprogram: {{command: [python, train.py]}}\nreplicas: {{worker: {{}}}}\n"

READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tf_jobs
from airflow.sdk.definitions._internal.contextmanager import DagContext
dags = {key: dag.description for key, dag in vars(tf_jobs).items() if type(dag).__name__ == "DAG"}
registered = [entry[0].dag_id for entry in DagContext.autoregistered_dags]
print(json.dumps({"dags": dags, "registered": registered}))
"""


def read(project: Path) -> tuple[dict[str, str], list[str]]:
    """The DAGs found, with their descriptions, and those that registered themselves besides."""
    command = [sys.executable, "-c", READ, str(ROOT / "dags")]
    env = {"AIRFLOW__TF_OPERATOR__PROJECT_DIR": str(project), "AIRFLOW_HOME": str(project / "home"), "PATH": "/usr/bin"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["dags"], answer["registered"]


def test_each_faulty_file_is_told_and_the_sound_ones_are_there(tmp_path: Path) -> None:
    jobs = tmp_path / "configs" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "good.yaml").write_text(SOUND.format(name="good"))
    (jobs / "when.yaml").write_text(SOUND.format(name="when") + "schedule: '@daily'\ncatchup: true\n")
    (jobs / "told.yaml").write_text(SOUND.format(name="told") + "notify: {on_failure: {notifier: no.such.Thing}}\n")
    (jobs / "typo.yaml").write_text(SOUND.format(name="typo").replace("replicas", "replica"))
    dags, registered = read(tmp_path)
    assert set(dags) == {"good", "invalid.when", "invalid.told", "invalid.typo"}
    assert "no.such.Thing" in dags["invalid.told"] and "typo.yaml:3" in dags["invalid.typo"]
    assert registered == [], "a half-built or dropped DAG must not be found by the way"


def test_of_jobs_that_share_a_name_none_is_run(tmp_path: Path) -> None:
    """A draft that was copied from a job must not run in its place, whichever of them comes first."""
    jobs = tmp_path / "configs" / "jobs"
    jobs.mkdir(parents=True)
    for place in ("good.yaml", "copy_of_good.yaml"):
        (jobs / place).write_text(SOUND.format(name="good"))
    (jobs / "other.yaml").write_text(SOUND.format(name="other"))
    dags, registered = read(tmp_path)
    assert set(dags) == {"invalid.good", "invalid.copy_of_good", "other"}
    assert "name = good: copy_of_good.yaml has that name, too" in dags["invalid.good"]
    assert "name = good: good.yaml has that name, too" in dags["invalid.copy_of_good"]
    assert registered == []


def test_faulty_files_of_one_name_are_each_told(tmp_path: Path) -> None:
    jobs = tmp_path / "configs" / "jobs"
    for place in ("train.yaml", "train.json", "team/train.yaml"):
        (jobs / place).parent.mkdir(parents=True, exist_ok=True)
        (jobs / place).write_text("{")
    dags, _ = read(tmp_path)
    assert set(dags) == {"invalid.train", "invalid.train.json", "invalid.team.train"}
    assert all(f"{place}:" in " ".join(dags.values()) for place in ("train.yaml", "train.json", "team/train.yaml"))


def test_files_whose_dags_would_have_one_name_are_each_told(tmp_path: Path) -> None:
    jobs = tmp_path / "configs" / "jobs"
    (jobs / "a").mkdir(parents=True)
    for place in ("a/b.yaml", "a.b.yaml"):
        (jobs / place).write_text("{")
    for place in ("one.yaml", "two.yaml"):
        (jobs / place).write_text(SOUND.format(name="invalid.twice"))
    (jobs / "sound.yaml").write_text(SOUND.format(name="invalid.faulty"))
    (jobs / "faulty.yaml").write_text("{")
    dags, _ = read(tmp_path)
    told = {"invalid.a.b", "invalid.a.b_", "invalid.one", "invalid.two", "invalid.faulty_"}
    assert set(dags) == told | {"invalid.faulty"}
    assert "a.b.yaml:" in dags["invalid.a.b"] + dags["invalid.a.b_"]
    assert "a/b.yaml:" in dags["invalid.a.b"] + dags["invalid.a.b_"]
    assert "name = invalid.twice: two.yaml has that name, too" in dags["invalid.one"]
    assert dags["invalid.faulty"] == "TensorFlow job invalid.faulty"
