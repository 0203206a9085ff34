"""Cases from the field on docker, through a real Airflow. Runs that do not need each other go at once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from airflow_under_test import AirflowUnderTest
from docker_engine import DockerEngine, registry
from docker_jobs import in_containers
from probe_jobs import probe, starts
from run_under_test import RunUnderTest, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.docker]

Log = dict[str, str]


def alone(out: Path, *command: str, **more: Any) -> dict[str, Any]:
    """A job of one worker."""
    keys = {key: more.pop(key) for key in ("retries", "retry_delay") if key in more}
    return in_containers({"replicas": {"worker": {"command": [*command], **more}}, "retry_delay": "1s", **keys}, out)


def begin(airflow: AirflowUnderTest, jobs: dict[str, dict[str, Any]]) -> dict[str, RunUnderTest]:
    """A run of each, all at once."""
    for name, job in jobs.items():
        airflow.write_job(name, job, wait=False)
    for name in jobs:
        airflow.wait_dag(name, airflow.project / "configs" / "jobs" / f"{name}.yaml")
    return {name: airflow.trigger(name) for name in jobs}


def plan_of(run: RunUnderTest) -> dict[str, Any]:
    """The plan but for the attempt's id."""
    plan = run.xcom("plan", "plan")
    return {key: value for key, value in plan.items() if key != "attempt"}


def test_c05_no_chief_two_gpus_a_worker_and_none_for_the_ps(docker_airflow: AirflowUnderTest, tmp_path: Path) -> None:
    # Of this size because the session's Airflow has 4 GPUs; six are in tests/integration/test_docker_jobs.py.
    out = tmp_path / "out"
    bench = {
        "program": {"command": probe("--out", str(out), "--bind")},
        "replicas": {
            "chief": {"replicas": 0},
            "ps": {"replicas": 1, "gpus": 0, "command": probe("--out", str(out), "--bind", "--sleep", "ever")},
            "worker": {"replicas": 2, "gpus": 2},
        },
        "scheduling": {"pool": "gpu"},
        "success_policy": "all_workers",
    }
    docker_airflow.write_job("docker-bench", in_containers(bench, out))
    run = docker_airflow.trigger("docker-bench")
    run.wait("success", deadline=90)
    assert {task.task_id.rpartition(".")[2] for task in run.tasks()} & {"chief", "worker", "ps"} == {"worker", "ps"}
    assert {role: len(hosts) for role, hosts in run.cluster()["spec"].items()} == {"worker": 2, "ps": 1}
    assert run.task("cluster").raw["pool_slots"] == 4
    given = [starts(out, f"worker-{index}")[0]["env"]["NVIDIA_VISIBLE_DEVICES"].split(",") for index in range(2)]
    assert len({device for devices in given for device in devices}) == 4, given
    first, states = plan_of(run), run.states()
    run.clear()
    wait_for(lambda: run.state == "running", 30, "the second attempt")
    run.wait("success", deadline=90)
    assert (plan_of(run), run.states()) == (first, states)


