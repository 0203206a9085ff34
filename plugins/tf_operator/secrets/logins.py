"""Logging in without Airflow, by the methods that need nothing but hvac."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tf_operator.errors import SecretError
from tf_operator.secrets.connection import Described, check_extra, check_token
from tf_operator.secrets.faults import explain_login
from tf_operator.secrets.session import REQUEST_TIMEOUT, VaultSession, translated

KUBERNETES_JWT = "/var/run/secrets/kubernetes.io/serviceaccount/token"
T = TypeVar("T")


def log_in(connection: str, described: Described) -> VaultSession:
    """Log in. What is kept in files is read now. Raises SecretError, SecretUnavailableError where it may pass."""
    import hvac

    where = f"connection {connection}"
    check_extra(described.extra, where)
    make: Any = hvac.Client
    client = make(url=described.address, token="", **{"timeout": REQUEST_TIMEOUT, **described.client_options})
    guarded(lambda: _authenticate(client, described, where), where, described.address)
    if not client.token:
        raise SecretError(f"{where}: {described.address} answers the login without a token; check its address")
    check_token(client.token, where)
    made_token = described.method != "token"
    return VaultSession(connection, client, described.mount, described.kv, made_token=made_token)


def guarded(login: Callable[[], T], where: str, address: str) -> T:
    """Run a login; whatever it raises becomes a SecretError without a credential in it."""
    try:
        return translated(login, where, address, explain_login)
    except SecretError:
        raise
    except ImportError as caught:
        text = f"this auth_type needs the Python package {caught.name}; install it"
    except Exception as caught:
        text = f"the login failed ({type(caught).__name__}); check the connection"
    raise SecretError(f"{where}: {text}")


def _authenticate(client: Any, described: Described, where: str) -> None:
    method, extra = described.method, described.extra
    mount = extra.get("auth_mount_point")
    at = {"mount_point": mount} if mount else {}

    def need(value: Any, name: str) -> str:
        if not value:
            raise SecretError(f"{where}: auth_type {method} needs {name}; set it")
        return str(value)

    if method == "token":
        client.token = need(described.password or _kept(extra, "token_path"), "a token (the connection's password)")
    elif method == "approle":
        role = need(described.login or extra.get("role_id"), "a role id (the connection's login)")
        client.auth.approle.login(role_id=role, secret_id=described.password, **at)
    elif method in ("userpass", "ldap"):
        user = need(described.login, "a user (the connection's login)")
        getattr(client.auth, method).login(username=user, password=described.password, **at)
    elif method == "jwt":
        jwt = need(extra.get("jwt_token") or _kept(extra, "jwt_token_path"), "extra jwt_token or jwt_token_path")
        role = need(extra.get("jwt_role"), "extra jwt_role")
        client.auth.jwt.jwt_login(role=role, jwt=jwt, **({"path": mount} if mount else {}))
    elif method == "kubernetes":
        jwt = Path(extra.get("kubernetes_jwt_path") or KUBERNETES_JWT).read_text().strip()
        role = need(extra.get("kubernetes_role"), "extra kubernetes_role")
        client.auth.kubernetes.login(role=role, jwt=jwt, **at)
    else:
        raise SecretError(
            f"{where}: auth_type {method} works on Airflow only; without it use token, approle, userpass, ldap, jwt"
            " or kubernetes"
        )


def _kept(extra: Any, name: str) -> str | None:
    return Path(extra[name]).read_text().strip() if extra.get(name) else None
