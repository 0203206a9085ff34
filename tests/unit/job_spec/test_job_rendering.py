"""Rendering a job for one run: C-51 (params reach everything), C-58 (literal arguments), paths, properties."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tf_operator.errors import JobError
from tf_operator.gang import Demand, evaluate
from tf_operator.job_spec import RenderedJob, TensorFlowJob, plain_context

PROJECT = Path("/project")
MOMENT = datetime(2026, 1, 31, tzinfo=UTC)
PARAMS = {
    "epochs": {"type": "integer", "default": 2},
    "workers": {"type": "integer", "default": 1, "minimum": 0, "maximum": 8},
    "tag": {"type": "string", "default": ""},
}


def job(**fields: Any) -> TensorFlowJob:
    parts: dict[str, Any] = {"name": "x", "program": {"command": ["p"]}, "replicas": {"worker": {}}}
    return TensorFlowJob(**{**parts, **fields})


def rendered(written: TensorFlowJob, context: dict[str, Any] | None = None, **params: Any) -> RenderedJob:
    return written.render(context or plain_context(written.name, "run-1", MOMENT), project_dir=PROJECT, params=params)


def command(*arguments: str, params: dict[str, Any] | None = None, **given: Any) -> list[str]:
    return rendered(job(program={"command": ["p", *arguments]}, params=params or PARAMS), **given).groups[0].command[1:]


@pytest.mark.parametrize(
    ("given", "epochs", "workers"), [({}, 2, 1), ({"epochs": 4}, 4, 1), ({"epochs": 7, "workers": 3}, 7, 3)]
)
def test_c51_params_reach_arguments_counts_and_slots(given: dict[str, Any], epochs: int, workers: int) -> None:
    written = job(
        params=PARAMS,
        program={"command": ["probe", "--epochs={{ params.epochs }}", "{{ params.epochs }}", "--tag={{ params.tag }}"]},
        replicas={"worker": {"replicas": "{{ params.workers }}", "gpus": 1}},
    )
    run = rendered(written, **given)
    assert run.groups[0].command == ["probe", f"--epochs={epochs}", str(epochs), "--tag="]
    assert [str(replica) for replica in run.replicas] == [f"worker-{index}" for index in range(workers)]
    assert run.params == {"epochs": epochs, "workers": workers, "tag": ""}
    assert evaluate(written.gang(), given) == Demand("gpu", workers)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epoch": 7}, r"params\.epoch = 7: is not declared; did you mean epochs\?"),
        ({"xyz": 7}, r"params\.xyz = 7: is not declared; declared are: epochs, workers, tag"),
        (
            {"workers": 9},
            r"params\.workers = 9: the value does not fit the schema: 9 is greater than the maximum of 8; ",
        ),
        (
            {"workers": "3"},
            r"params\.workers = \"3\": the value does not fit the schema: '3' is not of type 'integer'; ",
        ),
        ({"workers": 2.5}, r"params\.workers = 2\.5: the value does not fit the schema"),
        ({"workers": True}, r"params\.workers = true: the value does not fit the schema"),
        ({"tag": None}, r"params\.tag = null: the value does not fit the schema"),
    ],
)
def test_c51_unknown_and_unfit_params_are_refused_and_no_default_takes_their_place(
    given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(JobError, match=f"^job x: {expected}"):
        rendered(job(params=PARAMS), **given)


def test_c51_a_number_with_zero_fraction_is_an_integer() -> None:
    value = rendered(job(params=PARAMS), workers=3.0).params["workers"]
    assert (value, type(value)) == (3, int)


def test_c51_a_param_without_default_has_to_be_given() -> None:
    written = job(params={"n": {"type": "integer"}})
    with pytest.raises(JobError, match=r"^job x: params\.n = null: has no default and got no value; give one$"):
        rendered(written)
    assert rendered(written, n=1).params == {"n": 1}


def test_a_bare_default_gives_the_type() -> None:
    with pytest.raises(JobError, match="is not of type 'integer'"):
        rendered(job(params={"n": 2}), n="2")


def test_c58_arguments_arrive_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("never read")
    arguments = [
        "conf.json",
        "run.sh",
        "hp.yaml",
        '{"a":{"b":1}}',
        "a;b && c | d",
        "$HOME",
        "*",
        "a\n",
        " x ",
        "%}",
        "}}",
    ]
    assert command(*arguments) == arguments


def test_c58_an_unclosed_brace_is_refused_when_read_with_path_and_way_out(read: Callable[..., Any]) -> None:
    with pytest.raises(JobError) as refused:
        read('name: x\nprogram:\n  command: [p, "{{ not jinja"]\nreplicas: {worker: {}}\n')
    line = str(refused.value)
    assert ':3: job x: program.command[1] = "{{ not jinja": is not a complete template (' in line
    assert line.endswith("put {% raw %}...{% endraw %} around text that is not a template")
    assert "\n" not in line


def test_c58_raw_is_the_way_to_literal_braces() -> None:
    assert command("{% raw %}{{ not jinja{% endraw %}") == ["{{ not jinja"]


def test_a_param_that_looks_like_a_template_is_not_rendered_again() -> None:
    assert command("--tag={{ params.tag }}", "{{ params.tag }}", tag="{{ 1 + 1 }}") == [
        "--tag={{ 1 + 1 }}",
        "{{ 1 + 1 }}",
    ]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ params.n }}", "3"),
        ("{{ params['n'] }}", "3"),
        ("{{ params.n }}\n", "3\n"),
        ("{{- params.n -}}", "3"),
        ("{{ -params.n }}", "-3"),
        ("{{ params.lr }}", "0.001"),
        ("{{ params.on }}", "True"),
        ("{{ params.list | tojson }}", "[1, 2]"),
        ("{{ ds }}/{{ run_id }}", "2026-01-31/run-1"),
        ("{{ logical_date | ds_nodash }}", "20260131"),
        ("{% for i in params.list %}{{ i }},{% endfor %}", "1,2,"),
        ("{{ dag.dag_id }}-{{ dag_run.run_id }}", "x-run-1"),
        ("{{ params.items }}", "own"),
    ],
)
def test_templates_in_arguments_give_text(template: str, expected: str) -> None:
    params = {"n": 3, "lr": 0.001, "on": True, "list": [1, 2], "items": "own"}
    assert command(template, params=params) == [expected]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ params.list }}", "argument 1 must be text"),
        ("{{ params.none }}", "argument 1 must be text"),
        (
            "{{ ds.nothing }}",
            r"program\.command\[1\] = .*: the template cannot be evaluated: .*has no attribute 'nothing'",
        ),
        ("{{ params.n / 0 }}", "cannot be evaluated: division by zero"),
        (
            "{{ ''.__class__.__mro__ }}",
            "cannot be evaluated: access to attribute '__class__' of 'str' object is unsafe",
        ),
        ("{{ ti.task_id }}", "ti is known only in a run on Airflow"),
    ],
)
def test_templates_that_fail_are_one_line(template: str, expected: str) -> None:
    with pytest.raises(JobError, match=f"^job x: .*{expected}") as refused:
        command(template, params={"list": [1], "none": None, "n": 1})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ params.epoch }}", r"params\.epoch is not declared; did you mean epochs\?"),
        ("{{ params['epoch'] }}", r"params\.epoch is not declared; did you mean epochs\?"),
        ("{{ param.epochs }}", r"param is no name that templates know; did you mean params\?"),
        ("{{ conn.x.password }}", "a connection's password would be kept with the run; put it into Vault"),
        ("{{ ds | tojosn }}", r"the template cannot be used: No filter named 'tojosn'"),
        ("{% if x", "is not a complete template"),
        ("{# open", "is not a complete template"),
    ],
)
def test_templates_are_checked_when_the_job_is_read(template: str, expected: str) -> None:
    with pytest.raises(JobError, match=rf"^job x: program\.command\[1\] = .*: {expected}"):
        job(params=PARAMS, program={"command": ["p", template]})


def test_a_lone_template_keeps_its_type() -> None:
    written = job(
        params={"cpus": 2, "image": "i:1", "backoff": 4, "args": ["p", 1, 0.5], "limit": "2GiB"},
        program={"command": "{{ params.args }}"},
        runtime={"kind": "docker", "image": "{{ params.image }}"},
        replicas={"worker": {"cpus": "{{ params.cpus * 2 }}", "memory": "{{ params.limit }}"}},
        run_policy={"backoff_limit": "{{ params.backoff }}", "start_timeout": "{{ params.backoff }}m"},
    )
    run = rendered(written)
    group = run.groups[0]
    assert (group.command, group.cpus, group.memory) == (["p", "1", "0.5"], 4.0, 2 << 30)
    assert (run.run_policy.backoff_limit, run.run_policy.start_timeout) == (4, 240)
    assert group.runtime.image == "i:1"


def test_rendered_values_follow_the_rules_of_the_file() -> None:
    written = job(params={"kind": "docker", "wait": "1m"}, runtime={"kind": "{{ params.kind }}"})
    with pytest.raises(JobError, match="^job x: runtime: kind docker needs an image; add image: name:tag$"):
        rendered(written)
    assert rendered(written, kind="process").groups[0].runtime.kind == "process"
    deadline = job(params={"wait": "1m"}, run_policy={"start_timeout": "{{ params.wait }}"})
    with pytest.raises(JobError, match=r'^job x: run_policy\.start_timeout = "soon": must be a duration with a unit'):
        rendered(deadline, wait="soon")


def test_faults_of_a_run_keep_file_and_line(read: Callable[..., Any], base: str) -> None:
    written = read(base.replace("replicas: 2", 'replicas: "{{ params.n }}"') + "params: {n: {default: 2}}\n")
    with pytest.raises(JobError, match=r'job\.yaml:6: job base: replicas\.worker\.replicas = "two": must be a whole'):
        rendered(written, n="two")


def test_relative_paths_start_at_the_project_and_links_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to("/usr/bin/env")
    written = job(
        program={"command": ["python", "-m", "train"], "working_dir": "examples/../code"},
        runtime={"python": "venv/bin/python"},
        model_dir="out/{{ ds }}",
    )
    run = written.render(plain_context("x", "r", MOMENT), project_dir=tmp_path, params={})
    group = run.groups[0]
    interpreter = str(tmp_path / "venv/bin/python")
    assert group.command == [interpreter, "-m", "train"]
    assert (group.runtime.python, group.working_dir) == (interpreter, str(tmp_path / "code"))
    assert run.model_dir == str(tmp_path / "out/2026-01-31")


def test_python_stays_python_where_no_interpreter_is_given() -> None:
    assert rendered(job(program={"command": ["python", "a.py"]})).groups[0].command == ["python", "a.py"]
    named = rendered(job(program={"command": ["python", "a.py"]}, runtime={"python": "python3.11"})).groups[0]
    assert named.command == ["python3.11", "a.py"]


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({"dag": {"dag_id": "d"}, "run_id": "r"}, "models/d/r"),
        ({"dag": SimpleNamespace(dag_id="d"), "run_id": "r", "task_group_id": "train"}, "models/d/train/r"),
        ({"dag": {"dag_id": "d"}, "run_id": "r", "task_group_id": ""}, "models/d/r"),
        (
            {"dag": {"dag_id": "d"}, "run_id": "scheduled__2026-01-31T00:00:00+00:00"},
            "models/d/scheduled__2026-01-31T00-00-00-00-00",
        ),
        ({"dag": {"dag_id": "d"}, "run_id": "../../etc"}, "models/d/-.-..-etc"),
        ({"run_id": ".."}, "models/x/-."),
        ({}, "models/x"),
    ],
)
def test_the_default_model_dir_is_the_run_s_own(context: dict[str, Any], expected: str) -> None:
    assert rendered(job(), {**context, "ds": ""}).model_dir == str(PROJECT / expected)


def test_what_a_replica_type_gives_replaces_the_job_s() -> None:
    written = job(
        program={"command": ["a"], "env": {"A": "job", "B": "job", "C": 1}, "working_dir": "w"},
        restart_policy="never",
        runtime={"python": "/py"},
        replicas={
            "worker": {},
            "ps": {
                "program": {"command": ["b"], "env": {"B": "program"}, "working_dir": "v"},
                "env": {"D": "{{ ds }}"},
                "retries": 0,
                "restart_policy": "exit_code",
                "runtime": {"kind": "docker", "image": "i", "shm_size": "1GiB"},
            },
        },
    )
    worker, ps = rendered(written).groups
    assert (worker.command, worker.env, worker.working_dir) == (["a"], {"A": "job", "B": "job", "C": "1"}, "/project/w")
    assert (worker.retries, worker.restart_policy, worker.runtime.python) == (3, "never", "/py")
    assert (ps.command, ps.working_dir, ps.retries, ps.restart_policy) == (["b"], "/project/v", 0, "exit_code")
    assert ps.env == {"A": "job", "B": "program", "C": "1", "D": "2026-01-31"}
    assert (ps.runtime.kind, ps.runtime.python, ps.runtime.options) == ("docker", None, {"shm_size": 1 << 30})


def test_secret_references() -> None:
    (secret,) = rendered(
        job(secrets=[{"vault": "/a/b#k", "file": "f", "decode": "base64", "mode": "440", "kv": 2}])
    ).secrets
    assert (secret.path, secret.key, secret.mode, secret.kv, secret.connection) == (
        "/a/b",
        "k",
        0o440,
        2,
        "vault_default",
    )


@pytest.mark.parametrize(
    ("fields", "strategy"),
    [({}, "none"), ({"replicas": {"worker": {}, "ps": {}}}, "parameter_server"), ({"strategy": "none"}, "none")],
)
def test_strategy_left_out(fields: dict[str, Any], strategy: str) -> None:
    assert rendered(job(**fields)).strategy == strategy


@pytest.mark.parametrize(
    ("fields", "pool"),
    [
        ({}, None),
        ({"replicas": {"worker": {"gpus": 1}}}, "gpu"),
        ({"scheduling": {"slots": 2}}, "gpu"),
        ({"scheduling": {"pool": "a"}}, "a"),
    ],
)
def test_pool_left_out(fields: dict[str, Any], pool: str | None) -> None:
    written = job(**fields)
    assert rendered(written).scheduling.pool == pool
    assert evaluate(written.gang(), {}).pool == pool


def test_same_input_gives_same_output() -> None:
    source = random.Random(7)
    for _ in range(30):
        replicas = {
            "worker": {"replicas": source.randint(1, 5), "gpus": source.choice([0, 0.5, 2])},
            "ps": {"replicas": source.randint(1, 3)},
            "Chief": {"replicas": source.randint(0, 1)},
        }
        shuffled = dict(source.sample(list(replicas.items()), 3))
        one, other = rendered(job(replicas=replicas)), rendered(job(replicas=shuffled))
        assert one.model_dump_json() == other.model_dump_json()
        assert RenderedJob.model_validate_json(one.model_dump_json()) == one
        assert [replica.order for replica in one.replicas] == sorted(replica.order for replica in one.replicas)
        assert json.dumps(job(replicas=replicas).gang()) == json.dumps(job(replicas=shuffled).gang())


def test_a_secrets_path_is_judged_once_its_templates_are_filled_in() -> None:
    written = job(secrets=[{"vault": "kv/{{ [params.n // 2, 'x'] | join('/') }}#k", "env": "A"}], params={"n": 4})
    assert rendered(written).secrets[0].path == "kv/2/x"
    escaping = job(secrets=[{"vault": "kv/{{ params.team }}/x#k", "env": "A"}], params={"team": "own"})
    with pytest.raises(JobError, match=r"secrets\[0\].vault = .kv/../x#k.: must be names with a single /"):
        rendered(escaping, team="..")


@pytest.mark.parametrize("text", ["{{ logical_date }}", "{{ params.epochs }}"])
def test_a_lone_template_is_text_where_text_is_meant(text: str) -> None:
    written = job(params=PARAMS, program={"command": ["p", text], "env": {"A": text}}, model_dir=text)
    run = rendered(written)
    value = {"{{ logical_date }}": str(MOMENT), "{{ params.epochs }}": "2"}[text]
    assert run.groups[0].command[1] == run.groups[0].env["A"] == value
    assert run.model_dir == str(PROJECT / value)


def test_a_replica_that_says_the_same_kind_keeps_the_interpreter() -> None:
    written = job(
        program={"command": ["python", "x.py"]},
        runtime={"python": "/opt/tf/bin/python"},
        replicas={"worker": {"runtime": {"kind": "process"}}},
    )
    assert rendered(written).groups[0].command[0] == "/opt/tf/bin/python"


@pytest.mark.parametrize(
    ("default", "given", "strategy"), [(0, {}, "none"), (0, {"g": 1}, "parameter_server"), (1, {"g": 0}, "none")]
)
def test_a_ps_by_a_param_decides_the_strategy_of_each_run(default: int, given: dict[str, int], strategy: str) -> None:
    written = job(
        params={"g": {"type": "integer", "default": default}},
        replicas={"worker": {}, "ps": {"replicas": "{{ params.g }}"}},
    )
    assert rendered(written, **given).strategy == strategy
