"""Replica counts: C-05 (zero, mixed groups) and C-06 (bad counts)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tf_operator.errors import JobError
from tf_operator.gang import Demand, evaluate
from tf_operator.job_spec import TensorFlowJob

BENCH = """\
name: six-gpu-bench
program: {command: [python, bench.py, --batch_size=64, --num_batches=50]}
runtime: {kind: docker, image: "tf-train:1"}
replicas:
  chief:  {replicas: 0}
  ps:     {replicas: 1, gpus: 0}
  worker: {replicas: 3, gpus: 2}
scheduling: {pool: gpus}
"""


def rendered(job: TensorFlowJob, **params: Any) -> Any:
    return job.render({"run_id": "r"}, project_dir=Path("/project"), params=params)


@pytest.mark.parametrize(
    ("value", "shown", "allowed"),
    [
        ("-1", "-1", "a whole number, 0 or more"),
        ('"two"', '"two"', "a whole number, 0 or more"),
        ("1.5", "1.5", "a whole number, 0 or more"),
        ("true", "true", "a whole number, 0 or more"),
        ('"3"', '"3"', "a whole number, 0 or more"),
        ("null", "null", "a whole number, 0 or more"),
    ],
)
def test_c06_bad_worker_count_is_one_line_with_job_path_value_and_rule(
    refusal: Callable[..., list[str]], base: str, value: str, shown: str, allowed: str
) -> None:
    (line,) = refusal(base.replace("replicas: 2", f"replicas: {value}"))
    assert line.startswith(f"job.yaml:6: job base: replicas.worker.replicas = {shown}: must be {allowed}; ")


@pytest.mark.parametrize("role", ["chief", "evaluator", "Master", "EVALUATOR"])
def test_c06_at_most_one_chief_and_evaluator(refusal: Callable[..., list[str]], role: str) -> None:
    (line,) = refusal(
        f"""\
        name: twins
        program: {{command: [probe]}}
        replicas:
          worker: {{replicas: 1}}
          ps: {{replicas: 1}}
          {role}: {{replicas: 2}}
        """
    )
    folded = "chief" if role == "Master" else role.lower()
    assert line == f"job.yaml:6: job twins: replicas.{folded}.replicas = 2: must be 0 or 1; change it"


@pytest.mark.parametrize("given", ["two", 1.5, True, -1, "3"])
def test_c06_a_bad_count_from_a_param_is_refused_when_rendered(given: object) -> None:
    job = TensorFlowJob(
        name="counts",
        params={"workers": {"default": 2}},
        program={"command": ["probe"]},
        replicas={"worker": {"replicas": "{{ params.workers }}"}},
    )
    with pytest.raises(
        JobError, match=r"^job counts: replicas\.worker\.replicas = .*: must be a whole number"
    ) as refused:
        rendered(job, workers=given)
    assert "\n" not in str(refused.value)


def test_c06_a_param_may_not_give_a_second_chief() -> None:
    job = TensorFlowJob(
        name="counts",
        params={"chiefs": {"type": "integer", "default": 1}},
        program={"command": ["probe"]},
        replicas={"chief": {"replicas": "{{ params.chiefs }}"}, "ps": {}},
    )
    with pytest.raises(JobError, match=r"^job counts: replicas\.chief\.replicas = 2: must be 0 or 1; change it$"):
        rendered(job, chiefs=2)


def test_c05_count_zero_is_no_replica_and_no_empty_role(read: Callable[..., TensorFlowJob]) -> None:
    job = rendered(read(BENCH))
    assert [str(replica) for replica in job.replicas] == ["worker-0", "worker-1", "worker-2", "ps-0"]
    assert [(group.task_id, group.count) for group in job.groups] == [("chief", 0), ("worker", 3), ("ps", 1)]
    assert rendered(read(BENCH)) == job


def test_c05_gpu_demand_is_the_sum_over_replicas(read: Callable[..., TensorFlowJob]) -> None:
    assert evaluate(read(BENCH).gang(), None) == Demand("gpus", 6)


def test_c05_every_count_zero_is_refused(refusal: Callable[..., list[str]], base: str) -> None:
    text = base.replace("replicas: 1", "replicas: 0").replace("replicas: 2", "replicas: 0")
    (line,) = refusal(text)
    assert line.startswith("job.yaml:3: job base: replicas: no replica requested; ")


def test_c05_every_count_zero_through_params_is_refused_when_rendered() -> None:
    job = TensorFlowJob(
        name="nobody",
        params={"workers": 1},
        program={"command": ["probe"]},
        replicas={"worker": {"replicas": "{{ params.workers }}"}},
    )
    with pytest.raises(JobError, match="^job nobody: replicas: no replica requested; "):
        rendered(job, workers=0)


def test_c05_worker_groups_share_one_index_space_in_file_order() -> None:
    job = TensorFlowJob(
        name="mixed",
        params={"extra": 2},
        program={"command": ["probe"]},
        replicas={
            "ps": {},
            "worker": [
                {"name": "cpu", "replicas": 2},
                {"name": "gpu", "replicas": "{{ params.extra }}", "gpus": 1},
            ],
        },
    )
    run = rendered(job, extra=3)
    assert [(g.task_id, g.offset, g.count) for g in run.groups] == [
        ("worker_cpu", 0, 2),
        ("worker_gpu", 2, 3),
        ("ps", 0, 1),
    ]
    assert [replica.index for replica in run.replicas if replica.role == "worker"] == [0, 1, 2, 3, 4]
    assert evaluate(job.gang(), {"extra": 3}) == Demand("gpu", 3)


def test_worker_groups_need_distinct_names(refusal: Callable[..., list[str]]) -> None:
    lines = refusal("name: x\nprogram: {command: [p]}\nreplicas:\n  worker:\n  - {name: a}\n  - {name: a}\n")
    assert [line.split(": another")[0] for line in lines] == [
        'job.yaml:5: job x: replicas.worker[0].name = "a"',
        'job.yaml:6: job x: replicas.worker[1].name = "a"',
    ]


def test_roles_in_any_case_and_master_is_chief() -> None:
    job = TensorFlowJob(name="x", program={"command": ["p"]}, replicas={"MASTER": {}, "Worker": {}, "PS": {}})
    assert [group.task_id for group in job.groups] == ["chief", "worker", "ps"]


@pytest.mark.parametrize("twin", ["Worker", "WORKER"])
def test_c14_a_role_given_in_two_cases_is_refused(refusal: Callable[..., list[str]], base: str, twin: str) -> None:
    (line,) = refusal(f"{base}  {twin}: {{replicas: 4}}\n")
    assert line == f"job.yaml:3: job base: replicas: worker is given twice, as worker and {twin}; keep one"


def test_master_beside_chief_is_refused(refusal: Callable[..., list[str]], base: str) -> None:
    (line,) = refusal(f"{base}  master: {{replicas: 1}}\n")
    assert "chief is given twice, as chief and master; keep one" in line


@pytest.mark.parametrize("value", ["{{ params.workers * 2 }}", "{{ params.workers }} ", "1{{ params.workers }}"])
@pytest.mark.parametrize("field", ["replicas", "gpus"])
def test_counts_and_gpus_take_literals_or_one_param(field: str, value: str) -> None:
    with pytest.raises(
        JobError, match=rf"replicas\.worker\.{field} = .*: takes a literal or exactly {{{{ params.NAME }}}}"
    ):
        TensorFlowJob(
            name="x", params={"workers": 2}, program={"command": ["p"]}, replicas={"worker": {field: value}, "ps": {}}
        )


@pytest.mark.parametrize("field", ["slots", "pool"])
def test_slots_and_pool_take_literals_or_one_param(field: str) -> None:
    with pytest.raises(JobError, match=rf"scheduling\.{field} = .*: takes a literal or exactly"):
        TensorFlowJob(
            name="x",
            params={"p": 2},
            program={"command": ["p"]},
            replicas={"worker": {}},
            scheduling={field: "x{{ params.p }}"},
        )


@pytest.mark.parametrize("gpus", [-1, 1.5, True, "1", float("inf")])
def test_gpus_are_whole_or_part_of_one(gpus: object) -> None:
    with pytest.raises(JobError, match=r"^job x: replicas\.worker\.gpus = .*: must be"):
        TensorFlowJob(name="x", program={"command": ["p"]}, replicas={"worker": {"gpus": gpus}})


def test_the_default_of_a_param_used_as_count_has_to_be_one() -> None:
    with pytest.raises(
        JobError, match=r"^job x: replicas\.worker\.replicas = .* the default 'many' of params\.n, must be a whole"
    ):
        TensorFlowJob(
            name="x",
            params={"n": "many"},
            program={"command": ["p"]},
            replicas={"worker": {"replicas": "{{ params.n }}"}},
        )
