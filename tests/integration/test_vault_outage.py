"""Case C-44: sealed, unreachable, not trusted and forbidden are different things."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hvac
import pytest
import requests
from vault_helpers import PROJECT, Logins, chain, put, ref, wait_for

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets import check, resolve
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
VALUE = "value-of-the-outage-tests"


@pytest.fixture
def own_openbao(tmp_path: Path) -> Iterator[DevOpenBao]:
    """A server of the test's own, to be sealed and stopped."""
    with DevOpenBao(tmp_path, project=PROJECT) as server:
        put(server, "secret/data/training/one", {"value": VALUE})
        yield server


@pytest.mark.parametrize("do", [resolve, check])
def test_c44_sealed(own_openbao: DevOpenBao, do: Any) -> None:
    own_openbao.client().sys.seal()
    login = Logins(own_openbao)
    with pytest.raises(SecretUnavailableError, match=r"the Vault at http://127.* is sealed; unseal it") as caught:
        do([ref("secret/training/one#value")], login, patience=3)
    assert len(login.asked) > 1
    assert VALUE not in chain(caught.value)


def test_c44_unsealed_while_we_wait(own_openbao: DevOpenBao) -> None:
    own_openbao.client().sys.seal()
    login = Logins(own_openbao)
    waited = threading.Event()

    def unseal() -> None:
        wait_for(lambda: len(login.asked) >= 3)
        waited.set()
        own_openbao.client().sys.submit_unseal_key(own_openbao.unseal_key)

    thread = threading.Thread(target=unseal)
    thread.start()
    try:
        assert resolve([ref("secret/training/one#value")], login).env == {"VALUE": VALUE}
    finally:
        thread.join()
    assert waited.is_set()


@pytest.mark.parametrize("do", [resolve, check])
def test_c44_down(own_openbao: DevOpenBao, do: Any) -> None:
    login = Logins(own_openbao)
    own_openbao.stop()
    began = time.monotonic()
    with pytest.raises(SecretUnavailableError, match="is unreachable: connection refused"):
        do([ref("secret/training/one#value")], login, patience=0.5)
    assert 0.5 <= time.monotonic() - began < 10


def test_a_login_is_waited_for_too(own_openbao: DevOpenBao) -> None:
    """An approle login at a sealed server is repeated; a login that works is not."""
    login = Logins(own_openbao)
    tries: list[str] = []

    def third_time_lucky(connection: str) -> Any:
        tries.append(connection)
        if len(tries) < 3:
            raise SecretUnavailableError("sealed")
        return login(connection)

    resolve([ref("secret/training/one#value"), ref("secret/training/one#value", env="B")], third_time_lucky)
    assert len(tries) == 3


def test_c44_tls(tmp_path: Path) -> None:
    with DevOpenBao(tmp_path, tls=True, project=PROJECT) as server:
        put(server, "secret/data/training/one", {"value": VALUE})
        trusting = server.client()
        assert resolve([ref("secret/training/one#value")], lambda _: trusting).env == {"VALUE": VALUE}

        session = requests.Session()
        session.trust_env = False
        stranger = hvac.Client(url=server.addr, token=server.token, session=session)
        with pytest.raises(SecretError, match="TLS with https.* failed: the certificate is not trusted") as caught:
            resolve([ref("secret/training/one#value")], lambda _: stranger)
        assert not isinstance(caught.value, SecretUnavailableError)
        assert "set client_kwargs.verify in the connection to its CA file" in str(caught.value)

        plain = hvac.Client(url=server.addr.replace("https", "http"), token=server.token, session=session)
        with pytest.raises(SecretError, match="it speaks TLS[:,] set use_tls in the connection"):
            resolve([ref("secret/training/one#value")], lambda _: plain, patience=0.5)


def test_c44_tls_with_a_server_that_has_none(own_openbao: DevOpenBao) -> None:
    session = requests.Session()
    session.trust_env = False
    client = hvac.Client(url=own_openbao.addr.replace("http", "https"), token=own_openbao.token, session=session)
    with pytest.raises(SecretError, match="the server does not speak TLS; remove use_tls"):
        resolve([ref("secret/training/one#value")], lambda _: client)


def test_something_that_is_no_vault(own_openbao: DevOpenBao) -> None:
    """A page with status 200, as many a load balancer gives."""
    login = Logins(own_openbao)
    login.client.adapter.request = lambda *args, **kwargs: requests.Response()
    with pytest.raises(SecretError, match="http://127.* does not answer as a Vault does; check its address"):
        resolve([ref("secret/training/one#value")], login)
