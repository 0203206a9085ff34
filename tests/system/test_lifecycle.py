"""How a job ends, on a real Airflow: who is stopped, what each task's state says, what is left."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import FOREVER, probe, probe_job, starts
from run_under_test import RunUnderTest, wait_for

pytestmark = pytest.mark.airflow


def seconds_after(run: RunUnderTest, ended: str, out: Path, *names: str) -> dict[str, float]:
    """From the end of a replica's last program to the ends of these tasks, as Airflow has them."""
    stopped = starts(out, ended)[-1]["stopped"]
    ends = {name: run.task(name).end for name in names}
    return {name: end.timestamp() - stopped if end else math.inf for name, end in ends.items()}


def test_c17_a_ps_never_exits_by_itself(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path)
    job["replicas"] = {
        "chief": {"command": probe("--out", str(tmp_path), "--wait-peers", "--sleep", "3", "--exit", "0")},
        "worker": {"replicas": 2},
        "ps": {"replicas": 2, "command": probe("--out", str(tmp_path), *FOREVER, "--on-term", "exit143")},
        "evaluator": {"command": probe("--out", str(tmp_path), "--sleep", "ever", "--on-term", "ignore")},
    }
    airflow.write_job("chief-decides", job)
    run = airflow.trigger("chief-decides")
    wait_for(lambda: starts(tmp_path, "chief-0"), 120, lambda: f"the chief to run: {run.states()}")
    run.wait("success", deadline=120)
    states = run.states()
    assert set(states.values()) == {"success"}, states
    for name in ("chief-0", "worker-0", "worker-1", "ps-0", "ps-1", "evaluator-0"):
        assert run.failures(name) == {name: 0} and len(starts(tmp_path, name)) == 1
    assert "the job succeeded: chief-0 ended with exit code 0" in run.logs("ps-1")
    others = ("worker-0", "worker-1", "ps-0", "ps-1", "evaluator-0")
    assert max(seconds_after(run, "chief-0", tmp_path, *others).values()) < 30
    assert not airflow.programs()
    assert (run.dag_id, run.run_id) not in airflow.held_slots("default_pool")
    specs = {
        str(starts(tmp_path, name)[0]["tf_config"]).partition('"task"')[0] for name in ("chief-0", "worker-1", "ps-1")
    }
    assert len(specs) == 1 and "evaluator" not in specs.pop(), "one identical cluster, without the evaluator (C-01)"


def test_c20_a_chief_that_fails_for_good_ends_the_others_as_skipped(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, retries=0)
    job["replicas"]["chief"]["command"] = probe(
        "--out", str(tmp_path), "--sleep", "2", "--print", "text:no data", "--exit", "1"
    )
    airflow.write_job("chief-dies", job)
    run = airflow.trigger("chief-dies")
    run.wait("failed", deadline=60)
    states = run.states()
    assert states["chief"] == "failed" and states["result"] == "failed", states
    assert {state for name, state in states.items() if name.startswith(("worker", "ps"))} == {"skipped"}, states
    assert "stopped because the job failed: chief-0" in run.logs("ps-0")
    why = run.log("result")
    assert "chief-0 failed: exit code 1" in why and "no data" in why
    assert len(starts(tmp_path, "chief-0")) == 1
    others = ("worker-0", "worker-1", "ps-0")
    assert run.failures(*others) == dict.fromkeys(others, 0)
    assert max(seconds_after(run, "chief-0", tmp_path, *others).values()) < 30
    assert all(len(starts(tmp_path, name)) <= 1 for name in others)
    assert not airflow.programs()


def test_c20_with_a_retry_the_chief_comes_back_beside_the_living(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, retries=1)
    command = probe("--out", str(tmp_path), "--wait-peers", "--sleep", "2", "--exit", "1", "--fail-times", "1")
    job["replicas"]["chief"]["command"] = command
    airflow.write_job("chief-back", job)
    run = airflow.trigger("chief-back")
    run.wait("success", deadline=90)
    assert run.failures("chief-0") == {"chief-0": 1}
    assert len(starts(tmp_path, "chief-0")) == 2
    for name in ("worker-0", "worker-1", "ps-0"):
        assert len(starts(tmp_path, name)) == 1, f"{name} was left alone"
        assert run.failures(name) == {name: 0}
    first, second = (start["tf_config"] for start in starts(tmp_path, "chief-0"))
    assert first == second, "the same address"


