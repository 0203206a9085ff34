"""What is left on a real engine: found, removed, or left alone because somebody is at it."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.docker_kit import CALLER, DockerKit, inspect, start_and_die
from contract.process_kit import lives, until
from typer.testing import CliRunner

from tf_operator.cli.main import app
from tf_operator.runners import docker_leftovers
from tf_operator.runners.base import Exit
from tf_operator.runners.leftovers import Leftover, is_watched
from tf_operator.runners.run_folder import RunFolder

pytestmark = pytest.mark.docker

HANGS = """
import time
from tf_operator.runners import docker_start
docker_start._start = lambda *arguments: time.sleep(600)
"""


def test_clean_finds_and_removes_what_nobody_watches(kit: DockerKit) -> None:
    lost = start_and_die(kit, "--sleep", "long", identity=kit.identity("ps"))
    watched = kit.start("--sleep", "long")
    found = docker_leftovers.leftovers(kit.state_dir, kit.engine.url)
    assert [(one.identity, one.state) for one in found] == [(lost.identity, "running")]
    lines = docker_leftovers.clean(kit.state_dir, found, url=kit.engine.url)
    assert len(lines) == 1
    assert lines[0].startswith(f"removed: {lost.identity}")
    assert {one["Id"] for one in kit.engine.containers()} == {watched.data["container"]}
    kit.runner.close()
    found = docker_leftovers.leftovers(kit.state_dir, kit.engine.url)
    # One that had ended when it was listed.
    earlier = [dataclasses.replace(one, state="ended") for one in found]
    assert all("it runs now" in line for line in docker_leftovers.clean(kit.state_dir, earlier, url=kit.engine.url))
    assert len(kit.engine.containers()) == 1
    docker_leftovers.clean(kit.state_dir, found, url=kit.engine.url)
    assert (kit.engine.containers(), kit.engine.networks()) == ([], [])


@pytest.fixture
def starter(kit: DockerKit) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has created a container, and does not come to start it."""
    program = pickle.dumps((kit.recipe, kit.launch("--exit", "0")))
    with subprocess.Popen([sys.executable, "-c", HANGS + CALLER], stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(program)
        process.stdin.close()
        try:
            until(kit.engine.containers, "the container")
            yield process
        finally:
            process.kill()


def test_a_container_that_is_being_started_is_left_alone(kit: DockerKit, starter: subprocess.Popen[bytes]) -> None:
    folder = RunFolder(kit.state_dir / "docker", kit.identity().key)
    assert is_watched(folder)
    assert docker_leftovers.leftovers(kit.state_dir, kit.engine.url) == []
    listed_before = Leftover(folder.key, kit.identity(), "lost", None, 0.0, folder.path)
    lines = docker_leftovers.clean(kit.state_dir, [listed_before], url=kit.engine.url)
    assert [line.endswith("left alone, it is being started") for line in lines] == [True]
    assert kit.runner.find(kit.identity()) is None
    assert len(kit.engine.containers()) == 1


@pytest.mark.parametrize("by_clean", [True, False])
def test_of_a_starter_that_dies_before_the_start_nothing_is_left(
    kit: DockerKit, starter: subprocess.Popen[bytes], by_clean: bool
) -> None:
    starter.kill()
    starter.wait()
    if by_clean:
        found = docker_leftovers.leftovers(kit.state_dir, kit.engine.url)
        assert [(one.identity, one.state) for one in found] == [(kit.identity(), "lost")]
        docker_leftovers.clean(kit.state_dir, found, url=kit.engine.url)
    else:
        assert kit.runner.find(kit.identity()) is None
    assert kit.engine.left() == []
    assert [path for path in kit.state_dir.rglob("*") if not path.is_dir()] == []


def test_of_a_failed_start_output_and_inspect_are_kept_until_clean(kit: DockerKit) -> None:
    """Not the container: it would hold its name and the run's network."""
    failed = kit.start("--print", "text:kept", "--exit", "3")
    kit.wait(failed)
    kit.runner.remove(failed, keep_output=True)
    assert kit.engine.left() == []
    (facts,) = kit.state_dir.rglob("inspect.*.json")
    assert json.loads(facts.read_text())["State"]["ExitCode"] == 3
    assert kit.output(failed) == b"kept\n"
    kit.runner.close()
    found = docker_leftovers.leftovers(kit.state_dir, kit.engine.url)
    assert [one.state for one in found] == ["output"]
    docker_leftovers.clean(kit.state_dir, found, url=kit.engine.url)
    assert [path for path in kit.state_dir.rglob("*") if path.is_file()] == []


def lose(folder: Path) -> None:
    """Remove it, also while a follower writes into it."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    until(gone, f"{folder} to go")


def test_containers_outlive_the_state_dir(kit: DockerKit) -> None:
    """As where it is in memory, and the host has been started again."""
    ended = start_and_die(kit, "--print", "text:ended", "--exit", "3")
    until(lambda: not inspect(kit, ended)["State"]["Running"], "the first one's end")
    living = start_and_die(kit, "--print", "text:lives", "--sleep", "long", identity=kit.identity("ps"))
    lose(kit.state_dir)
    assert kit.wait(ended) == Exit(code=3)
    assert kit.output(ended) == b"ended\n"
    kit.runner.remove(ended, keep_output=False)
    kit.wait_output(living, b"lives\n")
    assert kit.runner.poll(living) is None
    assert docker_leftovers.leftovers(kit.state_dir, kit.engine.url) == [], "it is watched"
    lose(kit.state_dir)
    kit.runner.stop(living, 0.0)
    assert kit.wait(living).stopped
    kit.runner.remove(living, keep_output=False)
    assert kit.engine.left() == []


def test_clean_asks_the_engine_also_where_the_state_dir_knows_of_none(
    kit: DockerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = start_and_die(kit, "--exit", "3")
    until(lambda: not inspect(kit, ended)["State"]["Running"], "its end")
    lose(kit.state_dir)
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(kit.state_dir))
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__DOCKER_URL", kit.engine.url)
    assert f"removed: {ended.identity}: ended" in CliRunner().invoke(app, ["clean", "--yes"]).output
    assert kit.engine.left() == []
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__DOCKER_URL", f"unix://{kit.shared}/none.sock")
    lose(kit.state_dir)
    assert CliRunner().invoke(app, ["clean"]).output == f"nothing is left in {kit.state_dir}\n"


def test_a_killed_watcher_after_stop_cannot_leave_a_program_that_ignores_it(kit: DockerKit, tmp_path: Path) -> None:
    handle = kit.start(
        *("--out", str(tmp_path), "--on-term", "ignore", "--sleep", "long"), termination_grace=1.0, orphan_timeout=5.0
    )
    pid = kit.record(tmp_path)["pid"]
    kit.runner.stop(handle, 1.0)
    began = time.monotonic()
    until(lambda: not lives(pid), "the container's own watchdog", 40)
    assert time.monotonic() - began > 3
    assert kit.another().poll(handle) == Exit(code=137, signal="SIGKILL", stopped=True)


def test_networks_of_another_state_dir_are_left_alone(kit: DockerKit, tmp_path: Path) -> None:
    handle = kit.start("--exit", "0")
    kit.wait(handle)
    kit.engine.api.remove_container(handle.data["container"], force=True)
    (network,) = kit.engine.networks()
    assert docker_leftovers.clean(tmp_path / "other", [], url=kit.engine.url) == []
    assert kit.engine.networks() == [network]
    assert docker_leftovers.clean(kit.state_dir, [], url=kit.engine.url) == [f"removed: network {network}"]
