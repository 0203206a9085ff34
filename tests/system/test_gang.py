"""GPU slots on a real Airflow: all or none, who waits for whom, and jobs that can never start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from airflow_under_test import AirflowUnderTest
from probe_jobs import probe, probe_job, starts
from run_under_test import wait_for

from tf_operator.pools import describe

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
        wait_for(lambda: f"held by gang/{first.run_id}/train (3 slots)" in second.log("admission"), 90, "it says who")
        log = second.log("admission")
        assert "waiting for 3 slots of pool gpu" in log
        assert second.find("chief-0").state is None  # type: ignore[union-attr]
        told = airflow.tf_operator("gpus").stdout
        assert f"gang/{first.run_id}/train/worker-0 since" in told
        assert f"gang/{first.run_id}/train.cluster holds 3 since" in told
        assert f"gang/{second.run_id}/train.cluster waits for 3 since" in told
        assert "2 more free slots, all 3 at once" in told
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
    run.clear()
    run.wait_task("cluster", "deferred")
    assert run.task("cluster").raw["pool_slots"] == 3, "asked for again after clear"
    run.wait("success", deadline=60)
    again = {starts(tmp_path, name)[1]["env"]["CUDA_VISIBLE_DEVICES"] for name in ("worker-0", "worker-1", "ps-0")}
    assert len(again) == 3 and "-1" not in again


def test_c22_a_job_larger_than_its_pool_says_both_numbers(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path)
    job["replicas"]["worker"] = {"replicas": 6, "gpus": 1}
    airflow.write_job("too-large", job)
    begun = time.monotonic()
    run = airflow.trigger("too-large")
    run.wait("failed", deadline=60)
    assert time.monotonic() - begun < 60
    for log in (run.log("cluster"), run.log("result")):
        assert "needs 6 slots" in log and "pool gpu has 4" in log
    assert not starts(tmp_path, "chief-0")


def test_c22_a_missing_pool_is_named(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    job = probe_job(tmp_path, scheduling={"pool": "gpus"})
    job["replicas"]["worker"]["gpus"] = 1
    airflow.write_job("no-pool", job)
    run = airflow.trigger("no-pool")
    run.wait("failed", deadline=60)
    told = "scheduling.pool = gpus: Airflow has no such pool"
    assert told in run.log("cluster")
    assert f"the job did not start: train.cluster failed: {told}" in run.log("result")
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
    for run in runs:
        assert run.failures("chief-0", "worker-0") == {"chief-0": 0, "worker-0": 0}, "nobody found its port taken"
        assert all(len(starts(tmp_path / run.run_id, name)) == 1 for name in ("chief-0", "worker-0"))


def test_a_job_that_needs_a_gpu_is_not_starved_by_its_own_retry(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    """The deadlock of plain pools: a killed worker's slot goes to the job that waits. Here the gang keeps its slots."""
    stop = tmp_path / "stop"
    airflow.write_job("holder", gpu_job(tmp_path / "a", stop))
    airflow.write_job("waiter", gpu_job(tmp_path / "b", stop))
    holder = airflow.trigger("holder")
    holder.wait_running("worker-1")
    waiter = airflow.trigger("waiter")
    waiter.wait_task("admission", "deferred")
    with airflow.sample_slots("gpu", every=0.2) as samples:
        killed = holder.kill("worker-1")
        holder.wait_running("worker-1", not_pid=killed, deadline=90)
    assert samples and all(held == {("holder", holder.run_id): 3} for held in samples), "nobody gets in between"
    assert waiter.find("worker-0") is None or waiter.find("worker-0").state is None  # type: ignore[union-attr]
    stop.touch()
    holder.wait("success", deadline=60)
    waiter.wait("success", deadline=90)
    assert holder.cluster()["generation"] == waiter.cluster()["generation"] == 1


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
    assert "train.admission failed: schedule_timeout: pool gpu had no 3 slots free" in second.log("result")
    assert second.states()["cluster"] == "skipped", "taken out of the queue, though the pool is still full"
    assert first.state == "running"
    stop.touch()
    first.wait("success", deadline=60)
    assert not starts(tmp_path / "b", "chief-0")


def sized_job(out: Path, until: Path, gpus: int) -> dict[str, object]:
    job = probe_job(out)
    job["program"] = {"command": probe("--out", str(out), "--wait-file", str(until))}
    job["replicas"] = {"worker": {"replicas": 1, "gpus": gpus}}
    return job


