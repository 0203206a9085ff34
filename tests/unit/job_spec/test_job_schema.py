"""The JSON Schema of job files accepts what we accept, and refuses what it can see is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tf_operator.job_spec import TensorFlowJob
from tf_operator.job_spec.explain import levels_of

JOB: dict[str, Any] = {
    "name": "digits",
    "schedule": "@daily",
    "start_date": "2026-01-01",
    "strategy": "parameter_server",
    "params": {"workers": {"type": "integer", "default": 2}, "limit": "12h"},
    "program": {"command": ["python", "-m", "train", 3], "env": {"A": "1"}},
    "runtime": {"kind": "process", "python": ".venv/bin/python"},
    "replicas": {
        "chief": {"memory": "2GiB", "cpus": 1},
        "worker": [{"name": "a", "replicas": "{{ params.workers }}", "gpus": 0.5}],
        "ps": {"replicas": 1, "retries": 2},
    },
    "secrets": [{"vault": "a#b", "file": "f", "mode": "0400", "decode": "base64", "kv": 2}],
    "run_policy": {"schedule_timeout": "{{ params.limit }}", "stall_timeout": None},
    "scheduling": {"pool": "gpu", "slots": 4},
    "notify": {"on_failure": [{"notifier": "a.B", "to": "x"}]},
}


def test_the_schema_is_one_and_takes_a_job() -> None:
    schema = TensorFlowJob.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    TensorFlowJob(**JOB)
    jsonschema.validate(JOB, schema)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Up"},
        {"retries": -1},
        {"retries": "3"},
        {"unknown": 1},
        {"replicas": {"worker": {"replicas": "two"}}},
        {"replicas": {"chief": {"replicas": 2}}},
        {"scheduling": {"slots": 0}},
        {"run_policy": {"start_timeout": "soon"}},
        {"program": {"command": "python"}},
        {"strategy": "x"},
    ],
)
def test_the_schema_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**JOB, **wrong}, TensorFlowJob.json_schema())


def test_every_field_is_described() -> None:
    schema = TensorFlowJob.json_schema()
    plain = {"replicas", "name"}
    nameless = [key for key, field in schema["properties"].items() if not field.get("description") and key not in plain]
    assert nameless == []


def test_the_page_on_job_files_names_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "job-file.md").read_text()
    of_types = {"replicas", "replicas.<type>.program", "replicas.<type>.runtime"}
    whole = {"program", "runtime", "replicas", "secrets", "run_policy", "scheduling", "notify", "params"}
    for level, keys in levels_of(TensorFlowJob).items():
        for key in set(keys) - (whole if level == "" else {"name"} if level == "replicas.<type>" else set()):
            if level not in of_types:
                assert f"`{level}.{key}`" in page or f"`.{key}`" in page or (level == "" and f"| `{key}` |" in page), (
                    key
                )


def test_the_example_of_the_page_is_a_job(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "job-file.md").read_text()
    path = tmp_path / "example.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    assert TensorFlowJob.from_file(path).name == "digits-ps"