def test_c21_the_first_failure_is_the_cause_and_logs_stay(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    """The ps fails twice, each time the workers give up a moment later, and the chief is stopped by us."""
    out = ("--out", str(tmp_path))
    job = probe_job(tmp_path, retries=1, strategy="between_graph")
    chief = probe(*out, "--print", "text:chief begins", "--sleep", "ever", "--on-term", "slow:1")
    ps = probe(*out, "--bind", "--sleep", "15", "--print", "traceback", "--exit", "1")
    job["replicas"] = {
        "chief": {"command": chief},
        "worker": {"replicas": 2, "command": probe(*out, "--until-lost", "ps", "--exit", "1")},
        "ps": {"command": ps},
    }
    airflow.write_job("ps-crash", job)
    run = airflow.trigger("ps-crash")
    run.wait("failed", deadline=180)
    why = run.log("result")
    assert "ps-0 failed: exit code 1; started 2 times, retries is 1; last lines: " in why
    assert "ValueError: loss is nan; drawn down by it: worker-0, worker-1" in why
    assert run.states()["ps-0"] == "failed"
    workers = ("worker-0", "worker-1")
    assert run.failures(*workers) == dict.fromkeys(workers, 0), "no retry of theirs was spent"
    assert [len(starts(tmp_path, name)) for name in (*workers, "ps-0")] == [2, 2, 2]
    assert run.logs("worker-0").count("lost connection") >= 2, "both of its programs"
    assert "probe: saved" in run.logs("chief-0"), "also what it printed after our TERM"
    told = [log for log in run.try_logs("ps-0") if "ValueError: loss is nan" in log]
    assert len(told) >= 2, "each start has a log of its own"
    assert all(f"line {line}, in step_{line}" in log for log in told for line in range(8))


def test_a_retry_of_one_ps_costs_the_others_none_of_theirs(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path)
    stop = tmp_path / "stop"
    job["replicas"]["chief"]["command"] = probe("--out", str(tmp_path), "--bind", "--wait-file", str(stop))
    airflow.write_job("kills", job)
    run = airflow.trigger("kills")
    for name in ("chief-0", "worker-0", "worker-1", "ps-0"):
        run.wait_running(name)
    worker, chief = run.kill("worker-1"), run.pid("chief-0")
    run.wait_running("worker-1", not_pid=worker)
    assert run.pid("chief-0") == chief, "a lost worker leaves the chief alone"
    assert run.failures("worker-1") == {"worker-1": 1}

    ps = run.kill("ps-0")
    run.wait_running("ps-0", not_pid=ps)
    run.wait_running("chief-0", not_pid=chief)
    assert run.cluster()["generation"] == 2
    stop.touch()
    run.wait("success", deadline=60)
    spent = run.failures("chief-0", "worker-0", "worker-1", "ps-0")
    assert spent == {"chief-0": 0, "worker-0": 0, "worker-1": 1, "ps-0": 1}, "a ps costs the others none of theirs"
    assert [len(starts(tmp_path, n)) for n in ("chief-0", "worker-0", "worker-1", "ps-0")] == [2, 1, 2, 2]
    configs = {start["tf_config"] for start in starts(tmp_path, "ps-0")}
    assert len(configs) == 1, "the same address"


def test_the_environment_holds_nothing_of_airflow_or_vault(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path)
    job["secrets"] = [{"vault": "secret/training/digits#data_key", "env": "DATA_KEY"}]
    airflow.write_job("clean-env", job)
    run = airflow.trigger("clean-env")
    run.wait("success", deadline=60)
    env = starts(tmp_path, "worker-0")[0]["env"]
    assert not [key for key in env if key.upper().startswith(("AIRFLOW", "_AIRFLOW", "VAULT", "BAO"))]
    assert env["DATA_KEY"] and env["CUDA_VISIBLE_DEVICES"] == "-1"
    allowed = {
        "PATH",
        "HOME",
        "LANG",
        "TZ",
        "LD_LIBRARY_PATH",
        "PYTHONUNBUFFERED",
        "GRPC_FAIL_FAST",
        "no_proxy",
        "NO_PROXY",
    }
    rest = {
        k for k in env if k not in allowed and not k.startswith("TF_") and k not in ("CUDA_VISIBLE_DEVICES", "DATA_KEY")
    }
    assert rest <= {"LC_CTYPE", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}, rest


def test_all_workers_end_at_different_times_and_the_evaluator_has_its_tail(
    airflow: AirflowUnderTest, tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path))
    policy = {"termination_grace": "5s", "orphan_timeout": "5m", "evaluator_grace": "60s"}
    job = probe_job(tmp_path, success_policy="all_workers", strategy="between_graph", run_policy=policy)
    job["replicas"] = {
        "chief": {"command": probe(*out)},
        "worker": [
            {"name": name, "command": probe(*out, "--bind", "--wait-file", str(tmp_path / f"{name}.stop"))}
            for name in ("quick", "slow")
        ],
        "ps": {},
        "evaluator": {"command": probe(*out, "--wait-file", str(tmp_path / "evaluator.stop"), "--sleep", "20")},
    }
    airflow.write_job("all-workers", job)
    run = airflow.trigger("all-workers")
    for ended, then in (("chief-0", "quick"), ("worker-0", "slow"), ("worker-1", "evaluator")):
        wait_for(lambda name=ended: (found := starts(tmp_path, name)) and found[0]["stopped"], 60, f"{ended} to end")
        assert run.state == "running"
        (tmp_path / f"{then}.stop").touch()
    run.wait("success", deadline=120)
    ends = [starts(tmp_path, name)[0]["stopped"] for name in ("chief-0", "worker-0", "worker-1", "evaluator-0")]
    assert ends == sorted(ends), "the evaluator ended by itself, after the job"
    assert "chief-0, worker-0, worker-1 ended with exit code 0" in run.log("result")
    assert "the evaluator has 60 s more" in run.logs("evaluator-0")
    for name in ("chief-0", "worker-0", "worker-1", "evaluator-0", "ps-0"):
        assert run.failures(name) == {name: 0} and len(starts(tmp_path, name)) == 1
    assert starts(tmp_path, "ps-0")[0]["stopped"] is None, "the ps was stopped by us"


