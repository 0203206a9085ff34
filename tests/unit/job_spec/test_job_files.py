"""Reading job files: C-14 (duplicate and misplaced keys), malformed text, YAML's traps, names of C-09."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tf_operator.errors import JobFileError
from tf_operator.job_spec import TensorFlowJob

Refusal = Callable[..., list[str]]


def test_c14_duplicate_key_in_yaml_names_both_lines(refusal: Refusal, base: str) -> None:
    assert refusal(base + "  worker: {replicas: 4}\n") == [
        "job.yaml:7: job base: replicas.worker: is given twice, first on line 6; keep one"
    ]


def test_c14_duplicate_key_in_json_names_both_lines(refusal: Refusal) -> None:
    text = '{"name": "base",\n "replicas": {\n  "worker": {"replicas": 2},\n  "worker": {"replicas": 4}}}'
    assert refusal(text, "job.json") == [
        "job.json:4: job base: replicas.worker: is given twice, first on line 3; keep one"
    ]


def test_c14_duplicate_key_inside_a_list_item(refusal: Refusal, base: str) -> None:
    text = base + "secrets:\n- vault: a#b\n  env: A\n  env: B\n"
    assert refusal(text) == ["job.yaml:10: job base: secrets[0].env: is given twice, first on line 9; keep one"]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("clean_policy: all", "run_policy.clean_policy"),
        ("pool: gpu", "scheduling.pool"),
        ("gpus: 1", "replicas.<type>.gpus"),
        ("command: [probe]", "program.command or replicas.<type>.command"),
        ("image: x", "runtime.image or replicas.<type>.runtime.image"),
    ],
)
def test_c14_a_key_on_the_wrong_level_is_told_its_place(refusal: Refusal, base: str, key: str, place: str) -> None:
    (line,) = refusal(base + key + "\n")
    assert line == f"job.yaml:7: job base: {key.split(':')[0]}: is not known here; the right place is {place}"


def test_c14_a_key_of_the_job_inside_a_part_is_told_its_place(refusal: Refusal, base: str) -> None:
    (line,) = refusal(base + "run_policy:\n  retry_delay: 5s\n")
    assert line == "job.yaml:8: job base: run_policy.retry_delay: is not known here; the right place is retry_delay"


def test_c14_an_unknown_key_is_told_the_nearest(refusal: Refusal, base: str) -> None:
    assert refusal(base.replace("command", "comand")) == [
        "job.yaml:2: job base: program.comand: is not known; did you mean command?"
    ]
    (line,) = refusal(base + "comand: [probe]\n")
    assert line == (
        "job.yaml:7: job base: comand: is not known; did you mean command?"
        " Its place is program.command or replicas.<type>.command"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("runtime: {mount: []}", "runtime.mount: is not known; did you mean mounts?"),
        ("secrets: [{vault: a#b, envs: A}]", "secrets[0].envs: is not known; did you mean env?"),
        ("secrets: [{vault: a#b, mounts: A, env: B}]", "secrets[0].mounts: is not known; did you mean mount?"),
        ("retry: 3", "retry: is not known; did you mean retries?"),
        ("runtime: {mounts: [{sorce: /a, target: /b}]}", "runtime.mounts[0].sorce: is not known; did you mean source?"),
        ("runtime: {mounts: [{src: /a, xyz: /b}]}", "mounts[0].xyz: is not known; known here are source, target, rea"),
        (
            "run_policy: {restart_policy: never}",
            "run_policy.restart_policy: is not known here; the right place is rest",
        ),
    ],
)
def test_c14_the_keys_of_the_place_are_guessed_first(refusal: Refusal, base: str, text: str, told: str) -> None:
    assert any(told in line for line in refusal(f"{base}{text}\n"))


def test_c14_an_unknown_replica_type_is_told_the_nearest(refusal: Refusal, base: str) -> None:
    (line,) = refusal(base + "  workers: {replicas: 1}\n")
    assert line == "job.yaml:7: job base: replicas.workers: is no replica type; did you mean worker?"


def test_an_unknown_key_without_a_likeness_is_told_what_is_known(refusal: Refusal, base: str) -> None:
    (line,) = refusal(base + "scheduling: {xyz: 1}\n")
    assert line == "job.yaml:7: job base: scheduling.xyz: is not known; known here are pool, slots, priority"


def test_every_fault_is_a_line_in_file_order(refusal: Refusal, base: str) -> None:
    text = base.replace("replicas: 2", "replicas: -2") + "retries: many\nschedul: '@daily'\n"
    assert [line.split(":")[1] for line in refusal(text)] == ["6", "7", "8"]


def test_worker_group_keys_have_their_own_lines(refusal: Refusal) -> None:
    text = "name: x\nprogram: {command: [p]}\nreplicas:\n  worker:\n  - name: a\n    gpu: 1\n"
    assert refusal(text) == ["job.yaml:6: job x: replicas.worker[0].gpu: is not known; did you mean gpus?"]


def test_a_role_in_upper_case_keeps_its_line(refusal: Refusal) -> None:
    (line,) = refusal("name: x\nprogram: {command: [p]}\nreplicas:\n  PS: {}\n  Worker:\n    replicas: two\n")
    assert line.startswith('job.yaml:6: job x: replicas.worker.replicas = "two": ')


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("", "job.yaml", "job.yaml:1: the file holds no job; "),
        ("- a\n", "job.yaml", "job.yaml:1: the file holds no job; "),
        ("[]", "job.json", "job.json:1: the file holds no job; "),
        ("a: [\n", "job.yaml", "job.yaml:1: is not YAML: "),
        ("a: 1\n---\nb: 2\n", "job.yaml", "job.yaml:2: is not YAML: but found another document; "),
        ("a: &x [*x]\n", "job.yaml", "job.yaml:1: is not YAML: "),
        ("1: a\n", "job.yaml", "job.yaml:1: is not YAML: a key must be text; put it in quotes"),
        ("a: !!python/object:os.system {}\n", "job.yaml", "job.yaml:1: is not YAML: the tag "),
        ('{"a": 1,}', "job.json", "job.json:1: is not JSON: "),
        ('{"a": 1}\n{', "job.json", "job.json:2: is not JSON: Extra data"),
        ('{"a": NaN}', "job.json", "job.json:1: is not JSON: "),
        ('{"a": "x', "job.json", "job.json:1: is not JSON: "),
        ("", "job.json", "job.json:1: is not JSON: "),
    ],
)
def test_malformed_text_is_one_line(refusal: Refusal, text: str, name: str, line: str) -> None:
    (refused,) = refusal(text, name)
    assert refused.startswith(line)


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"absent\.yaml: cannot be read: No such file or directory; "):
        TensorFlowJob.from_file(tmp_path / "absent.yaml")
    with pytest.raises(JobFileError, match="cannot be read: Is a directory; "):
        TensorFlowJob.from_file(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: modèle".encode("latin-1"))
    with pytest.raises(JobFileError, match=r"latin\.yaml: is not UTF-8 text \(byte 9\)"):
        TensorFlowJob.from_file(tmp_path / "latin.yaml")


def test_yaml_reads_scalars_as_json_would(read: Callable[..., TensorFlowJob]) -> None:
    job = read(
        """\
        name: x
        start_date: 2026-01-31
        program:
          command: [p, on, 1:30, 007, 2024-01-01, yes, 0x10, 1_000]
          env: {A: off, B: 12}
        replicas: {worker: {}}
        secrets: [{vault: a#b, file: f, mode: 0440}]
        """
    )
    assert job.program.command == ["p", "on", "1:30", "007", "2024-01-01", "yes", "0x10", "1_000"]
    assert job.program.env == {"A": "off", "B": 12}
    assert job.secrets[0].mode == "0440"
    assert job.start_at is not None
    assert job.start_at.isoformat() == "2026-01-31T00:00:00+00:00"


def test_yaml_anchors_and_merges(read: Callable[..., TensorFlowJob]) -> None:
    job = read(
        """\
        name: x
        program: {command: [p]}
        replicas:
          ps: &small {cpus: 1, memory: 1GiB}
          worker: {<<: *small, cpus: 4}
        """
    )
    assert isinstance(job.replicas.worker, type(job.replicas.ps))
    assert (job.replicas.worker.cpus, job.replicas.worker.memory) == (4, "1GiB")


def test_json_and_yaml_give_the_same_job(read: Callable[..., TensorFlowJob]) -> None:
    data = {
        "name": "same",
        "description": 'escapes \\ / \b é 😀 "',
        "params": {"n": 2, "lr": 1e-3, "none": None, "on": True},
        "program": {"command": ["p", "{{ params.n }}"]},
        "replicas": {"worker": [{"name": "a", "gpus": 0.5}], "ps": {}},
    }
    text = json.dumps(data, indent=1)
    from_json = read(text, "job.json")
    assert from_json.model_dump() == TensorFlowJob(**data).model_dump()
    assert from_json.params["lr"] == 0.001


@pytest.mark.parametrize("name", ["Fraud Model_v2.1 (EU)", "-edge-", "UPPER_case", "modèle-été", "a" * 64, "", "a\n"])
def test_c09_other_names_are_refused_with_the_legal_pattern(refusal: Refusal, base: str, name: str) -> None:
    (line,) = refusal(base.replace("name: base", f"name: {json.dumps(name)}"))
    assert line.startswith("job.yaml:1: ")
    assert " (^[a-z0-9][a-z0-9._-]{0,62}$); rename it" in line


@pytest.mark.parametrize("name", ["fraud-model-v2.1_eu", "0", "a" * 63])
def test_c09_legal_names(read: Callable[..., TensorFlowJob], base: str, name: str) -> None:
    assert read(base.replace("name: base", f'name: "{name}"')).name == name


@pytest.mark.parametrize("name", ["a b", "GPU", "é", "-x"])
def test_c09_group_names_are_legal_in_task_ids(refusal: Refusal, name: str) -> None:
    (line,) = refusal(f"name: x\nprogram: {{command: [p]}}\nreplicas:\n  worker:\n  - {{name: '{name}'}}\n")
    assert line.startswith("job.yaml:5: job x: replicas.worker[0].name = ")
