"""Secrets in a real Airflow: a Vault that is sealed when plan asks, and what a person sees of what a program prints."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path

import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import probe, probe_job, starts
from run_under_test import wait_for

from tf_operator.services.follow import failure_reason
from tf_operator.services.openbao import DevOpenBao

pytestmark = [pytest.mark.airflow, pytest.mark.vault]

NORMAL = [f"normal line {n} has an a in it" for n in range(50)]
PRINTER = f"""
import json, os, time
short, password, pem, pair = (os.environ[name] for name in ("SHORT", "PASSWORD", "PEM", "PAIR"))
for text in (short, password, f"before {{password}} after", *pem.splitlines()[::-1], json.loads(pair)["pw"], pair):
    print("printed:", text)
print("\\\\n".join({NORMAL!r}), flush=True)
half = len(password) // 2
for part in ("printed: " + password[:half], password[half:] + "\\\\n"):
    os.write(1, part.encode())
    time.sleep(0.5)
"""


def test_c50_what_is_seen_of_a_program_that_prints_its_secrets(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    assert airflow.openbao
    values = {
        "short": "a",
        "password": f"pass-{secrets.token_hex(6)}",
        "pem": f"-----BEGIN-LIKE-LINE\n{secrets.token_hex(16)}",
        "pair": {"user": "u-long-name", "pw": f"p-{secrets.token_hex(5)}"},
    }
    airflow.openbao.client().secrets.kv.v2.create_or_update_secret("training/case-50", values, mount_point="secret")
    job = probe_job(tmp_path)
    job["replicas"] = {"chief": {"command": [sys.executable, "-c", PRINTER]}}
    job["secrets"] = [{"vault": f"secret/training/case-50#{key}", "env": key.upper()} for key in values]
    airflow.write_job("case-50", job)
    run = airflow.trigger("case-50")
    run.wait("success", deadline=90)
    log = run.logs("chief-0")
    stars = ["***", "before *** after", "***", "***", "***", "***"]
    for text in ("printed: a", *(f"printed: {text}" for text in stars), *NORMAL):
        assert text in log
    assert log.count("printed: ***") >= 6
    assert "secret/training/case-50#short" in log
    assert "not masked in output" in log
    for text in (values["password"], *str(values["pem"]).split("\n"), "u-long-name"):
        assert str(text) not in log


def test_a_secret_that_is_not_there_is_named_in_the_last_line(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    airflow.write_job("no-secret", probe_job(tmp_path, secrets=[{"vault": "secret/training/none#key", "env": "KEY"}]))
    run = airflow.trigger("no-secret")
    run.wait("failed", deadline=90)
    last = failure_reason(airflow.api, "no-secret", run.run_id)
    assert last.startswith("result: the job did not start: "), last
    assert "secret/training/none#key" in last and "there is nothing at this path" in last
    assert not starts(tmp_path, "chief-0")


def test_c44_a_sealed_vault_is_left_to_airflows_retry_and_nothing_starts_without_its_secret(
    airflow: AirflowUnderTest, tmp_path: Path
) -> None:
    with DevOpenBao(tmp_path / "openbao", project=airflow.project) as vault:
        vault.client().secrets.kv.v2.create_or_update_secret("training/one", {"key": "a-value"}, mount_point="secret")
        host, _, port = vault.addr.removeprefix("http://").partition(":")
        login = {"conn_type": "vault", "host": host, "port": int(port), "password": vault.training_token()}
        extra = json.dumps({"auth_type": "token", "use_tls": False})
        airflow.api.request("POST", "connections", body={"connection_id": "case_44", "extra": extra} | login)
        vault.client().sys.seal()
        job = probe_job(tmp_path, secrets=[{"vault": "secret/training/one#key", "env": "KEY", "connection": "case_44"}])
        job["replicas"] = {"chief": {"command": probe("--out", str(tmp_path))}}
        airflow.write_job("case-44", job)
        run = airflow.trigger("case-44")
        run.wait_task("plan", "up_for_retry", deadline=90)
        wait_for(lambda: "is sealed; unseal it" in run.logs("plan"), 30, "the log of the try that ended")
        assert not starts(tmp_path, "chief-0")
        vault.client().sys.submit_unseal_key(vault.unseal_key)
        run.wait("success", deadline=120)
        assert starts(tmp_path, "chief-0")[0]["env"]["KEY"] == "a-value"
