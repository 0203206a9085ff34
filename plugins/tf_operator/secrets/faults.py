"""What can be wrong with a read, told apart, in one line each and without a value."""

from __future__ import annotations

import re
from typing import Any

from tf_operator.errors import SecretError, SecretUnavailableError


class NotThereError(SecretError):
    """404. `state` is absent, deleted, destroyed, or wrong engine (asked a KV version 2 mount as version 1)."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


class DeniedError(SecretError):
    """403. Wrong policy and wrong path look the same to a client; `bad_token` where it is neither."""

    def __init__(self, message: str, bad_token: bool = False) -> None:
        super().__init__(message)
        self.bad_token = bad_token


def explain(error: Exception, where: str, address: str) -> SecretError:
    """Return our error for one of hvac or requests. The server's own words are dropped but for known phrases."""
    import hvac.exceptions as hvac
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return SecretError(f"{where}: TLS with {address} failed: {_tls_reason(str(error))}")
    if isinstance(error, requests.Timeout | requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return SecretUnavailableError(f"{where}: {address} is unreachable: {_network_reason(str(error), address)}")
    if isinstance(error, requests.RequestException):
        return SecretError(f"{where}: {address} is no usable address; check the connection's host, port and use_tls")
    said = " ".join(getattr(error, "errors", None) or [getattr(error, "text", None) or ""])
    if isinstance(error, hvac.InvalidPath):
        return _not_there(error, where)
    if isinstance(error, hvac.Forbidden | hvac.Unauthorized):
        return _denied(said, where)
    if isinstance(error, hvac.VaultDown) and "sealed" in said:
        return SecretUnavailableError(f"{where}: the Vault at {address} is sealed; unseal it")
    if isinstance(error, hvac.InvalidRequest):
        hint = "it speaks TLS: set use_tls in the connection" if "HTTPS server" in said else "check the connection"
        return SecretError(f"{where}: {address} refuses the request as invalid (400); {hint}")
    if type(error) is hvac.VaultError and getattr(error, "url", None) is None:
        # Raised on our side by the Airflow provider for what a connection lacks.
        return SecretError(f"{where}: {str(error.args[0]).splitlines()[0]}")
    kind = type(error).__name__
    return SecretUnavailableError(f"{where}: the Vault at {address} cannot answer now ({kind}); see its log")


def _not_there(error: Any, where: str) -> NotThereError:
    answer: dict[str, Any] = error.json if isinstance(error.json, dict) else {}
    metadata: dict[str, Any] = (answer.get("data") or {}).get("metadata") or {}
    if metadata.get("destroyed"):
        return NotThereError(f"{where}: version {metadata.get('version')} was destroyed; write it again", "destroyed")
    if metadata.get("deletion_time"):
        return NotThereError(f"{where}: version {metadata.get('version')} was deleted; undelete or write it", "deleted")
    if any("versioned" in str(warning) for warning in answer.get("warnings") or ()):
        return NotThereError(
            f"{where}: the mount is KV version 2, read as version 1; correct or remove kv", "wrong engine"
        )
    return NotThereError(f"{where}: there is nothing at this path", "absent")


def _denied(said: str, where: str) -> DeniedError:
    # A policy's refusal is a list of errors; a bare "permission denied" means the token itself is not known.
    if "invalid token" in said or said.strip() == "permission denied":
        text = f"{where}: permission denied: the connection's token is wrong, expired or revoked; renew it"
        return DeniedError(text, bad_token=True)
    return DeniedError(f"{where}: permission denied")


def _tls_reason(text: str) -> str:
    if found := re.search(r"certificate verify failed: ([^(\]]+)", text):
        reason = found.group(1).strip()
        if "expired" in reason or "not yet valid" in reason:
            reason += " (is this host's clock right?)"
        return f"the certificate is not trusted: {reason}; set client_kwargs.verify in the connection to its CA file"
    if "WRONG_VERSION_NUMBER" in text or "record layer" in text:
        return "the server does not speak TLS; remove use_tls from the connection"
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
