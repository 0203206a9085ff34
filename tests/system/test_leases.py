"""Credentials that live for seconds, trainings that live for minutes: nothing is left of them in the end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hvac
import pytest
from airflow_under_test import AirflowUnderTest
from postgres_server import PostgresServer, binaries
from run_under_test import RunUnderTest, wait_for

from tf_operator.secrets.ledger import ledgers

pytestmark = [pytest.mark.airflow, pytest.mark.vault]
PROGRAM = Path(__file__).parents[1] / "lease_program.py"
ROLE = "database/creds/trainer"
TOKEN_TTL, LEASE_TTL, LEASE_MAX = "60s", "60s", "90s"
"""A third of each is what a busy machine has to renew, or to adopt a program, in time."""


@dataclass
class Database:
    """A PostgreSQL whose users the session's OpenBao makes, and a login with short tokens as connection `short`."""

    airflow: AirflowUnderTest
    postgres: PostgresServer

    @property
    def client(self) -> Any:
        assert self.airflow.openbao
        return self.airflow.openbao.client()

    def offer(self) -> None:
        """The engine and the login."""
        client = self.client
        client.sys.enable_secrets_engine("database")
        address = f"postgresql://{{{{username}}}}:{{{{password}}}}@127.0.0.1:{self.postgres.port}/postgres"
        server = {"plugin_name": "postgresql-database-plugin", "connection_url": address, "allowed_roles": "*"}
        login = {"username": "postgres", "password": self.postgres.password}
        client.adapter.post("/v1/database/config/postgres", json=server | login)
        made = ["CREATE ROLE \"{{name}}\" WITH LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'"]
        role = {"db_name": "postgres", "creation_statements": made, "default_ttl": LEASE_TTL, "max_ttl": LEASE_MAX}
        client.adapter.post("/v1/database/roles/trainer", json=role)
        client.sys.enable_auth_method("approle", path="short")
        options = {"token_policies": ["short"], "token_ttl": TOKEN_TTL, "token_no_default_policy": True}
        client.auth.approle.create_or_update_approle("trainer", mount_point="short", **options)
        role_id = client.auth.approle.read_role_id("trainer", mount_point="short")["data"]["role_id"]
        secret_id = client.auth.approle.generate_secret_id("trainer", mount_point="short")["data"]["secret_id"]
        host, _, port = client.url.removeprefix("http://").partition(":")
        body = {"connection_id": "short", "conn_type": "vault", "host": host, "port": int(port)}
        body |= {"login": role_id, "password": secret_id}
        extra = {"auth_type": "approle", "auth_mount_point": "short"}
        self.airflow.api.request("POST", "connections", body=body | {"extra": json.dumps(extra)})

    def grant(self, job_file: Path) -> None:
        """The login may do what `tf-operator vault-policy` says, and no more."""
        printed = self.airflow.tf_operator("vault-policy", str(job_file))
        assert printed.returncode == 0, printed.stderr
        self.client.sys.create_or_update_policy("short", printed.stdout)

    def alive(self) -> tuple[list[str], list[str], set[str]]:
        """Leases, users of the database, token accessors."""
        try:
            leases = self.client.adapter.list(f"/v1/sys/leases/lookup/{ROLE}")["data"]["keys"]
        except hvac.exceptions.InvalidPath:
            leases = []
        accessors = self.client.adapter.list("/v1/auth/token/accessors")["data"]["keys"]
        return leases, self.postgres.users(), set(accessors)


@pytest.fixture(scope="module")
def database(session_airflow: AirflowUnderTest) -> Iterator[Database]:
    """One for the module."""
    if not os.environ.get("CI"):
        try:
            binaries()
        except FileNotFoundError as error:
            pytest.skip(str(error))
    session_airflow.revive()
    with PostgresServer() as postgres:
        made = Database(session_airflow, postgres)
        made.offer()
        yield made


