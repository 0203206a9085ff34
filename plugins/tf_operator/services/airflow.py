"""A real Airflow (api-server, scheduler, dag-processor, triggerer) as child processes of a guard.

Nothing of it outlives the launcher: not a normal end, not Ctrl-C in the middle, not `kill -9`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import psutil

from tf_operator import settings
from tf_operator.errors import ApiError, ServiceError
from tf_operator.services.airflow_settings import Setup, environment, free_port
from tf_operator.services.api import AirflowApi
from tf_operator.services.interrupts import uninterrupted
from tf_operator.services.waiting import wait_for

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
# The scheduler's tasks report their end to the api-server: it has to be there until they are gone.
STOP_ORDER = (["migrate", "pools"], ["scheduler"], ["dag-processor", "triggerer", "api-server"])
START_SECONDS = 120.0
DISCOVERY_FILE = settings.DISCOVERY_FILE.name


class Airflow:
    """Start with `start()` or as a context manager; `stop()` ends every process and marks unfinished runs failed."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.home = setup.home.resolve()
        self.log_dir = self.home / "logs" / "services"
        self.port = setup.port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = environment(setup, self.home, self.url)
        self.api = AirflowApi(self.url)
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._begun: dict[str, datetime] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._guard_ended = False
        self._listener: threading.Thread | None = None
        self._lock = -1
        self._warm = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Start

    def start(self) -> None:
        """Create the database if there is none, start every component, wait until all are healthy."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        (self.home / "plugins").mkdir(exist_ok=True)
        self._take_home()
        try:
            self._start_guard()
            self._migrate()
            for name in COMPONENTS:
                self.start_component(name, wait=False)
            self.wait_healthy()
            self.run_once("pools")
        except BaseException:
            self.stop()
            raise
        told = {key: self.env.get(f"AIRFLOW__TF_OPERATOR__{key}".upper()) for key in ("state_dir", "gpus")}
        (self.home / DISCOVERY_FILE).write_text(json.dumps({"url": self.url, "pid": os.getpid(), **told}))

    def _take_home(self) -> None:
        """One Airflow per home. The guard shares the lock, so a killed one's end is waited for."""
        self._lock = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)

        def taken() -> bool:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            holder = os.pread(self._lock, 20, 0).decode()
            if holder and psutil.pid_exists(int(holder)):
                raise ServiceError(f"{self.home}: process {holder} runs an Airflow in it already; end that one first")
            return False

        try:
            wait_for(taken, 60.0, f"the last Airflow in {self.home} to end", every=0.2)
        except BaseException:
            self._release_home()
            raise
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _release_home(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _start_guard(self) -> None:
        airflow = [sys.executable, "-m", "airflow"]
        operator = [sys.executable, "-m", "tf_operator.services"]
        argvs = {name: [*airflow, name] for name in COMPONENTS}
        argvs["api-server"] += ["--host", "127.0.0.1", "--port", str(self.port)]
        argvs |= {"migrate": [*airflow, "db", "migrate"], "pools": [*operator, "pools"]}
        plan = {
            "services": [
                {
                    "name": name,
                    "argv": argv,
                    "log": str(self.log_dir / f"{name}.log"),
                    "children_first": name == "scheduler",
                }
                for name, argv in argvs.items()
            ],
            "order": STOP_ORDER,
            "cleanup": [*operator, "clean"],
        }
        with (self.log_dir / "guard.log").open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "tf_operator.services.guard"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.env,
                cwd=self.home,
                # A terminal's Ctrl-C reaches the launcher alone, which then asks for the end in order.
                start_new_session=True,
                pass_fds=(self._lock,),
            )
        self._guard_ended = False
        self._listener = threading.Thread(target=self._listen, name="airflow-guard", daemon=True)
        self._listener.start()
        self._tell(json.dumps(plan))

    def _tell(self, line: str) -> None:
        if not self._guard or not self._guard.stdin:
            raise ServiceError("Airflow is not started: call start() first")
        self._check_guard()
        try:
            self._guard.stdin.write(line.encode() + b"\n")
            self._guard.stdin.flush()
        except BrokenPipeError:
            self._guard_ended = True
            self._check_guard()

    def _check_guard(self) -> None:
        if self._guard_ended:
            raise ServiceError(
                "the guard ended, and with it every process of Airflow: was it killed, or the memory short?"
                f" Start again (log: {self._log('guard')})"
            )

    def _listen(self) -> None:
        assert self._guard and self._guard.stdout
        for line in self._guard.stdout:
            event = json.loads(line)
            if event["event"] == "started":
                self._codes.pop(event["name"], None)
                self._pids[event["name"]] = event["pid"]
            elif event["event"] == "exited":
                # In this order: who waits for the pid to go may start the component anew and drop the code.
                self._codes[event["name"]] = event["code"]
                self._pids.pop(event["name"], None)
        self._guard_ended = True
        # The kernel has ended them with it, and nobody reports that.
        self._pids.clear()

    def _migrate(self) -> None:
        """Create the tables once per AIRFLOW_HOME and Airflow version: it takes seconds."""
        stamp, wanted = self.home / "migrated", version("apache-airflow-core")
        if stamp.exists() and stamp.read_text() == wanted and (self.home / "airflow.db").exists():
            return
        self.run_once("migrate")
        stamp.write_text(wanted)

    def run_once(self, name: str, deadline: float = START_SECONDS) -> None:
        """Run `migrate` or `pools` to its end. ServiceError with its last line if it fails."""
        self._codes.pop(name, None)
        self._tell(f"start {name}")
        wait_for(lambda: self._has_ended(name), deadline, f"`{name}` to end (log: {self._log(name)})", every=0.05)
        if self._codes[name] != 0:
            raise ServiceError(f"Airflow's `{name}` failed: {self._last_line(name)} (log: {self._log(name)})")

    def _has_ended(self, name: str) -> bool:
        self._check_guard()
        return name in self._codes

    def start_component(self, name: str, wait: bool = True) -> None:
        """Start one component (again)."""
        self._begun[name] = datetime.now(UTC)
        self._warm = self._warm and name != "api-server"
        self._codes.pop(name, None)
        self._tell(f"start {name}")
        if wait:
            self.wait_healthy()

    def stop_component(self, name: str, deadline: float = 30.0) -> None:
        """End one component with what it started."""
        self._tell(f"stop {name}")
        wait_for(lambda: name not in self._pids, deadline, f"{name} to end")

    def pid(self, name: str) -> int:
        """The process id of a running component."""
        return wait_for(lambda: self._pids.get(name), 10.0, f"{name} to run", every=0.05)

    def wait_healthy(self, deadline: float = START_SECONDS) -> None:
        """Wait until every component that was started has had a heartbeat since. ServiceError if one ends instead."""
        wait_for(self._healthy, deadline, lambda: f"Airflow to be healthy (logs: {self.log_dir})", every=0.2)

    def _healthy(self) -> bool:
        self._check_guard()
        for name in self._begun:
            if name in self._codes:
                raise ServiceError(
                    f"Airflow's {name} ended with {self._codes[name]}: {self._last_line(name)} (log: {self._log(name)})"
                )
        try:
            health = self.api.health()
        except ApiError:
            return False
        if not self._warm:
            self.api.warm_up(START_SECONDS)
            self._warm = True
        return all(_beats(name, health, self._begun[name]) for name in self._begun)

    def wait_for_end(self) -> None:
        """Wait while every component runs. ServiceError if one ends by itself."""
        while self._pids.keys() >= set(self._begun):
            time.sleep(0.5)
        self._healthy()

    def _log(self, name: str) -> Path:
        return self.log_dir / f"{name}.log"

    def _last_line(self, name: str) -> str:
        with contextlib.suppress(OSError):
            lines = [line for line in self._log(name).read_text(errors="replace").splitlines() if line.strip()]
            return lines[-1][:300] if lines else "no output"
        return "no output"

    # End

    def stop(self, deadline: float = 90.0) -> None:
        """Mark unfinished runs failed, end every component in order, then what they left. Does nothing if ended."""
        if self._guard is None:
            self._release_home()
            return
        (self.home / DISCOVERY_FILE).unlink(missing_ok=True)
        guard, self._guard = self._guard, None
        with uninterrupted():
            self._stop(guard, deadline)

    def _stop(self, guard: subprocess.Popen[bytes], deadline: float) -> None:
        try:
            if {"api-server", "scheduler"} <= self._pids.keys():
                with contextlib.suppress(ServiceError):
                    fail_unfinished(self.api)
        finally:
            # Whatever interrupts us from here on, the guard goes on and ends everything.
            assert guard.stdin and guard.stdout
            with contextlib.suppress(OSError):
                guard.stdin.close()
            guard.wait(deadline)
            if self._listener:
                self._listener.join(5.0)
            guard.stdout.close()
            self._release_home()
            self.api.close()


def fail_unfinished(api: AirflowApi, patience: float = 15.0) -> None:
    """Mark every unfinished run failed, and give their tasks `patience` seconds to end by themselves.

    A scheduler ended under running tasks would start them again at its next start.
    """
    unfinished = api.runs(states=("running", "queued"))
    for run in unfinished:
        api.mark_run(run.dag_id, run.run_id, "failed")

    def quiet() -> bool:
        # A teardown runs after the mark, and the run goes on until it has.
        return all(
            api.run(run.dag_id, run.run_id).finished
            and all(task.finished for task in api.tasks(run.dag_id, run.run_id))
            for run in unfinished
        )

    with contextlib.suppress(ServiceError):
        wait_for(quiet, patience, "tasks to end")


def _beats(name: str, health: Mapping[str, Any], since: datetime) -> bool:
    """Whether the component reported itself after `since`: an older heartbeat is its predecessor's."""
    if name == "api-server":
        return True
    key = name.replace("-", "_")
    entry = health.get(key) or {}
    beat = entry.get(f"latest_{key}_heartbeat")
    if not beat or entry.get("status") != "healthy":
        return False
    return datetime.fromisoformat(beat) > since - timedelta(milliseconds=100)
