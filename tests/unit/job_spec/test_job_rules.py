"""Single values and combinations of a job: each refusal names path, value, rule and way out."""

from __future__ import annotations

from typing import Any

import pytest

from tf_operator.errors import JobError
from tf_operator.job_spec import TensorFlowJob
from tf_operator.job_spec.units import memory_bytes, seconds


def job(**fields: Any) -> TensorFlowJob:
    parts: dict[str, Any] = {"name": "x", "program": {"command": ["p"]}, "replicas": {"worker": {}}}
    return TensorFlowJob(**{**parts, **fields})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replicas": {"worker": {"cpus": 0}}}, "replicas.worker.cpus = 0: must be more than 0"),
    ({"replicas": {"worker": {"memory": 4}}}, "replicas.worker.memory = 4: must be a number with a unit"),
    ({"replicas": {"worker": {"memory": "0GiB"}}}, 'replicas.worker.memory = "0GiB": must be more than nothing'),
    ({"replicas": {"worker": {"memory": "9" * 400 + "GiB"}}}, "less than 8 EiB"),
    ({"retry_delay": "9" * 20 + "d"}, "must be at most 3650d"),
    ({"max_active_runs": 2**31}, "max_active_runs = 2147483648: must be at most 2000000000"),
    ({"replicas": {"worker": {"memory": "2Gi"}}}, 'replicas.worker.memory = "2Gi": must be a number with a unit'),
    ({"replicas": {"worker": []}}, "replicas.worker = []: must not be empty"),
    ({"replicas": {"worker": None}}, "replicas: worker is empty; write worker: {replicas: 1}"),
    ({"replicas": 3}, "replicas = 3: must be a mapping with some of the keys chief, worker, ps, evaluator"),
    ({"replicas": {"worker": {"name": "a"}}}, "replicas.worker.name: only the groups of a list of workers have names"),
    ({"replicas": {"worker": {"restart_policy": "always"}}}, "must be one of on_failure, exit_code, never"),
    ({"retries": -1}, "retries = -1: must be a whole number, 0 or more"),
    ({"retries": "{{ params.n }}", "params": {"n": 1}}, "is read before any run exists and takes no template"),
    ({"retry_delay": 5}, "retry_delay = 5: must be a duration with a unit"),
    ({"run_policy": {"start_timeout": "0s"}}, 'run_policy.start_timeout = "0s": must be longer than 0s'),
    ({"run_policy": {"start_timeout": None}}, "run_policy.start_timeout = null: must be a duration"),
    ({"run_policy": {"clean_policy": "none"}}, "must be one of all, keep_failed"),
    ({"run_policy": {"backoff_limit": 1.5}}, "run_policy.backoff_limit = 1.5: must be a whole number"),
    ({"scheduling": {"slots": 0}}, "scheduling.slots = 0: must be a whole number, 1 or more"),
    ({"scheduling": {"priority": "high"}}, 'scheduling.priority = "high": must be a whole number'),
    ({"max_active_runs": 0}, "max_active_runs = 0: must be a whole number, 1 or more"),
    ({"catchup": "yes"}, 'catchup = "yes": must be true or false'),
    ({"schedule": "@daily", "catchup": True}, "catchup = true: needs to know where to begin; add start_date:"),
    ({"schedule": "@continuous"}, 'schedule = "@continuous": runs one after the other; add max_active_runs: 1'),
    ({"tags": ["a", "b" * 101]}, "must be at most 100 characters; shorten it"),
    ({"schedule": "each day"}, 'schedule = "each day": must be a cron expression or one of @once'),
    ({"schedule": "@dayly"}, 'schedule = "@dayly": must be a cron expression or one of @once'),
    ({"start_date": "soon"}, 'start_date = "soon": must be an ISO 8601 date or time'),
    ({"tags": "a"}, 'tags = "a": must be a list'),
    ({"strategy": "mirrored"}, 'strategy = "mirrored": must be one of parameter_server, '),
    ({"program": {"command": "python train.py"}}, "must be a list of arguments, for no shell reads it"),
    ({"program": {"command": []}}, "program.command = []: must be a list with a program"),
    ({"program": {"command": ["p", 0.1]}}, "argument 1 must be text; put it in quotes"),
    ({"program": {"command": ["p", None]}}, "argument 1 must be text"),
    ({"program": {"command": ["p"], "env": {"A": True}}}, "program.env.A = true: must be text; put it in quotes"),
    ({"program": {"command": ["p"], "env": {"A B": "x"}}}, "must be the name of an environment variable"),
    ({"program": {"command": ["p"], "env": {"TF_CONFIG": "{}"}}}, "program.env.TF_CONFIG: is written from the Cluster"),
    ({"program": {"command": ["p"], "env": {"TF_OPERATOR_X": "1"}}}, "names of this form are the product's"),
    ({"replicas": {"worker": {"env": {"CUDA_VISIBLE_DEVICES": "0"}}}}, "follows from the devices the replica gets"),
    ({"program": {}}, "replicas.worker: has no command; add program.command to the job or command here"),
    (
        {"replicas": {"worker": {"command": ["a"], "program": {"command": ["b"]}}}},
        'replicas.worker.command = ["a"]: is given beside program.command; keep one',
    ),
    ({"runtime": {"kind": "process", "image": "i"}}, 'runtime.image = "i": kind process has no image'),
    ({"runtime": {"kind": "docker", "image": "i", "python": "p"}}, 'runtime.python = "p": kind docker has no python'),
    ({"runtime": {"kind": "docker", "image": "i", "constraints": ["a"]}}, "kind docker has no constraints"),
    ({"runtime": {"kind": "docker"}}, "runtime: kind docker needs an image"),
    ({"runtime": {"kind": "docker", "image": "i", "user": "root"}}, 'runtime.user = "root": must be uid or uid:gid'),
    (
        {"runtime": {"kind": "docker", "image": "i", "ulimits": {"nofile": "a"}}},
        'runtime.ulimits.nofile = "a": must be a whole number',
    ),
    ({"runtime": {"read_only": True}}, "runtime.read_only = true: kind process has no read_only"),
    ({"runtime": {"kind": "podman"}}, "must be one of process, docker, swarm"),
    (
        {"replicas": {"worker": {"runtime": {"kind": "swarm"}}}},
        "replicas.worker.runtime: kind swarm needs an image",
    ),
    (
        {
            "params": {"n": {"type": "integer", "default": 2}},
            "replicas": {"worker": [{"name": "a", "replicas": "{{ params.n }}"}, {"name": "b", "replicas": 2}]},
        },
        'replicas.worker[0].replicas = "{{ params.n }}": only the last worker group\'s count can be a param',
    ),
    ({"strategy": "parameter_server"}, 'strategy = "parameter_server": needs a ps; set replicas.ps.replicas to 1'),
    ({"strategy": "parameter_server", "replicas": {"ps": {}}}, "needs a chief or a worker"),
    ({"strategy": "multi_worker_mirrored", "replicas": {"worker": {}, "ps": {}}}, "multi_worker_mirrored has no ps"),
    ({"strategy": "multi_worker_mirrored", "replicas": {"chief": {}}}, "needs a worker"),
    ({"strategy": "between_graph"}, "needs a ps"),
    ({"strategy": "in_graph"}, "needs a chief"),
    (
        {"tf_config": False, "replicas": {"worker": {"replicas": 2}}},
        "tf_config = false: TF_CONFIG may be left out only",
    ),
    ({"success_policy": "all_workers", "replicas": {"ps": {}}, "strategy": "none"}, "needs a chief or a worker"),
    ({"model_dir": "s3://bucket/x"}, 'model_dir = "s3://bucket/x": must be a directory that all replicas share'),
    ({"model_dir": ""}, 'model_dir = "": must not be empty'),
    ({"secrets": [{"vault": "a", "env": "A"}]}, 'secrets[0].vault = "a": must be path#key'),
    ({"secrets": [{"vault": "a#b"}]}, "secrets[0]: must say exactly one of env and file"),
    ({"secrets": [{"vault": "a#b", "env": "A", "file": "f"}]}, "secrets[0]: must say exactly one of env and file"),
    ({"secrets": [{"vault": "a#b", "env": "A"}, {"vault": "c#d", "env": "A"}]}, 'secrets[1].env = "A": another secret'),
    ({"secrets": [{"vault": "a#b", "env": "TF_CONFIG"}]}, "is written from the ClusterSpec"),
    ({"secrets": [{"vault": "a#b", "file": "../f"}]}, "must be a file name without folders"),
    ({"secrets": [{"vault": "a#b", "file": "f", "mode": "0444"}]}, 'mode = "0444": must be an octal mode in quotes'),
    ({"secrets": [{"vault": "a#b", "file": "f", "mode": 400}]}, "mode = 400: must be an octal mode in quotes"),
    ({"secrets": [{"vault": "a#b", "file": "f", "mode": "0200"}]}, "must let the program read the file"),
    ({"secrets": [{"vault": "a#b", "env": "A", "mode": "0400"}]}, "a mode belongs to a file"),
    ({"secrets": [{"vault": "a#b", "env": "A", "kv": 3}]}, "secrets[0].kv = 3: must be 1 or 2"),
    ({"secrets": [{"vault": "a#b", "env": "A", "kv": 1, "version": 2}]}, "KV version 1 keeps no versions"),
    ({"secrets": [{"vault": "a/../b#c", "env": "A"}]}, 'secrets[0].vault = "a/../b#c": must be names with a single /'),
    ({"secrets": [{"vault": "a//b#c", "env": "A"}]}, "must be names with a single / between them, without . and .."),
    (
        {"secrets": [{"vault": "auth/token/lookup-self#id", "env": "A"}]},
        "auth/ is the server's own and holds no secret",
    ),
    ({"secrets": [{"vault": "health#x", "mount": "sys", "env": "A"}]}, "sys/ is the server's own and holds no secret"),
    ({"secrets": [{"vault": "a/b#*", "env": "A", "decode": "base64"}]}, "the whole secret (#*) is a JSON object"),
    (
        {"secrets": [{"vault": "a#b", "env": "A"}], "program": {"command": ["p"], "env": {"A": "1"}}},
        "program.env.A: a secret has the same env name",
    ),
    ({"notify": {"on_failure": [{"notifier": "Foo"}]}}, "must be the import path of a notifier class"),
    ({"notify": {"on_failure": [{}]}}, "notify.on_failure[0].notifier: is missing; add it"),
    ({"params": {"n": {"type": "integer", "default": "x"}}}, "the default does not fit the schema"),
    (
        {"params": {"n": {"type": "integer", "minimun": 1}}},
        "minimun is no keyword of a JSON Schema; did you mean minimum?",
    ),
    ({"params": {"n": {"type": "whole"}}}, "params.n: is no JSON Schema"),
    ({"params": {"n": {"$ref": "http://x/y"}}}, "params.n: $ref is not followed"),
    (
        {"params": {"n": {"type": "array", "items": {"$ref": "http://x/y"}}}},
        "params.n: $ref is not followed; write out",
    ),
    ({"params": {"n": float("nan")}}, "params.n = NaN: must be plain JSON"),
    ({"params": {"n": {"default": object()}}}, "must be plain JSON"),
    ({"params": {"n": {"default": 1, 2: 3}}}, "2 is no keyword of a JSON Schema"),
    ({"params": {"n-m": 1}}, "a param's name must be letters, digits and _"),
    (
        {"params": {"n": {"type": "integer"}}, "schedule": "@daily"},
        "params.n: has no default, which a scheduled run needs",
    ),
]


