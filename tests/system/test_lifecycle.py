"""How a job ends, on a real Airflow: who is stopped, what each task's state says, what is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import AirflowUnderTest, wait_for
from probe_jobs import FOREVER, probe, probe_job, starts

pytestmark = pytest.mark.airflow


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
    run.wait_running("chief-0")
    run.wait("success", deadline=60)
    states = run.states()
    assert set(states.values()) == {"success"}, states
    assert all(task.try_number == 1 for task in run.tasks())
    assert "the job succeeded: chief-0 ended with exit code 0" in run.log("ps-1")
    assert not airflow.programs()
    assert airflow.held_slots("default_pool") == {}
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
    assert "stopped because the job failed: chief-0" in run.log("ps-0")
    why = run.log("result")
    assert "chief-0 failed: exit code 1" in why and "no data" in why
    assert all(task.try_number <= 1 for task in run.tasks())
    assert not airflow.programs()


def test_c20_with_a_retry_the_chief_comes_back_beside_the_living(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, retries=1)
    command = probe("--out", str(tmp_path), "--wait-peers", "--sleep", "2", "--exit", "1", "--fail-times", "1")
    job["replicas"]["chief"]["command"] = command
    airflow.write_job("chief-back", job)
    run = airflow.trigger("chief-back")
    run.wait("success", deadline=90)
    assert run.task("chief-0").try_number == 2
    assert len(starts(tmp_path, "chief-0")) == 2
    for name in ("worker-0", "worker-1", "ps-0"):
        assert len(starts(tmp_path, name)) == 1, f"{name} was left alone"
        assert run.task(name).try_number == 1
    first, second = (start["tf_config"] for start in starts(tmp_path, "chief-0"))
    assert first == second, "the same address"


def test_c21_the_first_failure_is_the_cause_and_logs_stay(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, retries=0)
    job["replicas"]["ps"] = {
        "command": probe("--out", str(tmp_path), "--sleep", "2", "--print", "traceback", "--exit", "1")
    }
    job["replicas"]["chief"]["command"] = probe(
        "--out",
        str(tmp_path),
        "--print",
        "text:chief begins",
        "--sleep",
        "3",
        "--print",
        "text:lost connection",
        "--exit",
        "1",
    )
    airflow.write_job("ps-crash", job)
    run = airflow.trigger("ps-crash")
    run.wait("failed", deadline=60)
    why = run.log("result")
    assert "ps-0 failed: exit code 1" in why and "Error" in why
    assert "chief begins" in run.log("chief-0")


def test_a_worker_killed_comes_back_alone_and_a_ps_takes_the_chief_with_it(
    airflow: AirflowUnderTest, tmp_path: Path
) -> None:
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
    assert run.task("worker-1").try_number == 2

    ps = run.kill("ps-0")
    run.wait_running("ps-0", not_pid=ps)
    run.wait_running("chief-0", not_pid=chief)
    assert run.task("chief-0").try_number == 1, "started again inside its own try"
    assert run.cluster()["generation"] == 2
    stop.touch()
    run.wait("success", deadline=60)
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


def test_a_person_marks_a_replica_failed(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path)
    job["replicas"]["chief"]["command"] = probe("--out", str(tmp_path), *FOREVER)
    airflow.write_job("marked", job)
    run = airflow.trigger("marked")
    for name in ("chief-0", "worker-0", "worker-1", "ps-0"):
        run.wait_running(name)
    run.mark_task("worker-1", "failed")
    run.wait("failed", deadline=60)
    assert "worker-1: its task became failed" in run.log("result")
    wait_for(lambda: not airflow.programs(), 20, "every program to end")


def test_a_group_cleared_after_its_end_is_a_new_attempt(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    airflow.write_job("again", probe_job(tmp_path))
    run = airflow.trigger("again")
    run.wait("success", deadline=60)
    first = run.xcom("result")
    run.clear()
    wait_for(lambda: run.state in ("running", "queued"), 20, "the run to begin again")
    run.wait("success", deadline=60)
    second = run.xcom("result")
    assert first["attempt"] != second["attempt"] and first["model_dir"] == second["model_dir"]
    assert len(starts(tmp_path, "worker-0")) == 2


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
