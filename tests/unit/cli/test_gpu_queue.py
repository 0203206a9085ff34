"""The queue of a pool as `tf-operator gpus` tells it."""

from __future__ import annotations

from typing import Any

import pytest

from tf_operator.cli.gpus import pool_lines, waits_for


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
