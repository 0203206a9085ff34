"""The tasks a job becomes: their wiring, and what a DAG around them can and cannot change."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Param, TaskGroup
from airflow.sdk.exceptions import AirflowException
from airflow.serialization.serialized_objects import DagSerialization

from tf_operator.errors import JobError
from tf_operator.job_spec import TensorFlowJob
from tf_operator.task_group import as_dag, as_task_group, broken_dag

HERE = Path(__file__).parent


def job(**change: Any) -> TensorFlowJob:
    fields: dict[str, Any] = {
        "name": "digits",
        "params": {"workers": {"type": "integer", "default": 2, "minimum": 1, "maximum": 8}},
        "program": {"command": ["python", "train.py"]},
        "replicas": {"chief": {}, "worker": {"replicas": "{{ params.workers }}", "gpus": 1}, "ps": {"replicas": 2}},
    }
    return TensorFlowJob(**{**fields, **change})


def tasks(dag: DAG) -> dict[str, Any]:
    return {task_id.removeprefix("train."): task for task_id, task in dag.task_dict.items()}


def test_the_wiring_is_the_designs() -> None:
    found = tasks(as_dag(job(), project_dir=HERE))
    arrows = {name: {d.removeprefix("train.") for d in task.downstream_task_ids} for name, task in found.items()}
    replicas = {"chief", "worker", "ps"}
    # The index of the worker task comes from plan, so plan is upstream of it too.
    assert arrows["plan"] == {"cluster", "admission", "worker"}
    assert arrows["admission"] == replicas | {"result"}
    assert arrows["cluster"] == {"result"}
    assert all(arrows[name] == {"result"} for name in replicas)
    assert arrows["result"] == {"cleanup"}


def test_trap_8_result_is_the_only_leaf_that_counts() -> None:
    dag = as_dag(job(), project_dir=HERE)
    counting = {task.task_id for task in dag.tasks if not task.is_teardown or task.on_failure_fail_dagrun}
    leaves = {task_id for task_id in counting if not dag.get_task(task_id).downstream_task_ids & counting}
    # A run that a person marks failed is judged by its leaves once its teardowns have run; what is none is skipped.
    assert leaves == {"train.result"}
    assert tasks(dag)["result"].is_teardown and tasks(dag)["cleanup"].is_teardown


def test_in_a_dag_of_ones_own_what_follows_may_handle_a_failure() -> None:
    with DAG("mine") as dag:
        as_task_group(job(), "train", project_dir=HERE)
    assert not tasks(dag)["result"].is_teardown
    assert tasks(dag)["cluster"].downstream_task_ids == {"train.result"}


def test_trap_2_cluster_and_admission_have_no_way_back_to_the_pool() -> None:
    found = tasks(as_dag(job(), project_dir=HERE))
    for name in ("cluster", "admission"):
        assert (found[name].retries, found[name].execution_timeout) == (0, None)
    assert found["cluster"].start_from_trigger is False
    assert found["admission"].start_from_trigger is True
    assert (found["admission"].pool, found["admission"].start_trigger_args.timeout) == ("default_pool", None)


def test_only_cluster_is_in_the_gpu_pool() -> None:
    found = tasks(as_dag(job(), project_dir=HERE))
    pools = {name: task.pool for name, task in found.items()}
    assert pools.pop("cluster") == "gpu"
    assert set(pools.values()) == {"default_pool"}


def test_trap_9_only_return_values_are_mapped_over() -> None:
    two = job(
        params={"workers": 2, "ps": 1},
        replicas={"worker": {"replicas": "{{ params.workers }}"}, "ps": {"replicas": "{{ params.ps }}"}},
    )
    found = tasks(as_dag(two, project_dir=HERE))
    assert "ps_index" in found and "worker_index" not in found
    assert found["worker"].upstream_task_ids == {"train.plan", "train.admission"}
    assert found["ps"].upstream_task_ids == {"train.ps_index", "train.admission"}
    assert not found["ps_index"].upstream_task_ids, "beside plan, not after it"


def test_c05_a_count_of_0_has_no_task_and_groups_share_one_index_space() -> None:
    mixed = job(
        params={},
        replicas={
            "chief": {"replicas": 0},
            "worker": [{"name": "gpu", "replicas": 3, "gpus": 2}, {"name": "cpu", "replicas": 2}],
            "ps": {},
        },
    )
    found = tasks(as_dag(mixed, project_dir=HERE))
    assert "chief" not in found
    assert found["worker_gpu"].partial_kwargs["offset"] == 0
    assert found["worker_cpu"].partial_kwargs["offset"] == 3
    assert (found["cluster"].pool, found["cluster"].pool_slots) == ("gpu", 6)


def test_serialization_round_trip_keeps_the_formula() -> None:
    data = DagSerialization.to_dict(as_dag(job(), project_dir=HERE))
    again = DagSerialization.from_dict(data)
    assert '"param": "workers"' in again.get_task("train.cluster").gang
    assert again.get_task("train.plan").awaits_policy is True, "by this the policy knows it"


def test_parsing_is_deterministic() -> None:
    first, second = (DagSerialization.to_dict(as_dag(job(), project_dir=HERE)) for _ in range(2))
    assert first == second


def test_default_args_change_nothing_but_owner_queue_executor_and_results_callbacks() -> None:
    args = {
        "owner": "ml-team",
        "queue": "gpu-hosts",
        "retries": 7,
        "retry_delay": timedelta(hours=1),
        "execution_timeout": timedelta(seconds=1),
        "depends_on_past": True,
        "wait_for_downstream": True,
        "trigger_rule": "one_failed",
        "pool": "theirs",
        "pool_slots": 3,
        "priority_weight": 99,
        "max_active_tis_per_dag": 1,
        "on_failure_callback": [print],
        "email": "someone@example.com",
        "email_on_failure": True,
    }
    with DAG("around", default_args=args, schedule=None) as around:
        as_task_group(job(), "train", project_dir=HERE)
    with DAG("plain", schedule=None) as plain:
        as_task_group(job(), "train", project_dir=HERE)
    for name, task in tasks(around).items():
        other = tasks(plain)[name]
        assert (task.owner, task.queue) == ("ml-team", "gpu-hosts")
        for key in args.keys() - {"owner", "queue", *(("on_failure_callback",) if name == "result" else ())}:
            assert getattr(task, key) == getattr(other, key), f"{name}.{key}"


def test_callbacks_of_default_args_are_called_by_result_alone_beside_the_jobs_own() -> None:
    notifier = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
    told = job(notify={"on_failure": {"notifier": notifier, "to": "a@b.c"}})
    ours = ("failure", "success", "retry", "skipped")
    args = {f"on_{event}_callback": print for event in (*ours, "execute")}
    with (
        DAG("around", default_args=args, schedule=None) as around,
        TaskGroup("outer", default_args={"retries": 1}),
        TaskGroup("inner", default_args={"on_success_callback": [repr, print]}),
    ):
        as_task_group(told, "train", project_dir=HERE)
    found = {name.rpartition(".")[2]: task for name, task in tasks(around).items()}
    callbacks = {
        name: {e: getattr(task, f"on_{e}_callback") for e in (*ours, "execute")} for name, task in found.items()
    }
    result = callbacks.pop("result")
    assert result["failure"][0] is print and type(result["failure"][1]).__name__ == "SmtpNotifier"
    assert result["success"] == [repr, print], "the innermost group's, as for any task"
    assert (result["retry"], result["skipped"]) == ([print], [print])
    assert not result["execute"], "it would be called at the job's end"
    assert not any(any(each.values()) for each in callbacks.values())


def test_a_dag_with_fail_fast_is_refused() -> None:
    with DAG("around", fail_fast=True, schedule=None), pytest.raises(JobError, match="fail_fast"):
        as_task_group(job(), "train", project_dir=HERE)


def test_two_groups_params_are_merged_and_contradictions_refused() -> None:
    with DAG("around", schedule=None, params={"other": Param(1)}) as around:
        as_task_group(job(), "first", project_dir=HERE)
        as_task_group(job(name="again"), "second", project_dir=HERE)
        clash = job(name="clash", params={"workers": {"type": "integer", "default": 5}})
        with pytest.raises(JobError, match="param_prefix"):
            as_task_group(clash, "third", project_dir=HERE)
        as_task_group(clash, "fourth", project_dir=HERE, param_prefix="clash_")
    assert {name: around.params[name] for name in around.params} == {"other": 1, "workers": 2, "clash_workers": 5}
    assert '"param": "clash_workers"' in around.get_task("fourth.cluster").gang


def test_output_is_the_results() -> None:
    with DAG("around", schedule=None):
        group = as_task_group(job(), "train", project_dir=HERE)
    assert group.output.operator.task_id == "train.result"


def test_max_active_tasks_has_room_for_the_largest_gang() -> None:
    assert as_dag(job(), project_dir=HERE).max_active_tasks >= 1 + 8 + 2
    many = job(params={}, replicas={"worker": {"replicas": 40}})
    assert as_dag(many, project_dir=HERE).max_active_tasks >= 40
    usual = job(params={"workers": 100})
    assert as_dag(usual, project_dir=HERE).max_active_tasks >= 100, "the count of every run that says nothing else"


def test_notifiers_belong_to_result_alone() -> None:
    told = job(
        notify={"on_failure": {"notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "to": "a@b.c"}}
    )
    found = tasks(as_dag(told, project_dir=HERE))
    assert [name for name, task in found.items() if task.has_on_failure_callback] == ["result"]
    with pytest.raises(JobError, match=r"notifier = no\.such\.Thing"):
        as_dag(job(notify={"on_failure": {"notifier": "no.such.Thing"}}), project_dir=HERE)


def test_a_broken_file_has_a_dag_that_says_so() -> None:
    dag = broken_dag("invalid.job", "job.yaml:3: job x: replicas.worker = 'two': must be a number")
    assert "job.yaml:3" in (dag.description or "")
    with pytest.raises(AirflowException, match=r"job\.yaml:3"):
        dag.get_task("invalid_job_file").execute({})
