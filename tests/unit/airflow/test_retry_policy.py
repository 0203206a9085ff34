"""A replica's verdict reaches Airflow through its RetryPolicy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from airflow.serialization.serialized_objects import DagSerialization
from fakes import make_job

from tf_operator import airflow_io
from tf_operator.job_spec import TensorFlowJob
from tf_operator.operators import ReplicaOperator
from tf_operator.operators.retry import ReplicaFailedError, ReplicaRetryPolicy
from tf_operator.plan import Plan
from tf_operator.task_group import as_dag
from tf_operator.watching import Outcome, Result


@pytest.mark.parametrize(
    ("exception", "action"),
    [
        (ReplicaFailedError("worker-0 failed: exit code 1", final=True), RetryAction.FAIL),
        (ReplicaFailedError("worker-0 failed: exit code 139 (SIGSEGV)", final=False), RetryAction.RETRY),
        (AirflowException("Airflow lost touch"), RetryAction.DEFAULT),
    ],
)
def test_a_verdict_is_a_decision_with_its_reason(exception: Exception, action: RetryAction) -> None:
    decision = ReplicaRetryPolicy().evaluate(exception, try_number=1, max_tries=13)
    assert decision.action is action
    assert decision.reason == (str(exception) if isinstance(exception, ReplicaFailedError) else None)
    assert decision.retry_delay is None, "the job's own retry_delay holds"


@pytest.mark.parametrize(
    ("result", "exception", "final"),
    [
        (Result.RETRY, ReplicaFailedError, False),
        (Result.FAILED, ReplicaFailedError, True),
        (Result.SUPERSEDED, ReplicaFailedError, True),
        (Result.SKIPPED, AirflowSkipException, None),
        (Result.AGAIN, AirflowRescheduleException, None),
    ],
)
def test_how_each_outcome_ends_the_task(result: Result, exception: type[Exception], final: bool | None) -> None:
    task = ReplicaOperator(task_id="worker", role="worker", offset=0, group_id="train")
    with pytest.raises(exception) as raised:
        task._end(Outcome(result, "why"))
    assert getattr(raised.value, "final", None) is final
    task._end(Outcome(Result.SUCCESS, "done"))


def test_a_host_that_cannot_watch_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(attempt="a", job=make_job(), pool="gpu", slots=1)
    monkeypatch.setattr(airflow_io, "read_plan", lambda ref: plan)
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__PORT_RANGE", "20000")

    class Instance:
        dag_id, run_id, map_index = "d", "r", 0

    task = ReplicaOperator(task_id="worker", role="worker", offset=0, group_id="train")
    with pytest.raises(AirflowFailException, match=r"^worker-0: \[tf_operator\] port_range = 20000: must be"):
        task.execute({"ti": Instance()})  # type: ignore[typeddict-item]


def test_every_replica_task_has_the_policy_and_the_scheduler_knows() -> None:
    replicas: dict[str, Any] = {"chief": {}, "worker": {"replicas": 2}, "ps": {}, "evaluator": {}}
    job = TensorFlowJob(name="j", program={"command": ["true"]}, replicas=replicas)
    dag = as_dag(job, project_dir=Path(__file__).parent)
    data = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for name in replicas:
        assert isinstance(dag.get_task(f"train.{name}").retry_policy, ReplicaRetryPolicy)
        assert data.get_task(f"train.{name}").has_retry_policy
    assert not data.get_task("train.cluster").has_retry_policy
