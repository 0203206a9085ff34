"""A secret's bytes are nowhere but in the program: not in the database, an XCom, a log or a file, success or not."""

from __future__ import annotations

import base64
import secrets
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from harness import AirflowUnderTest
from probe_jobs import probe, probe_job, starts

pytestmark = [pytest.mark.airflow, pytest.mark.vault]


def forms(value: str) -> list[bytes]:
    """The value as it is, in base64 at each of the three alignments, and URL-encoded."""
    raw = value.encode()
    aligned = [base64.b64encode(b"x" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)]
    return [raw, *aligned, urllib.parse.quote(value, safe="").encode()]


def hits(airflow: AirflowUnderTest, value: str, but: Path | None = None) -> list[str]:
    """Where the value is found."""
    found = []
    for form in forms(value):
        if form in airflow.dump_db().encode():
            found.append("the database")
        found += [str(path) for path in airflow.files() if path != but and form in path.read_bytes()]
    return found


MASKER_OFF = """
import airflow.sdk.log

airflow.sdk.log.mask_secret = lambda *args, **kwargs: None

from airflow.sdk import DAG

from tf_operator import TensorFlowJob

with DAG("{name}", schedule=None) as dag:
    TensorFlowJob(**{job!r}).as_task_group("train")
"""


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
        airflow.write_dag(name, MASKER_OFF.format(name=name, job={"name": name} | job))
    run = airflow.trigger(name)
    run.wait(end, deadline=120)  # type: ignore[arg-type]
    record = starts(tmp_path, "chief-0")[0]
    assert record["env"]["TOKEN"] == value
    assert "TOKEN=***" in run.log("chief-0", 1)
    assert not hits(airflow, value)
    for path in Path("/dev/shm").rglob("*"):
        assert not path.is_file() or value.encode() not in path.read_bytes(), path


def test_a_wrong_path_fails_before_any_replica_and_names_it(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, secrets=[{"vault": "secret/training/absent#key", "env": "KEY"}])
    airflow.write_job("no-secret", job)
    run = airflow.trigger("no-secret")
    run.wait("failed", deadline=60)
    assert "training/absent" in run.log("plan")
    assert not starts(tmp_path, "chief-0")
