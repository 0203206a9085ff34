"""What an Airflow connection may say of its requests; a login with a token asks no server."""

from __future__ import annotations

import json

import pytest

from tf_operator.secrets.airflow_login import login_airflow
from tf_operator.secrets.session import REQUEST_TIMEOUT


@pytest.mark.parametrize(
    ("options", "seconds"), [({}, REQUEST_TIMEOUT), ({"timeout": None}, REQUEST_TIMEOUT), ({"timeout": 7}, 7)]
)
def test_every_request_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, int | None], seconds: float
) -> None:
    extra = {"client_kwargs": options}
    text = json.dumps({"conn_type": "vault", "host": "h", "password": "token", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", text)
    assert login_airflow("vault_default").client.adapter._kwargs["timeout"] == seconds


def test_options_as_requests_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty verify would be no check of the server's certificate."""
    extra = {"client_kwargs": {"verify": "", "cert": ["a", "b"], "namespace": None}}
    text = json.dumps({"conn_type": "vault", "host": "h", "password": "token", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_VAULT_DEFAULT", text)
    client = login_airflow("vault_default").client
    assert (client.session.verify, client.session.cert, client.adapter.namespace) == (True, ("a", "b"), None)
