"""The engine goes away while a program runs: with live-restore nothing is lost, without it the end is told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.docker_kit import DockerKit
from contract.process_kit import SECRETS, until
from docker_engine import DockerEngine

from tf_operator.errors import EngineUnavailableError
from tf_operator.runners.base import Exit

pytestmark = [
    pytest.mark.docker,
    # The SDK leaves a socket open where it cannot connect.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
COUNT = "i=0; while [ ! -e {0}/go-on ]; do echo line $i; i=$((i+1)); sleep .02; done; echo $STORE_KEY"


@pytest.fixture
def live_kit(tmp_path: Path) -> Iterator[DockerKit]:
    """An engine that lets containers live on without it."""
    with DockerEngine(live_restore=True) as engine:
        kit = DockerKit(tmp_path, engine.with_base_image())
        yield kit
        kit.close()


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[DockerKit]:
    """An engine as it is installed."""
    with DockerEngine() as engine:
        kit = DockerKit(tmp_path, engine.with_base_image())
        yield kit
        kit.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_with_live_restore_the_program_goes_on_and_so_does_its_output(live_kit: DockerKit, number: int) -> None:
    kit = live_kit
    handle = kit.start("sh", "-c", COUNT.format(kit.shared), secrets=SECRETS)
    kit.wait_output(handle, b"line 20\n")
    kit.engine.end(number)
    assert kit.runner.poll(handle) is None
    assert kit.output(handle)
    kit.engine.start()
    kit.wait_output(handle, b"line 200\n")
    (kit.shared / "go-on").touch()
    assert kit.wait(handle) == Exit(code=0)
    *lines, last = kit.output(handle).splitlines()
    assert lines == [f"line {i}".encode() for i in range(len(lines))]
    assert last == b"***"


def test_a_program_that_ends_while_the_engine_is_away_has_its_true_code(live_kit: DockerKit, tmp_path: Path) -> None:
    kit = live_kit
    handle = kit.start("--out", str(tmp_path / "out"), "--wait-file", str(tmp_path / "go-on"), "--exit", "6")
    until(lambda: list((tmp_path / "out").glob("*.json")), "the program")
    kit.engine.end(signal.SIGKILL)
    (tmp_path / "go-on").touch()
    until(lambda: '"stopped": null' not in next((tmp_path / "out").glob("*.json")).read_text(), "its end")
    kit.engine.start()
    assert kit.wait(handle) == Exit(code=6)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_without_live_restore_the_end_is_told_and_a_retry_runs(kit: DockerKit, number: int) -> None:
    handle = kit.start("--print", "text:before", "--sleep", "long")
    kit.wait_output(handle, b"before\n")
    kit.engine.end(number)
    assert kit.runner.poll(handle) is None
    kit.engine.start()
    end = kit.wait(handle, 60)
    assert (end.code, end.signal, end.stopped) in ((143, "SIGTERM", False), (137, "SIGKILL", False))
    assert kit.output(handle) == b"before\n"
    assert kit.wait(kit.start("--exit", "3")) == Exit(code=3)


def test_an_engine_that_stays_away_ends_the_watch_not_the_program(kit: DockerKit) -> None:
    make, arguments = kit.recipe
    runner = make(*arguments, patience=1.0)
    handle = kit.start("--sleep", "long")
    kit.engine.stop()
    with pytest.raises(EngineUnavailableError, match="has not answered for 1 s"):
        until(lambda: runner.poll(handle), "patience to end")
    with pytest.raises(EngineUnavailableError, match="does not answer"):
        runner.find(handle.identity)
    kit.engine.start()
    assert runner.find(handle.identity) == handle
    runner.close()
