"""ClusterSpec and TF_CONFIG: C-01 (evaluator), C-04 (one worker), C-05 (count 0); pure, ordered, lower case."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tf_operator.cluster_spec import cluster_spec, members, tf_config, tf_config_json
from tf_operator.errors import JobError
from tf_operator.identity import ReplicaId
from tf_operator.job_spec import RenderedJob, TensorFlowJob


def rendered(replicas: dict[str, Any], **fields: Any) -> RenderedJob:
    job = TensorFlowJob(name="base", program={"command": ["probe"]}, replicas=replicas, **fields)
    return job.render({}, project_dir=Path("/project"), params={})


def addresses(job: RenderedJob) -> dict[ReplicaId, str]:
    return {replica: f"127.0.0.1:{20000 + number}" for number, replica in enumerate(job.replicas)}


def test_c01_the_evaluator_is_no_member() -> None:
    job = rendered({"chief": {}, "ps": {}, "worker": {"replicas": 2}, "evaluator": {}})
    spec = cluster_spec(job, addresses(job))
    assert [(role, len(found)) for role, found in spec.items()] == [("chief", 1), ("worker", 2), ("ps", 1)]
    configs = {replica: tf_config_json(job, spec, replica) for replica in job.replicas}
    clusters = {text.split(',"task":')[0] for text in configs.values() if text}
    assert len(clusters) == 1
    assert {str(r): json.loads(text or "")["task"] for r, text in configs.items()} == {
        "chief-0": {"type": "chief", "index": 0},
        "worker-0": {"type": "worker", "index": 0},
        "worker-1": {"type": "worker", "index": 1},
        "ps-0": {"type": "ps", "index": 0},
        "evaluator-0": {"type": "evaluator", "index": 0},
    }


def test_c01_the_evaluator_needs_no_address() -> None:
    job = rendered({"worker": {}, "evaluator": {}})
    assert cluster_spec(job, {ReplicaId("worker", 0): "a:1"}) == {"worker": ["a:1"]}


def test_c04_one_worker_gets_a_cluster_of_one_by_default() -> None:
    job = rendered({"worker": {}})
    spec = cluster_spec(job, {ReplicaId("worker", 0): "127.0.0.1:20000"})
    assert tf_config(job, spec, ReplicaId("worker", 0)) == {
        "cluster": {"worker": ["127.0.0.1:20000"]},
        "task": {"type": "worker", "index": 0},
    }


def test_c04_tf_config_false_leaves_it_out() -> None:
    job = rendered({"worker": {}}, tf_config=False)
    spec = cluster_spec(job, {ReplicaId("worker", 0): "127.0.0.1:20000"})
    assert tf_config(job, spec, ReplicaId("worker", 0)) is None
    assert tf_config_json(job, spec, ReplicaId("worker", 0)) is None


def test_c05_no_empty_list_and_indexes_run_over_worker_groups() -> None:
    groups = [{"name": "cpu", "replicas": 2}, {"name": "none", "replicas": 0}, {"name": "gpu"}]
    job = rendered({"chief": {"replicas": 0}, "ps": {}, "worker": groups})
    spec = cluster_spec(job, {r: f"{r}:1" for r in job.replicas})
    assert spec == {"worker": ["worker-0:1", "worker-1:1", "worker-2:1"], "ps": ["ps-0:1"]}


def test_worker_zero_keeps_its_key_where_there_is_no_chief() -> None:
    job = rendered({"worker": {"replicas": 2}}, strategy="multi_worker_mirrored")
    assert list(cluster_spec(job, addresses(job))) == ["worker"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Host-A.Example:2222", "host-a.example:2222"),
        ("[FD00::5]:2222", "[fd00::5]:2222"),
        ("fd00::5:2222", "[fd00::5]:2222"),
        (" a:02222 ", "a:2222"),
    ],
)
def test_hosts_are_lower_case_and_ipv6_in_brackets(given: str, expected: str) -> None:
    assert cluster_spec(rendered({"worker": {}}), {ReplicaId("worker", 0): given}) == {"worker": [expected]}


@pytest.mark.parametrize("given", ["host", "host:", ":1", "host:0", "host:65536", "host:x", "", "host:-1", "host:²"])
def test_a_malformed_address_is_refused(given: str) -> None:
    with pytest.raises(JobError, match='^job base: worker-0 = ".*": must be host:port with a port of 1 to 65535$'):
        cluster_spec(rendered({"worker": {}}), {ReplicaId("worker", 0): given})


def test_a_missing_address_is_refused() -> None:
    with pytest.raises(JobError, match="^job base: worker-1 has no address; every member"):
        cluster_spec(rendered({"worker": {"replicas": 2}}), {ReplicaId("worker", 0): "a:1"})


def test_two_replicas_on_one_address_are_refused() -> None:
    job = rendered({"worker": {"replicas": 2}})
    with pytest.raises(JobError, match="^job base: worker-1 = a:1: is worker-0's address too; give each its own port$"):
        cluster_spec(job, {ReplicaId("worker", 0): "a:1", ReplicaId("worker", 1): "A:1"})


def test_a_replica_of_another_job_has_no_tf_config() -> None:
    job = rendered({"worker": {}})
    with pytest.raises(JobError, match="^job base: there is no replica worker-1$"):
        tf_config(job, {}, ReplicaId("worker", 1))


def test_order_does_not_depend_on_the_order_of_what_is_given() -> None:
    source = random.Random(11)
    job = rendered({"ps": {"replicas": 3}, "worker": {"replicas": 12}, "chief": {}, "evaluator": {}})
    known = list(addresses(job).items())
    spec = cluster_spec(job, dict(known))
    assert [len(found) for found in spec.values()] == [1, 12, 3]
    for _ in range(20):
        shuffled = dict(source.sample(known, len(known)))
        again = cluster_spec(job, shuffled)
        assert json.dumps(again) == json.dumps(spec)
        turned = dict(reversed(again.items()))
        assert tf_config_json(job, turned, members(job)[0]) == tf_config_json(job, spec, members(job)[0])
