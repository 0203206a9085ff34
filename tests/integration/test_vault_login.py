"""Logins through an Airflow connection and without Airflow; whose token is revoked in the end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hvac
import pytest
from vault_helpers import Json, chain, put, ref, wait_for
from vault_logins import all_connections, connection

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets import check, fetch, resolve
from tf_operator.secrets.environment import login_environment
from tf_operator.secrets.session import Patience, sessions
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
VALUE = "value-of-the-login-tests"
REFS = [ref("secret/training/login#value"), ref("secret/training/login#value", env="AGAIN")]


@pytest.fixture(scope="module")
def connections(openbao: DevOpenBao, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Every way to log in, and the secret that all of them read."""
    put(openbao, "secret/data/training/login", {"value": VALUE})
    openbao.training_token()
    with all_connections(openbao, tmp_path_factory.mktemp("logins")) as made:
        yield made


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("VAULT_", "BAO_", "AIRFLOW_CONN_")):
            monkeypatch.delenv(name)


def accessors(openbao: DevOpenBao) -> set[str]:
    return set(openbao.client().adapter.list("/v1/auth/token/accessors")["data"]["keys"])


def test_the_uri_of_the_demo(openbao: DevOpenBao, connections: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", openbao.airflow_connection_uri())
    check(REFS, login_environment)
    assert resolve(REFS, login_environment).env == {"VALUE": VALUE, "AGAIN": VALUE}


@pytest.mark.parametrize("prefix", ["VAULT", "BAO"])
def test_the_variables_of_vaults_own_command(
    openbao: DevOpenBao, connections: dict[str, str], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setenv(f"{prefix}_ADDR", openbao.addr)
    monkeypatch.setenv(f"{prefix}_TOKEN", openbao.training_token())
    assert resolve(REFS, login_environment).env["VALUE"] == VALUE
    assert openbao.client().auth.token.lookup(openbao.training_token()), "a token that was given is not revoked"
    with pytest.raises(SecretError, match="connection other: not known without Airflow; set AIRFLOW_CONN_OTHER"):
        resolve([ref("secret/training/login#value", connection="other")], login_environment)


GOOD = ("token", "token_file", "approle", "userpass", "jwt", "jwt_file", "kubernetes")
BAD = {
    "bad_token": "secret secret/training/login#value (connection CONN): permission denied: the connection's token is"
    " wrong, expired or revoked; renew it",
    "bad_approle": "connection CONN: ADDR refuses the login; check its credentials, role and auth_mount_point",
    "bad_userpass": "connection CONN: ADDR refuses the login; check its credentials, role and auth_mount_point",
    "bad_mount": "connection CONN: ADDR refuses the login; check its credentials, role and auth_mount_point",
    "bad_subject": "connection CONN: ADDR refuses the login; check its credentials, role and auth_mount_point",
    "bad_expired": "connection CONN: ADDR refuses the login; what was offered has expired; renew it",
    "bad_account": "connection CONN: ADDR refuses the login; check its credentials, role and auth_mount_point",
    "bad_file": "connection CONN: /no/such/file: cannot be read (No such file or directory); correct the connection's"
    " path, or the file",
    "bad_extra": "connection CONN: extra namespace: it belongs into client_kwargs; move it there",
}
OFFERED = ("no-such-token", "wrong-secret-id", "pass-of-another", "eyJ")


def told(openbao: DevOpenBao, name: str, connection: str) -> str:
    """What is to be said of a bad connection."""
    return BAD[name].replace("CONN", connection).replace("ADDR", openbao.addr)


@pytest.mark.parametrize("name", GOOD)
def test_logins_without_airflow(
    openbao: DevOpenBao, connections: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", connections[name])
    before = accessors(openbao)
    assert resolve(REFS, login_environment).env == {"VALUE": VALUE, "AGAIN": VALUE}
    check(REFS, login_environment)
    with pytest.raises(SecretError, match="did you mean value"):
        resolve([ref("secret/training/login#valeu")], login_environment)
    assert accessors(openbao) == before, "a token that was made is revoked, one that was given is left"


@pytest.mark.parametrize("name", BAD)
def test_bad_logins_without_airflow(
    openbao: DevOpenBao, connections: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", connections[name])
    with pytest.raises(SecretError) as caught:
        resolve(REFS, login_environment)
    assert str(caught.value) == told(openbao, name, "vault_default")
    assert not isinstance(caught.value, SecretUnavailableError)
    assert not [offered for offered in OFFERED if offered in chain(caught.value)]


def test_one_login_is_one_token(
    openbao: DevOpenBao, connections: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", connections["jwt"])
    before, again = accessors(openbao), Patience(5)
    with sessions(login_environment, again) as session:
        fetch(REFS, session, again)
        fetch(REFS, session, again)
        assert len(accessors(openbao) - before) == 1
    assert accessors(openbao) == before


def test_namespaces(openbao: DevOpenBao, monkeypatch: pytest.MonkeyPatch) -> None:
    client = openbao.client()
    client.adapter.post("/v1/sys/namespaces/team-a")
    inside = openbao.client()
    inside.adapter.namespace = "team-a"
    inside.sys.enable_secrets_engine("kv", path="kv", options={"version": "2"})
    wait_for(lambda: _written(inside, "kv/data/store", {"value": VALUE}))
    inside.sys.create_or_update_policy("reader", 'path "kv/data/store" { capabilities = ["read"] }')
    token = inside.auth.token.create(policies=["reader"], ttl="1h", no_parent=True)["auth"]["client_token"]

    def login(namespace: str | None) -> None:
        extra = {"client_kwargs": {"namespace": namespace}} if namespace else {}
        monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", connection(openbao, "token", extra, password=token))

    login("team-a")
    check([ref("kv/store#value")], login_environment)
    assert resolve([ref("kv/store#value")], login_environment).env == {"VALUE": VALUE}
    with pytest.raises(SecretError, match="read on kv/data/other, or the path or namespace is wrong"):
        resolve([ref("kv/other#value")], login_environment)
    login(None)
    check([ref("team-a/kv/store#value")], login_environment)
    assert resolve([ref("team-a/kv/store#value")], login_environment).env == {"VALUE": VALUE}
    with pytest.raises(SecretError, match="does not grant read on kv/(data/)?store, or the path is wrong"):
        resolve([ref("kv/store#value")], login_environment)
    for path in ("team-a/auth/token/lookup-self", "team-a/sys/health"):
        with pytest.raises(SecretError, match=f"{path} is the server's own, and no secret"):
            resolve([ref(f"{path}#id")], login_environment)
    login("team-b")
    with pytest.raises(
        SecretError, match=r"\(namespace team-b\): there is no such namespace; correct the connection's"
    ):
        resolve([ref("kv/store#value")], login_environment)


def _written(client: Any, path: str, values: Json) -> bool:
    """Whether a new version 2 mount takes a secret by now."""
    with contextlib.suppress(hvac.exceptions.InvalidRequest):
        client.adapter.post(f"/v1/{path}", json={"data": values})
        return True
    return False


ON_AIRFLOW = """
import sys
from tf_operator.errors import SecretError
from tf_operator.secrets import check, resolve
from tf_operator.secrets.airflow_login import login_airflow
from tf_operator.job_spec.rendered import RenderedSecret
from airflow.sdk.log import redact

for connection in sys.argv[1:]:
    ref = RenderedSecret(path="secret/training/login", key="value", env="VALUE", connection=connection)
    try:
        check([ref], login_airflow)
        value = resolve([ref], login_airflow).env["VALUE"]
        print("RESULT", connection, "read", len(value), redact(f"it is {value}"))
    except SecretError as error:
        print("RESULT", connection, error)
"""


def test_logins_through_airflow(openbao: DevOpenBao, connections: dict[str, str], tmp_path: Path) -> None:
    """In a process of its own: Airflow reads its configuration at import."""
    before = accessors(openbao)
    others = {
        "not_vault": "postgres://user:pass-of-user@localhost:1/db",
        "incomplete": connection(openbao, "kubernetes"),
        "gcp": connection(openbao, "gcp", {"gcp_scopes": "a", "role_id": "b"}),
    }
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path),
        **{f"AIRFLOW_CONN_{name.upper()}": text for name, text in (connections | others).items()},
    }
    command = [sys.executable, "-c", ON_AIRFLOW, *connections, *others, "missing"]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    results = [line.split(" ", 2)[1:] for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    lines = dict(results)
    assert {name: lines.pop(name) for name in GOOD} == dict.fromkeys(GOOD, f"read {len(VALUE)} it is ***")
    assert {name: lines.pop(name) for name in BAD} == {name: told(openbao, name, name) for name in BAD}
    assert lines.pop("not_vault").startswith("connection not_vault: The url schema must be one of")
    assert "requires 'kubernetes_role'" in lines.pop("incomplete")
    assert "this auth_type needs the Python package airflow.providers.google" in lines.pop("gcp")
    assert lines == {"missing": "connection missing: there is no such Airflow connection; create one of type vault"}
    assert not [text for text in (VALUE, *OFFERED) if text in ran.stdout + ran.stderr]
    assert accessors(openbao) == before
