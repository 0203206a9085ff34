"""A real Airflow for the system tests, with a project folder of its own that tests drop job files into.

    def test_two_workers(airflow):
        airflow.write_job("two", {"program": {...}, "replicas": {"worker": {"replicas": 2}}})   # DAG `two` is there
        run = airflow.trigger("two", workers=2)          # keyword arguments are the run's params
        run.wait_running("worker-1")                     # its program lives, and said so
        run.kill("worker-1")                             # SIGKILL to the program
        run.wait("success", deadline=90)                 # fails at once, with the reason, if it ends otherwise
        assert run.failures("worker-0", "worker-1") == {"worker-0": 0, "worker-1": 1}
        assert run.xcom("result")["generation"] == 1
        assert "lost" in run.logs("worker-1")

A busy machine loses a watcher now and then, and another try of its task goes on with the program. So ask for `failures`
and `starts` (probe_jobs) rather than for the number of Airflow's tries, and for `logs` rather than the log of one try.

`airflow` is one Airflow for the whole session (profile `short`, 4 declared GPUs, an OpenBao behind `vault_default`);
after each test its unfinished runs are marked failed and its programs must be gone. Also there:

    airflow.project, .home, .state_dir, .api (the REST client), .pid("scheduler"), .openbao
    airflow.write_dag("mine", source)                    # a DAG file of your own
    with airflow.sample_slots("gpu") as samples: ...     # [{(dag_id, run_id): slots}, ...] every 0.5 s
    airflow.programs()                                   # living programs of this Airflow's jobs (psutil)
    airflow.dump_db(), airflow.files()                   # everything on disk, for a search
    airflow.cli("dags", "trigger", ...)                  # an `airflow` command in its environment
    run.mark("failed"), run.mark_task("worker-1", "failed"), run.clear(), run.clear_task("worker-1"), run.pid("ps-0")
    run.watcher("worker-1")                              # the Airflow task process; its parent is its supervisor
    airflow.use_engine(engine.socket)                    # where docker jobs run
    wait_for(lambda: ..., deadline, "what")              # for anything else; an API that is too busy is asked again
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import yaml
from sampling import sampled

from tf_operator.errors import ApiError, ServiceError
from tf_operator.identity import ROLES
from tf_operator.services.airflow import COMPONENTS, Airflow, fail_unfinished
from tf_operator.services.airflow_settings import Setup
from tf_operator.services.api import AirflowApi
from tf_operator.services.api_data import TaskState
from tf_operator.services.follow import failure_reason
from tf_operator.services.jobs import DAG_SECONDS, await_dag
from tf_operator.services.openbao import DevOpenBao
from tf_operator.services.waiting import wait_for as patiently

__all__ = ["AirflowUnderTest", "RunUnderTest", "make_project", "wait_for"]

ROOT = Path(__file__).resolve().parents[2]
HOLDING = ("running", "queued", "deferred")
Slots = dict[tuple[str, str], int]
T = TypeVar("T")


def wait_for(found: Callable[[], T | None], deadline: float, what: str | Callable[[], str], every: float = 0.3) -> T:
    """As the product's, and patient with an API that does not answer: on a busy machine that says nothing of a test."""

    def ask() -> T | None:
        try:
            return found()
        except ApiError as error:
            if error.status:
                raise
            return None

    return patiently(ask, deadline, what, every)


