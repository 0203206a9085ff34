"""A secret's bytes are nowhere but in the program: one test, all the ways a job can go, Airflow's masker on and off.

Docker's half (`docker inspect`, the engine's logs) is `tests/integration/test_docker_runner.py`.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow_under_test import AirflowUnderTest
from leak_search import SHARED_MEMORY, Search, forms
from probe_jobs import probe, probe_job, starts
from run_under_test import RunUnderTest

pytestmark = [pytest.mark.airflow, pytest.mark.vault]

LEAKER = """
import base64, json, os, sys, time, urllib.parse
from pathlib import Path
token, file = os.environ["TOKEN"], Path(os.environ["TF_OPERATOR_SECRETS_DIR"], "token.txt").read_text()
starts = Path(sys.argv[1])
with starts.open("a") as written:
    written.write("start\\n")
for value in (token, file):
    print("TOKEN=" + value)
    print("in base64", base64.b64encode(value.encode()).decode(), base64.urlsafe_b64encode(value.encode()).decode())
    print("in a URL", "https://host/?key=" + urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value))
    print("in JSON", json.dumps({"key": value}), "in Python", repr(value))
    print(value, file=sys.stderr, flush=True)
time.sleep(1.5)
if len(starts.read_text().splitlines()) <= int(sys.argv[2]):
    raise ValueError(f"wrong password: {token}")
"""

BY_PYTHON = """
{prelude}
from airflow.sdk import DAG

from tf_operator import TensorFlowJob

with DAG("{name}", schedule=None) as dag:
    TensorFlowJob(**{job!r}).as_task_group("train")
"""
MASKER_OFF = """
import airflow.sdk.log

airflow.sdk.log.mask_secret = lambda *args, **kwargs: None
"""
FAULT_OF_OURS = """
from tf_operator.replica_program import ReplicaProgram


def _launch(self, launch):
    values = [*launch.secrets.env.values(), *(file.content for file in launch.secrets.files)]
    raise RuntimeError(f"a fault of ours, with {len(values)} values at hand")


ReplicaProgram._launch = _launch
"""
NOT_MASKED = """
import tf_operator.secrets.resolver

