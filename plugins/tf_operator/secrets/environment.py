"""Login without Airflow: a connection from the environment, or the variables of Vault's own command line."""

from __future__ import annotations

import contextlib
import json
import os
from urllib.parse import parse_qsl, unquote, urlsplit

from tf_operator.errors import SecretError
from tf_operator.secrets.connection import Described, address_of
from tf_operator.secrets.logins import log_in
from tf_operator.secrets.session import VaultSession


def login_environment(connection: str) -> VaultSession:
    """Log in with AIRFLOW_CONN_<ID>; `vault_default` also with VAULT_ADDR and VAULT_TOKEN (or BAO_*)."""
    variable = f"AIRFLOW_CONN_{connection.upper()}"
    if text := os.environ.get(variable):
        return log_in(connection, _described(text, variable))
    address, token = _either("ADDR"), _either("TOKEN")
    if connection == "vault_default" and address:
        if not token:
            raise SecretError(f"connection {connection}: VAULT_ADDR is set without VAULT_TOKEN; set both")
        options = {"verify": _either("CACERT") or True, "namespace": _either("NAMESPACE")}
        return log_in(connection, Described(address, None, token, None, {"client_kwargs": options}))
    way_out = "VAULT_ADDR and VAULT_TOKEN, or " if connection == "vault_default" else ""
    raise SecretError(f"connection {connection}: not known without Airflow; set {way_out}{variable} to a vault:// URI")


def is_known(connection: str) -> bool:
    """Whether the environment says where this connection's Vault is."""
    return bool(os.environ.get(f"AIRFLOW_CONN_{connection.upper()}")) or (
        connection == "vault_default" and bool(_either("ADDR"))
    )


def _either(name: str) -> str | None:
    return os.environ.get(f"BAO_{name}") or os.environ.get(f"VAULT_{name}") or None


def _described(text: str, variable: str) -> Described:
    """Read an Airflow connection, URI or JSON. Nothing of it gets into an error: it holds the password."""
    found: Described | None = None
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        found = _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)
    if found is None:
        raise SecretError(
            f"{variable}: must be an Airflow connection of type vault: vault://:TOKEN@HOST:PORT/MOUNT, or JSON"
        )
    return found


def _from_uri(text: str) -> Described | None:
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    login, password = (unquote(value) if value else None for value in (parts.username, parts.password))
    where = address_of(parts.scheme, parts.hostname, parts.port, extra)
    return Described(where, login, password, unquote(parts.path.strip("/")) or None, extra) if where else None


def _from_json(text: str) -> Described | None:
    value = json.loads(text)
    extra = value.get("extra") or {}
    extra = json.loads(extra) if isinstance(extra, str) else extra
    where = address_of(value.get("conn_type", ""), value.get("host"), value.get("port"), extra)
    return Described(where, value.get("login"), value.get("password"), value.get("schema"), extra) if where else None