def test_a_large_job_is_not_overtaken_for_ever(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    """Pool of 4: `early` (2) runs, `large` (4) waits, `quick` (2) overtakes it; who comes after that does not."""
    stops = {name: tmp_path / f"stop-{name}" for name in ("early", "large", "quick", "later", "urgent")}
    for name, stop in stops.items():
        job = sized_job(tmp_path / name, stop, 4 if name == "large" else 2)
        airflow.write_job(name, job | {"scheduling": {"priority": 5 if name == "urgent" else 1}}, wait=False)
    for name in stops:
        airflow.wait_dag(name, airflow.project / "configs" / "jobs" / f"{name}.yaml")
    early = airflow.trigger("early")
    early.wait_running("worker-0")
    large = airflow.trigger("large")
    large.wait_task("cluster", "scheduled")
    quick = airflow.trigger("quick")
    quick.wait_running("worker-0")
    wait_for(lambda: "jobs that come now go after it" in large.log("admission"), 120, "the large job to go first")
    told = airflow.tf_operator("gpus").stdout
    assert "4 more free slots, all 4 at once; goes first" in told
    later = airflow.trigger("later")
    later.wait_task("plan", "deferred")
    stops["quick"].touch()
    quick.wait("success", deadline=60)
    assert f"after large/{large.run_id}/train (4 slots)" in later.log("plan")
    assert later.task("plan").state == "deferred", "2 slots are free, and kept for the large job"
    stops["urgent"].touch()
    airflow.trigger("urgent").wait("success", deadline=60)
    assert later.task("plan").state == "deferred", "a higher priority passed"
    stops["early"].touch()
    large.wait_running("worker-0")
    assert later.find("worker-0") is None or later.find("worker-0").state is None  # type: ignore[union-attr]
    for stop in stops.values():
        stop.touch()
    for run in (early, large, later):
        run.wait("success", deadline=90)
    started = [starts(tmp_path / name, "worker-0")[0]["started"] for name in ("early", "quick", "large", "later")]
    assert started == sorted(started)


def test_parts_of_one_device_are_slots_of_the_pool(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    file = airflow.project / "configs" / "pools.yaml"
    before = file.read_text()
    file.write_text(f"{before}  quarters:\n    slots_per_gpu: 4\n")
    try:
        airflow.api.set_pool("quarters", 16, describe("", 4))
        job = probe_job(tmp_path, scheduling={"pool": "quarters"})
        job["program"] = {"command": probe("--out", str(tmp_path), "--sleep", "10")}
        job["replicas"] = {"worker": {"replicas": 3, "gpus": 0.25}, "ps": {}}
        job["strategy"] = "none"
        airflow.write_job("quarters", job)
        run = airflow.trigger("quarters")
        run.wait("success", deadline=60)
    finally:
        file.write_text(before)
    assert run.task("cluster").raw["pool_slots"] == 3
    envs = [starts(tmp_path, f"worker-{index}")[0]["env"] for index in range(3)]
    assert len({env["CUDA_VISIBLE_DEVICES"] for env in envs}) == 1 and envs[0]["CUDA_VISIBLE_DEVICES"] != "-1"
    assert {env["TF_FORCE_GPU_ALLOW_GROWTH"] for env in envs} == {"true"}
    assert starts(tmp_path, "ps-0")[0]["env"]["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_pool_that_does_not_fit_the_hardware_is_one_line(airflow: AirflowUnderTest) -> None:
    airflow.api.set_pool("gpu", 2, airflow.api.pools()["gpu"].description, include_deferred=False)
    try:
        checked = airflow.tf_operator("pools", "--check")
        assert checked.returncode == 1
        assert "pool gpu: has 2 slots, wanted 4 (4 GPUs on this host x slots_per_gpu 1);" in checked.stdout
        assert "include_deferred" in checked.stdout and len(checked.stdout.strip().splitlines()) == 1
    finally:
        repaired = airflow.tf_operator("pools")
    assert repaired.returncode == 0, repaired.stderr
    pool = airflow.api.pools()["gpu"]
    assert (pool.slots, pool.include_deferred) == (4, True)


def test_another_teams_things_are_refused_before_anything_starts(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    file = airflow.project / "configs" / "teams.yaml"
    folder = airflow.project / "configs" / "jobs" / "guests"
    folder.mkdir()
    try:
        file.write_text("teams: {vision: {pools: [gpu], secrets: [secret/training]}, guests: {}}\n")
        job = sized_job(tmp_path, tmp_path, 1)
        job["secrets"] = [{"vault": "secret/training/store#access_key", "env": "STORE_KEY"}]
        job_file = folder / "trespass.yaml"
        airflow.write_job("guests/trespass", yaml.safe_dump({"name": "trespass"} | job), wait=False)
        airflow.wait_dag("trespass", job_file)
        run = airflow.trigger("trespass")
        run.wait("failed", deadline=60)
    finally:
        file.unlink()
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
    log = run.log("plan")
    assert "job trespass: scheduling.pool = gpu: belongs to team vision, this job is team guests's" in log
    assert "job trespass: secrets: secret/training/store#access_key: belongs to team vision" in log
    assert run.task("cluster").raw["pool"] == "default_pool", "the policy kept it out of the pool, too"