NOTIFIER = """
from airflow.sdk import BaseNotifier


class Writes(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, path, text):
        super().__init__()
        self.path, self.text = path, text

    def notify(self, context):
        with open(self.path, "a") as file:
            file.write(self.text + "\\n")
"""


def test_alerts_are_sent_once_per_job(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    (airflow.project / "dags" / "notifier_for_tests.py").write_text(NOTIFIER)
    told = {"notifier": "notifier_for_tests.Writes", "path": str(tmp_path / "told")}
    notify = {
        "on_failure": {**told, "text": "failed: {{ run_id }}"},
        "on_success": {**told, "text": "well: {{ run_id }}"},
    }
    out = tmp_path / "out"
    job = probe_job(out, retries=1, notify=notify)
    job["replicas"]["chief"]["command"] = probe("--out", str(out), "--exit", "1")
    airflow.write_job("alerts", job)
    run = airflow.trigger("alerts")
    run.wait("failed", deadline=90)
    assert (tmp_path / "told").read_text() == f"failed: {run.run_id}\n"


def test_a_missing_triggerer_is_one_line_before_any_gpu_is_taken(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    airflow.write_job("no-triggerer", probe_job(tmp_path))
    airflow.airflow.stop_component("triggerer")
    try:
        wait_for(lambda: airflow.api.health()["triggerer"]["status"] != "healthy", 90, "its last heartbeat to be old")
        run = airflow.trigger("no-triggerer")
        run.wait_task("plan", "failed", deadline=120)
        assert "no triggerer is running" in run.log("plan")
        run.wait("failed", deadline=60)
    finally:
        airflow.airflow.start_component("triggerer")
    assert not starts(tmp_path, "chief-0")
