"""Case C-24 on a real Airflow: ends are told apart, and tried again as `restart_policy` says. The jobs overlap."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import probe, starts
from run_under_test import RunUnderTest, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]  # the first test's setup runs all jobs

ENDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "code-final": ({"restart_policy": "exit_code"}, ["--exit", "3"]),
    "signal-again": ({"restart_policy": "exit_code"}, ["--signal", "SIGSEGV", "--fail-times", "1"]),
    "minus-one": ({"restart_policy": "exit_code", "retries": 1}, ["--exit", "255"]),
    "never-again": ({"restart_policy": "never"}, ["--signal", "SIGKILL"]),
    "too-much": ({"memory": "64MiB", "retries": 1}, ["--eat-memory", "200", "--sleep", "ever"]),
    "term": ({}, ["--bind", "--sleep", "30"]),
}
"""Job → what its worker says in the job file, and how its program ends. The job's own policy is the other one."""


@pytest.fixture(scope="module")
def runs(
    session_airflow: AirflowUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[RunUnderTest, Path]]]:
    session_airflow.revive()
    folder = tmp_path_factory.mktemp("ends")
    for name, (worker, flags) in ENDS.items():
        job = {
            "strategy": "none",
            "program": {"command": probe("--out", str(folder / name), *flags)},
            "replicas": {"worker": worker},
            "retries": 2,
            "retry_delay": "1s",
            "run_policy": {"termination_grace": "5s", "orphan_timeout": "5m"},
        }
        session_airflow.write_job(name, job, wait=False)
    for name in ENDS:
        session_airflow.wait_dag(name, session_airflow.project / "configs" / "jobs" / f"{name}.yaml")
    found = {}
    for name in ENDS:
        run, out = found[name] = session_airflow.trigger(name), folder / name
        if name == "term":
            run.wait_running("worker-0", deadline=120)
            run.kill("worker-0", signal.SIGTERM)
        # One after the other: SQLite has cost a scheduler its life where many runs began at once.
        wait_for(lambda out=out: starts(out, "worker-0"), 120, f"{name} to run")
    yield found
    session_airflow.settle()


@pytest.mark.parametrize(
    ("name", "state", "begun", "said", "why"),
    [
        ("code-final", "failed", 1, "exit code 3", "restart_policy is exit_code and 3 is final (1-127)"),
        ("signal-again", "success", 2, "exit code 139 (SIGSEGV)", None),
        ("minus-one", "failed", 2, "exit code 255", "started 2 times, retries is 1"),
        ("never-again", "failed", 1, "exit code 137 (SIGKILL)", "restart_policy is never"),
        ("too-much", "failed", 2, "out of memory, limit 64 MiB (exit code 137)", "started 2 times, retries is 1"),
        ("term", "success", 2, "exit code 143 (SIGTERM)", None),
    ],
)
def test_c24_each_end_is_named_and_tried_again_as_its_policy_says(
    runs: dict[str, tuple[RunUnderTest, Path]], name: str, state: Any, begun: int, said: str, why: str | None
) -> None:
    run, out = runs[name]
    run.wait(state, deadline=120)
    assert len(starts(out, "worker-0")) == begun
    tries = run.try_logs("worker-0")
    own = [log for log in tries if "adopted the program" not in log]
    assert len(own) == begun, "no try beyond the starts, but for lost watchers: Airflow heard the verdict"
    first = "\n".join(tries)
    assert f"worker-0 failed: {said}" in first
    assert ("out of memory" in first) is (name == "too-much")
    assert "Retry policy decision" in first, "through Airflow's RetryPolicy"
    if why:
        assert f"worker-0 failed: {said}; {why}" in run.log("result")
