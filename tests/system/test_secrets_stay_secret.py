"""A secret's bytes are nowhere but in the program: not in the database, an XCom, a log or a file, success or not."""

from __future__ import annotations

import base64
import secrets
import urllib.parse
from pathlib import Path

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


@pytest.mark.parametrize("end", ["success", "failed"])
def test_c48_nowhere(airflow: AirflowUnderTest, tmp_path: Path, end: str) -> None:
    value = f"S3cr3t-{secrets.token_urlsafe(18)}"
    assert airflow.openbao
    airflow.openbao.client().secrets.kv.v2.create_or_update_secret(
        path=f"training/{end}", secret={"token": value, "file": value + "-file"}, mount_point="secret"
    )
    job = probe_job(tmp_path, retries=1)
    # The program prints its secret, as programs do: the log must not show it.
    command = probe(
        "--out", str(tmp_path), "--print", "env:TOKEN", "--sleep", "1", "--exit", "0" if end == "success" else "3"
    )
    job["replicas"]["chief"]["command"] = command
    job["secrets"] = [
        {"vault": f"secret/training/{end}#token", "env": "TOKEN"},
        {"vault": f"secret/training/{end}#file", "file": "token.txt"},
    ]
    airflow.write_job(f"leak-{end}", job)
    run = airflow.trigger(f"leak-{end}")
    run.wait(end, deadline=120)  # type: ignore[arg-type]
    record = starts(tmp_path, "chief-0")[0]
    assert record["env"]["TOKEN"] == value
    assert "***" in run.log("chief-0", 1)
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