def test_c09_names_that_look_alike_do_not_meet_and_every_host_resolves(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    names = ("fraud-model_v2.1", "fraud.model-v2_1")
    stop = tmp_path / "stop"
    tmp_path.chmod(0o755)
    jobs = {}
    for name in names:
        command = probe("--out", str(tmp_path / name), "--bind", "--wait-peers")
        job = {
            "program": {"command": [*command, "--sleep", "ever"]},
            "replicas": {
                "chief": {"command": [*command, "--wait-file", str(stop)]},
                "worker": {"replicas": 2},
                "ps": {},
            },
        }
        jobs[name] = in_containers(job, tmp_path / name)
        jobs[name]["runtime"]["mounts"].append({"source": str(tmp_path), "target": str(tmp_path)})
    runs = begin(docker_airflow, jobs)
    for name in names:
        for replica in ("worker-0", "worker-1", "ps-0"):
            wait_for(lambda name=name, one=replica: met_all(tmp_path / name, one), 90, f"{name} {replica} to meet all")
    found = docker_engine.containers()
    assert len({one["Names"][0] for one in found}) == len(found) == 8
    assert len(docker_engine.networks()) == 2
    stop.touch()
    for run in runs.values():
        run.wait("success", deadline=90)


def met_all(out: Path, replica: str) -> bool:
    """Whether the replica's probe has reached every host of its ClusterSpec."""
    return any(start.get("ready") for start in starts(out, replica))


ENDS: dict[str, tuple[list[str], dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    # name: flags of the probe, the worker's own fields, what the log says, what it does not say
    "oom": (["--eat-memory", "200"], {"memory": "64MiB"}, ("exit code 137", "out of memory, limit 64 MiB"), ()),
    "killed": (["--signal", "SIGKILL"], {"memory": "64MiB"}, ("exit code 137 (SIGKILL)",), ("out of memory",)),
    "one": (["--exit", "1"], {}, ("exit code 1",), ()),
    "segv": (["--signal", "SIGSEGV"], {}, ("exit code 139 (SIGSEGV)",), ()),
    "term": (["--sleep", "ever"], {}, ("exit code 143 (SIGTERM)",), ()),
    "minus-one": (["--exit", "255"], {}, ("exit code 255",), ()),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", [("oom", "killed"), ("one", "segv", "term", "minus-one")], ids=["137", "others"])
def test_c24_ends_are_told_apart_and_attempts_are_bounded(
    docker_airflow: AirflowUnderTest, tmp_path: Path, names: tuple[str, ...]
) -> None:
    jobs = {}
    for name in names:
        flags, fields, _, _ = ENDS[name]
        out = tmp_path / name
        jobs[f"docker-{name}"] = alone(out, *probe("--out", str(out), *flags), retries=2, **fields)
    runs = begin(docker_airflow, jobs)
    if "term" in names:
        end_from_outside(runs["docker-term"], tmp_path / "term", times=3)
    for name in names:
        run, (_, _, said, unsaid) = runs[f"docker-{name}"], ENDS[name]
        run.wait("failed", deadline=120)
        log, why = run.log("worker-0"), run.log("result")
        for text in ("worker-0 failed", *said):
            assert text in log and text in why, (name, text)
        assert not [text for text in unsaid if text in why], why
        assert len(starts(tmp_path / name, "worker-0")) == 3


def end_from_outside(run: RunUnderTest, out: Path, times: int) -> None:
    """Each start of its worker gets a SIGTERM that is none of ours."""
    last = None
    for number in range(1, times + 1):
        wait_for(lambda number=number: len(starts(out, "worker-0")) == number, 90, f"start {number} of worker-0")
        last = run.wait_running("worker-0", not_pid=last)
        run.kill("worker-0", signal.SIGTERM)


def test_c30_containers_that_exit_at_once(docker_airflow: AirflowUnderTest, tmp_path: Path) -> None:
    jobs = {
        "docker-true": alone(tmp_path / "a", "true", retries=0),
        "docker-false": alone(tmp_path / "b", "sh", "-c", "echo said before the end; exec false", retries=0),
        "docker-absent": alone(tmp_path / "c", "no-such-program", "--flag", retries=0),
    }
    runs = begin(docker_airflow, jobs)
    runs["docker-true"].wait("success", deadline=90)
    for name in ("docker-false", "docker-absent"):
        runs[name].wait("failed", deadline=60)
    failed, absent = runs["docker-false"].log("worker-0"), runs["docker-absent"].log("worker-0")
    assert "said before the end" in failed and "exit code 1" in failed
    assert "exit code 127" in absent and "command not found: no-such-program" in absent
    for run in runs.values():
        assert "404" not in run.log("worker-0") and "No such container" not in run.log("worker-0")


def test_c32_a_progress_bar_is_thinned_out_and_what_follows_it_is_there(
    docker_airflow: AirflowUnderTest, tmp_path: Path
) -> None:
    docker_airflow.write_job("docker-bar", alone(tmp_path, *probe("--print", "tqdm")))
    run = docker_airflow.trigger("docker-bar")
    run.wait("success", deadline=60)
    log = run.log("worker-0")
    assert "200/200" in log and "probe: training done" in log
    assert max(line.count("%|") for line in log.splitlines()) <= 1


def test_c35_an_image_is_pulled_or_told_absent_or_waited_for(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    airflow, engine = docker_airflow, docker_engine
    with registry(engine) as host:
        here, later = (engine.image(f"{host}/team/{name}:1", f"RUN echo {name} >/own") for name in ("here", "later"))
        for name in (here, later):
            assert not any("error" in step for step in engine.api.push(name, stream=True, decode=True))
            engine.api.remove_image(name)
        jobs = {"pulled": with_image(tmp_path / "a", here), "unknown": with_image(tmp_path / "b", f"{host}/team/no:2")}
        runs = begin(airflow, {f"docker-{name}": job for name, job in jobs.items()})
        runs["docker-pulled"].wait("success", deadline=90)
        absent = runs["docker-unknown"]
        absent.wait("failed", deadline=60)
        log = absent.log("plan")
        assert "worker" in log and f"{host}/team/no:2: there is no such image" in log
        assert absent.task("plan").try_number == 1, "no retry is spent on a name that cannot exist"
        assert not starts(tmp_path / "b", "chief-0")
    (run,) = begin(airflow, {"docker-later": with_image(tmp_path / "c", later)}).values()
    run.wait_task("plan", "up_for_retry")
    said = f"{later}: the registry cannot be reached now"
    wait_for(lambda: said in run.logs("plan"), 30, said)
    with registry(engine):
        run.wait("success", deadline=90)
    assert run.task("plan").try_number > 1
    for name in (here, later):
        engine.api.remove_image(name, force=True)


def with_image(out: Path, image: str) -> dict[str, Any]:
    """A chief, a ps, and a worker with another image than theirs."""
    command = probe("--out", str(out), "--bind")
    replicas = {
        "chief": {"command": [*command, "--wait-peers"]},
        "ps": {"command": [*command, "--sleep", "ever"]},
        "worker": {
            "command": [*command, "--sleep", "ever"],
            "runtime": {"image": image, "pull_policy": "missing"},
        },
    }
    return in_containers({"replicas": replicas}, out)


def test_c40_devices_are_requested_by_id_and_who_asked_for_none_sees_none(
    docker_airflow: AirflowUnderTest, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    stop, out = tmp_path / "out" / "stop", tmp_path / "out"
    command = probe("--out", str(out), "--bind")
    replicas = {
        "chief": {"gpus": 1, "command": [*command, "--wait-peers", "--patience", "300", "--wait-file", str(stop)]},
        "worker": {"gpus": 2, "command": [*command, "--sleep", "ever"]},
        "evaluator": {"gpus": 1, "command": probe("--out", str(out), "--sleep", "ever")},
        "ps": {"command": [*command, "--sleep", "ever"]},
    }
    docker_airflow.write_job("docker-devices", in_containers({"replicas": replicas}, out))
    run = docker_airflow.trigger("docker-devices")
    for name in ("chief-0", "worker-0", "evaluator-0", "ps-0"):
        run.wait_running(name)
    requested = {}
    for one in docker_engine.containers():
        requests = docker_engine.api.inspect_container(one["Id"])["HostConfig"]["DeviceRequests"] or []
        assert all(request["Capabilities"] == [["gpu"]] and request["Count"] == 0 for request in requests)
        requested[one["Labels"]["tf_operator.role"]] = [name for request in requests for name in request["DeviceIDs"]]
    stop.touch()
    run.wait("success", deadline=60)
    assert {role: len(names) for role, names in requested.items()} == {"chief": 1, "worker": 2, "evaluator": 1, "ps": 0}
    assert len({name for names in requested.values() for name in names}) == 4, "no device twice"
    for role, names in requested.items():
        env = starts(out, f"{role}-0")[0]["env"]
        assert env["NVIDIA_VISIBLE_DEVICES"] == (",".join(names) or "void"), role
        assert env["CUDA_VISIBLE_DEVICES"] == (",".join(map(str, range(len(names)))) or "-1"), "counted from 0 again"
    assert run.task("cluster").raw["pool_slots"] == 4
    assert json.loads(starts(out, "ps-0")[0]["tf_config"])["cluster"].keys() == {"chief", "worker", "ps"}
