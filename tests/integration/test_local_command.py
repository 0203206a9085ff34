"""`tf-operator local` as a user runs it: exit codes, what it prints, what it leaves, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_bench import FOREVER, PROBE, LocalBench, living, wait_until

pytestmark = pytest.mark.local

CHIEF = [*PROBE, "--out", "out", "--wait-peers", "--print", "text:hello", "--sleep", "2"]
READ_AT_MOST = 60

Make = Callable[..., LocalBench]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalBench]]:
    """Makes projects with one job; what they started is ended."""
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    made: list[LocalBench] = []

    def build(replicas: dict[str, Any], folder: str = "", **job: Any) -> LocalBench:
        made.append(LocalBench(tmp_path / folder, replicas, **job))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


def finished(process: subprocess.Popen[str], seconds: float = READ_AT_MOST) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode, out, err


def test_success(make: Make, tmp_path: Path) -> None:
    replicas = {"chief": {"command": [*CHIEF, "--result", '{"accuracy": 0.97}']}, "worker": {"gpus": 1}, "ps": {}}
    bench = make(replicas)
    code, out, err = finished(bench.command())
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "this machine has no GPU: worker run without (--gpus N declares some)" in lines
    assert "[chief-0] hello" in lines
    assert "chief-0: running" in lines
    assert 'result: {"accuracy": 0.97}' in lines
    folder = next(line for line in lines if line.startswith("model_dir: "))
    assert folder.startswith(f"model_dir: {tmp_path}/models/probe/")
    assert lines[-1] == "job probe succeeded: chief-0 ended with exit code 0"
    assert bench.starts("worker-0")[0]["gpus"] == []
    bench.assert_nothing_left()


def test_declared_gpus_are_leased_one_each(make: Make) -> None:
    replicas = {"chief": {"command": CHIEF}, "worker": {"replicas": 2, "gpus": 1}, "ps": {}}
    bench = make(replicas)
    code, _, err = finished(bench.command("--gpus", "2"))
    assert (code, err) == (0, "")
    seen = [bench.starts(name)[0]["gpus"] for name in ("worker-0", "worker-1")]
    assert sorted(seen) == [["0"], ["1"]]
    assert bench.starts("ps-0")[0]["gpus"] == []


def test_failure_is_one_line_on_stderr(make: Make) -> None:
    bench = make({"worker": {"command": [*PROBE, "--out", "out", "--exit", "3"]}}, retries=0)
    code, out, err = finished(bench.command())
    assert code == 1
    assert err == "job probe failed: worker-0 failed: exit code 3; started 1 time, retries is 0\n"
    assert "Traceback" not in out
    bench.assert_nothing_left()


@pytest.mark.parametrize(
    ("job", "flags", "said"),
    [
        ({"runtime": {"python": "no/such/python"}, "program": {"command": ["python"]}}, (), "no/such/python"),
        ({"program": {"command": ["no-such-program"]}}, (), "no-such-program: there is no such program on this host"),
        ({"program": {"command": ["true"], "working_dir": "nowhere"}}, (), "nowhere: there is no such folder"),
        ({"model_dir": "/proc/model"}, (), "model_dir = /proc/model: cannot be written"),
        ({"replicas": {"worker": {"replicas": 3, "gpus": 1}}}, ("--gpus", "2"), "ask for 3 GPUs at once"),
        ({}, ("--param", "wrkers=3"), "wrkers"),
        ({"secrets": [{"vault": "secret/x#y", "env": "Y"}]}, (), "vault_default"),
    ],
)
def test_what_can_be_known_before_is_one_line_and_starts_nothing(
    make: Make, job: dict[str, object], flags: tuple[str, ...], said: str
) -> None:
    bench = make({})
    text = bench.file.read_text()
    merged = yaml.safe_load(text) | {"replicas": {"worker": {"replicas": 1}}} | job
    bench.file.write_text(yaml.safe_dump(merged))
    code, _, err = finished(bench.command(*flags))
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert list(bench.out.iterdir()) == []
    bench.assert_nothing_left()


def started(bench: LocalBench, *flags: str, names: tuple[str, ...] = ("worker-0", "ps-0")) -> subprocess.Popen[str]:
    process = bench.command(*flags)

    def ready() -> bool:
        assert process.poll() is None, process.communicate()
        return all(any(start.get("ready") for start in bench.starts(name)) for name in names)

    wait_until("the replicas to run", ready)
    return process


def test_ctrl_c_stops_everything(make: Make) -> None:
    bench = make({"chief": {}, "worker": {}, "ps": {}})
    process = started(bench)
    process.send_signal(signal.SIGINT)
    code, _, err = finished(process)
    assert code == 130
    assert err == "job probe failed: interrupted by Ctrl-C\n"
    bench.assert_nothing_left()


def test_a_second_ctrl_c_does_not_wait(make: Make, tmp_path: Path) -> None:
    stubborn = [*PROBE, "--out", "out", *FOREVER, "--on-term", "ignore"]
    bench = make({"worker": {"command": stubborn}, "ps": {"command": stubborn}}, run_policy={"termination_grace": "5m"})
    process = started(bench)
    process.send_signal(signal.SIGINT)
    assert process.poll() is None
    wait_until("the first Ctrl-C to be heard", lambda: list((tmp_path / "state").glob("runs/*/stop.*.json")))
    process.send_signal(signal.SIGINT)
    code, out, err = finished(process, 30)
    assert (code, err) == (130, "job probe failed: interrupted by Ctrl-C\n")
    first, second = (line for line in out.splitlines() if line.startswith("interrupted"))
    assert first == "interrupted: the programs have 300 s to end (termination_grace); Ctrl-C again kills them at once"
    assert second == "interrupted again: the programs are killed at once"
    assert "worker-0: stopped: exit code 137 (SIGKILL)\n" in out, "nobody waited for 300 s"
    bench.assert_nothing_left()


def test_sigterm_ends_it_too(make: Make) -> None:
    bench = make({"worker": {}, "ps": {}})
    process = started(bench)
    process.terminate()
    code, _, err = finished(process)
    assert code == 1
    assert err == "job probe failed: ended by SIGTERM\n"
    bench.assert_nothing_left()


def test_a_model_dir_of_a_living_run_is_refused_and_one_of_a_dead_run_is_not(make: Make, tmp_path: Path) -> None:
    first = make({"worker": {}, "ps": {}}, "a", model_dir=str(tmp_path / "model"))
    done = {"worker": {"command": [*PROBE, "--out", "out"]}}
    second = make(done, "b", model_dir=str(tmp_path / "model"))
    process = started(first)
    code, _, err = finished(second.command())
    assert code == 2
    assert "belongs to run local__" in err
    assert "has not ended" in err
    os.kill(process.pid, signal.SIGINT)
    finished(process)
    assert finished(second.command())[0] == 0


@pytest.mark.long
@pytest.mark.timeout(240)
def test_kill_9_of_the_command_leaves_nothing_for_long(make: Make, tmp_path: Path) -> None:
    bench = make({"worker": {}, "ps": {}}, model_dir=str(tmp_path / "model"))
    process = started(bench)
    process.kill()
    finished(process)
    assert living(tmp_path) != []
    refused, _, _ = finished(bench.command())
    assert refused == 2, "its programs may still write to model_dir"
    wait_until("the keepers to end their programs", lambda: not living(tmp_path), 120)
