"""Field cases on a real Airflow: C-54 (whose model_dir), C-55 (types in the form), C-58 (literal arguments)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow_under_test import AirflowUnderTest
from probe_jobs import probe, starts
from run_under_test import RunUnderTest, wait_for

from tf_operator.errors import ApiError

pytestmark = pytest.mark.airflow


def small_job(out: Path, *flags: str, **change: Any) -> dict[str, Any]:
    """One worker."""
    return {
        "strategy": "none",
        "program": {"command": probe("--out", str(out), *flags)},
        "replicas": {"worker": {"replicas": 1}},
        "retry_delay": "1s",
        "run_policy": {"termination_grace": "5s", "orphan_timeout": "5m"},
    } | change


@pytest.mark.long
def test_c54_each_run_of_a_catch_up_has_a_model_dir_of_its_own(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    start = (datetime.now(UTC) - timedelta(hours=4)).replace(minute=30, second=0, microsecond=0)
    catch_up = {"schedule": "@hourly", "start_date": start.isoformat(), "catchup": True, "max_active_runs": 2}
    file = airflow.write_job("hourly", small_job(tmp_path, "--sleep", "2", **catch_up))
    runs = wait_for(lambda: (found := airflow.api.runs("hourly"))[2:] and found, 60, "the runs of the last hours")
    folders = []
    for each in runs:
        run = airflow.run("hourly", each.run_id)
        run.wait("success", deadline=120)
        folders.append(run.xcom("result")["model_dir"])
    assert len(set(folders)) == len(folders) >= 3
    file.unlink()


def test_c54_a_fixed_model_dir_is_one_runs_at_a_time(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    airflow.write_job("fixed-dir", small_job(tmp_path, "--wait-file", str(stop), model_dir="models/of-all-runs"))
    first = airflow.trigger("fixed-dir")
    first.wait_running("worker-0")
    second = airflow.trigger("fixed-dir")
    second.wait("failed", deadline=60)
    assert first.run_id in second.log("plan") and "models/of-all-runs" in second.log("plan")
    first.mark("failed")
    wait_for(lambda: not airflow.programs(), 60, "the holder's program to end")
    # The folder is its own for as long as it runs, and its teardowns run after its program.
    first.wait("failed")
    stop.touch()
    third = airflow.trigger("fixed-dir")
    third.wait("success", deadline=60)
    assert third.xcom("result")["model_dir"].endswith("models/of-all-runs"), "it goes on in the ended run's folder"
    assert len(starts(tmp_path, "worker-0")) == 2, "the second run has never written there"


def test_c55_types_in_the_form(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    params = {
        "workers": {"type": "integer", "default": 1, "minimum": 1, "maximum": 4},
        "overrides": {"type": "array", "items": {"type": "object"}, "default": []},
        "tag": {"type": "string", "default": "none"},
    }
    flags = ("--tag={{ params.tag }}", "--count={{ params.workers }}")
    replicas = {"worker": {"replicas": "{{ params.workers }}"}}
    airflow.write_job("form", small_job(tmp_path, *flags, params=params, replicas=replicas))
    for refused in ({"workers": "3"}, {"overrides": ['{"count": 2}']}, {"tag": 3}):
        with pytest.raises(ApiError, match=next(iter(refused))):
            airflow.trigger("form", **refused)
    unknown = airflow.trigger("form", spec={"replicas": {"worker": {"replicas": 4}}})
    unknown.wait("failed", deadline=60)
    run = airflow.trigger("form", workers=3.0, tag="")
    run.wait("success", deadline=60)
    assert len([name for name in run.states() if name.startswith("worker-")]) == 3, "3.0 is the integer 3"
    assert starts(tmp_path, "worker-2")[0]["argv"][-2:] == ["--tag=", "--count=3"], "an empty text is a text"
    assert "conf.spec" in unknown.log("plan") and "the job has no such param" in unknown.log("plan")
    assert began(unknown) == [], "before any replica"


def began(run: RunUnderTest) -> list[str]:
    never = ("upstream_failed", "skipped", "removed", None)
    return [task.name for task in run.tasks() if task.name.startswith("worker") and task.state not in never]


def test_c58_arguments_arrive_as_they_are_written(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    words = ["conf.json", "run.sh", "hp.yaml", '{"a":{"b":1}}', "a;b && c | d", "$HOME", "*", "a b", ""]
    literal = "{{ not jinja"
    flags = [*words, f"{{% raw %}}{literal}{{% endraw %}}"]
    airflow.write_job("literal", small_job(tmp_path, *flags))
    run = airflow.trigger("literal")
    run.wait("success", deadline=60)
    assert starts(tmp_path, "worker-0")[0]["argv"] == ["--out", str(tmp_path), *words, literal]
