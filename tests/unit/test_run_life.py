"""Whose model_dir it is where a database cannot tell: local runs, other Airflows, databases that were reset (C-54)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import make_job

from tf_operator import locks, model_dir, run_life
from tf_operator.cli import local_machine
from tf_operator.errors import InUseError, JobError, PreflightError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.job_spec import RenderedJob
from tf_operator.local import new_run_id
from tf_operator.run_life import Owner, installation, owner_of
from tf_operator.runners.run_folder import RunFolder

MINE, OTHER = "http://airflow.example:8080", "http://other.example:8080"


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def job(tmp_path: Path) -> RenderedJob:
    return make_job(model_dir=str(tmp_path / "model"))


def take(job: RenderedJob, owner: Owner, *, ended: bool = True) -> None:
    """As plan does. `ended`: what its Airflow says of the holder; also of one it has never heard of."""
    model_dir.claim(job.model_dir, owner, lambda holder: run_life.is_over(job.model_dir, holder, owner, lambda: ended))


def key_of(owner: Owner) -> str:
    return Identity(owner["dag_id"], owner["run_id"], owner["group_id"], ReplicaId("worker", 0)).key


@pytest.fixture
def program(state_dir: Path) -> Iterator[int]:
    """What the keeper of a program of the other Airflow's run holds."""
    path = state_dir / "locks" / f"{key_of(owner_of('digits', 'manual__1', 'train', OTHER))}.keeper"
    path.parent.mkdir(parents=True)
    descriptor = locks.acquire(path)
    assert descriptor is not None
    yield descriptor


def test_airflow_does_not_take_it_from_a_local_run_that_lives(job: RenderedJob) -> None:
    mine = owner_of("digits", "manual__1", "train", MINE)
    with local_machine.claimed(job, local := new_run_id()), pytest.raises(InUseError, match=f"belongs to run {local}"):
        take(job, mine)
    take(job, mine)


def test_a_local_run_that_was_killed_keeps_it_only_for_as_long_as_its_programs_live(
    job: RenderedJob, state_dir: Path
) -> None:
    killed = owner_of(job.name, new_run_id(), "")
    take(job, killed)
    path = state_dir / "locks" / f"{key_of(killed)}.keeper"
    path.parent.mkdir(parents=True)
    keeper = locks.acquire(path)
    assert keeper is not None
    with pytest.raises(InUseError):
        take(job, owner_of("digits", "manual__1", "train", MINE))
    os.close(keeper)
    take(job, owner_of("digits", "manual__1", "train", MINE))


def test_another_airflows_run_lives_as_long_as_its_programs(job: RenderedJob, program: int) -> None:
    """And one whose Airflow was reset is no obstacle for ever."""
    take(job, owner_of("digits", "manual__1", "train", OTHER))
    for run in ("manual__2", "manual__1"):
        with pytest.raises(InUseError, match="run manual__1 of digits, which has not ended"):
            take(job, owner_of("digits", run, "train", MINE))
    os.close(program)
    take(job, owner_of("digits", "manual__1", "train", MINE))


def test_a_container_is_a_program_too(job: RenderedJob, state_dir: Path) -> None:
    other = owner_of("digits", "manual__1", "train", OTHER)
    take(job, other)
    folder = RunFolder(state_dir / "docker", key_of(other))
    folder.create()
    folder.write_record({"start": 1, "pid": os.getpid()})
    with pytest.raises(InUseError):
        take(job, owner_of("digits", "manual__2", "train", MINE))
    folder.write_exit(1, {"code": 0})
    take(job, owner_of("digits", "manual__2", "train", MINE))


@pytest.mark.parametrize("holder", [("manual__1", OTHER), (new_run_id(), "")])
def test_what_cannot_be_known_here_is_one_line_with_the_way_out(job: RenderedJob, holder: tuple[str, str]) -> None:
    run, airflow = holder
    take(job, owner_of("digits", run, "train", airflow) | {"host": "gpu-7"})
    text = rf"run {run} of digits on host gpu-7, and whether .* not known here; .* remove .tf_operator/owner.json"
    with pytest.raises(PreflightError, match=text) as error:
        take(job, owner_of("digits", "manual__2", "train", MINE))
    assert not isinstance(error.value, InUseError), "no retry helps"


@pytest.mark.parametrize("record", [{"host": "gpu-7"}, {}])
def test_of_its_own_runs_airflow_knows(job: RenderedJob, record: dict[str, str]) -> None:
    take(job, owner_of("digits", "manual__1", "train", MINE) | record)
    with pytest.raises(InUseError):
        take(job, owner_of("digits", "manual__2", "train", MINE), ended=False)
    take(job, owner_of("digits", "manual__2", "train", MINE))


def test_a_record_of_an_earlier_version_is_read(job: RenderedJob, tmp_path: Path) -> None:
    old = {"dag_id": "digits", "run_id": "manual__1", "group_id": "train"}
    model_dir.claim(job.model_dir, old, lambda _: False)
    take(job, owner_of(**old, airflow=MINE), ended=False)
    assert json.loads((tmp_path / "model" / ".tf_operator" / "owner.json").read_text())["airflow"] == MINE


def test_an_airflow_is_told_by_its_address() -> None:
    assert installation("http://airflow.example:8080", "a") == installation("http://airflow.example:8080", "b")
    for url in ("http://localhost:8080", "http://127.0.0.1:8080", "http://[::1]:8080"):
        assert installation(url, "a") != installation(url, "b")
    assert installation("http://localhost:8080", "a") != installation("http://localhost:8081", "a")


def test_who_lost_it_before_a_program_showed_that_the_run_lives_starts_none(job: RenderedJob, tmp_path: Path) -> None:
    mine = Identity("digits", "manual__1", "train", ReplicaId("worker", 0))
    with model_dir.held(job.model_dir, mine):
        pass
    take(job, owner_of("digits", "manual__1", "train", MINE))
    with model_dir.held(job.model_dir, mine):
        assert locks.acquire(tmp_path / "model" / ".tf_operator" / "owner.lock") is None, "nobody takes it meanwhile"
    take(job, owner_of("digits", "manual__2", "train", OTHER))
    text = "worker-0: model_dir = .*: run manual__2 of digits has taken it since this run was planned; put "
    with pytest.raises(JobError, match=text), model_dir.held(job.model_dir, mine):
        pass
