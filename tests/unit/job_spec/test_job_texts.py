"""Texts that fail wherever they get to, and homes of nobody: one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tf_operator.errors import JobError, PreflightError
from tf_operator.job_spec import TensorFlowJob, plain_context
from tf_operator.pools import wanted_pools
from tf_operator.settings import state_dir

JOB = {
    "name": "x",
    "params": {"tag": {"type": "string", "default": "a"}},
    "program": {"command": ["p", "{{ params.tag }}"]},
    "replicas": {"worker": {}},
}


def render(job: TensorFlowJob, **params: object) -> object:
    context = plain_context(job.name, "run", datetime(2026, 1, 1, tzinfo=UTC))
    return job.render(context, project_dir=Path("/project"), params=params)


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("model_dir", lambda text: {"model_dir": text}),
        ("description", lambda text: {"description": text}),
        ("tags[0]", lambda text: {"tags": [text]}),
        ("params.tag", lambda text: {"params": {"tag": text}}),
        ("params.tag.enum[0]", lambda text: {"params": {"tag": {"enum": [text], "default": "a"}}}),
        ("program.command[1]", lambda text: {"program": {"command": ["p", text]}}),
        ("program.env.A", lambda text: {"program": {"command": ["p"], "env": {"A": text}}}),
        ("program.env", lambda text: {"program": {"command": ["p"], "env": {text: "a"}}}),
        ("secrets[0].vault", lambda text: {"secrets": [{"vault": f"{text}#k", "env": "A"}]}),
        ("notify.on_failure.to", lambda text: {"notify": {"on_failure": {"notifier": "a.B", "to": text}}}),
        ("replicas.worker.memory", lambda text: {"replicas": {"worker": {"memory": text}}}),
    ],
)
def test_texts_that_no_program_takes(
    refusal: Callable[..., list[str]], text: str, place: str, change: Callable[[str], dict[str, object]]
) -> None:
    lines = refusal(json.dumps({**JOB, **change(text)}, indent=1), "job.json")
    (line,) = (line for line in lines if "holds a NUL" in line or "holds half a character" in line)
    assert f": job x: {place} = " in line and "\0" not in line and line.encode()


def test_yaml_s_own_way_to_write_it(refusal: Callable[..., list[str]], base: str) -> None:
    assert refusal(base + 'model_dir: "a\\0b"\n') == [
        'job.yaml:7: job base: model_dir = "a\\u0000b": holds a NUL, which no program, path or database takes; re'
        "move it"
    ]
    (line,) = refusal(base + "model_dir: a\0b\n")
    assert line.startswith("job.yaml") and "is not YAML" in line


@pytest.mark.parametrize("value", ["a\0b", "a\ud800b"])
def test_the_value_of_a_run(value: str) -> None:
    with pytest.raises(JobError, match=r"params\.tag = .*: the value holds ") as refused:
        render(TensorFlowJob(**JOB), tag=value)
    assert str(refused.value).encode()


def test_a_template_that_makes_one() -> None:
    job = TensorFlowJob(**{**JOB, "program": {"command": ["p", "{{ '%c' % 0 }}"]}})
    with pytest.raises(JobError, match=r"program\.command\[1\] = .*: holds a NUL"):
        render(job)


def test_a_path_with_a_nul() -> None:
    with pytest.raises(JobError, match=r"^a\\0b\.yaml: cannot be read: embedded null byte; name a file"):
        TensorFlowJob.from_file("a\0b.yaml")


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("model_dir", {"model_dir": "~nouser/m"}),
        ("program.working_dir", {"program": {"command": ["p"], "working_dir": "~nouser/m"}}),
        ("runtime.python", {"runtime": {"python": "~nouser/bin/python"}}),
        (
            "runtime.mounts[0].source",
            {"runtime": {"kind": "docker", "image": "i", "mounts": [{"source": "~nouser/m", "target": "/m"}]}},
        ),
        ("replicas.worker.program.working_dir", {"replicas": {"worker": {"program": {"working_dir": "~nouser"}}}}),
    ],
)
def test_the_home_of_nobody(place: str, change: dict[str, object]) -> None:
    job = TensorFlowJob(**{**JOB, **change})
    with pytest.raises(JobError) as refused:
        render(job)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"job x: {place} = ") and "knows no such user's home; write the path out" in line


def test_a_state_dir_below_the_home_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", "~nouser/state")
    with pytest.raises(PreflightError, match=r"state_dir = ~nouser/state: this host knows no such user's home"):
        state_dir()


def test_pools_with_a_nul(tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text('pools: {"a\\0b": {slots: 1}}')
    with pytest.raises(PreflightError, match=r"pools\.yaml:1: pools = .*holds a NUL"):
        wanted_pools(tmp_path / "pools.yaml", lambda: 0)
