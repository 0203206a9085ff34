"""Params reach the replicas the same way from a click, a schedule and a backfill; wrong ones never start a replica."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import probe, probe_job, starts
from run_under_test import RunUnderTest, wait_for

from tf_operator.errors import ApiError
from tf_operator.services.follow import failure_reason

pytestmark = pytest.mark.airflow


def params_job(out: Path) -> dict[str, Any]:
    folder = str(out / "{{ run_id }}")
    return {
        "schedule": "@daily",
        "start_date": "2026-01-01",
        "catchup": False,
        "max_active_runs": 2,
        "params": {
            "workers": {"type": "integer", "default": 1, "minimum": 1, "maximum": 4},
            "epochs": {"type": "integer", "default": 2, "minimum": 1},
            "tag": {"type": "string", "default": ""},
        },
        "program": {"command": probe("--out", folder, "--epochs={{ params.epochs }}", "--tag={{ params.tag }}")},
        "replicas": {"worker": {"replicas": "{{ params.workers }}", "gpus": 1}},
        "success_policy": "all_workers",
        "retry_delay": "1s",
        "run_policy": {"orphan_timeout": "5m"},
    }


def seen(run: RunUnderTest, out: Path) -> tuple[int, set[str], int, int]:
    """Workers started, their --epochs, length of TF_CONFIG's worker list, slots held."""
    folder = out / run.run_id
    workers = [starts(folder, f"worker-{n}") for n in range(4)]
    records = [start for each in workers for start in each]
    epochs = {next(a for a in record["argv"] if a.startswith("--epochs=")) for record in records}
    configs = {len(json.loads(record["tf_config"])["cluster"]["worker"]) for record in records}
    assert len(configs) == 1
    return len(records), epochs, configs.pop(), run.task("cluster").raw["pool_slots"]


@pytest.mark.timeout(900)
def test_c51_schedule_trigger_and_backfill(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    file = airflow.write_job("params", params_job(tmp_path))

    scheduled = wait_for(
        lambda: next((r for r in airflow.api.runs("params") if r.run_id.startswith("scheduled")), None),
        60,
        "the scheduled run",
    )
    run = airflow.run("params", scheduled.run_id)
    run.wait("success", deadline=90)
    assert seen(run, tmp_path) == (1, {"--epochs=2"}, 1, 1)

    clicked = airflow.trigger("params", workers=2, epochs=4, tag="mine")
    clicked.wait("success", deadline=90)
    assert seen(clicked, tmp_path) == (2, {"--epochs=4"}, 2, 2)
    assert "--tag=mine" in starts(tmp_path / clicked.run_id, "worker-0")[0]["argv"]
    assert "effective params: {'workers': 2, 'epochs': 4, 'tag': 'mine'}" in clicked.log("plan")

    conf = json.dumps({"workers": 3, "epochs": 7})
    with airflow.quiet():
        airflow.cli(
            *("backfill", "create", "--dag-id", "params", "--from-date", "2026-03-01", "--to-date", "2026-03-03"),
            *("--dag-run-conf", conf, "--max-active-runs", "1"),
        )
    backfills = wait_for(
        lambda: (found := [r for r in airflow.api.runs("params") if r.run_id.startswith("backfill")])[2:] and found,
        60,
        "three backfill runs",
    )
    model_dirs = set()
    for each in backfills:
        run = airflow.run("params", each.run_id)
        run.wait("success", deadline=180)
        assert seen(run, tmp_path) == (3, {"--epochs=7"}, 3, 3)
        model_dirs.add(run.xcom("result")["model_dir"])
    assert len(model_dirs) == 3
    file.unlink()  # at midnight it would start a run in another test's time


@pytest.mark.timeout(300)
def test_c05_a_count_of_0_by_a_param_is_green_also_when_the_run_is_cleared(
    airflow: AirflowUnderTest, tmp_path: Path
) -> None:
    """Airflow skips a mapped task of length 0, and on a retry it has raised instead: plan's own and an index task's."""
    count = {"type": "integer", "default": 1, "minimum": 0, "maximum": 1}
    job = probe_job(tmp_path, params={"workers": count, "evaluators": count})
    job["replicas"]["worker"] = {"replicas": "{{ params.workers }}"}
    job["replicas"]["evaluator"] = {"replicas": "{{ params.evaluators }}"}
    airflow.write_job("none-of-them", job)
    run = airflow.trigger("none-of-them", workers=0, evaluators=0)
    for attempt in (1, 2):
        run.wait("success", deadline=90)
        states = run.states()
        assert (states["worker"], states["evaluator"]) == ("skipped", "skipped"), states
        assert states["result"] == states["cleanup"] == "success", states
        assert {len(starts(tmp_path, name)) for name in ("chief-0", "ps-0")} == {attempt}
        config = json.loads(starts(tmp_path, "chief-0")[-1]["tf_config"])
        assert config["cluster"].keys() == {"chief", "ps"}, "no empty list"
        if attempt == 1:
            run.clear()
            wait_for(lambda: run.state == "running", 30, "the second attempt")


@pytest.mark.parametrize("conf", [{"workers": "3"}, {"workers": 9}, {"epochs": 0}])
def test_c55_a_value_outside_the_schema_makes_no_run(
    airflow: AirflowUnderTest, tmp_path: Path, conf: dict[str, Any]
) -> None:
    airflow.write_job("schema", params_job(tmp_path) | {"schedule": None})
    with pytest.raises(ApiError, match=next(iter(conf))):
        airflow.trigger("schema", **conf)


def test_c51_an_unknown_param_fails_in_one_line_before_any_replica(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    airflow.write_job("unknown", params_job(tmp_path) | {"schedule": None})
    run = airflow.trigger("unknown", wrokers=3)
    run.wait("failed", deadline=60)
    told = "conf.wrokers = 3: the job has no such param; it has"
    assert told in run.log("plan")
    last = failure_reason(airflow.api, "unknown", run.run_id)
    assert last.startswith("result: the job did not start: job unknown: ") and told in last, "as `tf-operator run` ends"
    assert not list(tmp_path.iterdir())


def test_c06_a_bad_file_says_so_and_the_others_still_import(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    bad = params_job(tmp_path) | {"replicas": {"worker": {"replicas": "two"}}}
    airflow.write_job("bad-count", bad, wait=False)
    airflow.write_job("good-count", params_job(tmp_path) | {"schedule": None})
    dag = wait_for(lambda: airflow.api.dag("invalid.bad-count"), 30, "the DAG that tells of the bad file")
    assert "replicas.worker.replicas" in dag["description"] and "two" in dag["description"]
    assert airflow.api.dag("bad-count") is None
    (airflow.project / "configs" / "jobs" / "bad-count.yaml").unlink()


def test_a_task_downstream_uses_the_result(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    command = probe("--out", str(tmp_path), "--result", '{"accuracy": 0.97}')
    source = f"""
from airflow.sdk import DAG, task
from tf_operator import TensorFlowJob

@task
def publish(result):
    return f"{{result['metrics']['accuracy']}} in generation {{result['generation']}}"

with DAG("around", schedule=None) as dag:
    job = TensorFlowJob(name="inner", program={{"command": {command!r}}}, replicas={{"worker": {{"replicas": 1}}}})
    train = job.as_task_group("train")
    publish(train.output)
"""
    airflow.write_dag("around", source)
    run = airflow.trigger("around")
    run.wait("success", deadline=90)
    assert run.xcom("publish") == "0.97 in generation 1"
    assert run.xcom("result")["model_dir"]
