"""Messages survive JSON, and describe ends in words."""

from __future__ import annotations

import json

import pytest
from fakes import make_job, running_cluster

from tf_operator.membership import Cluster, Judgement, Member, Phase, Status, Verdict, describe_end
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.runners.base import Exit


@pytest.mark.parametrize("status", list(Status))
def test_member_through_json(status: Status) -> None:
    member = Member(
        "a1",
        3,
        "[::1]:20001",
        status,
        generation=2,
        failures=1,
        end=Exit(code=137, signal="SIGKILL", oom_limit=2**26, stopped=True, reason="é"),
        tail=("a", "b"),
        final=True,
        host="h",
        pid=7,
    )
    assert Member.from_json(json.loads(json.dumps(member.to_json()))) == member
    bare = Member("a1", 1, "h:1", status)
    assert Member.from_json(json.loads(json.dumps(bare.to_json()))) == bare


def test_what_another_version_says_besides_is_passed_over() -> None:
    member = Member("a1", 1, "h:1", Status.EXITED, end=Exit(code=1))
    data = member.to_json() | {"mood": "fine", "end": {"code": 1, "weather": "rain"}}
    assert Member.from_json(data) == member
    cluster = running_cluster(make_job())
    assert Cluster.from_json(cluster.to_json() | {"mood": "fine"}) == cluster


@pytest.mark.parametrize("phase", list(Phase))
def test_cluster_through_json(phase: Phase) -> None:
    cluster = running_cluster(
        make_job(),
        phase=phase,
        generation=4,
        verdicts={"ps-0": Judgement(2, 3, Verdict.FINAL), "worker-1": Judgement(1, 1, Verdict.RETRY)},
        lost=("ps-0",),
        cause={"replica": "ps-0", "tail": ["x"], "code": 1, "signal": None},
        consequences=("chief-0",),
        reason="ps-0 failed",
        restarts=2,
        elapsed=12.5,
    )
    assert Cluster.from_json(json.loads(json.dumps(cluster.to_json()))) == cluster


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (Exit(code=0), "exit code 0"),
        (Exit(code=137, signal="SIGKILL"), "exit code 137 (SIGKILL)"),
        (Exit(code=137, signal="SIGKILL", oom_limit=64 * 2**20), "out of memory, limit 64 MiB (exit code 137)"),
        (Exit(code=127, reason="command not found: x"), "exit code 127: command not found: x"),
        (Exit(code=NOT_STARTED, reason="Vault is sealed"), "Vault is sealed"),
        (Exit(code=NOT_STARTED), "exit code 125"),
    ],
)
def test_ends_in_words(end: Exit, text: str) -> None:
    assert describe_end(end) == text
