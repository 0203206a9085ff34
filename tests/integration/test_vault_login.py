"""Logins through an Airflow connection and without Airflow; whose token is revoked in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vault_helpers import Json, chain, put, ref

from tf_operator.errors import SecretError
from tf_operator.secrets import check, resolve
from tf_operator.secrets.environment import login_environment
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
VALUE = "value-of-the-login-tests"
REFS = [ref("secret/training/login#value"), ref("secret/training/login#value", env="AGAIN")]


@pytest.fixture(scope="module")
def approle(openbao: DevOpenBao) -> Json:
    """A role for training, and the secret both kinds of login read: {login, password} of a connection."""
    put(openbao, "secret/data/training/login", {"value": VALUE})
    openbao.training_token()
    client = openbao.client()
    client.sys.enable_auth_method("approle")
    client.auth.approle.create_or_update_approle("training", token_policies=["training"], token_ttl="10m")
    return {
        "login": client.auth.approle.read_role_id("training")["data"]["role_id"],
        "password": client.auth.approle.generate_secret_id("training")["data"]["secret_id"],
    }


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("VAULT_", "BAO_", "AIRFLOW_CONN_")):
            monkeypatch.delenv(name)


def connection(openbao: DevOpenBao, auth_type: str, **fields: Any) -> str:
    host, _, port = openbao.addr.removeprefix("http://").partition(":")
    extra = {"auth_type": auth_type}
    return json.dumps({"conn_type": "vault", "host": host, "port": int(port), "extra": extra, **fields})


def accessors(openbao: DevOpenBao) -> set[str]:
    return set(openbao.client().adapter.list("/v1/auth/token/accessors")["data"]["keys"])


def test_the_uri_of_the_demo(openbao: DevOpenBao, approle: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", openbao.airflow_connection_uri())
    check(REFS, login_environment)
    assert resolve(REFS, login_environment).env == {"VALUE": VALUE, "AGAIN": VALUE}


@pytest.mark.parametrize("prefix", ["VAULT", "BAO"])
def test_the_variables_of_vaults_own_command(
    openbao: DevOpenBao, approle: Json, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setenv(f"{prefix}_ADDR", openbao.addr)
    monkeypatch.setenv(f"{prefix}_TOKEN", openbao.training_token())
    assert resolve(REFS, login_environment).env["VALUE"] == VALUE
    assert openbao.client().auth.token.lookup(openbao.training_token()), "a token that was given is not revoked"
    with pytest.raises(SecretError, match="connection other: not known without Airflow; set AIRFLOW_CONN_OTHER"):
        resolve([ref("secret/training/login#value", connection="other")], login_environment)


def test_a_token_made_by_the_login_is_revoked(
    openbao: DevOpenBao, approle: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", connection(openbao, "approle", **approle))
    before = accessors(openbao)
    assert resolve(REFS, login_environment).env["VALUE"] == VALUE
    check(REFS, login_environment)
    with pytest.raises(SecretError, match="did you mean value"):
        resolve([ref("secret/training/login#valeu")], login_environment)
    assert accessors(openbao) == before


def test_a_refused_login(openbao: DevOpenBao, approle: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = connection(openbao, "approle", login=approle["login"], password="wrong-secret-id")
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", wrong)
    with pytest.raises(
        SecretError, match="vault_default: http.* refuses the login; check its credentials and role"
    ) as caught:
        resolve(REFS, login_environment)
    assert "wrong-secret-id" not in chain(caught.value)


ON_AIRFLOW = """
import logging
from tf_operator.errors import SecretError
from tf_operator.secrets import check, resolve
from tf_operator.secrets.airflow_login import login_airflow
from tf_operator.job_spec.rendered import RenderedSecret
from airflow.sdk.log import redact

def attempt(connection):
    ref = RenderedSecret(path="secret/training/login", key="value", env="VALUE", connection=connection)
    try:
        check([ref], login_airflow)
        value = resolve([ref], login_airflow).env["VALUE"]
        print(connection, "read", len(value), redact(f"it is {value}"))
    except SecretError as error:
        print(connection, "failed", error)

for connection in ("by_token", "by_role", "refused", "not_vault", "incomplete", "missing"):
    attempt(connection)
"""


def test_airflow_connections(openbao: DevOpenBao, approle: Json, tmp_path: Path) -> None:
    """In a process of its own: Airflow reads its configuration at import."""
    before = accessors(openbao)
    variables = {
        "BY_TOKEN": openbao.airflow_connection_uri(),
        "BY_ROLE": connection(openbao, "approle", **approle),
        "REFUSED": connection(openbao, "token", password="no-such-token"),
        "NOT_VAULT": "postgres://user:pass@localhost:1/db",
        "INCOMPLETE": connection(openbao, "kubernetes"),
    }
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path),
        **{f"AIRFLOW_CONN_{name}": text for name, text in variables.items()},
    }
    ran = subprocess.run(
        [sys.executable, "-c", ON_AIRFLOW], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert ran.returncode == 0, ran.stderr
    lines = {name: rest for name, _, rest in (line.partition(" ") for line in ran.stdout.splitlines())}
    assert lines["by_token"] == f"read {len(VALUE)} it is ***"
    assert lines["by_role"] == f"read {len(VALUE)} it is ***"
    assert "the connection's token is wrong, expired or revoked" in lines["refused"]
    assert lines["not_vault"].startswith("failed connection not_vault: The url schema must be one of")
    assert "requires 'kubernetes_role'" in lines["incomplete"]
    assert (
        lines["missing"] == "failed connection missing: there is no such Airflow connection; create one of type vault"
    )
    assert VALUE not in ran.stdout + ran.stderr
    assert accessors(openbao) == before