@pytest.mark.parametrize(("fields", "expected"), REFUSED, ids=[expected[:50] for _, expected in REFUSED])
def test_refused_in_one_line(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(JobError) as refused:
        job(**fields)
    text = str(refused.value)
    assert text.startswith("job x: ")
    assert expected in text
    assert "\n" not in text
    assert "; " in text.split(expected[:20])[-1], "no way out is given"


def test_a_missing_name_is_told() -> None:
    with pytest.raises(JobError, match="^name: is missing; add it\nreplicas: is missing; add it$"):
        TensorFlowJob()  # type: ignore[call-arg]


def test_defaults() -> None:
    plain = job()
    assert (plain.retries, plain.retry_delay, plain.success_policy, plain.restart_policy) == (
        3,
        "5s",
        "chief",
        "on_failure",
    )
    policy = plain.run_policy
    assert (policy.schedule_timeout, policy.start_timeout, policy.termination_grace) == ("12h", "10m", "30s")
    assert (policy.active_deadline, policy.stall_timeout, policy.evaluator_grace) == (None, None, "0s")
    assert (policy.backoff_limit, policy.orphan_timeout, policy.clean_policy) == (3, "15m", "all")
    assert (plain.tf_config, plain.catchup, plain.schedule, plain.start_at) == (True, False, None, None)


def test_a_replica_type_may_have_its_own_image_where_the_job_has_none() -> None:
    own = {"kind": "docker", "image": "i"}
    assert job(runtime={"kind": "docker"}, replicas={"worker": {"runtime": {"image": "i"}}}).groups
    assert job(replicas={"worker": {"runtime": own}}).groups


def test_one_notifier_or_a_list() -> None:
    one = {"notifier": "team.alerts.Mail", "to": "a"}
    assert job(notify={"on_failure": one}).notify == job(notify={"on_failure": [one]}).notify
    assert job(notify={"on_failure": one}).notify.on_failure[0].kwargs == {"to": "a"}


def test_a_read_job_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        job().retries = 5


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("2GiB", 2 << 30), ("512MiB", 512 << 20), ("1.5KB", 1500), ("1TB", 10**12), ("1TiB", 1 << 40)],
)
def test_memory(text: str, size: int) -> None:
    assert memory_bytes(text) == size


@pytest.mark.parametrize("text", ["", "2", "GiB", "-1GiB", "2gib", "2 GiB", "2GiB\n", "٢GiB", "1e3MB", 2.0, None, True])
def test_memory_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="with a unit"):
        memory_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"), [("30s", 30), ("5m", 300), ("12h", 43200), ("2d", 172800), ("1h30m", 5400), ("0.5s", 0.5)]
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5min", "5s\n", 5, None, True])
def test_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="with a unit"):
        seconds(text)
