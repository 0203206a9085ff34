"""What can be wrong with a read, told apart, in one line each and without a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tf_operator.errors import SecretError, SecretUnavailableError


class NotThereError(SecretError):
    """`state` is absent, deleted, destroyed, no mount, wrong version (of KV), wrong engine (no such path to read)."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


class DeniedError(SecretError):
    """403. Wrong policy and wrong path look the same to a client; `bad_token` where it is neither."""

    def __init__(self, message: str, bad_token: bool = False) -> None:
        super().__init__(message)
        self.bad_token = bad_token


class NotAskedError(SecretError):
    """No Vault was asked: TLS, the address or the connection's options. Says nothing of what was asked for."""


def explain(error: Exception, where: str, address: str) -> SecretError:
    """Return our error for one of hvac or requests. The server's own words are dropped but for known phrases.

    `address` is the server's URL, and its namespace where the connection has one.
    """
    import hvac.exceptions as hvac
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return NotAskedError(f"{where}: TLS with {address} failed: {_tls_reason(str(error))}")
    if isinstance(error, requests.Timeout | requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return SecretUnavailableError(f"{where}: {address} is unreachable: {_network_reason(str(error), address)}")
    if isinstance(error, requests.RequestException):
        return NotAskedError(f"{where}: {_unusable(error, address)}")
    said = " ".join(getattr(error, "errors", None) or [getattr(error, "text", None) or ""])
    if isinstance(error, hvac.InvalidPath | hvac.UnsupportedOperation):
        return _not_there(error, said, where, address)
    if isinstance(error, hvac.Forbidden | hvac.Unauthorized):
        return _denied(said, where)
    if isinstance(error, hvac.VaultDown) and "sealed" in said:
        return SecretUnavailableError(f"{where}: the Vault at {address} is sealed; unseal it")
    if isinstance(error, hvac.InvalidRequest):
        return _refused(said, where, address)
    if type(error) is hvac.VaultError and getattr(error, "url", None) is None:
        # Raised on our side by the Airflow provider for what a connection lacks.
        return SecretError(f"{where}: {str(error.args[0]).splitlines()[0]}")
    kind = type(error).__name__
    return SecretUnavailableError(f"{where}: the Vault at {address} cannot answer now ({kind}); see its log")


def explain_login(error: Exception, where: str, address: str) -> SecretError:
    """Return our error for a login that failed, likewise. What was offered is not in the server's answer's phrases."""
    import hvac.exceptions as hvac

    said = " ".join(getattr(error, "errors", None) or [getattr(error, "text", None) or ""])
    if isinstance(error, hvac.InvalidPath) and "no handler for route" in said:
        text = "has no such auth method mounted there; check auth_type and auth_mount_point"
        return SecretError(f"{where}: {address} {text}")
    refused = isinstance(error, hvac.InvalidRequest | hvac.Forbidden | hvac.Unauthorized)
    if refused and "HTTPS server" not in said:
        expired = (
            "what was offered has expired; renew it"
            if "expired" in said
            else "check its credentials, role and auth_mount_point"
        )
        return SecretError(f"{where}: {address} refuses the login; {expired}")
    return explain(error, where, address)


def explain_unsent(error: Exception, where: str) -> NotAskedError:
    """Return our error for what broke before anything was sent. Its own text is dropped: it may hold a value."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: cannot be read ({error.strerror}); correct the connection's path, or the file"
    elif isinstance(error, OSError):
        text = f"a file for TLS cannot be found ({kind}); check client_kwargs.verify and cert, or VAULT_CACERT"
    else:
        text = f"the request cannot be made ({kind}); check the connection, its client_kwargs first"
    return NotAskedError(f"{where}: {text}")


def gone(where: str, metadata: Mapping[str, Any]) -> NotThereError | None:
    """The error for a version of which only this is left; None for one that is there."""
    number = metadata.get("version")
    if metadata.get("destroyed"):
        return NotThereError(f"{where}: version {number} was destroyed; write it again", "destroyed")
    if _is_past(metadata.get("deletion_time") or ""):
        text = f"{where}: version {number} was deleted, or expired by its delete_version_after; undelete or write it"
        return NotThereError(text, "deleted")
    return None


def _not_there(error: Any, said: str, where: str, address: str) -> SecretError:
    answer: dict[str, Any] = error.json if isinstance(error.json, dict) else {}
    if left := gone(where, (answer.get("data") or {}).get("metadata") or {}):
        return left
    if "namespace not found" in said:
        return SecretError(f"{where}: {address}: there is no such namespace; correct the connection's")
    if "no handler for route" in said:
        return NotThereError(f"{where}: {address} has nothing mounted there; check the path's mount", "no mount")
    if any("versioned" in str(warning) for warning in answer.get("warnings") or ()):
        text = f"{where}: the mount is KV version 2, read as version 1; correct or remove kv"
        return NotThereError(text, "wrong version")
    if "unsupported" in said:
        return NotThereError(f"{where}: the engine has no such path to read", "wrong engine")
    return NotThereError(f"{where}: there is nothing at this path", "absent")


def _refused(said: str, where: str, address: str) -> SecretError:
    if "unknown role" in said:
        return NotThereError(f"{where}: the engine has no such role", "absent")
    if "Upgrading from non-versioned" in said:
        return SecretUnavailableError(f"{where}: the mount is just being made KV version 2; try again")
    hint = "it speaks TLS: set use_tls in the connection" if "HTTPS server" in said else "check path and connection"
    return SecretError(f"{where}: {address} refuses the request as invalid (400); {hint}")


def _denied(said: str, where: str) -> DeniedError:
    # A policy's refusal is a list of errors; a bare "permission denied" means the token itself is not known.
    if "invalid token" in said or said.strip() == "permission denied":
        text = f"{where}: permission denied: the connection's token is wrong, expired or revoked; renew it"
        return DeniedError(text, bad_token=True)
    return DeniedError(f"{where}: permission denied")


def _unusable(error: Exception, address: str) -> str:
    import requests

    if isinstance(error, requests.exceptions.InvalidProxyURL):
        return "client_kwargs.proxies: is no usable URL; correct it"
    if isinstance(error, requests.exceptions.InvalidHeader):
        return "client_kwargs.namespace: no request can carry it; correct it"
    return f"{address} is no usable address; check the connection's host, port and use_tls"


def _tls_reason(text: str) -> str:
    if found := re.search(r"certificate verify failed: ([^(\]]+)", text):
        reason = found.group(1).strip()
        if "expired" in reason or "not yet valid" in reason:
            reason += " (is this host's clock right?)"
        return f"the certificate is not trusted: {reason}; set client_kwargs.verify in the connection to its CA file"
    if "WRONG_VERSION_NUMBER" in text or "record layer" in text:
        return "the server does not speak TLS; remove use_tls from the connection"
    if "X509" in text or "PEM" in text or "Permission denied" in text:
        return "no certificate or key can be read from a file of client_kwargs.verify or cert; correct it"
    return "no common protocol or certificate"


def _network_reason(text: str, address: str) -> str:
    for phrase in ("Connection refused", "timed out", "No route to host", "Network is unreachable"):
        if phrase in text:
            return phrase.lower()
    if "resolve" in text or "Name or service" in text:
        return "its name cannot be resolved"
    # A server that speaks TLS answers plain HTTP with a line and a reset: often only the reset is seen.
    hint = "; if it speaks TLS, set use_tls in the connection" if address.startswith("http:") else ""
    return f"the connection broke{hint}"


def _is_past(moment: str) -> bool:
    """Whether an RFC 3339 time is over; a time that cannot be read is (it is only set for a deletion)."""
    if not moment:
        return False
    try:
        return datetime.fromisoformat(moment[:19]).replace(tzinfo=UTC) <= datetime.now(UTC)
    except ValueError:
        return True
