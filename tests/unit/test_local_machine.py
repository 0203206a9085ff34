"""What `tf-operator local` makes of this machine: devices, and whose model_dir it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import make_job

from tf_operator.cli import local_machine
from tf_operator.errors import PreflightError
from tf_operator.local import new_run_id


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__GPUS", "0")


@pytest.mark.parametrize(
    ("gpus", "declared", "slots", "fits"),
    [(1, 2, 1, True), (1, 1, 1, False), (0.5, 1, 2, True), (0.5, 1, 4, True), (0.75, 1, 4, False), (2, 3, 1, False)],
)
def test_two_workers_and_the_devices_of_this_machine(gpus: float, declared: int, slots: int, fits: bool) -> None:
    job = make_job(chief=0, worker=2, ps=0, strategy="none", gpus=gpus)
    said: list[str] = []
    if fits:
        assert local_machine.with_devices(job, declared, slots, said.append) == job
    else:
        with pytest.raises(PreflightError, match=f"this machine has {declared}"):
            local_machine.with_devices(job, declared, slots, said.append)
    assert said == []


def test_a_laptop_without_devices_runs_the_job_and_says_so() -> None:
    said: list[str] = []
    job = local_machine.with_devices(make_job(chief=0, worker=2, ps=0, gpus=1), None, 1, said.append)
    assert [group.gpus for group in job.groups] == [0, 0, 0, 0]
    assert said == ["this machine has no GPU: worker run without (--gpus N declares some)"]
    assert local_machine.with_devices(make_job(), None, 1, said.append) == make_job()
    assert len(said) == 1


def test_a_setting_that_cannot_be_used_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__PORT_RANGE", "20000")
    with pytest.raises(PreflightError, match=r"\[tf_operator\] port_range = 20000: must be"):
        local_machine.check(make_job(), 1)


def test_model_dir_is_one_living_runs(tmp_path: Path) -> None:
    job = make_job(model_dir=str(tmp_path / "model"))
    with local_machine.claimed(job, first := new_run_id()):
        with pytest.raises(PreflightError, match=f"belongs to run {first} of job, which has not ended"):
            local_machine.claimed(job, new_run_id()).__enter__()
        with local_machine.claimed(job.model_copy(update={"model_dir": str(tmp_path / "other")}), new_run_id()):
            pass
    with local_machine.claimed(job, new_run_id()):
        pass


def test_a_run_on_airflow_keeps_its_model_dir(tmp_path: Path) -> None:
    owner = {"dag_id": "digits", "run_id": "manual__1", "group_id": "train"}
    (tmp_path / ".tf_operator").mkdir()
    (tmp_path / ".tf_operator" / "owner.json").write_text(json.dumps(owner))
    with pytest.raises(PreflightError, match="run manual__1 of digits on Airflow"):
        local_machine.claimed(make_job(model_dir=str(tmp_path)), new_run_id()).__enter__()
