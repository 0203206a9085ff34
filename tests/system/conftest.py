"""Fixtures of the system tests; `airflow_under_test.py` tells how to use them."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import pytest
from airflow_under_test import AirflowUnderTest, make_project
from docker_engine import DockerEngine
from run_under_test import wait_for

from tf_operator.services.openbao import DevOpenBao

SECONDS = 600
STORY_SECONDS = 40.0
SESSION = pytest.StashKey[AirflowUnderTest]()


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
    airflow = _airflow_of(item)
    if report.when != "teardown" and report.failed and airflow:
        report.sections.append(("what became of the runs", _story(airflow)))
    return report


def _airflow_of(item: pytest.Item) -> AirflowUnderTest | None:
    """The one of the test itself, else the session's: a fixture of the module that fails has given the test nothing."""
    own = (value for value in getattr(item, "funcargs", {}).values() if isinstance(value, AirflowUnderTest))
    shared = "session_airflow" in getattr(item, "fixturenames", ())
    return next(own, item.config.stash.get(SESSION, None) if shared else None)


def _story(airflow: AirflowUnderTest) -> str:
    told: list[str] = []
    end = time.monotonic() + STORY_SECONDS
    try:
        for line in airflow.story():
            told.append(line)
            if time.monotonic() > end:
                told.append(f"no more was told within {STORY_SECONDS:.0f} s")
                break
    except (Exception, pytest.fail.Exception) as caught:  # the test's own failure comes first
        told.append(f"Airflow tells no more: {caught}")
    return "\n".join(told)


@pytest.fixture(scope="session")
def session_airflow(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[AirflowUnderTest]:
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
                pytestconfig.stash[SESSION] = under_test
                yield under_test
                del pytestconfig.stash[SESSION]


@pytest.fixture
def airflow(session_airflow: AirflowUnderTest) -> Iterator[AirflowUnderTest]:
    """The session's Airflow; what the test leaves unfinished is ended."""
    session_airflow.revive()
    yield session_airflow
    session_airflow.settle()


@pytest.fixture
def docker_airflow(airflow: AirflowUnderTest, docker_engine: DockerEngine) -> Iterator[AirflowUnderTest]:
    """The session's Airflow on the session's Docker engine; nothing may be left on it."""
    airflow.use_engine(docker_engine.socket)
    yield airflow
    airflow.settle()
    wait_for(lambda: not docker_engine.left(), 60, lambda: f"the engine to be empty: {docker_engine.left()}")
