"""Local runs of probe jobs, each in a project and a state directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from tf_operator import model_dir
from tf_operator.cli import local_machine
from tf_operator.host import host_for
from tf_operator.identity import ReplicaId
from tf_operator.job_spec import RenderedJob, TensorFlowJob
from tf_operator.local import LocalOutcome, LocalRun, new_run_id
from tf_operator.membership import Cluster, Member, Status
from tf_operator.secrets.environment import login_environment

PROBE = [sys.executable, str(Path(__file__).resolve().parents[1] / "probe.py")]
FOREVER = ["--bind", "--sleep", "ever"]


def wait_until(what: str, ready: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What `ready` gives once it gives anything."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)
    return value


def living(folder: Path) -> list[str]:
    """Processes that have the folder in their command line or environment. What is dead and unreaped is not living."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
            ours = process.pid != os.getpid() and any(str(folder) in word for word in words)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


class LocalBench:
    """A project with one job of probes. `job` changes its top-level keys, `replicas` its replica types."""

    def __init__(self, folder: Path, replicas: Mapping[str, Any], **job: Any) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.file = folder / "configs" / "jobs" / "probe.yaml"
        self.file.parent.mkdir(parents=True)
        self.out.mkdir()
        text = {
            "name": "probe",
            "program": {"command": self.probe(*FOREVER), "working_dir": str(folder)},
            "replicas": dict(replicas),
            "retry_delay": "1s",
            "run_policy": {"termination_grace": "5s"},
        }
        self.file.write_text(yaml.safe_dump(text | job))
        self.lines: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self.clusters: list[Cluster] = []
        self.members: dict[str, list[Member]] = {}
        self.run: LocalRun | None = None
        self.outcome: LocalOutcome | None = None
        self._thread: threading.Thread | None = None
        self._processes: list[subprocess.Popen[str]] = []

    def probe(self, *flags: str) -> list[str]:
        return [*PROBE, "--out", str(self.out), *flags]

    def render(self) -> RenderedJob:
        self.run_id = new_run_id()
        return local_machine.render(TensorFlowJob.from_file(self.file), self.run_id, self.folder, {})

    def start(self) -> LocalRun:
        """Start a run in a thread."""
        job = self.render()
        model_dir.claim(job.model_dir, {"dag_id": job.name, "run_id": self.run_id, "group_id": ""}, lambda _: True)
        self.run = run = LocalRun(
            job,
            self.run_id,
            host_for=lambda _, identity: host_for(job, identity, 1, login=login_environment),
            emit=lambda replica, line: self.lines.setdefault(str(replica), []).append(line),
            log=lambda replica, line: self.notes.append(f"{replica}: {line}"),
            on_change=self._changed,
        )

        def body() -> None:
            self.outcome = run.run()

        self._thread = threading.Thread(target=body, name="local run")
        self._thread.start()
        return run

    def _changed(self, cluster: Cluster, members: Mapping[ReplicaId, Member]) -> None:
        self.clusters.append(cluster)
        for replica, member in members.items():
            told = self.members.setdefault(str(replica), [])
            if not told or told[-1] != member:
                told.append(member)

    def finish(self, seconds: float = 60.0) -> LocalOutcome:
        """The end of the run; it is ended where it takes too long."""
        assert self._thread
        assert self.run
        self._thread.join(seconds)
        late = self._thread.is_alive()
        if late:
            self.run.stop("the test waited long enough")
            self._thread.join(60)
        assert self.outcome, "the run ended by an error"
        assert not late, f"no end within {seconds:.0f} s: {self.clusters[-1]}\n" + "\n".join(self.notes)
        return self.outcome

    def __call__(self, seconds: float = 60.0) -> LocalOutcome:
        """Run to the end."""
        self.start()
        return self.finish(seconds)

    def running(self, name: str, generation: int = 1) -> Member:
        """Wait until the replica's program runs."""

        def look() -> Member | None:
            told = self.members.get(name, [])
            good = told and told[-1].status is Status.RUNNING and told[-1].generation >= generation
            return told[-1] if good else None

        found: Member = wait_until(f"{name} to run", look)
        return found

    def starts(self, name: str) -> list[dict[str, Any]]:
        """What each start of a replica recorded, first to last. One that is just being written is not there yet."""
        files = sorted(self.out.glob(f"{name}-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
        return [json.loads(text) for file in files if (text := file.read_text())]

    def results(self) -> dict[str, str]:
        """How each replica's last watch ended."""
        assert self.outcome
        return {str(replica): str(outcome.result) for replica, outcome in self.outcome.outcomes.items()}

    def assert_nothing_left(self) -> None:
        assert living(self.folder) == []
        state = self.folder / "state"
        assert [str(path) for path in (state / "runs").glob("*")] == []
        assert [str(path) for path in (state / "locks").glob("*")] == []

    def command(self, *flags: str) -> subprocess.Popen[str]:
        """`tf-operator local` on the job file, as a user starts it."""
        words = [sys.executable, "-m", "tf_operator.cli.main", "local", str(self.file), *flags]
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, start_new_session=True)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End what a test that failed left."""
        for process in self._processes:
            process.terminate()
            process.communicate(timeout=60)
        if self.run and self._thread and self._thread.is_alive():
            self.run.stop("the test is over")
            self._thread.join(60)
