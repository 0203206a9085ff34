"""What the runner contract needs of a backend: a kit for each. Swarm adds its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .process_kit import ProcessKit


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessKit]:
    """Every runner in turn."""
    made: ProcessKit
    if request.param == "docker":
        from .docker_kit import DockerKit

        made = DockerKit(tmp_path, request.getfixturevalue("docker_engine"))
    else:
        made = ProcessKit(tmp_path)
    yield made
    made.close()


@pytest.fixture
def process_kit(tmp_path: Path) -> Iterator[ProcessKit]:
    """The process runner alone."""
    made = ProcessKit(tmp_path)
    yield made
    made.close()
