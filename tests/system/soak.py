"""Random faults over overlapping runs of probe jobs: programs, their watchers, and Airflow's own components are killed.

The list of faults comes from a seed alone. When each of them strikes depends on the machine: a fault waits until its
victim lives. While the runs are under way, each second every living program is looked at: no identity may have two.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from airflow_under_test import AirflowUnderTest
from probe_jobs import probe, starts
from run_under_test import RunUnderTest, wait_for
from soak_plan import STRATEGIES, Fault, make_plans, replica_names

from tf_operator.runners.leftovers import leftovers
from tf_operator.runners.process_tree import MARKER

AT_ONCE = 2
RETRIES, GENERATIONS = 8, 10
VICTIM_PATIENCE = 240.0
RUN_PATIENCE = 300.0


@dataclass
class Report:
    """What was done and seen."""

    seed: int
    runs: int
    green: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    samples: int = 0
    doubles: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    slots_held: int = 0
    most_starts: int = 0
    most_tries: int = 0
    most_generations: int = 0
    troubles: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Faults carried out."""
        return self.faults.total()

    def summary(self) -> str:
        """One line."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"soak, seed {self.seed}: {self.green} of {self.runs} runs green after {self.done} faults ({kinds})"
            f" in {self.seconds:.0f} s; {len(self.doubles)} doubles in {self.samples} samples,"
            f" {len(self.leftovers)} leftovers, {self.slots_held} slots held; at most {self.most_starts} starts,"
            f" {self.most_tries} tries, {self.most_generations} generations; troubles: {self.troubles or 'none'}"
        )

    def write(self, file: Path) -> None:
        """The figures as JSON."""
        # asdict() would make a Counter of the Counter's items.
        figures = asdict(replace(self, faults=Counter())) | {"faults": dict(self.faults)}
        file.write_text(json.dumps(figures, indent=2) + "\n")


class Soak:
    """`run()` carries everything out, and never raises for what a run did: that is in the report."""

    def __init__(self, airflow: AirflowUnderTest, folder: Path, seed: int, runs: int, faults: int) -> None:
        self.airflow, self.folder = airflow, folder
        self.plans = make_plans(seed, runs, faults)
        self.report = Report(seed, runs)
        self._component = threading.Lock()
        self._noting = threading.Lock()
        self._over = threading.Event()

    def run(self) -> Report:
        """All runs, AT_ONCE at a time, and what is left when the last one has ended."""
        began, before = time.monotonic(), self._left()
        for strategy in sorted({plan.strategy for plan in self.plans}):
            self.airflow.write_job(_dag_id(strategy), self._job(strategy))
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="soak")
        try:
            with self._sampling():
                list(pool.map(self._guarded, range(len(self.plans))))
        finally:
            self._over.set()
            pool.shutdown(cancel_futures=True)
        self.report.seconds = round(time.monotonic() - began, 1)
        self.report.leftovers = [text for key, text in self._left().items() if key not in before]
        held = [self.airflow.held_slots(pool).items() for pool in ("gpu", "default_pool")]
        mine = {_dag_id(plan.strategy) for plan in self.plans}
        self.report.slots_held = sum(count for slots in held for (dag, _), count in slots if dag in mine)
        return self.report

    def _left(self) -> dict[str, str]:
        """Run folders and programs that are there, of earlier tests as well: which one → what is told of it."""
        programs = [f"{key}, pid {p.pid}" for key, every in self._programs().items() for p in every]
        folders = {left.key: str(left) for left in leftovers(self.airflow.state_dir)}
        return folders | {text: text for text in programs}

    def _job(self, strategy: str) -> dict[str, Any]:
        out = "--out={{ params.folder }}"
        replicas: dict[str, Any] = {role: {"replicas": count} for role, count in STRATEGIES[strategy].items()}
        replicas["chief"]["command"] = probe(out, "--bind", "--wait-file={{ params.folder }}/stop")
        replicas["worker"]["gpus"] = 1
        return {
            "strategy": strategy,
            "params": {"folder": {"type": "string", "default": str(self.folder)}},
            "program": {"command": probe(out, "--bind", "--sleep", "ever")},
            "replicas": replicas,
            "retries": RETRIES,
            "retry_delay": "1s",
            "run_policy": {"backoff_limit": GENERATIONS, "termination_grace": "5s", "orphan_timeout": "5m"},
            "scheduling": {"pool": "gpu"},
        }

    # One run

    def _guarded(self, number: int) -> None:
        try:
            self._run(number)
        except Exception as error:
            self._trouble(f"run {number}: {error}")

    def _trouble(self, text: str) -> None:
        with self._noting:
            self.report.troubles.append(text)

    def _run(self, number: int) -> None:
        plan, out = self.plans[number], self.folder / f"run{number}"
        out.mkdir()
        schedulers = self.report.faults["scheduler"]
        run = self.airflow.trigger(_dag_id(plan.strategy), folder=str(out))
        for name in replica_names(plan.strategy):
            run.wait_running(name, deadline=VICTIM_PATIENCE)
        suffered: list[Fault] = []
        for fault in plan.faults:
            self._over.wait(fault.pause)
            self._strike(run, fault)
            suffered.append(fault)
        # The last fault, too, has to be healed, not only survived.
        names = replica_names(plan.strategy)
        wait_for(
            lambda: all(self._program(run, name) for name in names), VICTIM_PATIENCE, lambda: f"all: {run.states()}"
        )
        (out / "stop").touch()
        run.wait("success", deadline=RUN_PATIENCE)
        with self._noting:
            self.report.green += 1
        self._hold_against_bounds(number, run, suffered, self.report.faults["scheduler"] - schedulers)

    def _hold_against_bounds(self, number: int, run: RunUnderTest, suffered: list[Fault], schedulers: int) -> None:
        """A program is started again for its own kill or a new generation; a task tried again for a kill near it."""
        generation, out = run.cluster()["generation"], self.folder / f"run{number}"
        for name in replica_names(self.plans[number].strategy):
            mine = Counter(fault.kind for fault in suffered if fault.replica == name)
            count, logs = len(starts(out, name)), run.try_logs(name)
            tries = len(logs)
            # Airflow takes a watcher for lost by itself where the machine is busy.
            adopted = sum("adopted the program" in log for log in logs)
            self._bound(number, name, "starts", count, mine["program"] + generation)
            self._bound(number, name, "tries", tries, 1 + mine.total() + schedulers + adopted)
            with self._noting:
                self.report.most_starts = max(self.report.most_starts, count)
                self.report.most_tries = max(self.report.most_tries, tries)
        with self._noting:
            self.report.most_generations = max(self.report.most_generations, generation)

    def _bound(self, number: int, name: str, what: str, count: int, limit: int) -> None:
        if not 1 <= count <= limit:
            self._trouble(f"run {number}: {name} had {count} {what}, allowed are {limit}")

    # Faults

    def _strike(self, run: RunUnderTest, fault: Fault) -> None:
        if fault.replica is None:
            self._kill_component(fault.kind)
            return
        find = {"program": self._program, "task": _task, "supervisor": _supervisor}[fault.kind]
        name = fault.replica

        def struck() -> bool:
            with suppress(psutil.NoSuchProcess):
                if victim := find(run, name):
                    victim.send_signal(signal.SIGKILL)
                    return True
            return False

        wait_for(struck, VICTIM_PATIENCE, lambda: f"a victim, the {fault.kind} of {name}: {run.states()}")
        self._count(fault.kind)

    def _count(self, kind: str) -> None:
        with self._noting:
            self.report.faults[kind] += 1

    def _program(self, run: RunUnderTest, name: str) -> psutil.Process | None:
        """The replica's program, once its watcher has said that it runs: one that dies before is another story."""
        member = run.member(name)
        if member.get("status") != "running":
            return None
        living = [process for every in self._programs().values() for process in every]
        return next((process for process in living if process.pid == member["pid"]), None)

    def _kill_component(self, name: str) -> None:
        """One component at a time: with both away nothing happens at all."""
        with self._component:
            psutil.Process(self.airflow.pid(name)).kill()
            self._count(name)
            self.airflow.airflow.stop_component(name)
            self.airflow.airflow.start_component(name)

    # Doubles

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        done = threading.Event()

        def sample() -> None:
            while not done.wait(1.0):
                self.report.samples += 1
                for key, processes in self._programs().items():
                    if len([process for process in processes if _lives(process)]) > 1:
                        self._double(f"{key}: pids {[process.pid for process in processes]}")

        thread = threading.Thread(target=sample, name="soak-sampler")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _double(self, text: str) -> None:
        with self._noting:
            self.report.doubles.append(text)

    def _programs(self) -> dict[str, list[psutil.Process]]:
        """Identity → its living programs. The mark in their environment is the replica's run folder."""
        return living_programs(self.airflow.state_dir)


def living_programs(state_dir: Path) -> dict[str, list[psutil.Process]]:
    """Run folder's name → the living processes that bear its mark."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            folder = Path(process.environ().get(MARKER, ""))
            if folder.is_relative_to(state_dir.resolve()) and _lives(process):
                found.setdefault(folder.name, []).append(process)
    return found


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _task(run: RunUnderTest, name: str) -> psutil.Process | None:
    """The Airflow task process that watches the replica."""
    task = run.find(name)
    title = f"airflow worker -- {task.raw['id']}" if task else None
    return _first(lambda argv: argv == title)


def _supervisor(run: RunUnderTest, name: str) -> psutil.Process | None:
    """That process's parent. One that has lost it belongs to the guard, which is not to be killed."""
    task = _task(run, name)
    parent = task.parent() if task else None
    is_one = parent and "airflow worker -- LocalExecutor" in " ".join(parent.cmdline())
    return parent if is_one else None


def _first(fits: Callable[[str], bool]) -> psutil.Process | None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if fits(" ".join(process.cmdline()).strip()):
                return process
    return None


def _dag_id(strategy: str) -> str:
    return f"soak-{strategy}".replace("_", "-")
