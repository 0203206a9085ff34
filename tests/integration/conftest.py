"""What the integration tests start: one OpenBao per session, one PostgreSQL where a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.docker_kit import DockerKit
from docker_engine import DockerEngine
from postgres_server import PostgresServer, binaries
from vault_helpers import PROJECT

from tf_operator.services.openbao import DevOpenBao


@pytest.fixture(scope="session")
def openbao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevOpenBao]:
    """A real OpenBao with the mounts kv1, kv2, team/kv1 and team/kv2, besides secret (version 2)."""
    with DevOpenBao(tmp_path_factory.mktemp("openbao"), project=PROJECT) as server:
        client = server.client()
        for path in ("kv1", "kv2", "team/kv1", "team/kv2"):
            client.sys.enable_secrets_engine("kv", path=path, options={"version": path[-1]})
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL, for dynamic credentials."""
    if not os.environ.get("CI"):
        try:
            binaries()
        except FileNotFoundError as error:
            pytest.skip(str(error))
    with PostgresServer() as server:
        yield server


@pytest.fixture
def kit(tmp_path: Path, docker_engine: DockerEngine) -> Iterator[DockerKit]:
    """The docker runner on an empty host."""
    made = DockerKit(tmp_path, docker_engine)
    yield made
    made.close()
