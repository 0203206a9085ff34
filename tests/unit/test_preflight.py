"""What plan can know before a GPU is taken."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tf_operator import settings
from tf_operator.errors import PreflightError
from tf_operator.job_spec import RenderedJob
from tf_operator.job_spec.rendered import RenderedRunPolicy, RenderedRuntime, ReplicaGroup
from tf_operator.model_dir import claim
from tf_operator.preflight import Limits, check, check_settings, triggerer_health


def job(tmp_path: Path, **change: Any) -> RenderedJob:
    group = {
        "task_id": "worker",
        "role": "worker",
        "count": 4,
        "command": [sys.executable],
        "working_dir": str(tmp_path),
    }
    policy = change.pop("run_policy", RenderedRunPolicy())
    return RenderedJob(
        name="job",
        strategy="none",
        groups=[ReplicaGroup(**{**group, **change})],
        model_dir=str(tmp_path / "model"),
        run_policy=policy,
    )


def test_a_sound_job_passes(tmp_path: Path) -> None:
    check(job(tmp_path), Limits(max_active_tasks=4, parallelism=4, max_map_length=4))


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(max_active_tasks=3), "max_active_tasks is 3"),
        (Limits(parallelism=3), "parallelism gives the executor 3 slots"),
        (Limits(max_map_length=3), "max_map_length is 3"),
        (Limits(heartbeat_timeout=1000), "orphan_timeout = 900 s"),
    ],
)
def test_limits_that_would_hold_back_half_a_gang_are_named(tmp_path: Path, limits: Limits, name: str) -> None:
    with pytest.raises(PreflightError, match=name):
        check(job(tmp_path), limits)


def test_a_missing_interpreter_and_folder_are_both_named(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as error:
        check(job(tmp_path, command=["no/such/python"], working_dir=str(tmp_path / "gone")), Limits())
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert "working_dir" in lines[0] and "no/such/python" in lines[1]


def test_a_command_on_path_passes(tmp_path: Path) -> None:
    check(job(tmp_path, command=["sh", "-c", "true"]), Limits())


def test_no_triggerer_is_one_line_after_the_patience() -> None:
    patience = iter([True, True, False])
    with pytest.raises(PreflightError, match="no triggerer is running"):
        triggerer_health(lambda: "unhealthy", lambda: next(patience))


def test_who_cannot_ask_does_not_fail_the_job_for_it() -> None:
    patience = iter([True, False])

    def fetch() -> str:
        raise OSError("502 Bad Gateway")

    assert "502 Bad Gateway" in (triggerer_health(fetch, lambda: next(patience)) or "")


def test_what_a_person_has_to_set_right_is_not_waited_for() -> None:
    def fetch() -> str:
        raise ValueError("404 Not Found")

    assert "404 Not Found" in (triggerer_health(fetch, lambda: pytest.fail("waited")) or "")


def test_a_triggerer_that_comes_up_meanwhile_is_fine() -> None:
    answers = iter(["unhealthy", "healthy"])
    assert triggerer_health(lambda: next(answers), lambda: True) is None


def test_a_kind_without_a_runner_is_said(tmp_path: Path) -> None:
    swarm = RenderedRuntime(kind="swarm", image="team/digits:1")
    with pytest.raises(PreflightError, match=r"runtime\.kind = swarm: is not built yet"):
        check(job(tmp_path, runtime=swarm), Limits())


@pytest.mark.parametrize(
    ("gpus", "slots_per_gpu", "fits"), [(0.5, 1, False), (0.25, 4, True), (0.25, 2, False), (2, 1, True)]
)
def test_a_share_is_a_whole_number_of_slots(tmp_path: Path, gpus: float, slots_per_gpu: int, fits: bool) -> None:
    asked = job(tmp_path, gpus=gpus)
    if fits:
        check(asked, Limits(slots_per_gpu=slots_per_gpu))
    else:
        with pytest.raises(PreflightError, match="slots_per_gpu"):
            check(asked, Limits(slots_per_gpu=slots_per_gpu))


# -- [tf_operator] of airflow.cfg


def test_a_shell_beside_the_services_of_its_project_has_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs" / "jobs").mkdir(parents=True)
    (tmp_path / ".airflow").mkdir()
    monkeypatch.chdir(tmp_path / "configs")
    assert settings.services("gpus") is None
    (tmp_path / settings.DISCOVERY_FILE).write_text('{"url": "http://x", "gpus": "4", "state_dir": null}')
    assert (settings.services("gpus"), settings.services("state_dir")) == ("4", None)


@pytest.mark.parametrize("text", ["[tf_operator]\nstate_dir = /srv/state\n", "", "no section\n"])
def test_a_shell_reads_what_airflow_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Else `tf-operator clean` and `local` would look elsewhere than the tasks: locks would not meet."""
    (tmp_path / "airflow.cfg").write_text(text)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_CONFIG", raising=False)
    assert settings.airflow_cfg("tf_operator", "state_dir") == ("/srv/state" if "srv" in text else None)
    monkeypatch.setenv("AIRFLOW_CONFIG", str(tmp_path / "nowhere"))
    assert settings.airflow_cfg("tf_operator", "state_dir") is None


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "made" / "state"))
    return tmp_path / "made" / "state"


