"""Connections as the environment describes them, read without Airflow and without a server."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tf_operator.errors import SecretError
from tf_operator.secrets.environment import login_environment

TOKEN = "s.token/with:odd@characters"
QUOTED = quote(TOKEN, safe="")
EXTRA = {"auth_type": "token", "use_tls": True, "client_kwargs": {"verify": "/ca.pem", "namespace": "team"}}
EXTRA_TEXT = json.dumps(EXTRA)


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDR", "TOKEN", "CACERT", "NAMESPACE"):
        monkeypatch.delenv(f"VAULT_{name}", raising=False)
        monkeypatch.delenv(f"BAO_{name}", raising=False)
    monkeypatch.delenv("AIRFLOW_CONN_VAULT_DEFAULT", raising=False)


@pytest.mark.parametrize(
    ("text", "address", "mount", "kv"),
    [
        (f"vault://:{QUOTED}@host:8200/secret", "http://host:8200", "secret", None),
        (f"vault://:{QUOTED}@host/kv%2Fteam?kv_engine_version=1", "http://host", "kv/team", 1),
        (f"vaults://:{QUOTED}@host:8200", "https://host:8200", None, None),
        (f"vault://:{QUOTED}@host:8200?use_tls=true", "https://host:8200", None, None),
        (
            f"vault://:{QUOTED}@host:1/a?__extra__={quote(json.dumps(EXTRA))}",
            "https://host:1",
            "a",
            None,
        ),
        (f"vault://:{QUOTED}@[::1]:8200", "http://[::1]:8200", None, None),
        (json.dumps({"conn_type": "vault", "host": "h", "port": 8200, "password": TOKEN}), "http://h:8200", None, None),
        (
            json.dumps(
                {"conn_type": "vault", "host": "h", "password": TOKEN, "schema": "s", "extra": json.dumps(EXTRA)}
            ),
            "https://h",
            "s",
            None,
        ),
    ],
)
def test_forms(monkeypatch: pytest.MonkeyPatch, text: str, address: str, mount: str | None, kv: int | None) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", text)
    session = login_environment("vault_default")
    assert session.client.adapter.base_uri == address
    assert session.client.token == TOKEN
    assert (session.mount, session.kv, session.made_token) == (mount, kv, False)
    assert TOKEN not in repr(session)
    if "ca.pem" in text:
        assert session.client.session.verify == "/ca.pem"
        assert session.client.adapter.namespace == "team"


def test_vaults_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_ADDR", "https://vault:8200")
    with pytest.raises(SecretError, match="VAULT_ADDR is set without VAULT_TOKEN; set both"):
        login_environment("vault_default")
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    monkeypatch.setenv("VAULT_CACERT", "/ca.pem")
    session = login_environment("vault_default")
    assert (session.client.token, session.client.session.verify) == (TOKEN, "/ca.pem")
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", "vault://:other@elsewhere")
    assert login_environment("vault_default").client.token == "other", "the named connection goes first"


@pytest.mark.parametrize(
    "text",
    [
        "postgres://u:secret-password@h/db",
        "vault://:secret-password@h:port-that-is-none",
        "vault://:secret-password@[h",
        '{"conn_type": "vault", "password": "secret-password"',
        '{"conn_type": "vault", "password": "secret-password"}',
        '{"conn_type": "vault", "host": "h", "extra": "{secret-password"}',
        "secret-password",
    ],
)
def test_a_bad_one_is_one_line_without_its_password(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", text)
    with pytest.raises(SecretError) as caught:
        login_environment("vault_default")
    assert str(caught.value).startswith("AIRFLOW_CONN_VAULT_DEFAULT: must be an Airflow connection of type vault: ")
    error: Any = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "secret-password" not in repr(error)


def test_methods_that_need_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", "vault://h?auth_type=kubernetes")
    with pytest.raises(SecretError, match="auth_type kubernetes works on Airflow only; without it use token, approle"):
        login_environment("vault_default")
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", "vault://h")
    with pytest.raises(SecretError, match="auth_type token needs a token"):
        login_environment("vault_default")


def test_nothing_is_set() -> None:
    with pytest.raises(SecretError, match="without Airflow; set VAULT_ADDR and VAULT_TOKEN, or AIRFLOW_CONN_"):
        login_environment("vault_default")
