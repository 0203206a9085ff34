"""Answers of a server, told apart; those a real OpenBao does not give on demand."""

from __future__ import annotations

import hvac.exceptions as vault
import pytest
import requests

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets.faults import DeniedError, NotAskedError, NotThereError, explain, explain_login, explain_unsent

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
        (requests.exceptions.InvalidURL(HIDDEN), NotAskedError, "ADDR is no usable address"),
        (vault.Unauthorized(text=HIDDEN), DeniedError, "permission denied"),
        (vault.InvalidRequest(errors=[HIDDEN]), SecretError, "refuses the request as invalid (400)"),
        (vault.InvalidPath(text=HIDDEN, json=[HIDDEN]), NotThereError, "there is nothing at this path"),
        (vault.InvalidPath(errors=["namespace not found", HIDDEN]), SecretError, "ADDR: there is no such namespace"),
        (vault.InvalidPath(errors=["no handler for route " + HIDDEN]), NotThereError, "ADDR has nothing mounted there"),
        (vault.UnsupportedOperation(errors=["unsupported operation", HIDDEN]), NotThereError, "no such path to read"),
        (vault.InvalidRequest(errors=["unknown role: " + HIDDEN]), NotThereError, "the engine has no such role"),
        (vault.InvalidRequest(errors=["Upgrading from non-versioned to " + HIDDEN]), UNAVAILABLE, "just being made KV"),
        (
            untrusted("certificate has expired"),
            NotAskedError,
            "clock right?",
        ),
        (
            untrusted("certificate is not yet valid"),
            NotAskedError,
            "clock",
        ),
        (
            untrusted("self-signed certificate"),
            NotAskedError,
            "self-signed",
        ),
        (tls("X509: NO_CERTIFICATE_OR_CRL_FOUND] no"), NotAskedError, "no certificate or key can be read from a file"),
        (tls("TLSV1_ALERT] handshake"), NotAskedError, "no common protocol or certificate"),
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


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (
            vault.InvalidRequest(errors=[HIDDEN]),
            SecretError,
            "ADDR refuses the login; check its credentials, role and auth_mount_point",
        ),
        (
            vault.Forbidden(errors=[HIDDEN]),
            SecretError,
            "ADDR refuses the login; check its credentials, role and auth_mount_point",
        ),
        (vault.InvalidRequest(errors=[f"token is expired {HIDDEN}"]), SecretError, "what was offered has expired"),
        (vault.InvalidRequest(errors=["to an HTTPS server"]), SecretError, "it speaks TLS: set use_tls"),
        (vault.InvalidPath(errors=["no handler for route"]), SecretError, "check auth_type and auth_mount_point"),
        (vault.InvalidPath(errors=["namespace not found"]), SecretError, "there is no such namespace"),
        (vault.VaultDown(errors=["Vault is sealed"]), UNAVAILABLE, "is sealed; unseal it"),
        (requests.ConnectionError(HIDDEN), UNAVAILABLE, "the connection broke"),
    ],
)
def test_answers_to_a_login(error: Exception, kind: type[SecretError], expected: str) -> None:
    told = explain_login(error, "W", "ADDR")
    assert expected in str(told)
    assert type(told) is kind
    assert HIDDEN not in f"{told!r} {vars(told)}"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "/a"),
            "/a: cannot be read (No such file or directory); corr",
        ),
        (OSError(HIDDEN), "a file for TLS cannot be found (OSError); check client_kwargs.verify and cert"),
        (ValueError(HIDDEN), "the request cannot be made (ValueError); check the connection, its client_kwargs first"),
        (AttributeError(HIDDEN), "the request cannot be made (AttributeError)"),
        (UnicodeEncodeError("latin-1", HIDDEN, 0, 1, "ordinal"), "the request cannot be made (UnicodeEncodeError)"),
    ],
)
def test_what_was_never_sent(error: Exception, expected: str) -> None:
    told = explain_unsent(error, "W")
    assert str(told).startswith(f"W: {expected}")
    assert HIDDEN not in str(told)
