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

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from run_under_test import RunUnderTest, wait_for
from sampling import sampled

from tf_operator.errors import ApiError, ServiceError
from tf_operator.services.airflow import COMPONENTS, Airflow, fail_unfinished
from tf_operator.services.airflow_settings import Setup
from tf_operator.services.api import AirflowApi
from tf_operator.services.jobs import DAG_SECONDS, await_dag
from tf_operator.services.openbao import DevOpenBao

ROOT = Path(__file__).resolve().parents[2]
HOLDING = ("running", "queued", "deferred")
Slots = dict[tuple[str, str], int]


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


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below; folders that vanish meanwhile are passed over, where `rglob` raises."""
    for place, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(place, name)).is_file())
