"""`tf-operator clean` and leases it cannot revoke: they stay on record, and nobody is told otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tf_operator.cli.main import app
from tf_operator.identity import Identity, ReplicaId
from tf_operator.secrets.ledger import Ledger

IDENTITY = Identity("job", "run", "train", ReplicaId("worker", 0))
PATH = "database/creds/reader"
LEFT = [{"connection": "vault_default", "accessor": "a", "leases": [[f"{PATH}/x", PATH]]}]
WHAT = "1 lease: database/creds/reader of job/run/train/worker-0"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    for name in [name for name in os.environ if name.startswith(("VAULT_", "BAO_", "AIRFLOW_CONN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path))
    made = Ledger(tmp_path, IDENTITY.key)
    made.write(IDENTITY, LEFT)
    os.utime(made.path, (0, 0))
    return made


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "not known without Airflow; set VAULT_ADDR and VAULT_TOKEN, or AIRFLOW_CONN_VAULT_DEFAULT"),
        ({"AIRFLOW_CONN_VAULT_DEFAULT": "vault://h?auth_type=approle"}, "auth_type approle needs a role id"),
        (
            {"VAULT_ADDR": "https://h", "VAULT_TOKEN": "t", "VAULT_CACERT": "/no/such"},
            "check client_kwargs.verify and cert, or VAULT_CACERT",
        ),
    ],
)
def test_without_a_login_they_stay(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        done = CliRunner().invoke(app, ["clean", "--yes"])
        assert done.exit_code == 0, done.exception
        assert expected in done.output
        assert f"kept on record: {WHAT}; give the connection in AIRFLOW_CONN_<ID> and repeat" in done.output
        assert "\nrevoked" not in done.output
        assert ledger.read() == LEFT
