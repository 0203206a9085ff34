"""Login without Airflow: a connection from the environment, or the variables of Vault's own command line."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tf_operator.errors import SecretError
from tf_operator.secrets.session import REQUEST_TIMEOUT, VaultSession, translated

TLS_SCHEMES = ("vaults", "https")
SCHEMES = ("vault", "http", *TLS_SCHEMES)
CLIENT_OPTIONS = ("verify", "cert", "namespace", "proxies", "timeout")


@dataclass(frozen=True)
class _Described:
    """A connection as its environment variable describes it."""

    address: str
    login: str | None
    password: str | None = field(repr=False)
    mount: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def login_environment(connection: str) -> VaultSession:
    """Log in with AIRFLOW_CONN_<ID>; `vault_default` also with VAULT_ADDR and VAULT_TOKEN (or BAO_*)."""
    variable = f"AIRFLOW_CONN_{connection.upper()}"
    if text := os.environ.get(variable):
        return _log_in(connection, _described(text, variable))
    address, token = _either("ADDR"), _either("TOKEN")
    if connection == "vault_default" and address:
        if not token:
            raise SecretError(f"connection {connection}: VAULT_ADDR is set without VAULT_TOKEN; set both")
        options = {"verify": _either("CACERT") or True, "namespace": _either("NAMESPACE")}
        return _log_in(connection, _Described(address, None, token, None, {"client_kwargs": options}))
    way_out = "VAULT_ADDR and VAULT_TOKEN, or " if connection == "vault_default" else ""
    raise SecretError(f"connection {connection}: not known without Airflow; set {way_out}{variable} to a vault:// URI")


def _either(name: str) -> str | None:
    return os.environ.get(f"BAO_{name}") or os.environ.get(f"VAULT_{name}") or None


def _described(text: str, variable: str) -> _Described:
    """Read an Airflow connection, URI or JSON. Nothing of it gets into an error: it holds the password."""
    found: _Described | None = None
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        found = _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)
    if found is None:
        raise SecretError(
            f"{variable}: must be an Airflow connection of type vault: vault://:TOKEN@HOST:PORT/MOUNT, or JSON"
        )
    return found


def _from_uri(text: str) -> _Described | None:
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    login, password = (unquote(value) if value else None for value in (parts.username, parts.password))
    where = _address(parts.scheme, parts.hostname, parts.port, extra)
    return _Described(where, login, password, unquote(parts.path.strip("/")) or None, extra) if where else None


def _from_json(text: str) -> _Described | None:
    value = json.loads(text)
    extra = value.get("extra") or {}
    extra = json.loads(extra) if isinstance(extra, str) else extra
    where = _address(value.get("conn_type", ""), value.get("host"), value.get("port"), extra)
    return _Described(where, value.get("login"), value.get("password"), value.get("schema"), extra) if where else None


def _address(scheme: str, host: str | None, port: Any, extra: Mapping[str, Any]) -> str | None:
    """Return the server's URL by the rules of the Airflow provider; None if this is no vault connection."""
    if scheme not in SCHEMES or not host:
        return None
    tls = extra.get("use_tls")
    secure = scheme in TLS_SCHEMES if tls is None else str(tls).strip().lower() in ("true", "t", "1", "yes", "y", "on")
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}" + (f":{int(port)}" if port else "")


def _log_in(connection: str, described: _Described) -> VaultSession:
    import hvac

    options = described.extra.get("client_kwargs") or {}
    options = json.loads(options) if isinstance(options, str) else options
    allowed = {"timeout": REQUEST_TIMEOUT} | {
        key: options[key] for key in CLIENT_OPTIONS if options.get(key) is not None
    }
    make: Any = hvac.Client
    client = make(url=described.address, token="", **allowed)
    method = described.extra.get("auth_type") or "token"
    where = f"connection {connection}"
    if method == "token":
        if not described.password:
            raise SecretError(f"{where}: auth_type token needs a token (the connection's password); set it")
        client.token = described.password
    else:
        translated(lambda: _authenticate(client, method, described, where), where, described.address)
    version = described.extra.get("kv_engine_version")
    return VaultSession(
        connection, client, described.mount, int(version) if version else None, made_token=method != "token"
    )


def _authenticate(client: Any, method: str, described: _Described, where: str) -> None:
    at = {"mount_point": described.extra["auth_mount_point"]} if described.extra.get("auth_mount_point") else {}
    if method == "approle":
        role = described.login or described.extra.get("role_id")
        client.auth.approle.login(role_id=role, secret_id=described.password, **at)
    elif method in ("userpass", "ldap"):
        getattr(client.auth, method).login(username=described.login, password=described.password, **at)
    else:
        raise SecretError(
            f"{where}: auth_type {method} works on Airflow only; without it use token, approle, userpass or ldap"
        )
