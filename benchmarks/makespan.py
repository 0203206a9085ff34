"""20 jobs of mixed sizes on 8 declared GPUs through a real Airflow: `python benchmarks/makespan.py [seed]`.

The jobs' programs sleep, so that Airflow and this package are what is measured. Printed are, for whole gangs and then
for the same jobs as plain tasks with a pool slot each: the makespan, the least it can be (the GPU time of all jobs over
8 GPUs, or the longest job), and the GPU time held by jobs that were not complete.

A job's length is what the same graph takes alone, start to end: measured once for each size, less its sleep.
Needs Debian's package `postgresql`, and `pip install psycopg2-binary asyncpg`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "system"), str(ROOT / "tests")]

from airflow_under_test import make_project  # noqa: E402 - the tests' own, found by the line above
from postgres_server import PostgresServer  # noqa: E402

from tf_operator.gpus import holders  # noqa: E402
from tf_operator.runners.process_tree import MARKER  # noqa: E402
from tf_operator.services.airflow import Airflow, fail_unfinished  # noqa: E402
from tf_operator.services.airflow_settings import Setup  # noqa: E402
from tf_operator.services.jobs import await_dag  # noqa: E402
from tf_operator.services.waiting import wait_for  # noqa: E402

GPUS, JOBS = 8, 20
SIZES, SECONDS = (1, 1, 2, 2, 4, 8), (10, 20, 30)
ALONE = 5
PARALLELISM = 16
"""8 tasks with a GPU, 8 that plan and end jobs. More than SQLite bears."""
STUCK = 45.0
"""Seconds after which jobs that hold all GPUs, none of them complete, are said to wait for ever."""
PLAIN = """
import time
from pathlib import Path
from airflow.sdk import DAG, Param, task

