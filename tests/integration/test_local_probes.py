"""Local runs with real programs (probes), keepers and watchers: cases C-01, 04, 11, 17, 20, 21, 24, 58."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from local_bench import FOREVER, PROBE, LocalBench, wait_until

from tf_operator.membership import Phase

pytestmark = pytest.mark.local

Make = Callable[..., LocalBench]
MEETS_ALL = ("--wait-peers", "--wait-file", "out/evaluator-0-1.json")
"""The evaluator listens nowhere: its record tells that it has begun."""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a project with one job; what it started is ended."""
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))

    made: list[LocalBench] = []

    def build(replicas: dict[str, Any], **job: Any) -> LocalBench:
        made.append(LocalBench(tmp_path, replicas, **job))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


def chief(*flags: str) -> dict[str, Any]:
    return {"command": [*PROBE, "--out", "out", *flags]}


def test_c17_ps_workers_and_evaluator_never_end_by_themselves(make: Make) -> None:
    stubborn = [*PROBE, "--out", "out", *FOREVER, "--on-term"]
    bench = make(
        {
            "chief": chief(*MEETS_ALL, "--sleep", "2", "--print", "text:trained", "--result", '{"accuracy": 0.97}'),
            "worker": {"replicas": 2},
            "ps": {"replicas": 2, "command": [*stubborn, "exit143"]},
            "evaluator": {"replicas": 1, "command": [*PROBE, "--out", "out", "--sleep", "9999", "--on-term", "ignore"]},
        },
        run_policy={"termination_grace": "3s"},
    )
    outcome = bench()
    ended = bench.starts("chief-0")[0]["stopped"]
    assert outcome.succeeded
    assert outcome.result == {"accuracy": 0.97}
    assert time.time() - ended < 30
    assert set(bench.results().values()) == {"success"}
    assert all(len(bench.starts(name)) == 1 for name in bench.results())
    assert bench.lines["chief-0"] == ["trained"]
    assert "probe: TERM, exit 143" in bench.lines["ps-1"]
    assert any(
        note == "ps-0: stopping the program: the job has succeeded: chief-0 ended with exit code 0"
        for note in bench.notes
    )
    bench.assert_nothing_left()


