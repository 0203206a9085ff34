"""The queue of a pool as `tf-operator gpus` tells it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_server import serving

from tf_operator.cli.gpus import pool_lines, queue, waits_for


@pytest.mark.parametrize(
    ("slots", "free", "size", "told"),
    [
        (4, 1, 8, "3 more free slots, all 4 at once"),
        (4, 4, 8, "the scheduler's next look"),
        (9, 8, 8, "for ever: the pool has 8 slots in all"),
    ],
)
def test_what_a_job_waits_for(slots: int, free: int, size: int, told: str) -> None:
    assert waits_for(slots, free, size) == told


def test_the_lines() -> None:
    job: dict[str, Any] = {"dag_id": "d", "run_id": "r", "task_id": "train.cluster", "since": "2026-01-01T10:00:00.1Z"}
    waiting = job | {"slots": 4, "waits_for": "1 more", "goes_first": True}
    found = {"name": "gpu", "slots": 8, "open": 2, "holding": [job | {"slots": 6}], "waiting": [waiting]}
    assert pool_lines(found) == [
        "pool gpu: 8 slots, 2 free",
        "  d/r/train.cluster holds 6 since 2026-01-01 10:00:00 UTC",
        "  d/r/train.cluster waits for 4 since 2026-01-01 10:00:00 UTC: 1 more; goes first: jobs that come now wait"
        " behind it",
    ]
    assert pool_lines({"name": "gpu", "error": "no Airflow answers"}) == ["pool gpu: no Airflow answers"]


def test_the_queue_is_whole_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = {"name": "gpu", "slots": 8, "running_slots": 0, "queued_slots": 0, "deferred_slots": 8, "open_slots": 0}
    task = {
        "dag_id": "d",
        "task_id": "train.cluster",
        "pool_slots": 2,
        "priority_weight": 1,
        "start_date": None,
        "scheduled_when": "2026-01-01T10:00:00Z",
    }
    tasks = [
        task | {"dag_run_id": f"r{number}", "state": "deferred" if number < 4 else "scheduled"} for number in range(250)
    ]
    turns = [
        {"key": f"tf_operator/turn/{pool}/{number}", "value": json.dumps({"dag_id": "d", "run_id": f"r{number}"})}
        for pool in ("gpu", "gpu-large")
        for number in range(4, 124)
    ]
    with serving() as server:
        server.answers.append((200, {}))
        server.lists = {
            "pools": ("pools", [pool | {"include_deferred": True, "name": f"p{n}"} for n in range(100)]),
            "dags/~/dagRuns/~/taskInstances": ("task_instances", tasks),
            "variables": ("variables", turns),
        }
        server.lists["pools"][1].append(pool | {"include_deferred": True})
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", server.url)
        found = queue("gpu")
    assert found["slots"] == 8
    assert (len(found["holding"]), len(found["waiting"])) == (4, 246)
    assert sum(job["goes_first"] for job in found["waiting"]) == 120