with DAG("plain", schedule=None, max_active_runs=50, params={"size": Param(1), "seconds": Param(1)}):
    @task
    def indexes(params):
        return list(range(params["size"]))

    @task(pool="gpu")
    def work(index, params, run_id):
        folder = Path("FOLDER", run_id.replace("/", "_"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(index)).touch()
        while len(list(folder.iterdir())) < params["size"]:
            time.sleep(0.5)
        time.sleep(params["seconds"])

    work.expand(index=indexes())
"""


@dataclass(frozen=True)
class Job:
    """One of the jobs: workers with a GPU each, and how long they sleep."""

    size: int
    seconds: int


@dataclass
class Seen:
    """What was sampled each second."""

    shared: set[str] = field(default_factory=set)
    incomplete: float = 0.0
    held: float = 0.0
    stuck: float = 0.0
    """Seconds in a row, up to now, that every GPU has been held by jobs that are not complete."""


def draw(seed: int) -> list[Job]:
    """The jobs, in the order they are asked for."""
    dice = random.Random(seed)
    return [Job(dice.choice(SIZES), dice.choice(SECONDS)) for _ in range(JOBS)]


def write(airflow: Airflow, project: Path) -> None:
    """A DAG for each size, and the plain one."""
    for size in sorted(set(SIZES)):
        file = project / "configs" / "jobs" / f"size-{size}.yaml"
        job = {
            "name": file.stem,
            "params": {"seconds": {"type": "integer", "default": ALONE}},
            "strategy": "none",
            "success_policy": "all_workers",
            "max_active_runs": 50,
            "program": {"command": ["sleep", "{{ params.seconds }}"]},
            "replicas": {"worker": {"replicas": size, "gpus": 1}},
            "scheduling": {"pool": "gpu"},
        }
        file.write_text(yaml.safe_dump(job, sort_keys=False))
    plain = project / "dags" / "plain.py"
    plain.write_text(PLAIN.replace("FOLDER", str(project / "barrier")))
    for name in [*(f"size-{size}" for size in sorted(set(SIZES))), "plain"]:
        await_dag(airflow.api, name, plain)
        airflow.api.unpause(name)


def ended(airflow: Airflow, runs: list[Any]) -> list[Any]:
    """Those of the runs that have ended, as they are now."""
    found = {run.run_id: run for run in airflow.api.runs()}
    return [found[run.run_id] for run in runs if run.run_id in found and found[run.run_id].finished]


def alone(airflow: Airflow, size: int) -> float:
    """Seconds of the graph of this size beyond its sleep."""
    run = airflow.api.trigger(f"size-{size}", {"seconds": ALONE})
    (done,) = wait_for(lambda: ended(airflow, [run]), 180, "the run alone", every=0.5)
    assert done.state == "success", done
    return float((done.end - done.start).total_seconds() - ALONE)


@contextmanager
def sampled(airflow: Airflow, sizes: dict[str, int], tasks: str) -> Iterator[Seen]:
    """Look each second who has which device, and which runs hold slots without being complete."""
    seen, enough = Seen(), threading.Event()

    def look() -> None:
        last = time.monotonic()
        while not enough.wait(1.0):
            now = time.monotonic()
            seen.shared |= shared(airflow.env["AIRFLOW__TF_OPERATOR__STATE_DIR"])
            with suppress(Exception):
                by_run = held(airflow, tasks)
                incomplete = sum(slots for run, slots in by_run.items() if slots < sizes.get(run, 0))
                seen.held += by_run.total() * (now - last)
                seen.incomplete += incomplete * (now - last)
                seen.stuck = seen.stuck + now - last if incomplete == GPUS else 0.0
            last = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        enough.set()
        thread.join()


def shared(state: str) -> set[str]:
    """Devices that two living programs of ours see. Processes are read one after the other, while others end: what has
    ended by the end of the look was not alive together with what began during it."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "sleep":
            with suppress(psutil.Error):
                env = process.environ()
                if env.get(MARKER, "").startswith(state):
                    for device in env["CUDA_VISIBLE_DEVICES"].split(","):
                        found.setdefault(device, []).append(process)
    return {
        device
        for device, users in found.items()
        if device != "-1" and sum(user.is_running() and user.status() != psutil.STATUS_ZOMBIE for user in users) > 1
    }


def held(airflow: Airflow, tasks: str) -> Counter[str]:
    """Slots of the pool by run."""
    states = ["deferred", "running", "queued"]
    found: Counter[str] = Counter()
    for task in airflow.api.entries("dags/~/dagRuns/~/taskInstances", "task_instances", pool=["gpu"], state=states):
        if task["task_id"].endswith(tasks):
            found[task["dag_run_id"]] += task["pool_slots"]
    return found


def together(airflow: Airflow, jobs: list[Job], plain: bool, deadline: float) -> tuple[float, int, Seen]:
    """Seconds until the last has ended (or the deadline), how many ended well, what was sampled."""
    begun, runs, sizes = time.monotonic(), [], {}
    with sampled(airflow, sizes, "work" if plain else "cluster") as seen:
        for job in jobs:
            conf = {"seconds": job.seconds} | ({"size": job.size} if plain else {})
            runs.append(airflow.api.trigger("plain" if plain else f"size-{job.size}", conf))
            sizes[runs[-1].run_id] = job.size
        while len(done := ended(airflow, runs)) < len(runs) and time.monotonic() - begun < deadline:
            if seen.stuck > STUCK:
                break
            time.sleep(1.0)
        took = time.monotonic() - begun
    return took, sum(run.state == "success" for run in done), seen


def main(seed: int) -> None:
    """Alone, together as gangs, together as plain tasks."""
    jobs = draw(seed)
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as postgres:
        project, state = make_project(Path(folder) / "project"), Path(folder) / "state"
        setup = Setup(
            home=Path(folder) / "home",
            project=project,
            state_dir=state,
            gpus=str(GPUS),
            options={
                "core.parallelism": str(PARALLELISM),
                "database.sql_alchemy_conn": (
                    f"postgresql+psycopg2://postgres:{postgres.password}@127.0.0.1:{postgres.port}/postgres"
                ),
            },
        )
        with Airflow(setup) as airflow:
            write(airflow, project)
            alone(airflow, 1)  # a triggerer's first trigger takes seconds more
            beyond = {size: alone(airflow, size) for size in sorted(set(SIZES))}
            told = ", ".join(f"{size}: {more:.1f} s" for size, more in beyond.items())
            print(f"seed {seed}; alone, beyond the sleep: {told}", flush=True)
            lengths = [beyond[job.size] + job.seconds for job in jobs]
            area = sum(job.size * length for job, length in zip(jobs, lengths, strict=True))
            least = max(area / GPUS, *lengths)
            took, well, seen = together(airflow, jobs, plain=False, deadline=3 * least)
            left = airflow.api.pools()["gpu"].held, len(holders(state))
            print(f"gangs: {well} of {len(jobs)} well in {took:.0f} s, least {least:.0f} s: {took / least - 1:+.0%}")
            print(f"  devices shared: {len(seen.shared)}; GPU time held by incomplete jobs: {seen.incomplete:.0f} s")
            print(f"  at the end: {left[0]} slots and {left[1]} devices held", flush=True)
            took, well, seen = together(airflow, jobs, plain=True, deadline=1.2 * least)
            wasted = seen.incomplete / max(seen.held, 1.0)
            stuck = f"; deadlock: all {GPUS} GPUs held by incomplete jobs" if seen.stuck > STUCK else ""
            print(f"plain slots: {well} of {len(jobs)} ended in {took:.0f} s{stuck}")
            print(f"  of the GPU time that was held, {wasted:.0%} was held by incomplete jobs", flush=True)
            fail_unfinished(airflow.api)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
