"""Connections as the environment describes them, read without Airflow and without a server."""

from __future__ import annotations

import json
from pathlib import Path
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


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("auth_type=gcp", "auth_type gcp works on Airflow only; without it use token, approle, userpass, ldap, jwt or"),
        ("", "auth_type token needs a token"),
        ("auth_type=approle", "auth_type approle needs a role id"),
        ("auth_type=userpass", "auth_type userpass needs a user"),
        ("auth_type=jwt&jwt_role=r", "auth_type jwt needs extra jwt_token or jwt_token_path"),
        ("auth_type=jwt&jwt_token=t", "auth_type jwt needs extra jwt_role"),
        ("auth_type=kubernetes", "/serviceaccount/token: cannot be read (No such file or directory)"),
        ("auth_type=kerberos", "auth_type kerberos is not known; use one of token, approle"),
        ("auth_type=radius", "would change the server's settings instead of logging in; use one of token"),
        ("token_path=/no/such", "/no/such: cannot be read (No such file or directory)"),
        ("namespace=team", "extra namespace: it belongs into client_kwargs; move it there"),
        ("jwt_role=r", "extra jwt_role: has no meaning with auth_type token; remove it, or use auth_mount_point"),
        ("role=r", "extra role: is not known; remove it, or use auth_mount_point, auth_type"),
        ("kv_engine_version=3", "kv_engine_version: 3: must be 1 or 2; correct or remove it"),
        ('client_kwargs={"session":1}', "client_kwargs: session: not allowed; use cert, namespace, proxies"),
        ("client_kwargs=[1]", "client_kwargs: (no JSON object): not allowed"),
        (
            'client_kwargs={"timeout":"5"}',
            "client_kwargs.timeout: must be a number of seconds above 0, without quotation",
        ),
        ('client_kwargs={"timeout":0}', "client_kwargs.timeout: must be a number"),
        ('client_kwargs={"timeout":true}', "client_kwargs.timeout: must be a number"),
        ('client_kwargs={"proxies":"http://p:1"}', "client_kwargs.proxies: must be a JSON object: scheme to URL; corr"),
        ('client_kwargs={"proxies":{"http":1}}', "client_kwargs.proxies: must be a JSON object"),
        ('client_kwargs={"verify":1}', "client_kwargs.verify: must be true, false or the path of a CA file"),
        ('client_kwargs={"cert":["a"]}', "client_kwargs.cert: must be the path of a PEM file, or a list of two"),
        ('client_kwargs={"namespace":1}', "client_kwargs.namespace: must be a text"),
    ],
)
def test_what_a_connection_lacks_or_must_not_say(monkeypatch: pytest.MonkeyPatch, query: str, expected: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", f"vault://h?{query}")
    with pytest.raises(SecretError) as caught:
        login_environment("vault_default")
    assert str(caught.value).startswith("connection vault_default: ")
    assert expected in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("hidden\n", "its token begins or ends with white space (a line's end?); remove that"),
        (" hidden", "its token begins or ends with white space"),
        ("hidden\u65e5", "its token has characters that no request can carry (only ASCII); correct it"),
        ("hid\nden", "its token has characters"),
    ],
)
def test_a_token_that_no_request_can_carry(monkeypatch: pytest.MonkeyPatch, token: str, expected: str) -> None:
    monkeypatch.setenv("VAULT_ADDR", "http://h")
    monkeypatch.setenv("VAULT_TOKEN", token)
    with pytest.raises(SecretError) as caught:
        login_environment("vault_default")
    assert str(caught.value).startswith(f"connection vault_default: {expected}")
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize("method", ["token", "approle"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"verify": "/no/such"}, "a file for TLS cannot be found (OSError); check client_kwargs.verify and cert, or"),
        ({"cert": "/no/such"}, "a file for TLS cannot be found (OSError)"),
        ({"cert": [__file__, "/no/such"]}, "a file for TLS cannot be found (OSError)"),
        ({"proxies": {"https": "hidden:::"}}, "client_kwargs.proxies: is no usable URL; correct it"),
        ({"namespace": "hid\nden"}, "client_kwargs.namespace: no request can carry it; correct it"),
    ],
)
def test_options_that_only_a_request_finds_wrong(
    monkeypatch: pytest.MonkeyPatch, method: str, options: dict[str, Any], expected: str
) -> None:
    extra = {"auth_type": method, "client_kwargs": options}
    text = {"conn_type": "vaults", "host": "127.0.0.1", "port": 9, "login": "r", "password": TOKEN, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", json.dumps(text))
    with pytest.raises(SecretError) as caught:
        login_environment("vault_default").get("secret/data/x", "connection vault_default")
    assert str(caught.value).startswith(f"connection vault_default: {expected}")
    assert "hid" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_token_that_an_agent_keeps_fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", f"vault://h?token_path={quote(str(file))}")
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        assert login_environment("vault_default").client.token == token


def test_what_is_empty_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's form leaves empty fields of other methods."""
    extra = {"auth_type": "token", "jwt_role": "", "kubernetes_role": None, "client_kwargs": {"namespace": None}}
    text = json.dumps({"conn_type": "vault", "host": "h", "password": TOKEN, "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", text)
    assert login_environment("vault_default").client.token == TOKEN


def test_nothing_is_set() -> None:
    with pytest.raises(SecretError, match="without Airflow; set VAULT_ADDR and VAULT_TOKEN, or AIRFLOW_CONN_"):
        login_environment("vault_default")
