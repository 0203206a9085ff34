"""The JSON Schema of job files accepts what we accept, and refuses what it can see is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tf_operator.errors import JobError
from tf_operator.job_spec import TensorFlowJob
from tf_operator.job_spec.explain import levels_of
from tf_operator.job_spec.load import read_job_file
from tf_operator.job_spec.yaml_lines import read_yaml

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
            if level not in of_types and not level.endswith("mounts[]"):
                assert f"`{level}.{key}`" in page or f"`.{key}`" in page or (level == "" and f"| `{key}` |" in page), (
                    key
                )


ROOT = Path(__file__).parents[3]
EXAMPLES = [
    text for page in sorted(ROOT.glob("docs/*.md")) for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)
]
"""Of all pages: whole jobs, and parts of one."""


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_schema_takes_what_the_pages_show(text: str) -> None:
    of_other_files = ("pools", "teams")
    shown = {key: value for key, value in (read_yaml(text).value or {}).items() if key not in of_other_files}
    jsonschema.validate({**JOB, **shown}, TensorFlowJob.json_schema())


def test_the_example_of_the_page_on_job_files_is_a_job(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text((ROOT / "docs" / "job-file.md").read_text().split("```yaml\n")[1].split("```")[0])
    assert TensorFlowJob.from_file(path).name == "digits-ps"


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/jobs/*.yaml")), ids=lambda file: file.name)
def test_the_schema_takes_the_project_s_jobs(file: Path) -> None:
    jsonschema.validate(read_job_file(file)[0], TensorFlowJob.json_schema())


@pytest.mark.parametrize(
    "spelling",
    [
        {"notify": {"on_failure": {"notifier": "a.B", "to": "x"}}},
        {"replicas": {"master": {}, "ps": {}}},
        {"replicas": {"Worker": {"replicas": 2}, "PS": {}}},
        {"params": {"n": {"type": ["integer", "null"], "default": None, "minimum": 1}, "plain": [1, 2], "none": None}},
        {"params": {"day": {"type": "string", "format": "date", "default": "2026-01-01", "section": "When"}}},
        {"params": {"sizes": {"type": "array", "items": {"type": "integer", "minimum": 1}, "default": [1]}}},
        {"params": {"c": {"type": "object", "properties": {"a": {"pattern": "^a"}}, "additionalProperties": False,
                          "default": {}}}},
    ],
)  # fmt: skip
def test_the_schema_and_we_take_the_documented_spellings(spelling: dict[str, Any]) -> None:
    job = {key: value for key, value in JOB.items() if key not in ("run_policy", "params")} | {
        "replicas": {"chief": {}, "ps": {}}
    }
    TensorFlowJob(**{**job, **spelling})
    jsonschema.validate({**job, **spelling}, TensorFlowJob.json_schema())


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "integr", "default": 1}, "is no JSON Schema"),
        ({"type": "string", "format": "dat", "default": "x"}, "format: dat is none; did you mean date?"),
        ({"type": "string", "pattern": "(", "default": "x"}, "is no JSON Schema"),
        ({"type": "array", "items": {"minimun": 1}, "default": []}, "items.minimun is no keyword"),
        ({"anyOf": [{}, {"properties": {"a": {"typ": "string"}}}], "default": {}}, "anyOf[1].properties.a.typ is no"),
        ({"type": "array", "items": {"minimum": "1"}, "default": []}, "is no JSON Schema"),
    ],
)
def test_the_schema_and_we_refuse_faulty_schemas_of_params(schema: dict[str, Any], told: str) -> None:
    job = {**JOB, "params": {"workers": 2, "limit": "12h", "p": schema}}
    with pytest.raises(JobError) as refused:
        TensorFlowJob(**job)
    assert told in str(refused.value)
    with pytest.raises(jsonschema.ValidationError):
        validator = jsonschema.Draft202012Validator
        jsonschema.validate(job, TensorFlowJob.json_schema(), format_checker=validator.FORMAT_CHECKER)
