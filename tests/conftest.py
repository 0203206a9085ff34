"""What all tests share: an Airflow home of their own, and nothing of the developer's environment."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from docker_engine import DockerEngine

# Before any test module imports Airflow: it reads its configuration at import, and writes into its home.
for name in [key for key in os.environ if key.startswith(("AIRFLOW", "VAULT_", "BAO_"))]:
    del os.environ[name]
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="tf_operator_tests_airflow_")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The base image is made once, before a test's time begins: debootstrap takes minutes on a busy machine."""
    if item.get_closest_marker("docker") or item.get_closest_marker("swarm"):
        from docker_engine import base_image

        # Whoever needs it says what is wrong.
        with contextlib.suppress(Exception):
            base_image()
    return (yield)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    """A real Docker engine with the base image, for the whole session. It takes requests for GPUs."""
    from docker_engine import DockerEngine

    with DockerEngine(gpus=True) as engine:
        yield engine.with_base_image()
