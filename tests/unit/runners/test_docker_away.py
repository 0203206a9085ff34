"""An engine, or a registry behind it, that stalls, breaks off or is away in the wrong moment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from silent_engine import PROGRESS, SilentEngine

from tf_operator.errors import EngineUnavailableError, RunnerError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners import docker_images, docker_leftovers
from tf_operator.runners.base import Exit, Handle, Launch
from tf_operator.runners.docker import DockerRunner
from tf_operator.runners.docker_container import Containers, Found
from tf_operator.runners.docker_engine import Engine
from tf_operator.runners.docker_images import ensure_image
from tf_operator.runners.docker_spec import LABEL, place_mark

WHO = Identity("d", "r", "train", ReplicaId("worker", 0))
HANDLE = Handle(WHO, "a", 1, 1, "worker-0:2222", {"container": "c", "start": 1})
LAUNCH = Launch(WHO, "a", 1, 1, ["x"], "/", {}, runtime={"image": "team/x:1"})


@pytest.mark.parametrize("steps", [(), (PROGRESS,)])
def test_a_pull_that_shows_no_progress_ends(monkeypatch: pytest.MonkeyPatch, steps: tuple[Any, ...]) -> None:
    monkeypatch.setattr(docker_images, "SILENCE", 0.5)
    with SilentEngine(*steps) as engine, pytest.raises(RunnerError) as raised:
        ensure_image(Engine(engine.url, patience=0), "team/x:1", None, "worker-0")
    assert str(raised.value) == (
        "worker-0: pulling image team/x:1: no progress for 0.5 s: see why the engine or the registry is stuck, or pull"
        " it by hand"
    )
    assert not isinstance(raised.value, EngineUnavailableError), "which would be waited for once more"


def test_a_pull_may_take_long_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_images, "SILENCE", 1.0)
    with SilentEngine(*(PROGRESS, 0.3) * 5, None) as engine:
        ensure_image(Engine(engine.url, patience=0), "team/x:1", None, "worker-0")


def test_a_pull_that_is_broken_off_is_an_engine_that_is_away() -> None:
    with SilentEngine(PROGRESS, "break") as engine, pytest.raises(EngineUnavailableError, match="does not answer"):
        ensure_image(Engine(engine.url, patience=0), "team/x:1", None, "worker-0")


def test_who_waits_for_an_image_is_free_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_images, "BRIEFLY", 0.05)
    with SilentEngine(PROGRESS, 0.6, PROGRESS, None) as engine:
        runner = DockerRunner(tmp_path, engine.url, patience=0.0)
        began = time.monotonic()
        assert not runner.prepare(LAUNCH)
        assert time.monotonic() - began < 0.5
        while not runner.prepare(LAUNCH):
            pass
        assert runner.prepare(LAUNCH)
    assert engine.asked.count("POST /images/create") == 1, "once for each start"


def test_what_an_image_cannot_be_had_for_is_said_once_and_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SilentEngine({"error": "connection refused"}, None) as engine:
        runner = DockerRunner(tmp_path, engine.url, patience=0.0)
        for _ in range(2):
            with pytest.raises(RunnerError, match="the registry cannot be reached now"):
                while not runner.prepare(LAUNCH):
                    pass
    assert engine.asked.count("POST /images/create") == 2


@pytest.mark.parametrize("hurried", [False, True])
def test_who_is_in_a_hurry_waits_no_longer_for_an_engine(tmp_path: Path, hurried: bool) -> None:
    runner = DockerRunner(tmp_path, url="unix:///nowhere", patience=2.0)
    if hurried:
        runner.hurry(0.0)
    began = time.monotonic()
    with pytest.raises(EngineUnavailableError):
        runner.find(WHO)
    assert (time.monotonic() - began < 1.5) is hurried


# -- stopping


class OneContainer(Containers):
    """One that runs, on an engine that may go away just before a signal."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.away, self.ended = False, False

    def get(self, container: str) -> Found:
        state = {"Status": "running", "ExitCode": 0, "Pid": 1}
        return Found({"Id": "c", "State": state, "Config": {"Labels": {f"{LABEL}.start": "1"}}})

    def signal(self, container: str, name: str) -> bool:
        if self.away:
            raise EngineUnavailableError("away")
        self.sent.append(name)
        return not self.ended

    def beat(self, container: str) -> None:
        """Nobody listens."""


@pytest.fixture
def runner(tmp_path: Path) -> DockerRunner:
    made = DockerRunner(tmp_path, url="unix:///nowhere")
    made.containers = OneContainer()
    return made


def ended(runner: DockerRunner, code: int) -> Exit:
    from tf_operator.runners.docker_end import end_of

    return end_of({"ExitCode": code}, limit=0, stop=runner._folder(WHO).stop_request(1))


def test_a_term_that_was_lost_with_the_engine_is_sent_by_the_next_stop(runner: DockerRunner) -> None:
    one = runner.containers
    assert isinstance(one, OneContainer)
    one.away = True
    with pytest.raises(EngineUnavailableError):
        runner.stop(HANDLE, 30.0)
    assert not ended(runner, 0).stopped, "it ended by itself: nothing had reached it"
    one.away = False
    runner.stop(HANDLE, 30.0)
    runner.stop(HANDLE, 30.0)
    assert one.sent == ["SIGTERM", "SIGCONT"], "once"
    assert ended(runner, 143).stopped


def test_the_grace_counts_from_the_term_that_was_sent(runner: DockerRunner) -> None:
    one = runner.containers
    assert isinstance(one, OneContainer)
    one.away = True
    with pytest.raises(EngineUnavailableError):
        runner.stop(HANDLE, 0.3)
    time.sleep(0.4)
    one.away = False
    assert runner.poll(HANDLE) is None
    assert one.sent == ["SIGTERM", "SIGCONT"], "whoever looks next sends it"
    time.sleep(0.4)
    assert runner.poll(HANDLE) is None
    assert one.sent == ["SIGTERM", "SIGCONT", "SIGKILL"]
    assert ended(runner, 137).stopped


def test_a_kill_waits_for_no_term(runner: DockerRunner) -> None:
    one = runner.containers
    assert isinstance(one, OneContainer)
    runner.stop(HANDLE, 0.0)
    assert one.sent == ["SIGKILL"]
    assert ended(runner, 137).stopped


def test_an_end_that_came_before_the_term_is_its_own(runner: DockerRunner) -> None:
    one = runner.containers
    assert isinstance(one, OneContainer)
    one.ended = True
    runner.stop(HANDLE, 30.0)
    assert ended(runner, 0) == Exit(code=0)


# -- networks


def test_clean_leaves_the_networks_of_another_state_dir(tmp_path: Path) -> None:
    """Its run may be about to put its first container in."""
    with SilentEngine() as engine:
        for name in ("ours", "theirs"):
            labels = {f"{LABEL}.job": name, f"{LABEL}.place": place_mark(tmp_path / name / "docker")}
            engine.networks.append({"Id": name, "Name": name, "Labels": labels})
        lines = docker_leftovers.clean(tmp_path / "ours", [], url=engine.url)
    assert lines == ["removed: network ours"]
    assert [network["Id"] for network in engine.networks] == ["theirs"]
