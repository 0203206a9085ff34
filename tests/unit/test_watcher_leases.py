"""What a watcher does about the leases of its program: takes over, tends, ends. What they are is `secrets`' matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import identity_of, make_job
from watcher_bench import Bench

from tf_operator.errors import RunnerError, SecretError
from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.membership import Phase, Verdict
from tf_operator.runners.base import Exit, SecretBundle, SecretFile

NEW = SecretBundle(files=(SecretFile("key", b"new"),))
LEFT = [{"connection": "vault_default", "accessor": "a", "leases": [["id", "path"]]}]


@dataclass
class FakeLeases:
    """Remembers what it was told, and has new files when the test says so."""

    new: SecretBundle | None = None
    said: list[str] = field(default_factory=list)
    inherited: list[Any] = field(default_factory=list)
    save: Callable[[list[dict[str, Any]]], bool | None] = lambda record: True

    def bind(self, save: Callable[[list[dict[str, Any]]], bool | None], log: Callable[[str], None]) -> None:
        self.save = save

    def inherit(self, left: Sequence[dict[str, Any]]) -> None:
        self.inherited.append(list(left))

    def tend(self) -> SecretBundle | None:
        self.said += ["tend"] if self.said[-1:] != ["tend"] else []
        return self.new

    def delivered(self) -> None:
        self.new = None
        self.said.append("delivered")

    def end(self) -> None:
        self.said.append("end")


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


@pytest.fixture
def bench(leases: FakeLeases) -> Bench:
    job = make_job()
    groups = [group.model_copy(update={"on_renewal": "SIGHUP"}) for group in job.groups]
    secrets = [RenderedSecret(path="database/creds/reader", key="*", file="key")]
    made = Bench(job.model_copy(update={"groups": groups, "secrets": secrets}))
    made.leases = leases
    return made


def test_tended_while_the_program_lives_and_ended_with_it(bench: Bench, leases: FakeLeases) -> None:
    bench.after(10, lambda: leases.said.append("exit"), lambda: bench.end(Exit(code=1)))
    bench.after(15, lambda: bench.judge(Verdict.RETRY))
    bench.run()
    assert leases.said == ["end", "tend", "exit", "end"]


def test_new_files_reach_the_program_with_its_signal(bench: Bench, leases: FakeLeases) -> None:
    bench.after(5, lambda: setattr(leases, "new", NEW))
    bench.after(10, bench.finish)
    bench.run()
    assert bench.runner.programs[0].renewals == [(NEW, "SIGHUP")]
    assert "secret files replaced: key; the program was told by SIGHUP" in bench.logged
    assert leases.said[-1] == "end"


def test_files_that_could_not_be_replaced_are_not_delivered(bench: Bench, leases: FakeLeases) -> None:
    def refuse(*_: Any) -> None:
        raise RunnerError("its keeper does not answer")

    bench.runner.renew = refuse  # type: ignore[method-assign]
    bench.after(5, lambda: setattr(leases, "new", NEW))
    bench.after(10, bench.finish)
    bench.run()
    assert "delivered" not in leases.said
    assert "its keeper does not answer; it is tried again" in bench.logged


def test_a_program_that_is_told_to_stop_keeps_its_credentials_for_its_last_checkpoint(
    bench: Bench, leases: FakeLeases
) -> None:
    bench.after(10, lambda: setattr(bench.program, "stops_after", 20.0), bench.finish)
    bench.after(20, lambda: setattr(leases, "new", NEW))
    bench.run()
    assert bench.runner.programs[0].renewals == [(NEW, "SIGHUP")]
    assert leases.said[-3:] == ["delivered", "tend", "end"]


def test_the_next_watcher_takes_over_with_the_program(bench: Bench, leases: FakeLeases) -> None:
    bench.until(5)
    assert leases.save(LEFT) is True
    leases.said.clear()
    bench.after(12, bench.finish)
    bench.run()
    assert leases.inherited == [[], LEFT]
    assert leases.said == ["tend", "end"]


def test_what_is_not_adopted_loses_its_leases_first(bench: Bench, leases: FakeLeases) -> None:
    bench.until(5)
    leases.save(LEFT)
    leases.said.clear()
    bench.after(7, lambda: leases.said.append("another attempt"))
    bench.say(attempt="a2")
    bench.after(12, bench.finish)
    bench.run("a2")
    assert leases.inherited[-1] == LEFT
    assert leases.said[0] == "end"


def test_a_job_that_is_over_keeps_none(bench: Bench, leases: FakeLeases) -> None:
    bench.finish(Phase.FAILED)
    bench.run()
    assert (leases.inherited, leases.said) == ([[]], ["end"])


def test_a_start_that_fails_keeps_none(bench: Bench, leases: FakeLeases) -> None:
    def broken() -> SecretBundle:
        leases.said.append("fetched")
        raise SecretError("no such key")

    bench.secrets = broken
    bench.after(5, lambda: bench.judge(Verdict.RETRY))
    bench.run()
    assert leases.said == ["end", "fetched", "end"]


def test_an_older_watcher_does_not_write_over_the_newer_ones_record(bench: Bench, leases: FakeLeases) -> None:
    bench.until(3)
    older = leases.save
    bench.until(6)
    assert leases.save(LEFT) is True
    assert older([]) is None
    assert bench.store.get("leases") == LEFT
    bench.store.down = True
    assert older([]) is False
    assert bench.runner.current(identity_of("worker-1"))
