"""A run of the Airflow under test: waited for, looked at, disturbed, by the short names of its tasks and replicas."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import psutil

from tf_operator.errors import ApiError, ServiceError
from tf_operator.identity import ROLES
from tf_operator.services.api_data import TaskState
from tf_operator.services.follow import failure_reason
from tf_operator.services.waiting import wait_for as patiently

if TYPE_CHECKING:
    from airflow_under_test import AirflowUnderTest

T = TypeVar("T")
PATIENCE = 2.0
"""Times every deadline: the other half of the tests runs on the same two cores. What has to be quick is asserted."""


def wait_for(found: Callable[[], T | None], deadline: float, what: str | Callable[[], str], every: float = 0.3) -> T:
    """As the product's, but with PATIENCE, also with an API that does not answer: that says nothing of a test."""

    def ask() -> T | None:
        try:
            return found()
        except ApiError as error:
            if error.status:
                raise
            return None

    return patiently(ask, PATIENCE * deadline, what, every)


@dataclass(frozen=True)
class RunUnderTest:
    """One run. Tasks are named by their last part (`plan`, `result`), replicas by type and index (`worker-1`)."""

    airflow: AirflowUnderTest
    dag_id: str
    run_id: str

    @property
    def state(self) -> str:
        """The run's state."""
        return self.airflow.api.run(self.dag_id, self.run_id).state

    def tasks(self) -> list[TaskState]:
        """Every task instance."""
        return self.airflow.api.tasks(self.dag_id, self.run_id)

    def find(self, name: str) -> TaskState | None:
        """One task instance, None while there is none of that name."""
        return next((task for task in self.tasks() if name in _names(task)), None)

    def task(self, name: str) -> TaskState:
        """One task instance; fails if there is none of that name."""
        found = self.find(name)
        assert found, f"{self.dag_id} has no task {name}: {[task.name for task in self.tasks()]}"
        return found

    def states(self) -> dict[str, str | None]:
        """Task name → state."""
        return {task.name: task.state for task in self.tasks()}

    def wait(self, state: Literal["success", "failed"] = "success", deadline: float = 120.0) -> None:
        """Wait for the run's end; fails at once, saying why, if it ends otherwise."""
        ends = {"success", "failed"}
        ended = wait_for(
            lambda: (now := self.state) in ends and now, deadline, lambda: f"the run to end: {self.states()}"
        )
        if ended != state:
            reason = failure_reason(self.airflow.api, self.dag_id, self.run_id)
            raise AssertionError(f"run ended {ended}, wanted {state}: {reason}; {self.states()}")

    def wait_task(self, name: str, *states: str | None, deadline: float = 60.0) -> TaskState:
        """Wait until the task is in one of the states."""
        found: TaskState = self._while_it_lives(
            lambda: (task := self.find(name)) and task.state in states and task, deadline, f"{name} to be {states}"
        )
        return found

    def wait_running(self, name: str, deadline: float = 60.0, not_pid: int | None = None) -> int:
        """Wait until the replica's program runs (another than `not_pid`); its process id."""

        def pid() -> int | None:
            member = self.member(name)
            running = member.get("pid") if member.get("status") == "running" else None
            return running if running != not_pid else None

        found: int = self._while_it_lives(pid, deadline, f"the program of {name} to run")
        return found

    def _while_it_lives(self, found: Callable[[], Any], deadline: float, what: str) -> Any:
        def check() -> Any:
            value = found()
            if not value and self.state in {"success", "failed"}:
                reason = failure_reason(self.airflow.api, self.dag_id, self.run_id)
                raise ServiceError(f"the run ended {self.state} while waiting for {what}: {reason}; {self.states()}")
            return value

        return wait_for(check, deadline, lambda: f"{what}: {self.states()}")

    def xcom(self, name: str, key: str = "return_value") -> Any:
        """One XCom of a task; None where there is none."""
        task = self.task(name)
        return self.airflow.api.xcom(self.dag_id, self.run_id, task.task_id, key, task.map_index)

    def member(self, name: str) -> dict[str, Any]:
        """What the replica last said of itself; empty before it said anything."""
        task = self.find(name)
        return (task and self.airflow.api.xcom(self.dag_id, self.run_id, task.task_id, "member", task.map_index)) or {}

    def cluster(self) -> dict[str, Any]:
        """What the owner last said: phase, generation, spec, reason ..."""
        return self.xcom("cluster", "cluster") or {}

    def log(self, name: str, try_number: int | None = None) -> str:
        """A try's log (default: the newest's)."""
        task = self.task(name)
        number = task.try_number if try_number is None else try_number
        return self.airflow.api.log(self.dag_id, self.run_id, task.task_id, number, task.map_index)

    def try_logs(self, name: str) -> list[str]:
        """The log of each try, oldest first."""
        return [self.log(name, number) for number in range(1, self.task(name).try_number + 1)]

    def logs(self, name: str) -> str:
        """All that was said in any try, in order."""
        return "\n".join(self.try_logs(name))

    def failures(self, *names: str) -> dict[str, int]:
        """Replica → the retries of its own that it has spent: ends of its program that were its own fault.

        A replica that has failed for good has not counted its last one.
        """
        return {name: self._said(name)["failures"] for name in names}

    def pid(self, name: str) -> int:
        """The process id of the replica's program."""
        found: int = self._said(name)["pid"]
        return found

    def _said(self, name: str) -> dict[str, Any]:
        """As `member`, but Airflow forgets what a task has said when another try begins: so once it has spoken."""
        return wait_for(lambda: self.member(name), 30, f"{name} to say what it does")

    def watcher(self, name: str) -> psutil.Process:
        """The Airflow task process that watches a replica; its parent is its supervisor."""

        def found() -> psutil.Process | None:
            mark = f"worker -- {self.task(name).raw['id']}"
            return next((process for process in psutil.process_iter() if mark in " ".join(_argv(process))), None)

        return wait_for(found, 30, f"the watcher of {name}")

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send the replica's program a signal; its process id."""

        def sent() -> int | None:
            # 0 while it has no program, and a signal to 0 would reach us.
            if pid := self.pid(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    return pid
            return None

        return wait_for(sent, 30, f"a program of {name} to send a signal to")

    def mark(self, state: Literal["success", "failed"]) -> None:
        """Mark the run."""
        self.airflow.api.mark_run(self.dag_id, self.run_id, state)

    def mark_task(self, name: str, state: Literal["success", "failed"]) -> None:
        """Mark one task."""
        task = self.task(name)
        self.airflow.api.mark_task(self.dag_id, self.run_id, task.task_id, state, task.map_index)

    def clear(self) -> None:
        """Clear every task of the run."""
        self.airflow.api.clear_run(self.dag_id, self.run_id)

    def clear_task(self, name: str) -> None:
        """Clear one task alone."""
        task = self.task(name)
        which: str | tuple[str, int] = task.task_id if task.map_index < 0 else (task.task_id, task.map_index)
        self.airflow.api.clear_tasks(self.dag_id, self.run_id, [which])

    def story(self, lines: int = 12) -> Iterator[str]:
        """What became of it: the owner's last word, each task's state, and the end of every try's log."""
        yield f"{self.dag_id} {self.run_id}: {self.state}; {self.cluster()}"
        for task in self.tasks():
            yield f"{task.name}: {task.state}, try {task.try_number}"
            for number in range(1, task.try_number + 1):
                log = self.airflow.api.log(self.dag_id, self.run_id, task.task_id, number, task.map_index)
                yield from (f"  {task.name} {number}| {line[:200]}" for line in log.splitlines()[-lines:])

    def text(self) -> str:
        """Everything the API tells of the run, for a search or a message."""
        return json.dumps([dict(task.raw) for task in self.tasks()])


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _names(task: TaskState) -> set[str]:
    short = task.task_id.rpartition(".")[2]
    if task.map_index >= 0 or short in ROLES:
        return {task.name, f"{short}-{max(task.map_index, 0)}"}
    return {short}
