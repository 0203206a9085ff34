"""One login at one Vault (or OpenBao), and what its answers mean."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import tenacity

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets import faults
from tf_operator.secrets.model import Lease

PATIENCE = 20.0
"""Seconds for which a sealed or unreachable Vault is asked again, over all secrets of a replica."""
REQUEST_TIMEOUT = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class VaultSession:
    """A logged-in client, and what its connection says."""

    connection: str
    client: Any = field(repr=False)
    """An hvac client."""
    mount: str | None = None
    """The connection's own mount: a guess where the server does not tell the mounts."""
    kv: int | None = None
    """The connection's KV version: likewise."""
    made_token: bool = False
    """Whether this login made the token. Then it is revoked in the end; one that was given is not ours to revoke."""
    register_masks: Callable[[Sequence[str]], None] | None = field(default=None, repr=False)
    """Told the texts to keep out of logs before anybody gets a value."""

    def answer(self, path: str, where: str, **params: str | int) -> dict[str, Any]:
        """Read an API path: `data`, and the lease's fields. Raises the errors of `faults`; `where` begins them."""
        return self._call("get", path, where, params=params or None)

    def get(self, path: str, where: str, **params: str | int) -> dict[str, Any]:
        """Read an API path's data, likewise."""
        data: dict[str, Any] = self.answer(path, where, **params)["data"]
        return data

    def list(self, path: str, where: str) -> dict[str, Any]:
        """List an API path, likewise."""
        data: dict[str, Any] = self._call("list", path, where)["data"]
        return data

    def post(self, path: str, where: str, body: dict[str, Any]) -> dict[str, Any]:
        """Write to an API path, likewise."""
        data: dict[str, Any] = self._call("post", path, where, json=body)["data"]
        return data

    def revoke(self, lease: Lease) -> None:
        """End a lease, and what it granted, before this returns. Raises as `get`; a lease that is gone is no error."""
        where = f"lease on {lease.path} (connection {lease.connection})"
        body = {"lease_id": lease.lease_id, "sync": True}
        translated(lambda: self.client.adapter.post("/v1/sys/leases/revoke", json=body), where, self.address)

    @property
    def address(self) -> str:
        """The server's URL, and the namespace where there is one: for messages."""
        namespace = self.client.adapter.namespace
        return str(self.client.adapter.base_uri) + (f" (namespace {namespace})" if namespace else "")

    def close(self) -> None:
        """Revoke the token if this login made it. A failure is no error: the token's TTL bounds its life."""
        with contextlib.suppress(Exception):
            if self.made_token:
                self.client.adapter.post("/v1/auth/token/revoke-self")
        with contextlib.suppress(Exception):
            self.client.adapter.close()

    def _call(self, method: str, path: str, where: str, **options: Any) -> dict[str, Any]:
        send = getattr(self.client.adapter, method)
        answer = translated(lambda: send(f"/v1/{quote(path)}", **options), where, self.address)
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise SecretError(f"{where}: {self.address} does not answer as a Vault does; check its address")
        return answer


Login = Callable[[str], Any]
"""Connection id → VaultSession (or a bare hvac client, whose token is then not revoked)."""


def translated(
    action: Callable[[], T], where: str, address: str, explain: Callable[..., SecretError] = faults.explain
) -> T:
    """Run `action`; its hvac and network errors become SecretErrors, in the words of `explain`.

    So do Python's own, which is what options that requests cannot use end in. All are raised outside the handler, so
    that they carry no context: hvac's errors hold whole answers.
    """
    import hvac.exceptions
    import requests

    try:
        return action()
    except (hvac.exceptions.VaultError, requests.RequestException) as caught:
        error = explain(caught, where, address)
    except (OSError, ValueError, TypeError, AttributeError) as caught:
        error = faults.explain_unsent(caught, where)
    raise error


class Patience:
    """Repeats what fails for a sealed or unreachable Vault, with back-off, until the time is used up. Nothing else."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def __call__(self, action: Callable[[], T]) -> T:
        """Return what `action` returns; raises its last error."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(SecretUnavailableError),
            stop=lambda _: time.monotonic() >= self._deadline,
            wait=tenacity.wait_random_exponential(multiplier=0.2, min=0.1, max=3),
            reraise=True,
        )
        return retrying(action)


@contextlib.contextmanager
def sessions(login: Login, patience: Patience) -> Iterator[Callable[[str], VaultSession]]:
    """Give connection id → session, with one login per connection; all are closed in the end."""
    known: dict[str, VaultSession] = {}

    def session(connection: str) -> VaultSession:
        if connection not in known:
            made = patience(lambda: login(connection))
            known[connection] = made if isinstance(made, VaultSession) else VaultSession(connection, made)
        return known[connection]

    try:
        yield session
    finally:
        for one in known.values():
            one.close()
