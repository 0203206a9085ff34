"""Talking to the session's OpenBao in tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hvac
import requests
from postgres_server import PostgresServer

from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.secrets import VaultSession
from tf_operator.services.openbao import DevOpenBao

Json = dict[str, Any]
PROJECT = Path(__file__).parents[2]


class RecordingAdapter(hvac.adapters.JSONAdapter):
    """The real adapter, which remembers what was asked, and can stand for a gateway that hides the mounts."""

    hides_mounts = False

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        self.asked = [*getattr(self, "asked", []), f"{method} {url.removeprefix('/v1/')}"]
        if self.hides_mounts and "sys/internal" in url:
            raise hvac.exceptions.Forbidden(errors=["1 error occurred:\n\t* permission denied"])
        return super().request(method, url, *args, **kwargs)


def put(server: DevOpenBao, api_path: str, values: Json) -> None:
    """Write at an API path (`kv2/data/x`, `kv1/x`)."""
    body = {"data": values} if "/data/" in api_path and not api_path.startswith("kv1/") else values
    deadline = time.monotonic() + 10
    while True:
        try:
            server.client().adapter.post(f"/v1/{api_path}", json=body)
            return
        except hvac.exceptions.InvalidRequest:  # a new version 2 mount is still being made one
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def database(server: DevOpenBao, postgres: PostgresServer, mount: str = "database", **role: str) -> None:
    """A database engine with the role `reader`; `role` has its default_ttl and max_ttl (durations)."""
    client = server.client()
    if f"{mount}/" not in client.sys.list_mounted_secrets_engines()["data"]:
        client.sys.enable_secrets_engine("database", path=mount)
    connection = {
        "plugin_name": "postgresql-database-plugin",
        "connection_url": f"postgresql://{{{{username}}}}:{{{{password}}}}@127.0.0.1:{postgres.port}/postgres",
        "allowed_roles": "*",
        "username": "postgres",
        "password": postgres.password,
    }
    client.adapter.post(f"/v1/{mount}/config/postgres", json=connection)
    statements = ["CREATE ROLE \"{{name}}\" WITH LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'"]
    body = {"db_name": "postgres", "creation_statements": statements, **role}
    client.adapter.post(f"/v1/{mount}/roles/reader", json=body)


def leases(server: DevOpenBao, prefix: str) -> list[str]:
    """The ids of the leases below `prefix`, without it."""
    try:
        found: list[str] = server.client().adapter.list(f"/v1/sys/leases/lookup/{prefix}")["data"]["keys"]
    except hvac.exceptions.InvalidPath:
        return []
    return found


def token(server: DevOpenBao, rules: str) -> str:
    """A token that may do just `rules`."""
    client = server.client()
    client.sys.create_or_update_policy("of-a-test", rules)
    made: Json = client.auth.token.create_orphan(policies=["of-a-test"], ttl="1h")
    return str(made["auth"]["client_token"])


class Logins:
    """A login that counts, with a given token (root without one)."""

    def __init__(
        self, server: DevOpenBao, token: str | None = None, hides_mounts: bool = False, **session: Any
    ) -> None:
        self.seen: list[str] = []
        self._options = session
        plain = requests.Session()
        plain.trust_env = False
        self.client = hvac.Client(
            url=server.addr, token=token or server.token, adapter=RecordingAdapter, session=plain, timeout=5
        )
        self.client.adapter.hides_mounts = hides_mounts

    def __call__(self, connection: str) -> VaultSession:
        self.seen.append(connection)
        return VaultSession(connection, self.client, **self._options)

    @property
    def asked(self) -> list[str]:
        return list(getattr(self.client.adapter, "asked", []))


def ref(vault: str, **fields: Any) -> RenderedSecret:
    """A reference as a job file has it: `path#key`, by default to the variable VALUE."""
    path, _, key = vault.partition("#")
    if "file" not in fields:
        fields.setdefault("env", "VALUE")
    return RenderedSecret(path=path, key=key, **fields)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll until `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


def chain(error: BaseException) -> str:
    """Everything that could be printed of an exception: all messages, reprs and attributes along its chain."""
    told, todo = "", [error]
    while todo:
        one = todo.pop()
        told += f"{one!r} {one} {vars(one)}\n"
        todo += [other for other in (one.__cause__, one.__context__) if other]
    return told
