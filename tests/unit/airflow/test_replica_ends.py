"""A replica's task that a person ends: what it notes, and what it says, in the seconds Airflow gives it."""

from __future__ import annotations

import pytest
from fakes import FakeChannel, FakeClock, FakeRunner, FakeStore, identity_of, make_job, running_cluster

from tf_operator import airflow_io
from tf_operator.errors import EngineUnavailableError
from tf_operator.operators.replica import ReplicaOperator
from tf_operator.plan import GroupRef, Place
from tf_operator.runners.base import SecretBundle
from tf_operator.supervision import Host, Watcher


@pytest.mark.parametrize("away", [False, True])
def test_a_clear_is_one_line_and_is_noted_also_while_the_engine_is_away(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    job, clock, store = make_job(), FakeClock(), FakeStore()
    runner = FakeRunner(clock)
    watcher = Watcher(
        job,
        "a1",
        identity_of("worker-1"),
        host=Host(runner=runner, secrets=SecretBundle, devices=lambda: None),  # type: ignore[arg-type]
        channel=FakeChannel(running_cluster(job)),
        store=store,
        emit=lambda line: None,
        log=lambda line: None,
        clock=clock,
        sleep=clock.sleep,
    )

    class Terminated(BaseException):
        pass

    def term() -> None:
        raise Terminated

    clock.at(5, term)
    with pytest.raises(Terminated):
        watcher.run()
    monkeypatch.setattr(airflow_io, "task_states", lambda ref, ids: {"train.worker_1": "restarting"})
    if away:
        runner.trouble = EngineUnavailableError("the engine is away")
    operator = ReplicaOperator(task_id="worker", role="worker", offset=0, group_id="train")
    said = operator._on_terminated(GroupRef("d", "r", "train"), Place("train.worker", 1), watcher)
    assert said == "ended from outside (the task became restarting)" + (
        ", but its program cannot be seen to stop: the next try, or cleanup, ends it: the engine is away"
        if away
        else ": its program was told to stop"
    )
    assert store.get("ended_by_person") == ["a1", 1]
