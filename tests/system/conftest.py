"""Fixtures of the system tests; `harness.py` tells how to use them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from docker_engine import DockerEngine
from harness import AirflowUnderTest, make_project, wait_for

from tf_operator.services.openbao import DevOpenBao

SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test's setup includes the start of Airflow, and runs take their time."""
    for item in items:
        if item.get_closest_marker("airflow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test tells what became of its runs: on a machine that is gone the next day nothing else does."""
    report = yield
    airflow = getattr(item, "funcargs", {}).get("airflow")
    if report.when == "call" and report.failed and isinstance(airflow, AirflowUnderTest):
        try:
            story = airflow.story()
        except Exception as caught:  # the test's own failure comes first
            story = f"Airflow does not tell: {caught}"
        report.sections.append(("what became of the runs", story))
    return report


@pytest.fixture(scope="session")
def session_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowUnderTest]:
    """One Airflow with an OpenBao for all system tests."""
    folder = tmp_path_factory.mktemp("airflow")
    project = make_project(folder / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__TF_OPERATOR__PROJECT_DIR", str(project))
        with DevOpenBao(folder / "openbao") as openbao:
            openbao.seed(project)
            under_test = AirflowUnderTest(folder, openbao)
            patch.delenv("AIRFLOW__TF_OPERATOR__PROJECT_DIR")
            with under_test.airflow:
                yield under_test


@pytest.fixture
def airflow(session_airflow: AirflowUnderTest) -> Iterator[AirflowUnderTest]:
    """The session's Airflow; what the test leaves unfinished is ended."""
    yield session_airflow
    session_airflow.settle()


@pytest.fixture
def docker_airflow(airflow: AirflowUnderTest, docker_engine: DockerEngine) -> Iterator[AirflowUnderTest]:
    """The session's Airflow on the session's Docker engine; nothing may be left on it."""
    airflow.use_engine(docker_engine.socket)
    yield airflow
    airflow.settle()
    wait_for(lambda: not docker_engine.left(), 60, lambda: f"the engine to be empty: {docker_engine.left()}")
