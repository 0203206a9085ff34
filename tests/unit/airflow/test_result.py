"""result: what makes a run green, red, or worth another look."""

from __future__ import annotations

import time
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import _secrets_masker
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from fakes import make_job, running_cluster

from tf_operator import airflow_io
from tf_operator.job_spec.rendered import RenderedRuntime
from tf_operator.membership import Phase
from tf_operator.operators import result
from tf_operator.operators.reasons import one_line, quotable
from tf_operator.operators.result import CleanupOperator, ResultOperator, marked_success
from tf_operator.plan import GroupRef, Plan


class Instance:
    dag_id, run_id = "d", "r"


@pytest.mark.parametrize(
    ("state", "told", "again"),
    [
        ("success", None, False),
        ("success, plan cleared", None, False),
        ("success, plan scheduled", None, False),
        ("deferred", r"the job succeeded .* train.cluster is still deferred .*: is a triggerer running\?", True),
        ("failed", "train.cluster is failed: it was ended from outside", False),
    ],
)
def test_a_success_counts_once_the_cluster_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, state: str, told: str | None, again: bool
) -> None:
    job = make_job(model_dir=str(tmp_path))
    cluster = running_cluster(job, phase=Phase.SUCCEEDED, reason="chief-0 ended with exit code 0")
    plan = Plan(attempt=cluster.attempt, job=job, pool="gpu", slots=1)
    monkeypatch.setattr(result, "CLUSTER_WAIT", 0.0)
    state, _, cleared = state.partition(", plan ")
    found = {"": "success", "cleared": None, "scheduled": "scheduled"}[cleared]
    states = {"train.plan": found, "train.cluster": state}
    monkeypatch.setattr(airflow_io, "task_states", lambda ref, ids: states)
    monkeypatch.setattr(airflow_io, "read_plan", lambda ref: None if cleared else plan)
    monkeypatch.setattr(airflow_io, "kept_plan", lambda ref: plan)
    monkeypatch.setattr(airflow_io, "read_cluster", lambda ref, attempt: cluster)
    operator = ResultOperator(task_id="result", group_id="train")
    if told is None:
        assert operator.execute({"ti": Instance()})["attempt"] == plan.attempt  # type: ignore[typeddict-item]
        return
    with pytest.raises(AirflowException, match=told) as raised:
        operator.execute({"ti": Instance()})  # type: ignore[typeddict-item]
    assert isinstance(raised.value, AirflowFailException) is not again, "a retry can help"