def make_project(folder: Path) -> Path:
    """A project like the repository's, without its job files: own configs, examples, dags; the same interpreter."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("configs", "examples", "dags"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for job in (folder / "configs" / "jobs").iterdir():
        job.unlink()
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


class AirflowUnderTest:
    """See the module's text."""

    def __init__(self, folder: Path, openbao: DevOpenBao | None = None, **setup: Any) -> None:
        self.project = folder / "project"
        self.home = folder / "home"
        self.state_dir = folder / "state"
        self.openbao = openbao
        connections = {"vault_default": openbao.airflow_connection_uri()} if openbao else {}
        # A link, so that Airflow need not be started anew for each engine.
        self._docker_socket = folder / "docker.sock"
        settings = {"tf_operator.docker_url": f"unix://{self._docker_socket}"} | setup.pop("options", {})
        options = {"profile": "short", "gpus": "4", "connections": connections, "options": settings} | setup
        self.airflow = Airflow(Setup(home=self.home, project=self.project, state_dir=self.state_dir, **options))
        self._asked_for: dict[tuple[str, str], RunUnderTest] = {}

    @property
    def api(self) -> AirflowApi:
        """The REST client."""
        return self.airflow.api

    def pid(self, component: str) -> int:
        """The process id of `api-server`, `scheduler`, `dag-processor` or `triggerer`."""
        return self.airflow.pid(component)

    def use_engine(self, socket: Path) -> None:
        """Docker jobs run on the engine that serves this socket from now on."""
        self._docker_socket.unlink(missing_ok=True)
        self._docker_socket.symlink_to(socket)

    # DAGs

    def write_job(self, name: str, job: Mapping[str, Any] | str, wait: bool = True) -> Path:
        """Put a job file in the project's configs/jobs (`name` is filled in) and wait for its DAG."""
        file = self.project / "configs" / "jobs" / f"{name}.yaml"
        text = job if isinstance(job, str) else yaml.safe_dump({"name": name} | dict(job), sort_keys=False)
        self._write(file, text)
        if wait:
            self.wait_dag(name, file)
        return file

    def copy_job(self, source: str, name: str | None = None, **changes: Any) -> str:
        """One of the repository's job files, perhaps under another name and with other top-level values; its name."""
        job = yaml.safe_load((ROOT / "configs" / "jobs" / source).read_text()) | changes
        name = name or job["name"]
        self.write_job(name, job | {"name": name})
        return name

    def write_dag(self, dag_id: str, source: str) -> Path:
        """Put a DAG file in the project's dags and wait for `dag_id`."""
        file = self.project / "dags" / f"{dag_id}.py"
        self._write(file, source)
        self.wait_dag(dag_id, file)
        return file

    def wait_dag(self, dag_id: str, file: Path) -> None:
        """Wait until Airflow has read `file` as it is now, and unpause its DAG."""

        def read() -> bool:
            await_dag(self.api, dag_id, file)
            self.api.unpause(dag_id)
            return True

        wait_for(read, DAG_SECONDS, f"Airflow to read {file}")

    @staticmethod
    def _write(file: Path, text: str) -> None:
        partial = file.with_name(f".{file.name}.partial")
        partial.write_text(text)
        partial.replace(file)

    # Runs

    def trigger(self, dag_id: str, **params: Any) -> RunUnderTest:
        """Start a run with `params`."""
        return self.run(dag_id, self.api.trigger(dag_id, params).run_id)

    def run(self, dag_id: str, run_id: str) -> RunUnderTest:
        """A run that exists."""
        return self._asked_for.setdefault((dag_id, run_id), RunUnderTest(self, dag_id, run_id))

    def story(self) -> Iterator[str]:
        """What became of the runs since the last `settle`, newest first, for the report of a failure."""
        for run in reversed(list(self._asked_for.values())):
            try:
                yield from run.story()
            except ApiError as error:
                yield f"{run.dag_id} {run.run_id}: {error}"

    def programs(self) -> list[psutil.Process]:
        """Living programs of this Airflow's jobs: they have a TF_CONFIG, or a model_dir below the project."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environ = process.environ()
                ours = environ.get("TF_OPERATOR_MODEL_DIR", "").startswith(str(self.project))
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def revive(self) -> None:
        """Start again what has ended by itself, and say so: a dead scheduler must not cost all later tests."""
        dead = []
        for name in COMPONENTS:
            try:
                self.pid(name)
            except ServiceError:
                log = (self.airflow.log_dir / f"{name}.log").read_text(errors="replace").splitlines()
                print(f"Airflow's {name} had ended before this test, and was started again:", *log[-5:], sep="\n")
                dead.append(name)
        for name in dead:
            self.airflow.start_component(name, wait=False)
        if dead:
            self.airflow.wait_healthy()

    def settle(self, deadline: float = 40.0) -> None:
        """Mark what is unfinished failed and wait until no program lives: a test must not burden the next."""
        self._asked_for.clear()

        def marked() -> bool:
            fail_unfinished(self.api)
            return True

        wait_for(marked, deadline, "what is unfinished to be marked failed")
        wait_for(lambda: not self.programs(), deadline, lambda: f"programs to end: {self.programs()}")

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """With nobody else writing to the database, while no run is under way.

        Airflow reads and then writes in one transaction when it makes a backfill; SQLite refuses the write at once
        (`database is locked`) if somebody wrote in between. A database server would not.
        """
        names = ("scheduler", "dag-processor", "triggerer")
        for name in names:
            self.airflow.stop_component(name)
        try:
            yield
        finally:
            for name in names:
                self.airflow.start_component(name, wait=False)
            self.airflow.wait_healthy()

    # What is stored

    def sample_slots(self, pool: str, every: float = 0.5) -> AbstractContextManager[list[Slots]]:
        """Who holds how many slots of the pool, time after time, read from the database in one query each."""
        return sampled(lambda: self.held_slots(pool), every)

    def held_slots(self, pool: str) -> Slots:
        """(dag_id, run_id) → slots held now."""
        query = (
            "select dag_id, run_id, sum(pool_slots) from task_instance"
            f" where pool = ? and state in ({','.join('?' * len(HOLDING))}) group by dag_id, run_id"
        )
        return {(dag, run): slots for dag, run, slots in self.query(query, pool, *HOLDING)}

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the metadata database."""
        with closing(sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=10)) as database:
            return database.execute(sql, values).fetchall()

    def dump_db(self) -> str:
        """The whole metadata database as SQL text."""
        with closing(sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=10)) as database:
            return "\n".join(database.iterdump())

    def files(self) -> Iterator[Path]:
        """Every file Airflow and the jobs have written: home (database, logs), state_dir, models."""
        for folder in (self.home, self.state_dir, self.project / "models"):
            yield from files_below(folder)

    def cli(self, *argv: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `airflow <argv>` in this Airflow's environment."""
        command = [sys.executable, "-m", "airflow", *argv]
        return subprocess.run(
            command, env=self.airflow.env, capture_output=True, text=True, check=check, timeout=timeout, cwd=self.home
        )

    def tf_operator(self, *argv: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `tf-operator <argv>` in this Airflow's environment."""
        command = [str(Path(sys.executable).parent / "tf-operator"), *argv]
        return subprocess.run(
            command,
            env=self.airflow.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.project,
            check=False,
        )


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


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below; folders that vanish meanwhile are passed over, where `rglob` raises."""
    for place, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(place, name)).is_file())


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
