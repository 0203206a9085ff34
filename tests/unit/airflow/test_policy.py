"""The cluster policy's decision: a run's pool and slots, or why it can never start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import airflow.settings
import pytest

from tf_operator import policy

GANG = {
    "job": "digits",
    "pool": "gpu",
    "slots": None,
    "terms": [{"count": 1, "gpus": 0}, {"count": {"param": "workers"}, "gpus": 1}],
    "defaults": {"workers": 2},
}


class Pools:
    """A session over a table of pools: size, description, include_deferred, perhaps Airflow's team, by name."""

    def __init__(self, **pools: tuple[Any, ...]) -> None:
        self.pools = {name: (*row, None)[:4] for name, row in pools.items()}

    no_autoflush = contextlib.nullcontext()

    def execute(self, statement: Any) -> Any:
        name = statement.compile().params["pool_1"]
        row = self.pools.get(name)

        class Answer:
            @staticmethod
            def first() -> Any:
                return row

        return Answer


@pytest.fixture
def pools() -> Iterator[Pools]:
    yield Pools(
        gpu=(4, "", True),
        shared=(8, "GPUs [tf_operator slots_per_gpu=4]", True),
        plain=(4, "", False),
        theirs=(4, "", True, "vision"),
        default_pool=(16, "", False),
    )


def test_trap_1_the_hook_is_not_treated_as_absent() -> None:
    assert airflow.settings.task_instance_mutation_hook.is_noop is False


@pytest.mark.parametrize(
    ("conf", "slots"), [({}, 2), ({"workers": 3}, 3), ({"workers": 4, "epochs": 9}, 4), ({"workers": 3.0}, 3)]
)
def test_slots_follow_the_runs_params(pools: Any, conf: dict[str, Any], slots: int) -> None:
    assert policy.decide(GANG, conf, pools) == {"pool": "gpu", "slots": slots}


def test_c22_a_job_larger_than_its_pool_is_refused_with_both_numbers(pools: Any) -> None:
    refused = policy.decide(GANG, {"workers": 6}, pools)["refused"]
    assert "needs 6 slots" in refused and "pool gpu has 4" in refused and "\n" not in refused


def test_c22_a_missing_pool_is_refused_by_name(pools: Any) -> None:
    assert "scheduling.pool = gpus" in policy.decide({**GANG, "pool": "gpus"}, {}, pools)["refused"]


def test_a_pool_that_does_not_count_deferred_tasks_is_refused(pools: Any) -> None:
    assert "include_deferred" in policy.decide({**GANG, "pool": "plain"}, {}, pools)["refused"]


def test_slots_per_gpu_comes_from_the_pool(pools: Any) -> None:
    gang = {**GANG, "pool": "shared", "terms": [{"count": 3, "gpus": 0.5}]}
    assert policy.decide(gang, {}, pools) == {"pool": "shared", "slots": 6}


def test_a_value_that_is_no_count_is_refused_in_one_line(pools: Any) -> None:
    refused = policy.decide(GANG, {"workers": "three"}, pools)["refused"]
    assert "workers" in refused and "three" in refused and "\n" not in refused


def test_a_job_without_gpus_holds_one_slot_of_the_default_pool(pools: Any) -> None:
    gang = {**GANG, "pool": None, "terms": [{"count": 3, "gpus": 0}]}
    assert policy.decide(gang, {}, pools) == {"pool": "default_pool", "slots": 1}


def test_more_replicas_than_default_pool_has_slots_are_refused(pools: Any) -> None:
    """Each is a task in a slot of that pool: a part of the gang would start and wait for the rest."""
    gang = {**GANG, "terms": [{"count": 1, "gpus": 1}, {"count": {"param": "workers"}, "gpus": 0}]}
    assert policy.decide(gang, {"workers": 15}, pools) == {"pool": "gpu", "slots": 1}
    refused = policy.decide(gang, {"workers": 16}, pools)["refused"]
    assert "17 replicas must run at once" in refused and "default_pool, which has 16" in refused


@pytest.mark.parametrize(
    ("team", "pool", "told"),
    [
        ("vision", "gpu", None),
        ("speech", "gpu", "scheduling.pool = gpu: belongs to team vision, this job is team speech's"),
        (None, "gpu", "scheduling.pool = gpu: belongs to team vision, this job belongs to no team"),
        ("vision", "shared", "scheduling.pool = shared: team vision has the pools gpu"),
        ("speech", "shared", None),
        (None, "shared", None),
    ],
)
def test_a_job_cannot_take_another_teams_pool(pools: Any, team: str | None, pool: str, told: str | None) -> None:
    fence = {"team": team, "own": ["gpu"] if team == "vision" else None, "owners": {"gpu": ["vision"]}}
    decided = policy.decide({**GANG, "pool": {"param": "pool"}, "fence": fence}, {"pool": pool}, pools)
    assert (decided.get("refused") or "").startswith(told or "") and ("refused" in decided) == bool(told)


def test_a_pool_of_airflows_own_team_is_said_where_airflow_would_be_silent(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = {**GANG, "pool": "theirs"}
    assert policy.decide(gang, {}, pools, lambda: None) == {"pool": "theirs", "slots": 2}, "multi-team mode is off"
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    assert policy.decide(gang, {}, pools, lambda: "vision") == {"pool": "theirs", "slots": 2}
    refused = policy.decide(gang, {}, pools, lambda: None)["refused"]
    assert "it is the pool of Airflow's team vision, the DAG is nobody's" in refused


def test_other_peoples_tasks_are_left_alone() -> None:
    class Other:
        task = object()
        pool, pool_slots = "theirs", 7

    policy.task_instance_mutation_hook(Other(), dag_run=object())  # type: ignore[arg-type]
    assert (Other.pool, Other.pool_slots) == ("theirs", 7)


def test_plan_gets_a_mark_and_keeps_its_own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    monkeypatch.setattr(policy, "_leave", lambda mark, task_instance, *_: left.append((mark, task_instance)))
    monkeypatch.setattr("sqlalchemy.orm.object_session", lambda dag_run: "the session")

    class Task:
        awaits_policy = True

    class Instance:
        task = Task()
        pool, pool_slots = "default_pool", 1

    policy.task_instance_mutation_hook(Instance, dag_run=None)  # type: ignore[arg-type]
    assert not left, "a throw-away object"
    policy.task_instance_mutation_hook(Instance, dag_run=object())  # type: ignore[arg-type]
    assert left == [({"seen": True}, Instance)]
    assert (Instance.pool, Instance.pool_slots) == ("default_pool", 1)


@pytest.mark.parametrize(
    ("change", "refused"), [({}, True), ({"terms": [{"count": 2, "gpus": 0}]}, False), ({"slots": 500}, True)]
)
def test_default_pool_grants_no_gpus_and_no_slots(pools: Pools, change: dict[str, Any], refused: bool) -> None:
    mark = policy.decide({**GANG, "pool": "default_pool", **change}, {}, pools)  # type: ignore[arg-type]
    assert mark.get("refused", "").startswith("scheduling.pool = default_pool: the replicas' own tasks") is refused