def test_cleanup_waits_once_for_an_engine_that_is_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Not once for each replica, a minute each."""
    job = make_job(worker=16)
    runtime = RenderedRuntime(kind="docker", image="i:1")
    job = job.model_copy(update={"groups": [group.model_copy(update={"runtime": runtime}) for group in job.groups]})
    plan = Plan(attempt="a1", job=job, pool="gpu", slots=1)
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__DOCKER_URL", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(airflow_io, "read_plan", lambda ref: plan)
    monkeypatch.setattr(airflow_io, "unregister_holder", lambda pool, ref: None)
    monkeypatch.setattr(result, "PATIENCE", 0.6)
    began = time.monotonic()
    CleanupOperator(task_id="cleanup", group_id="train").execute({"ti": Instance()})  # type: ignore[typeddict-item]
    assert 0.6 < time.monotonic() - began < 5


LEFT = {"plan": ("clear 1", "secrets.0: no such path"), "cluster": ("a1", "needs 6 slots"), "admission": ("a1", "late")}


@pytest.mark.parametrize(
    ("plan", "admission", "cluster", "clears", "attempt", "told"),
    [
        ("failed", "upstream_failed", "upstream_failed", 1, "a1", "the job did not start: secrets.0: no such path"),
        # Left before the group was cleared: plan did not come to say anything since.
        ("failed", "upstream_failed", "upstream_failed", 2, "a1", "did not start: train.plan failed, its log says why"),
        ("upstream_failed", "upstream_failed", "upstream_failed", 1, "a1", "did not start: train.plan is upstream_fai"),
        ("success", "failed", "failed", 1, "a1", "the job did not start: train.cluster failed: needs 6 slots"),
        ("success", "failed", "skipped", 1, "a1", "the job did not start: train.admission failed: late"),
        ("success", "success", "failed", 1, "a2", "nobody leads the job: train.cluster or train.admission failed"),
        ("success", "failed", "skipped", 1, "a2", "the job never had its slots: train.admission is failed"),
    ],
)
def test_result_quotes_what_the_failed_task_itself_said_in_this_attempt(
    monkeypatch: pytest.MonkeyPatch, plan: str, admission: str, cluster: str, clears: int, attempt: str, told: str
) -> None:
    def get_one(**call: Any) -> Any:
        assert call["key"] == "reason"
        of, text = LEFT[call["task_id"].removeprefix("train.")]
        return {"of": of, "text": text}

    states = {"train.plan": plan, "train.admission": admission, "train.cluster": cluster}
    planned = Plan(attempt=attempt, job=make_job(), pool="gpu", slots=1)
    monkeypatch.setattr(airflow_io.XCom, "get_one", get_one)
    monkeypatch.setattr(airflow_io, "task_states", lambda ref, ids: states)
    monkeypatch.setattr(airflow_io, "plan_in_force", lambda ref: planned if plan == "success" else None)
    monkeypatch.setattr(airflow_io, "read_cluster", lambda ref, attempt: None)

    class Run:
        clear_number = clears

    with pytest.raises(AirflowFailException) as raised:
        ResultOperator(task_id="result", group_id="train").execute({"ti": Instance(), "dag_run": Run})  # type: ignore[typeddict-item]
    assert told in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AirflowFailException("job j: no such path; write it"), "job j: no such path; write it"),
        (AirflowException("one\n two\nthree"), "one (and 2 more in the log of train.plan)"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(), "ValueError: ValueError"),
    ],
)
def test_a_reason_is_one_line(error: Exception, told: str) -> None:
    assert one_line(error, "train.plan") == told


def test_a_task_that_cannot_leave_its_reason_fails_with_its_own_error() -> None:
    with (
        pytest.raises(AirflowFailException, match="the fault"),
        quotable(GroupRef("d", "r", "train"), "plan", "clear 0"),
    ):
        raise AirflowFailException("the fault")


def test_a_secret_that_airflow_knows_is_masked_in_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Any] = {}
    monkeypatch.setattr(airflow_io.XCom, "set", lambda **call: kept.update(call))
    masker = _secrets_masker()
    monkeypatch.setattr(masker, "patterns", set(masker.patterns))
    monkeypatch.setattr(masker, "replacer", masker.replacer)
    masker.add_mask("a-very-secret-value")
    airflow_io.leave_reason(GroupRef("d", "r", "train"), "plan", "clear 0", "login a-very-secret-value\0 refused")
    assert kept["value"] == {"of": "clear 0", "text": "login *** refused"}
    assert (kept["task_id"], kept["key"]) == ("train.plan", "reason")


@pytest.mark.parametrize(
    ("plan", "admission", "cluster", "led", "cut", "is_so"),
    [
        ("success", "success", "success", True, True, True),  # while it ran
        ("success", "success", "skipped", False, False, True),  # while it waited for its slots
        ("success", "skipped", "skipped", False, False, True),  # while plan ran
        ("success", "success", "success", True, False, False),  # cluster alone was marked
        ("success", "success", "skipped", True, False, False),  # cluster alone was marked skipped
        ("success", "success", "failed", True, True, False),  # the run was marked failed while it ran
        ("success", "failed", "skipped", False, False, False),  # ... while it waited, or schedule_timeout
        ("failed", "skipped", "skipped", False, False, False),  # ... while plan ran
        ("failed", "upstream_failed", "upstream_failed", False, False, False),
        ("skipped", "skipped", "skipped", False, False, False),  # nothing had begun: nobody can tell
        ("success", "success", "deferred", True, False, False),
    ],
)
def test_what_tells_a_run_that_was_marked_success(
    plan: str, admission: str, cluster: str, led: bool, cut: bool, is_so: bool
) -> None:
    assert marked_success(plan, admission, cluster, led=led, cut=cut) is is_so
