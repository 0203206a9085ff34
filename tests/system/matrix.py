"""The rows of the outcome table in docs/recovery.md: strategy × what is lost × how, each with what must happen then.

The programs are those of examples/digits, in the smallest cluster that shows the loss. What they saved and what they
resumed from is read from their own lines in the task logs.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import dropwhile
from typing import Any

import yaml
from airflow_under_test import ROOT, AirflowUnderTest
from run_under_test import RunUnderTest, wait_for

STALL_TIMEOUT = "60s"
"""Longer than the import of TensorFlow by eight programs at once on two cores: until then nothing is said."""
STEP_DELAY = 0.1
"""Seconds: slow enough that a busy machine loses a replica before the training is over."""
SHORT, LONG = 300, 900
"""Steps of a row. Long where the leader trains on while the lost replica comes back."""
SAVED = re.compile(r"\b(restored )?step (\d+)\b")


@dataclass(frozen=True)
class Form:
    """One program, as a job: which job file, how many replicas of each type, its leader."""

    file: str
    sizes: dict[str, int]
    flags: tuple[str, ...] = ()
    steps_per_epoch: int = 0
    """0 where the program counts steps."""

    @property
    def replicas(self) -> list[str]:
        """All replicas, the leader first."""
        return [f"{role}-{index}" for role, count in self.sizes.items() for index in range(count)]

    def job(self, name: str) -> dict[str, Any]:
        """The repository's job file in this size, with delays that suit a test."""
        job: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "jobs" / self.file).read_text())
        job["program"]["command"] += self.flags
        job["params"].pop("workers")
        job["params"]["stall_timeout"] = {"type": "string", "default": "10m"}
        kinds = {"worker": {"gpus": 1}}
        job["replicas"] = {role: {"replicas": count} | kinds.get(role, {}) for role, count in self.sizes.items()}
        policy = {"stall_timeout": "{{ params.stall_timeout }}", "termination_grace": "2s"}
        return job | {"name": name, "retry_delay": "1s", "run_policy": policy}

    def length(self, steps: int) -> dict[str, int]:
        """The params that ask for so many steps."""
        return {"epochs": steps // self.steps_per_epoch} if self.steps_per_epoch else {"steps": steps}


_THREE = {"chief": 1, "worker": 1, "ps": 1}
_EPOCHS = ("--steps-per-epoch=50",)
FORMS = {
    "parameter_server": Form("digits_ps.yaml", {"chief": 1, "worker": 2, "ps": 1}, _EPOCHS, 50),
    "multi_worker_mirrored": Form("digits_mwms.yaml", {"chief": 1, "worker": 1}),
    "between_graph": Form("digits_between_graph.yaml", _THREE),
    "between_graph_sync": Form("digits_between_graph_sync.yaml", _THREE),
    "in_graph": Form("digits_in_graph.yaml", _THREE),
    "keras_ps": Form("digits_keras_ps.yaml", _THREE, _EPOCHS, 50),
    "keras_mwms": Form("digits_keras_mwms.yaml", {"chief": 1, "worker": 1}, _EPOCHS, 50),
}


class Again(StrEnum):
    """Whose programs are started again."""

    NOBODY = "nobody"
    LOST = "the lost one alone"
    LOST_AND_CHIEF = "the lost one and the chief, in a new generation"
    EVERYBODY = "everybody, in a new generation"


@dataclass(frozen=True)
class Row:
    """One row of the table: `lost` is a replica type (None: nothing is), `cause` how it is lost."""

    form: str
    lost: str | None
    cause: str
    again: Again
    retried: str | None = None
    """The replica type that spends an Airflow retry; None where nobody does."""
    steps: int = field(default=SHORT, compare=False)

    def __str__(self) -> str:
        return "-".join(filter(None, (self.form, self.lost, self.cause)))

    @property
    def victim(self) -> str | None:
        """The replica that is lost: the last of its type."""
        return f"{self.lost}-{FORMS[self.form].sizes[self.lost] - 1}" if self.lost else None

    @property
    def started_again(self) -> set[str]:
        """The replicas whose programs are other processes in the end."""
        everybody = set(FORMS[self.form].replicas)
        chosen = {Again.LOST: {self.victim}, Again.LOST_AND_CHIEF: {self.victim, "chief-0"}, Again.EVERYBODY: everybody}
        return {name for name in chosen.get(self.again, set()) if name}

    @property
    def resumes(self) -> bool:
        """Whether the leader has to go on from a checkpoint: it or what holds its variables was lost."""
        return "chief-0" in self.started_again or self.lost == "ps" or (self.form == "in_graph" and bool(self.lost))


def _killed(form: str, lost: str, again: Again = Again.LOST, steps: int = SHORT) -> Row:
    return Row(form, lost, "killed", again, retried=lost, steps=steps)


def _frozen(form: str, lost: str, again: Again = Again.EVERYBODY, retried: str | None = None) -> Row:
    return Row(form, lost, "frozen", again, retried)


ROWS = [
    _killed("parameter_server", "worker", steps=LONG),
    _frozen("parameter_server", "worker"),
    _killed("parameter_server", "ps", Again.LOST_AND_CHIEF),
    _frozen("parameter_server", "ps"),
    _killed("parameter_server", "chief"),
    _frozen("parameter_server", "chief"),
    _killed("multi_worker_mirrored", "worker", Again.EVERYBODY),
    _frozen("multi_worker_mirrored", "worker", retried="chief"),
    _killed("multi_worker_mirrored", "chief", Again.EVERYBODY),
    _frozen("multi_worker_mirrored", "chief", retried="worker"),
    _killed("between_graph", "worker", steps=LONG),
    _frozen("between_graph", "worker", Again.NOBODY),
    _killed("between_graph", "ps"),
    _frozen("between_graph", "ps"),
    _killed("between_graph", "chief", steps=LONG),
    _frozen("between_graph", "chief"),
    _killed("between_graph_sync", "worker"),
    _frozen("between_graph_sync", "worker"),
    _killed("between_graph_sync", "ps"),
    _frozen("between_graph_sync", "ps"),
    _killed("between_graph_sync", "chief"),
    _frozen("between_graph_sync", "chief"),
    _killed("in_graph", "worker"),
    _frozen("in_graph", "worker"),
    _killed("in_graph", "ps"),
    _frozen("in_graph", "ps"),
    _killed("in_graph", "chief"),
    _frozen("in_graph", "chief"),
    Row("keras_ps", None, "success", Again.NOBODY),
    _killed("keras_ps", "chief"),
    Row("keras_mwms", None, "success", Again.NOBODY),
    _killed("keras_mwms", "worker", Again.EVERYBODY),
]
PART = [
    "multi_worker_mirrored-worker-killed",
    "between_graph-chief-killed",
    "between_graph_sync-ps-killed",
    "in_graph-worker-killed",
]
"""The rows that CI runs: each role once. `parameter_server` is lost in test_digits.py; a frozen one takes minutes."""


def dag_id(form: str) -> str:
    """The job's name on the Airflow under test."""
    return f"matrix-{form}".replace("_", "-")


def write_jobs(airflow: AirflowUnderTest, forms: set[str]) -> None:
    """All job files at once: Airflow reads them in one go."""
    files = {name: airflow.write_job(dag_id(name), FORMS[name].job(dag_id(name)), wait=False) for name in sorted(forms)}
    for name, file in files.items():
        airflow.wait_dag(dag_id(name), file)


def check(airflow: AirflowUnderTest, row: Row) -> str:
    """Run the row's job, lose what it says, and hold what happens against the row; what was seen, in one line."""
    form, began = FORMS[row.form], time.monotonic()
    stall = STALL_TIMEOUT if row.cause == "frozen" else "10m"
    run = airflow.trigger(dag_id(row.form), step_delay=STEP_DELAY, stall_timeout=stall, **form.length(row.steps))
    for name in form.replicas:
        run.wait_running(name, deadline=240)
    wait_for(lambda: _saved(run), 200, lambda: f"{row}: the first checkpoint; {run.states()}", every=1.5)
    before = {name: run.pid(name) for name in form.replicas}
    if row.victim:
        run.kill(row.victim, signal.SIGKILL if row.cause == "killed" else signal.SIGSTOP)
    run.wait("success", deadline=400)
    try:
        _assert_outcome(run, row, before)
    except AssertionError as error:
        cluster = run.cluster()
        told = {key: cluster.get(key) for key in ("generation", "reason", "cause", "consequences")}
        raise AssertionError(f"{row}: {error}; the owner said {told}") from None
    return f"{row}: {row.again}; {time.monotonic() - began:.0f} s, steps {_history(run)}"


def _assert_outcome(run: RunUnderTest, row: Row, before: dict[str, int]) -> None:
    again = {name for name, pid in before.items() if run.pid(name) != pid}
    assert again == row.started_again, f"started again: {sorted(again)}, wanted {row.again}"
    generations = 2 if row.again in (Again.LOST_AND_CHIEF, Again.EVERYBODY) else 1
    assert run.cluster()["generation"] == generations, f"generation {run.cluster()['generation']}"
    spent = run.failures(*before)
    retried = {name: int(row.retried is not None and name == _last(row.form, row.retried)) for name in before}
    assert spent == retried, f"retries spent {spent}, wanted {retried}"

    metrics = run.xcom("result")["metrics"]
    assert metrics["accuracy"] > 0.9 and metrics["steps"] >= row.steps, metrics
    assert_never_below_its_checkpoint(list(_leader_lines(run)), row.resumes)
    left = [process.pid for process in run.airflow.programs() if process.pid in map(run.pid, before)]
    assert not left, f"programs left: {left}"


def _last(form: str, role: str) -> str:
    return f"{role}-{FORMS[form].sizes[role] - 1}"


def assert_never_below_its_checkpoint(lines: list[tuple[bool, int]], resumes: bool) -> None:
    """`lines`: (restored?, step) in the order printed. What is saved is never trained again, nor forgotten."""
    saved = 0
    for restored, step in lines:
        assert step >= saved if restored else step > saved, f"step {step} after {saved} was saved: {lines}"
        saved = step
    assert any(restored for restored, _ in lines) == resumes, f"resumed from a checkpoint, or not: {lines}"


def _leader_lines(run: RunUnderTest) -> Iterator[tuple[bool, int]]:
    seen: set[tuple[bool, int]] = set()
    for log in run.try_logs("chief-0"):
        lines = [(bool(found[1]), int(found[2])) for found in SAVED.finditer(log)]
        # A watcher that adopts the program logs its last seconds once more.
        yield from dropwhile(seen.__contains__, lines)
        seen.update(lines)


def _saved(run: RunUnderTest) -> bool:
    assert run.state not in ("success", "failed"), f"the run ended {run.state}: {run.states()}"
    return bool(SAVED.search(run.logs("chief-0")))


def _history(run: RunUnderTest) -> str:
    return " ".join(f"{'<' if restored else ''}{step}" for restored, step in _leader_lines(run))
