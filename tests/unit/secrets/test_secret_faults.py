"""Answers of a server, told apart; those a real OpenBao does not give on demand."""

from __future__ import annotations

import hvac.exceptions as vault
import pytest
import requests

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets.faults import DeniedError, NotThereError, explain

HIDDEN = "never-to-be-seen"
UNAVAILABLE = SecretUnavailableError


def tls(reason: str) -> requests.exceptions.SSLError:
    return requests.exceptions.SSLError(f"Max retries exceeded (Caused by SSLError(1, '[SSL] {reason} (_ssl.c:1006)'))")


def untrusted(reason: str) -> requests.exceptions.SSLError:
    return tls(f"CERTIFICATE_VERIFY_FAILED] certificate verify failed: {reason}")


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (
            vault.VaultDown(errors=["Vault is sealed"]),
            UNAVAILABLE,
            "at ADDR is sealed; unseal it",
        ),
        (
            vault.VaultDown(errors=[HIDDEN]),
            UNAVAILABLE,
            "cannot answer now (VaultDown); see its log",
        ),
        (
            vault.InternalServerError(text=HIDDEN),
            UNAVAILABLE,
            "cannot answer now (InternalServerError)",
        ),
        (vault.BadGateway(text=HIDDEN), UNAVAILABLE, "cannot answer now (BadGateway)"),
        (
            vault.RateLimitExceeded(text=HIDDEN),
            UNAVAILABLE,
            "cannot answer now (RateLimitExceeded)",
        ),
        (requests.ConnectTimeout(f"{HIDDEN} timed out"), UNAVAILABLE, "ADDR is unreachable: timed out"),
        (
            requests.ConnectionError(f"{HIDDEN} Failed to resolve"),
            UNAVAILABLE,
            "its name cannot be resolved",
        ),
        (requests.ConnectionError(HIDDEN), UNAVAILABLE, "the connection broke"),
        (requests.exceptions.InvalidURL(HIDDEN), SecretError, "ADDR is no usable address"),
        (vault.Unauthorized(text=HIDDEN), DeniedError, "permission denied"),
        (vault.InvalidRequest(errors=[HIDDEN]), SecretError, "refuses the request as invalid (400)"),
        (vault.InvalidPath(text=HIDDEN, json=[HIDDEN]), NotThereError, "there is nothing at this path"),
        (
            untrusted("certificate has expired"),
            SecretError,
            "clock right?",
        ),
        (
            untrusted("certificate is not yet valid"),
            SecretError,
            "clock",
        ),
        (
            untrusted("self-signed certificate"),
            SecretError,
            "self-signed",
        ),
        (tls("TLSV1_ALERT] handshake"), SecretError, "no common protocol or certificate"),
        (
            vault.VaultError("The 'x' authentication needs y"),
            SecretError,
            "W: The 'x' auth",
        ),
    ],
)
def test_answers(error: Exception, kind: type[SecretError], expected: str) -> None:
    told = explain(error, "W", "ADDR")
    assert expected in str(told)
    assert str(told).startswith("W: ")
    assert type(told) is kind
    assert HIDDEN not in f"{told!r} {vars(told)}"
