"""What plan asks of the API server: whether a triggerer lives."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path

import pytest
from api_server import Server, serving

from tf_operator.errors import PreflightError
from tf_operator.operators import checks

HEALTHY = (200, {"triggerer": {"status": "healthy"}})
AWAY = (200, {"triggerer": {"status": "unhealthy"}})


def ask(monkeypatch: pytest.MonkeyPatch, url: str, patience: float = 0.0) -> list[str]:
    """What plan warns of."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", f"{url}/execution/")
    monkeypatch.setattr(checks, "HEALTH_PATIENCE", patience)
    warnings: list[str] = []
    checks.triggerer(warnings.append)
    return warnings


def certified(server: Server, folder: Path) -> Path:
    """Have the server speak TLS with a certificate of its own making; returns that."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost", "-out", str(cert), "-keyout", str(key)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return cert


def test_a_server_with_a_certificate_of_its_own_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        cert = certified(server, tmp_path)
        url = f"https://localhost:{server.server_port}"
        begun = time.monotonic()
        found = ask(monkeypatch, url, patience=60.0)
        assert len(found) == 1 and "CERTIFICATE_VERIFY_FAILED" in found[0]
        assert time.monotonic() - begun < 30, "waiting makes no certificate right"
        monkeypatch.setenv("AIRFLOW__API__SSL_CERT", str(cert))
        server.answers += [HEALTHY, AWAY]
        assert ask(monkeypatch, url) == []
        with pytest.raises(PreflightError, match="no triggerer is running"):
            ask(monkeypatch, url)


@pytest.mark.parametrize("answer", [(404, {"detail": "Not Found"}), (200, b"<html>"), (200, {"status": "up"})])
def test_what_is_no_airflow_is_told_at_once_in_one_line(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, dict[str, str] | bytes]
) -> None:
    with serving() as server:
        server.answers += [answer]
        found = ask(monkeypatch, server.url, patience=60.0)
        assert len(found) == 1 and "the API server's health cannot be read" in found[0] and "\n" not in found[0]
        assert len(server.asked) == 1


def test_a_server_that_begins_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        server.answers += [(503, {}), HEALTHY]
        assert ask(monkeypatch, server.url, patience=60.0) == []


def test_a_certificate_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW__API__SSL_CERT", str(tmp_path / "none"))
    assert "FileNotFoundError" in ask(monkeypatch, "https://localhost:9", patience=60.0)[0]