def test_sound_settings_pass_and_leave_no_file(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__PORT_RANGE", "20000-20000")
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__RESERVE_AFTER", "1h30m")
    check_settings()
    assert settings.port_range() == (20000, 20000)
    assert list(state.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["20000", "20000-", "-20000", "30000-20000", "0-10", "1-65536", "a-b", "20000-29999,31000", "1 - 2"]
)
def test_a_port_range_that_is_none_is_one_line(state: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__PORT_RANGE", text)
    with pytest.raises(PreflightError) as error:
        check_settings()
    assert str(error.value) == (
        f"[tf_operator] port_range = {text}: must be the first and the last port, from 1 to 65535;"
        " write for example 20000-29999"
    )


def test_every_setting_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "file" / "state"))
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__PORT_RANGE", "20000")
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__RESERVE_AFTER", "10")
    with pytest.raises(PreflightError) as error:
        check_settings()
    lines = str(error.value).splitlines()
    assert lines[0] == (
        f"[tf_operator] state_dir = {tmp_path}/file/state: cannot be written (Not a directory); name a folder of this"
        " host that the user of its workers may write"
    )
    assert lines[1].startswith("[tf_operator] port_range = 20000: must be ")
    assert lines[2].startswith("[tf_operator] reserve_after = 10: must be a duration with a unit ")
    assert len(lines) == 3


# -- model_dir (case C-54)

FIRST = {"dag_id": "d", "run_id": "first", "group_id": "train"}
SECOND = {"dag_id": "d", "run_id": "second", "group_id": "train"}


def test_c54_a_second_run_is_refused_while_the_holder_lives_and_names_it(tmp_path: Path) -> None:
    claim(str(tmp_path), FIRST, lambda _other: False)
    with pytest.raises(PreflightError, match="belongs to run first"):
        claim(str(tmp_path), SECOND, lambda other: other != FIRST)


def test_c54_a_finished_or_killed_holder_does_not_block(tmp_path: Path) -> None:
    claim(str(tmp_path), FIRST, lambda _other: False)
    claim(str(tmp_path), SECOND, lambda _other: True)
    with pytest.raises(PreflightError, match="belongs to run second"):
        claim(str(tmp_path), FIRST, lambda _other: False)


def test_c54_the_retry_of_a_run_has_its_own_folder_again(tmp_path: Path) -> None:
    for _ in range(2):
        claim(str(tmp_path), FIRST, lambda _other: False)
    names = {path.name for path in (tmp_path / ".tf_operator").iterdir() if path.is_file()}
    assert names == {"owner.json", "owner.lock"}


def test_c54_of_several_runs_that_find_the_holder_gone_one_gets_the_folder(tmp_path: Path) -> None:
    claim(str(tmp_path), FIRST, lambda _other: False)
    runs = [{**FIRST, "run_id": f"run-{number}"} for number in range(4)]
    refused: list[str] = []

    def take(run: dict[str, str]) -> None:
        try:
            claim(str(tmp_path), run, lambda other: other == FIRST)
        except PreflightError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3 and all("belongs to run run-" in text for text in refused)


def test_two_groups_of_one_run_need_folders_of_their_own(tmp_path: Path) -> None:
    claim(str(tmp_path), FIRST, lambda _other: False)
    with pytest.raises(PreflightError, match="task_group_id"):
        claim(str(tmp_path), {**FIRST, "group_id": "tune"}, lambda _other: True)


def test_a_damaged_owner_is_said(tmp_path: Path) -> None:
    claim(str(tmp_path), FIRST, lambda _other: False)
    (tmp_path / ".tf_operator" / "owner.json").write_text("{")
    with pytest.raises(PreflightError, match="is damaged"):
        claim(str(tmp_path), SECOND, lambda _other: True)


@pytest.mark.parametrize("folder", ["/", "/etc", "/usr/../tmp", "project", "project/models/.."])
def test_a_model_dir_is_no_folder_of_others(tmp_path: Path, folder: str) -> None:
    """What root has in it would become a container's user's."""
    (tmp_path / "project" / "configs" / "jobs").mkdir(parents=True)
    (tmp_path / "project" / "models").mkdir()
    with pytest.raises(PreflightError, match=r"is a (folder of the system|project).*models/\{\{ run_id \}\}"):
        claim(str(tmp_path / folder), FIRST, lambda _other: True)
    assert not (tmp_path / "project" / ".tf_operator").exists()


def test_a_model_dir_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match="model_dir = .*file/model: cannot be written"):
        claim(str(tmp_path / "file" / "model"), FIRST, lambda _other: False)