def job(database: Database, out: Path, seconds: float, **change: Any) -> dict[str, Any]:
    """A chief that trains for so many seconds and until `out/stop` is there, and a worker that trains all the time."""

    def train(replica: str, seconds: float) -> list[str]:
        psql = str(binaries() / "psql")
        port, stop = str(database.postgres.port), str(out / "stop")
        return [sys.executable, str(PROGRAM), str(out / replica), str(seconds), psql, port, stop]

    return {
        "strategy": "none",
        "program": {"on_renewal": "SIGHUP"},
        "replicas": {
            "chief": {"command": train("chief", seconds)},
            "worker": {"command": train("worker", 1e6)},
        },
        "secrets": [{"vault": f"{ROLE}#*", "file": "db.json", "connection": "short"}],
        "retry_delay": "1s",
        "run_policy": {"termination_grace": "5s", "orphan_timeout": "5m"},
        **change,
    }


def steps(out: Path, replica: str) -> list[dict[str, Any]]:
    """What the program wrote at each step."""
    file = out / replica
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def started(database: Database, out: Path, name: str, seconds: float, **change: Any) -> RunUnderTest:
    """A run of the job, both its programs at work."""
    airflow = database.airflow
    database.grant(airflow.write_job(name, job(database, out, seconds, **change)))
    run = airflow.trigger(name)
    for replica in ("chief", "worker"):
        wait_for(lambda replica=replica: len(steps(out, replica)) > 2, 120, lambda: f"both to train: {run.states()}")
    return run


def assert_nothing_left(database: Database, before: tuple[list[str], list[str], set[str]]) -> None:
    # A watcher that was killed leaves its token, which ends with its TTL.
    wait_for(lambda: database.alive() == before, 120, lambda: f"{database.alive()} to be {before} again")
    assert list(ledgers(database.airflow.state_dir)) == []


@pytest.mark.parametrize("seconds", [60, pytest.param(180, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_a_training_outlives_its_credentials_a_kill_and_its_watcher(
    airflow: AirflowUnderTest, database: Database, tmp_path: Path, seconds: float
) -> None:
    """A token of 60 s, leases of at most 90 s; the program is killed once, and its watcher once."""
    before = database.alive()
    run = started(database, tmp_path, f"leases-{seconds}", seconds)
    leases, users, _ = database.alive()
    assert (len(leases), len(users)) == (2, 2)

    run.kill("chief-0")
    wait_for(lambda: len({step["pid"] for step in steps(tmp_path, "chief")}) == 2, 90, "its second start")

    wait_for(lambda: steps(tmp_path, "chief")[-1]["told"] > 0, 150, "new credentials past max TTL")
    pid = steps(tmp_path, "chief")[-1]["pid"]
    os.kill(run.watcher("chief-0").pid, signal.SIGKILL)
    wait_for(lambda: "adopted the program of chief-0" in run.logs("chief-0"), 60, "the adoption")
    wait_for(lambda: steps(tmp_path, "chief")[-1]["told"] > 1, 60, "credentials by the new watcher")
    (tmp_path / "stop").touch()

    run.wait("success", deadline=seconds + 60)
    chief, worker = steps(tmp_path, "chief"), steps(tmp_path, "worker")
    assert chief[-1]["trained"] >= seconds
    assert chief[-1]["pid"] == pid, "the program outlived its watcher"
    assert [step for step in chief + worker if not step["good"]] == [], "it had its database all the time"
    assert len({step["user"] for step in worker}) >= 2, "the worker's were replaced without any kill"
    passwords = [line for line in run.logs("chief-0").splitlines() if "password" in line]
    assert passwords and all("***" in line for line in passwords)
    assert_nothing_left(database, before)


@pytest.mark.parametrize("how", ["failed by itself", "was marked failed"])
def test_no_lease_outlives_a_run_that(airflow: AirflowUnderTest, database: Database, tmp_path: Path, how: str) -> None:
    before = database.alive()
    run = started(database, tmp_path, f"leases-{how.replace(' ', '-')}", 1e6, retries=0)
    assert len(database.alive()[0]) == 2
    if how == "failed by itself":
        run.kill("chief-0")
    else:
        run.mark("failed")
    run.wait("failed", deadline=60)
    assert_nothing_left(database, before)
