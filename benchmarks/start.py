"""Trigger to first training step, beside the same program started by hand: `python benchmarks/start.py [runs]`.

One Airflow for all runs, in turn with the same program by hand: by hand, on Airflow, by hand ...
Printed are the medians, and the median of the differences. The floor is TensorFlow's import, four times at once.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from tf_replicas import Replicas, prepare  # noqa: E402 - the tests' launcher, found by the line above

from tf_operator.job_spec import TensorFlowJob  # noqa: E402
from tf_operator.services import jobs  # noqa: E402
from tf_operator.services.stack import services  # noqa: E402
from tf_operator.services.waiting import wait_for  # noqa: E402

JOB = ROOT / "configs" / "jobs" / "digits_ps.yaml"
FIRST = re.compile(r"first step at ([0-9.]+)")
SIZES = {"chief": 1, "worker": 2, "ps": 1}


def by_hand(data: Path, key: str) -> float:
    """Seconds from the start of four processes to the first step."""
    with tempfile.TemporaryDirectory() as folder:
        replicas = Replicas(Path(folder), "digits.train_ps", SIZES, DIGITS_DATA=str(data), DIGITS_DATA_KEY=key)
        try:
            begun = time.time()
            replicas.start("--epochs=1")
            found = wait_for(lambda: FIRST.search(replicas.log("chief-0")), 240, "the first step by hand", every=0.1)
            return float(found[1]) - begun
        finally:
            replicas.end()


def on_airflow(airflow: object, job: TensorFlowJob) -> float:
    """Seconds from the trigger to the first step."""
    api = airflow.api  # type: ignore[attr-defined]
    begun = time.time()
    run = jobs.start_run(api, job, JOB, {"epochs": 1})

    def first() -> re.Match[str] | None:
        task = next((t for t in api.tasks(run.dag_id, run.run_id) if t.task_id.endswith(".chief")), None)
        if task is None or task.state not in ("running", "success"):
            return None
        return FIRST.search(api.log(run.dag_id, run.run_id, task.task_id, task.try_number, task.map_index))

    found = wait_for(first, 240, "the first step on Airflow", every=1.0)
    wait_for(lambda: api.run(run.dag_id, run.run_id).state in ("success", "failed"), 240, "the run to end")
    return float(found[1]) - begun


def main(runs: int) -> None:
    """Print one line per pair, then the medians."""
    job = TensorFlowJob.from_file(JOB)
    pairs = []
    with tempfile.TemporaryDirectory() as folder, services(ROOT) as airflow:
        data, key = prepare(Path(folder))
        on_airflow(airflow, job)  # a triggerer's first trigger takes seconds more; that is told apart in docs/
        for number in range(runs):
            pairs.append((by_hand(data, key), on_airflow(airflow, job)))
            print(f"{number + 1}: by hand {pairs[-1][0]:.1f} s, on Airflow {pairs[-1][1]:.1f} s", flush=True)
    hand, air = (statistics.median(each[side] for each in pairs) for side in (0, 1))
    more = statistics.median(b - a for a, b in pairs)
    print(f"medians of {runs}: by hand {hand:.1f} s, on Airflow {air:.1f} s, difference {more:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
