"""Counts, files and values that stand for more than anybody means are refused before they are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tf_operator.errors import JobError
from tf_operator.job_spec import TensorFlowJob, plain_context
from tf_operator.job_spec.outline import most_tasks

Refusal = Callable[..., list[str]]
Read = Callable[..., TensorFlowJob]
HUGE = 2_000_000_000


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    before = time.process_time()
    yield
    assert time.process_time() - before < 1.5


def render(job: TensorFlowJob, **params: object) -> object:
    context = plain_context(job.name, "run", datetime(2026, 1, 1, tzinfo=UTC))
    return job.render(context, project_dir=Path("/project"), params=params)


def test_a_huge_count(refusal: Refusal, base: str) -> None:
    assert refusal(base.replace("replicas: 2", f"replicas: {HUGE}")) == [
        "job.yaml:6: job base: replicas.worker.replicas = 2000000000: must be at most 10000; lower it"
    ]


def test_a_huge_count_by_a_param(read: Read, base: str) -> None:
    text = base.replace("replicas: 2", 'replicas: "{{ params.n }}"') + "params: {n: {type: integer, default: 2}}\n"
    with pytest.raises(JobError, match=r"replicas = 2000000000: must be at most 10000; lower it"):
        render(read(text), n=HUGE)


def test_a_huge_default(refusal: Refusal, base: str) -> None:
    (line,) = refusal(base.replace("replicas: 2", 'replicas: "{{ params.n }}"') + f"params: {{n: {HUGE}}}\n")
    assert "must be at most 10000" in line


def test_a_huge_sum(refusal: Refusal, base: str) -> None:
    (line,) = refusal(base.replace("replicas: 2", "replicas: 9999"))
    assert line == "job.yaml:3: job base: replicas: 10001 replicas in all; must be at most 10000; lower them"


def test_a_huge_maximum_does_not_get_into_the_dag(read: Read, base: str) -> None:
    schema = "params: {n: {type: integer, default: 2, maximum: 1000000000000}}\n"
    job = read(base.replace("replicas: 2", 'replicas: "{{ params.n }}"') + schema)
    assert most_tasks(job) < 2 * 10_000


def test_huge_numbers_of_gpus(refusal: Refusal, base: str) -> None:
    (line,) = refusal(base.replace("replicas: 2", f"gpus: {HUGE}"))
    assert "gpus = 2000000000: must be at most 1024" in line


BOMB = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
MERGED = "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("a: &a [x]\n" + BOMB, "job.yaml", "holds more than 10000 values, those of its aliases included; shorten it"),
        ("a: &a {x: 1}\n" + MERGED, "job.yaml", "holds more than 10000 values, those of its aliases"),
        ("a: " + "[" * 900 + "]" * 900, "job.yaml", "is nested too deep; a few levels are enough"),
        ("a: " + "[" * 100_000, "job.yaml", "exceeded maximum nesting depth; correct it"),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", "job.json", "is nested too deep; a few levels are enough"),
        ('{"a": [' + "1," * 100_000 + "1]}", "job.json", "holds more than 10000 values"),
        ("a: " + "x" * 300_000, "job.yaml", "is larger than 256 KiB; shorten it"),
        ("a: " + "9" * 100_000, "job.yaml", "job.yaml:1: is not YAML: Exceeds the limit (4300 digits)"),
        ('{"a": ' + "9" * 100_000 + "}", "job.json", "job.json:1: is not JSON: Exceeds the limit (4300 digits)"),
        ("name: " + "a" * 200_000 + "\n", "job.yaml", "rename it"),
    ],
)  # fmt: skip
def test_texts_that_stand_for_too_much(refusal: Refusal, text: str, name: str, told: str) -> None:
    assert any(told in line for line in refusal(text, name))


def test_fields_whose_form_takes_long_to_try(refusal: Refusal, base: str) -> None:
    secret = f"secrets: [{{vault: {'a' * 100_000}, env: A}}]\n"
    assert len(refusal(base + secret + f"schedule: {'1,' * 50_000}1 * * * *\n")) == 2


def test_many_faults_are_told_as_quickly(refusal: Refusal, base: str) -> None:
    assert len(refusal(base + "tags: [" + "1, " * 2000 + "]\n")) >= 2000


def test_a_pattern_is_tried_on_short_values_only(refusal: Refusal, read: Read, base: str) -> None:
    param = "params: {p: {type: string, pattern: '^(a*)*$', default: aaa}}\n"
    with pytest.raises(JobError, match="5000 characters, of which a pattern takes 1000"):
        render(read(base + param), p="a" * 5000)
