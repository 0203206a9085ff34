"""What a program is given: exactly its environment (invariants 1, 5 and 7, decision 16)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import identity_of, make_job, running_cluster

from tf_operator.errors import JobError
from tf_operator.job_spec.rendered import RenderedJob
from tf_operator.program import Start, make_launch, program_env, read_result, result_path
from tf_operator.runners import result_file
from tf_operator.runners.base import SecretBundle, SecretFile

WORKER_ENV = {
    "PATH": "/bin",
    "HOME": "/home/u",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "LD_LIBRARY_PATH": "/lib",
    "AIRFLOW_HOME": "x",
    "AIRFLOW__CORE__FERNET_KEY": "x",
    "AIRFLOW_CONN_VAULT_DEFAULT": "x",
    "VAULT_TOKEN": "x",
    "BAO_ADDR": "x",
    "PYTHONPATH": "x",
    "http_proxy": "x",
}


def env_of(job: RenderedJob, name: str = "worker-1", devices: tuple[str, ...] = ()) -> dict[str, str]:
    start = Start(identity_of(name), 1, running_cluster(job))
    return program_env(job, start, inherited=WORKER_ENV, devices=devices)


def with_env(job: RenderedJob, **change: Any) -> RenderedJob:
    return job.model_copy(update={"groups": [group.model_copy(update=change) for group in job.groups]})


def test_nothing_of_airflow_or_vault_and_all_that_is_promised() -> None:
    env = env_of(make_job())
    assert set(env) == {
        *("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED", "GRPC_FAIL_FAST"),
        *("no_proxy", "NO_PROXY", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
        *("TF_OPERATOR_MODEL_DIR", "TF_OPERATOR_RESULT", "TF_OPERATOR_GENERATION", "TF_CONFIG"),
    }
    assert env["no_proxy"] == "127.0.0.1"
    assert env["TF_OPERATOR_RESULT"] == "/nowhere/model/.tf_operator/results/a1-worker-1.json"
    assert json.loads(env["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


def test_the_cluster_is_the_same_bytes_for_every_replica() -> None:
    job = make_job(evaluator=1)
    configs = [env_of(job, str(replica))["TF_CONFIG"] for replica in job.replicas]
    assert len({config.partition('"task"')[0] for config in configs}) == 1
    assert "evaluator" not in json.loads(configs[-1])["cluster"]


@pytest.mark.parametrize(("devices", "seen"), [((), "-1"), (("0",), "0"), (("2", "5"), "2,5")])
def test_devices_are_the_leased_ones_whatever_the_job_says(devices: tuple[str, ...], seen: str) -> None:
    job = with_env(make_job(), env={"CUDA_VISIBLE_DEVICES": "0,1,2,3", "NVIDIA_VISIBLE_DEVICES": "all"})
    env = env_of(job, devices=devices)
    assert env["CUDA_VISIBLE_DEVICES"] == seen
    assert env["NVIDIA_VISIBLE_DEVICES"] == ("void" if seen == "-1" else seen)


def test_tf_config_false() -> None:
    job = make_job(chief=0, worker=1, ps=0, strategy="none", tf_config=False)
    assert "TF_CONFIG" not in env_of(job, "worker-0")


def test_the_jobs_env_may_set_what_is_its_own_and_adds_to_no_proxy() -> None:
    job = with_env(make_job(), env={"OMP_NUM_THREADS": "7", "LANG": "de", "no_proxy": "example.com"}, cpus=2)
    env = env_of(job)
    assert (env["OMP_NUM_THREADS"], env["TF_NUM_INTRAOP_THREADS"], env["LANG"]) == ("7", "2", "de")
    assert env["no_proxy"] == env["NO_PROXY"] == "example.com,127.0.0.1"


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, "1"), (1, "1"), (2.6, "3")])
def test_cpus_size_the_thread_pools(cpus: float, threads: str) -> None:
    env = env_of(with_env(make_job(), cpus=cpus))
    assert env["OMP_NUM_THREADS"] == env["TF_NUM_INTEROP_THREADS"] == threads


def test_a_launch_is_complete_and_its_repr_holds_no_secret() -> None:
    job = with_env(make_job(), command=["train", "a b", "$HOME", "*"], memory=2**30)
    secrets = SecretBundle({"KEY": "S3cr3t"}, (SecretFile("f", b"S3cr3t"),), ("S3cr3t",))
    start = Start(identity_of("worker-1"), 4, running_cluster(job, launch={"worker-1": 3}))
    launch = make_launch(job, start, inherited={}, devices=("1",), device_fds=(9,))
    launch = replace(launch, secrets=secrets)
    assert launch.argv == ("train", "a b", "$HOME", "*")
    assert (launch.attempt, launch.incarnation, launch.generation, launch.memory) == ("a1", 4, 3, 2**30)
    assert launch.env["TF_OPERATOR_GENERATION"] == "3"
    assert "S3cr3t" not in repr(launch)
    assert "S3cr3t" not in str(launch.env)


def test_results(tmp_path: Path) -> None:
    path = result_path(tmp_path, "a1", identity_of("chief-0").replica)
    assert read_result(path) is None
    path.parent.mkdir(parents=True)
    path.write_text('{"accuracy": 0.9}')
    assert read_result(path) == {"accuracy": 0.9}
    path.write_text("accuracy: 0.9")
    with pytest.raises(JobError, match="not JSON"):
        read_result(path)


def test_a_result_that_airflow_could_not_keep(tmp_path: Path) -> None:
    path = result_path(tmp_path, "a1", identity_of("chief-0").replica)
    path.parent.mkdir(parents=True)
    path.write_text('{"loss": NaN, "best": -Infinity}')
    assert read_result(path) == {"loss": None, "best": None}
    for text, told in (("[" * 100_000, "not JSON"), (f'"{"x" * 2**20}"', "more than 1048576 bytes; put large")):
        path.write_text(text)
        with pytest.raises(JobError, match=told):
            read_result(path)


def test_a_result_is_the_programs_own_file(tmp_path: Path) -> None:
    """Who reads it may read more than the program may."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    path = result_path(tmp_path / "model", "a1", identity_of("chief-0").replica)
    (hidden / path.name).write_text('{"key": "hidden"}')
    path.parent.mkdir(parents=True)
    path.symlink_to(hidden / path.name)
    with pytest.raises(JobError):
        read_result(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(JobError, match="no plain file"):
        read_result(path)
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(hidden)
    with pytest.raises(JobError, match="make no links there"):
        read_result(path)
    path.parent.unlink()
    path.parent.symlink_to(path.parent.name)
    with pytest.raises(JobError, match="leads in a circle; make no links there"):
        read_result(path)


def test_a_part_of_a_device_grows_and_knows_its_limit() -> None:
    start = Start(identity_of("worker-1"), 1, running_cluster(make_job()))

    def env(gpus: float, memory: int | None = None, **own: str) -> dict[str, str]:
        job = with_env(make_job(), gpus=gpus, env=own)
        return program_env(job, start, inherited=WORKER_ENV, devices=("0",), device_memory=memory)

    names = ("TF_FORCE_GPU_ALLOW_GROWTH", "TF_OPERATOR_GPU_MEMORY_MB")
    assert [env(0.25, 20 << 30).get(name) for name in names] == ["true", "20480"]
    assert [env(0.25).get(name) for name in names] == ["true", None]
    assert [env(1).get(name) for name in names] == [None, None]
    assert env(0.25, TF_FORCE_GPU_ALLOW_GROWTH="false")["TF_FORCE_GPU_ALLOW_GROWTH"] == "false", "the job's own word"


def test_a_result_whose_secrets_are_not_known_any_more_is_withheld(tmp_path: Path) -> None:
    path = result_path(tmp_path, "a1", identity_of("chief-0").replica)
    path.parent.mkdir(parents=True)
    path.write_text('{"key": "S3cr3t"}')
    assert result_file.mask(path, None) == "its result is withheld: the secrets in it could not be masked"
    assert read_result(path) is None
    assert result_file.mask(path, None) is None, "there is none"
