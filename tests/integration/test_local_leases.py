"""A job without Airflow whose credentials live for seconds: it has its database all the time, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from local_bench import LocalBench, wait_until
from postgres_server import PostgresServer, binaries
from vault_helpers import Json, database, leases, token, wait_for
from vault_logins import connection

from tf_operator.secrets.ledger import ledgers
from tf_operator.services.openbao import DevOpenBao

pytestmark = [pytest.mark.local, pytest.mark.vault, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).parents[1] / "lease_program.py"
SECONDS = 40
"""Longer than any credentials live."""


def steps(file: Path) -> list[Json]:
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def test_a_training_outlives_its_credentials(
    openbao: DevOpenBao, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    database(openbao, postgres, default_ttl="15s", max_ttl="30s")
    client = openbao.client()
    client.sys.revoke_prefix("database/creds/reader")
    rules = 'path "database/creds/reader" { capabilities = ["read"] }'
    token(openbao, rules)
    client.sys.enable_auth_method("userpass", path="short")
    body = {"password": "of-a-trainer", "token_policies": ["of-a-test"], "token_ttl": "15s"}
    client.adapter.post("/v1/auth/short/users/trainer", json=body)
    login = connection(openbao, "userpass", {"auth_mount_point": "short"}, login="trainer", password="of-a-trainer")
    monkeypatch.setenv("AIRFLOW_CONN_SHORT", login)
    before = set(client.adapter.list("/v1/auth/token/accessors")["data"]["keys"])

    def train(replica: str, seconds: float, *awaited: str) -> Json:
        arguments = [str(tmp_path / replica), str(seconds), str(binaries() / "psql"), str(postgres.port), *awaited]
        return {"command": [sys.executable, str(PROGRAM), *arguments]}

    bench = LocalBench(
        tmp_path,
        {"chief": train("chief", SECONDS, str(tmp_path / "go-on")), "worker": train("worker", 1e6)},
        strategy="none",
        program={"on_renewal": "SIGHUP"},
        secrets=[{"vault": "database/creds/reader#*", "file": "db.json", "connection": "short"}],
    )
    bench.start()
    wait_until("two users of the database", lambda: len(postgres.users()) == 2)
    pid = wait_until("the chief to train", lambda: steps(tmp_path / "chief"))[-1]["pid"]
    os.kill(pid, signal.SIGKILL)

    def both_were_told() -> bool:
        told = [step for step in steps(tmp_path / "chief") if step["pid"] != pid and step["told"]]
        return bool(told) and len({step["user"] for step in steps(tmp_path / "worker")}) >= 2

    wait_until("both to have new credentials", both_were_told, 90)
    (tmp_path / "go-on").touch()
    outcome = bench.finish(120)
    assert outcome.succeeded, outcome.reason
    chief, worker = steps(tmp_path / "chief"), steps(tmp_path / "worker")
    assert len({step["pid"] for step in chief}) == 2
    assert [step for step in chief + worker if not step["good"]] == []
    assert chief[-1]["told"] >= 1 and len({step["user"] for step in worker}) >= 2
    assert not [line for line in bench.lines["chief-0"] if "password" in line and "***" not in line]
    wait_for(lambda: not leases(openbao, "database/creds/reader") and not postgres.users())
    # Not `==`: a token of an earlier test may run out meanwhile.
    wait_for(lambda: set(client.adapter.list("/v1/auth/token/accessors")["data"]["keys"]) <= before)
    assert list(ledgers(tmp_path / "state")) == []
