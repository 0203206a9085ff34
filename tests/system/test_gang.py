"""GPU slots on a real Airflow: all or none, who waits for whom, and jobs that can never start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness import AirflowUnderTest, wait_for
from probe_jobs import probe, probe_job, starts

pytestmark = pytest.mark.airflow


def gpu_job(out: Path, until: Path) -> dict[str, object]:
    job = probe_job(out)
    job["replicas"] = {
        "chief": {"command": probe("--out", str(out), "--wait-peers", "--wait-file", str(until))},
        "worker": {"replicas": 2, "gpus": 1},
        "ps": {"gpus": 1},
    }
    return job


def test_two_runs_with_a_pool_for_one(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    airflow.write_job("gang", gpu_job(tmp_path / "out", stop))
    with airflow.sample_slots("gpu") as samples:
        first = airflow.trigger("gang")
        first.wait_running("chief-0")
        second = airflow.trigger("gang")
        second.wait_task("admission", "deferred")
        wait_for(lambda: f"held by gang/{first.run_id}/train (3 slots)" in second.log("admission"), 30, "it says who")
        log = second.log("admission")
        assert "waiting for 3 slots of pool gpu" in log
        assert second.find("chief-0").state is None  # type: ignore[union-attr]
        stop.touch()
        first.wait("success", deadline=60)
        second.wait("success", deadline=90)
    assert samples
    for held in samples:
        assert set(held.values()) <= {3}, "never a part of a gang"
        assert len(held) <= 1, held


def test_c40_devices_are_bound_one_each_and_others_see_none(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    airflow.write_job("devices", gpu_job(tmp_path, stop))
    run = airflow.trigger("devices")
    run.wait("success", deadline=60)
    visible = {
        name: starts(tmp_path, name)[0]["env"]["CUDA_VISIBLE_DEVICES"]
        for name in ("chief-0", "worker-0", "worker-1", "ps-0")
    }
    assert visible.pop("chief-0") == "-1"
    assert len(set(visible.values())) == 3 and "-1" not in visible.values(), visible
    assert run.task("cluster").raw["pool_slots"] == 3


def test_c22_a_job_larger_than_its_pool_says_both_numbers(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path)
    job["replicas"]["worker"] = {"replicas": 6, "gpus": 1}
    airflow.write_job("too-large", job)
    begun = time.monotonic()
    run = airflow.trigger("too-large")
    run.wait("failed", deadline=60)
    assert time.monotonic() - begun < 60
    log = run.log("cluster")
    assert "needs 6 slots" in log and "pool gpu has 4" in log
    assert not starts(tmp_path, "chief-0")


def test_c22_a_missing_pool_is_named(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, scheduling={"pool": "gpus"})
    job["replicas"]["worker"]["gpus"] = 1
    airflow.write_job("no-pool", job)
    run = airflow.trigger("no-pool")
    run.wait("failed", deadline=60)
    assert "scheduling.pool = gpus: Airflow has no such pool" in run.log("cluster")
    assert not starts(tmp_path, "chief-0")


def test_c11_two_runs_at_once_share_no_port(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path / "{{ run_id }}")
    job["replicas"] = {
        "chief": {"command": probe("--out", str(tmp_path / "{{ run_id }}"), "--bind", "--wait-peers", "--sleep", "2")},
        "worker": {"replicas": 1},
    }
    airflow.write_job("ports", job)
    runs = [airflow.trigger("ports") for _ in range(2)]
    for run in runs:
        run.wait("success", deadline=90)
    specs = [run.cluster()["spec"] for run in runs]
    addresses = [{a for role in spec.values() for a in role} for spec in specs]
    assert not addresses[0] & addresses[1]
    assert all(task.try_number == 1 for run in runs for task in run.tasks())


def test_a_job_that_needs_a_gpu_is_not_starved_by_its_own_retry(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    """The deadlock of plain pools: a killed worker's slot goes to the job that waits. Here the gang keeps its slots."""
    stop = tmp_path / "stop"
    airflow.write_job("holder", gpu_job(tmp_path / "a", stop))
    airflow.write_job("waiter", gpu_job(tmp_path / "b", stop))
    holder = airflow.trigger("holder")
    holder.wait_running("worker-1")
    waiter = airflow.trigger("waiter")
    waiter.wait_task("admission", "deferred")
    killed = holder.kill("worker-1")
    holder.wait_running("worker-1", not_pid=killed, deadline=30)
    assert waiter.find("worker-0") is None or waiter.find("worker-0").state is None  # type: ignore[union-attr]
    stop.touch()
    holder.wait("success", deadline=60)
    waiter.wait("success", deadline=90)


def test_an_endless_wait_is_bounded_by_schedule_timeout(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    airflow.write_job("first-in", gpu_job(tmp_path / "a", stop))
    late = gpu_job(tmp_path / "b", stop) | {"run_policy": {"schedule_timeout": "5s", "orphan_timeout": "5m"}}
    airflow.write_job("late", late)
    first = airflow.trigger("first-in")
    first.wait_running("worker-1")
    second = airflow.trigger("late")
    second.wait_task("admission", "failed", deadline=60)
    log = second.log("admission")
    assert "schedule_timeout" in log and f"held by first-in/{first.run_id}" in log
    second.wait("failed", deadline=60)
    assert second.states()["cluster"] == "skipped", "taken out of the queue, though the pool is still full"
    assert first.state == "running"
    stop.touch()
    first.wait("success", deadline=60)
    assert not starts(tmp_path / "b", "chief-0")