def test_c01_the_evaluator_is_no_member_of_the_cluster(make: Make) -> None:
    bench = make(
        {
            "chief": chief(*MEETS_ALL, "--sleep", "1"),
            "worker": {"replicas": 2},
            "ps": {},
            "evaluator": {"command": [*PROBE, "--out", "out", "--sleep", "1"]},
        }
    )
    assert bench().succeeded
    texts = {name: bench.starts(name)[0]["tf_config"] for name in ("chief-0", "worker-0", "worker-1", "ps-0")}
    clusters = {text.partition('"task"')[0] for text in texts.values()}
    assert len(clusters) == 1
    cluster = json.loads(texts["chief-0"])["cluster"]
    assert {role: len(addresses) for role, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert json.loads(bench.starts("evaluator-0")[0]["tf_config"])["task"] == {"type": "evaluator", "index": 0}
    bench.assert_nothing_left()


@pytest.mark.parametrize("tf_config", [True, False])
def test_c04_one_worker_and_no_ps(make: Make, tf_config: bool) -> None:
    bench = make({"worker": chief("--sleep", "0.2")}, tf_config=tf_config, strategy="none")
    assert bench(20).succeeded
    if tf_config:
        config = json.loads(bench.starts("worker-0")[0]["tf_config"])
        assert list(config["cluster"]) == ["worker"]
        assert len(config["cluster"]["worker"]) == 1
    else:
        assert bench.starts("none-0")[0]["tf_config"] is None
    bench.assert_nothing_left()


def test_c20_a_chief_that_fails_for_good_stops_the_others(make: Make) -> None:
    bench = make(
        {"chief": chief("--wait-peers", "--sleep", "3", "--exit", "1"), "worker": {"replicas": 2}, "ps": {}}, retries=0
    )
    outcome = bench()
    assert outcome.cluster.phase is Phase.FAILED
    assert outcome.reason == "chief-0 failed: exit code 1; started 1 time, retries is 0"
    assert time.time() - bench.starts("chief-0")[0]["stopped"] < 30
    assert bench.results() == {"chief-0": "failed", "worker-0": "skipped", "worker-1": "skipped", "ps-0": "skipped"}
    assert [len(bench.starts(name)) for name in bench.results()] == [1, 1, 1, 1]
    bench.assert_nothing_left()


def test_c20_with_a_retry_the_chief_comes_back_beside_the_living(make: Make) -> None:
    bench = make(
        {
            "chief": chief("--wait-peers", "--sleep", "1", "--exit", "1", "--fail-times", "1"),
            "worker": {"replicas": 2},
            "ps": {},
        },
        retries=1,
    )
    assert bench().succeeded
    assert {name: len(bench.starts(name)) for name in bench.results()} == {
        "chief-0": 2,
        "worker-0": 1,
        "worker-1": 1,
        "ps-0": 1,
    }
    first, second = (json.loads(start["tf_config"]) for start in bench.starts("chief-0"))
    assert first == second, "the same address"
    bench.assert_nothing_left()


@pytest.mark.parametrize("heals", [True, False])
def test_c21_the_root_cause_is_named_and_what_it_drew_with_it(make: Make, heals: bool) -> None:
    times = "1" if heals else "9"
    healed = [flag for name in ("worker-0", "worker-1", "ps-0") for flag in ("--wait-file", f"out/{name}-2.json")]
    bench = make(
        {
            "chief": chief(*healed) if heals else chief("--sleep", "ever"),
            "worker": {"replicas": 2} | chief("--until-lost", "ps", "--sleep", "1", "--exit", "1"),
            "ps": chief("--bind", "--print", "traceback", "--sleep", "5", "--exit", "1", "--fail-times", times),
        },
        retries=1,
        # So that the ends of its workers are judged before the ps is back.
        retry_delay="5s",
        strategy="between_graph",
    )
    outcome = bench(90)
    caused = [c for c in bench.clusters if c.cause]
    assert {c.cause["replica"] for c in caused if c.cause} == {"ps-0"}
    drawn = {name for c in bench.clusters for name in c.consequences}
    assert drawn >= {"worker-0", "worker-1"}
    assert all(member.failures == 0 for name in drawn for member in bench.members[name])
    assert "probe: lost connection" in bench.lines["worker-0"]
    assert bench.lines["ps-0"][:10][-1] == "ValueError: loss is nan"
    if heals:
        assert outcome.succeeded
    else:
        assert outcome.reason.startswith("ps-0 failed: exit code 1; started 2 times, retries is 1; last lines: ")
        assert outcome.reason.endswith("ValueError: loss is nan")
    bench.assert_nothing_left()


@pytest.mark.parametrize(
    ("flags", "memory", "said"),
    [
        (["--exit", "1"], None, "worker-0 failed: exit code 1; "),
        (["--exit", "255"], None, "worker-0 failed: exit code 255; "),
        (["--signal", "SIGSEGV"], None, "worker-0 failed: exit code 139 (SIGSEGV); "),
        (["--signal", "SIGTERM"], None, "worker-0 failed: exit code 143 (SIGTERM); "),
        (["--signal", "SIGKILL"], None, "worker-0 failed: exit code 137 (SIGKILL); "),
        (
            ["--eat-memory", "200", "--sleep", "ever"],
            "64MiB",
            "worker-0 failed: out of memory, limit 64 MiB (exit code 137); ",
        ),
    ],
)
def test_c24_ends_are_told_apart_and_attempts_bounded(
    make: Make, flags: list[str], memory: str | None, said: str
) -> None:
    worker = chief(*flags) | ({"memory": memory} if memory else {})
    bench = make({"worker": worker}, strategy="none", retries=1)
    outcome = bench()
    assert outcome.reason.startswith(said + "started 2 times, retries is 1")
    assert len(bench.starts("worker-0")) == 2
    bench.assert_nothing_left()


def test_c58_arguments_are_passed_literally(make: Make) -> None:
    words = ["conf.json", "run.sh", "hp.yaml", '{"a":{"b":1}}', "a;b && c | d", "$HOME", "*", "a b", ""]
    bench = make({"worker": chief(*words)}, strategy="none")
    assert bench().succeeded
    assert bench.starts("worker-0")[0]["argv"] == ["--out", "out", *words]


def test_the_program_sees_nothing_of_airflow_and_vault(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", "no")
    monkeypatch.setenv("AIRFLOW_CONN_X", "no")
    bench = make({"worker": chief()}, strategy="none")
    assert bench().succeeded
    env = bench.starts("worker-0")[0]["env"]
    assert [name for name in env if name.startswith(("AIRFLOW", "VAULT", "BAO"))] == []
    assert env["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize("kill", ["worker-1", "ps-0", "chief-0"])
def test_a_killed_program_comes_back_as_the_table_says(make: Make, kill: str) -> None:
    bench = make(
        {
            "chief": chief("--wait-peers", "--wait-file", "go", "--bind"),
            "worker": {"replicas": 2},
            "ps": {},
        }
    )
    bench.start()
    before = bench.running(kill)
    for name in ("chief-0", "worker-0", "worker-1", "ps-0"):
        wait_until(f"{name} to have begun", partial(bench.starts, name))
    os.kill(before.pid, signal.SIGKILL)
    after = wait_for_change(bench, kill, before.incarnation)
    assert after.address == before.address
    if kill == "ps-0":
        bench.running("chief-0", generation=2)
    # What is told to run has not begun yet, and would be stopped before it has a record.
    wait_until(f"{kill} to have begun again", lambda: len(bench.starts(kill)) == 2)
    (bench.folder / "go").touch()
    assert bench.finish().succeeded
    again = {name for name in bench.results() if len(bench.starts(name)) > 1}
    assert again == ({"ps-0", "chief-0"} if kill == "ps-0" else {kill})
    bench.assert_nothing_left()


def wait_for_change(bench: LocalBench, name: str, incarnation: int) -> Any:
    def look() -> Any:
        member = bench.members[name][-1]
        return member if member.incarnation > incarnation and member.pid else None

    return wait_until(f"{name} to come back", look)


def c11(folder: Path, times: int) -> None:
    for number in range(times):
        replicas = {"chief": chief("--bind", "--wait-peers", "--sleep", "0.5"), "worker": {"replicas": 2}, "ps": {}}
        pair = [LocalBench(folder / f"{number}-{name}", replicas) for name in ("a", "b")]
        for bench in pair:
            bench.start()
        assert all(bench.finish().succeeded for bench in pair), [bench.notes for bench in pair]
        ports = [
            {address.rpartition(":")[2] for role in bench.clusters[-1].spec.values() for address in role}
            for bench in pair
        ]
        assert len(ports[0]) == len(ports[1]) == 4
        assert not ports[0] & ports[1]


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_c11_two_runs_at_once_share_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    c11(tmp_path, times)