tf_operator.secrets.resolver._cover = lambda *args: None
"""


@dataclass(frozen=True)
class Way:
    """One way a job can go: how often its program fails, how often the job tries, how it ends."""

    end: str
    fails: int = 0
    change: tuple[tuple[str, Any], ...] = ()
    prelude: str = ""
    log: str = ""
    """What its log has to show: that it went that way."""


WAYS = {
    "success": Way("success"),
    "program-fails": Way("failed", fails=9, change=(("retries", 0),), log="wrong password: ***"),
    "retry": Way("success", fails=1, change=(("retries", 2),), log="wrong password: ***"),
    "our-fault": Way("failed", change=(("retries", 0),), prelude=FAULT_OF_OURS, log="RuntimeError"),
    "template": Way("failed", change=(("model_dir", "models/{{ run_id.split('__')[9] }}"),)),
    "clear": Way("success"),
}


class Leaks:
    """Jobs that print their secret in every form, as programs do, and the search for it."""

    def __init__(self, airflow: AirflowUnderTest, out: Path) -> None:
        self.airflow, self.out = airflow, out
        self.value = f'S3cr3t/{secrets.token_urlsafe(18)}+"\u00e9'
        self.search = Search(airflow, [self.value])
        self.runs: dict[str, RunUnderTest] = {}

    def start(self, ways: Mapping[str, Way], masker: str = "on") -> None:
        """A run for each way. First all DAGs, then all runs: SQLite refuses some writes while runs are under way."""
        files = {name: self._write(name, way, masker) for name, way in ways.items()}
        for file in files.values():
            self.airflow.wait_dag(file.stem, file)
        self.runs = {name: self.airflow.trigger(file.stem) for name, file in files.items()}

    def _write(self, name: str, way: Way, masker: str) -> Path:
        dag = f"leak-{name}-{masker}"
        assert self.airflow.openbao
        self.airflow.openbao.client().secrets.kv.v2.create_or_update_secret(
            path=f"training/{dag}", secret={"token": self.value, "file": self.value + "-file"}, mount_point="secret"
        )
        job = probe_job(self.out, replicas={"chief": {}}, **dict(way.change))
        job["program"] = {"command": [sys.executable, "-c", LEAKER, str(self.out / dag), str(way.fails)]}
        job["secrets"] = [
            {"vault": f"secret/training/{dag}#token", "env": "TOKEN"},
            {"vault": f"secret/training/{dag}#file", "file": "token.txt"},
        ]
        prelude = way.prelude + (MASKER_OFF if masker == "off" else "")
        if not prelude:
            return self.airflow.write_job(dag, job, wait=False)
        file = self.airflow.project / "dags" / f"{dag}.py"
        file.write_text(BY_PYTHON.format(name=dag, job={"name": dag} | job, prelude=prelude))
        return file

    def hits(self) -> list[str]:
        return self.search.hits(self.runs.values())


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("masker", ["on", "off"])
def test_c48_a_secret_is_nowhere_else_whichever_way_a_job_goes(
    airflow: AirflowUnderTest, tmp_path: Path, masker: str
) -> None:
    leaks = Leaks(airflow, tmp_path)
    with leaks.search.watching():
        leaks.start(WAYS, masker)
        leaks.runs["clear"].wait("success")
        leaks.runs["clear"].clear()
        # Its replicas are cleared before they ever ran.
        leaks.runs["template"].wait("failed")
        leaks.runs["template"].clear()
        for name, way in WAYS.items():
            leaks.runs[name].wait(way.end)  # type: ignore[arg-type]
    starts = {name: len(_lines(tmp_path / f"leak-{name}-{masker}")) for name in WAYS}
    assert starts == {"success": 1, "program-fails": 1, "retry": 2, "our-fault": 0, "template": 0, "clear": 2}
    for name, way in WAYS.items():
        if starts[name] or way.log:
            log = leaks.runs[name].log("chief-0", 1)
            assert (way.log or "TOKEN=***") in log, (name, log)
    assert leaks.hits() == []


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# -- the search finds what is there


@contextmanager
def in_an_xcom(leaks: Leaks, form: str) -> Iterator[None]:
    run = leaks.runs["planted"]
    path = f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{run.task('plan').task_id}/xcomEntries"
    leaks.airflow.api.request("POST", path, body={"key": "planted", "value": form})
    yield


@contextmanager
def in_a_variable(leaks: Leaks, form: str) -> Iterator[None]:
    leaks.airflow.api.request("POST", "variables", body={"key": "planted", "value": form})
    yield
    leaks.airflow.api.request("DELETE", "variables/planted")


@contextmanager
def in_arguments(leaks: Leaks, form: str) -> Iterator[None]:
    command = [sys.executable, "-c", "import time; time.sleep(60)", form]
    with subprocess.Popen(command) as process:
        yield
        process.kill()


@contextmanager
def in_a_file(leaks: Leaks, form: str) -> Iterator[None]:
    path = Path(tempfile.gettempdir(), f"planted-{secrets.token_hex(4)}")
    path.write_text(form)
    path.chmod(0o644)
    yield
    path.unlink()


@contextmanager
def in_shared_memory(leaks: Leaks, form: str) -> Iterator[None]:
    folder = SHARED_MEMORY / f"planted-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    (folder / "left").write_text(form)
    yield
    (folder / "left").unlink()
    folder.rmdir()


PLANTS = (in_an_xcom, in_a_variable, in_arguments, in_a_file, in_shared_memory)
FOUND = (
    "process python",
    "the database",
    "file .*/task_id=train.chief/attempt=1.log",
    "API log of (train.)?chief, try 1",
    "file /tmp/planted-",
    "file /dev/shm/planted-",
    "API .*/xcomEntries/planted",
    "API variables",
)


def test_c48_the_search_finds_what_is_planted(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    """A product that does not mask, and a secret in every place, each in another form: the search has to find all."""
    leaks = Leaks(airflow, tmp_path)
    leaks.start({"planted": Way("success", prelude=NOT_MASKED)})
    leaks.runs["planted"].wait("success")
    spellings = [form.decode() for form in forms(leaks.value)]
    with ExitStack() as stack:
        for plant, form in zip(PLANTS, spellings, strict=False):
            stack.enter_context(plant(leaks, form))
        with leaks.search.watching(every=0.05):
            hits = leaks.hits()
        hits += leaks.search.processes
    missed = [place for place in FOUND if not any(re.match(place, hit) for hit in hits)]
    assert not missed, hits
    assert [form for form in spellings if not leaks.search.holds(f"before {form} after")] == []


def leaking_job(airflow: AirflowUnderTest, out: Path, name: str, value: str, end: str) -> dict[str, Any]:
    """A job that prints its secret, as programs do, and ends as said."""
    assert airflow.openbao
    airflow.openbao.client().secrets.kv.v2.create_or_update_secret(
        path=f"training/{name}", secret={"token": value, "file": value + "-file"}, mount_point="secret"
    )
    job = probe_job(out, retries=1)
    code = "0" if end == "success" else "3"
    job["replicas"]["chief"]["command"] = probe(
        "--out", str(out), "--print", "env:TOKEN", "--sleep", "1", "--exit", code
    )
    job["secrets"] = [
        {"vault": f"secret/training/{name}#token", "env": "TOKEN"},
        {"vault": f"secret/training/{name}#file", "file": "token.txt"},
    ]
    return job


@pytest.mark.parametrize(("end", "masker"), [("success", "on"), ("failed", "on"), ("failed", "off")])
def test_c48_nowhere(airflow: AirflowUnderTest, tmp_path: Path, end: str, masker: str) -> None:
    value, name = f"S3cr3t-{secrets.token_urlsafe(18)}", f"leak-{end}-{masker}"
    job = leaking_job(airflow, tmp_path, name, value, end)
    if masker == "on":
        airflow.write_job(name, job)
    else:
        # What is masked is masked by us, before Airflow sees it.
        airflow.write_dag(name, BY_PYTHON.format(name=name, job={"name": name} | job, prelude=MASKER_OFF))
    run = airflow.trigger(name)
    run.wait(end, deadline=120)  # type: ignore[arg-type]
    record = starts(tmp_path, "chief-0")[0]
    assert record["env"]["TOKEN"] == value
    assert "TOKEN=***" in run.log("chief-0", 1)
    assert Search(airflow, [value]).hits([run]) == []


def test_a_wrong_path_fails_before_any_replica_and_names_it(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, secrets=[{"vault": "secret/training/absent#key", "env": "KEY"}])
    airflow.write_job("no-secret", job)
    run = airflow.trigger("no-secret")
    run.wait("failed", deadline=60)
    assert "training/absent" in run.log("plan")
    assert not starts(tmp_path, "chief-0")
