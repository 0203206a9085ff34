"""From a loss to the next new training step, beside the same job healed by hand: `python benchmarks/recovery.py [N]`.

digits_ps with one worker, so that no step is done without it. `worker` and `ps` get a SIGKILL in the middle. By hand is
somebody who sits there and starts each program again the moment it ends: nobody is faster, for nothing is decided.
A new step is one that the chief reports after the lost replica serves again. In turn by hand and on Airflow, with the
job file's own retry_delay; printed are the medians and their ratio. The floor is one import of TensorFlow.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "tests" / "system"), str(ROOT / "tests")]

from airflow_under_test import AirflowUnderTest, make_project  # noqa: E402 - found by the line above
from tf_replicas import Replicas, prepare  # noqa: E402

from tf_operator.services.openbao import DevOpenBao  # noqa: E402
from tf_operator.services.waiting import wait_for  # noqa: E402

SIZES = {"chief": 1, "worker": 1, "ps": 1}
FLAGS = ("--steps-per-epoch=5", "--step-delay=0.1")
FOR_EVER = 100_000
STEP = re.compile(r"^(?:\[[^]]*\] )?(\d+\.\d+) epoch \S+ step \d+ ", re.MULTILINE)
SERVES = re.compile(r"(\d+\.\d+) \w+-\d+ serves at ")
PATIENCE = 240.0


def after(chief: str, lost: str, fault: float) -> float | None:
    """Seconds from the fault to the chief's first step since the lost replica serves again; None before that."""
    back = [float(stamp) for stamp in SERVES.findall(lost) if float(stamp) > fault]
    steps = [float(stamp) for stamp in STEP.findall(chief) if back and float(stamp) > back[-1]]
    return steps[0] - fault if steps else None


def by_hand(data: Path, key: str, lost: str) -> float:
    """Seconds to a new step, with every program started again at once."""
    with tempfile.TemporaryDirectory() as folder:
        replicas = Replicas(Path(folder), "digits.train_ps", SIZES, DIGITS_DATA=str(data), DIGITS_DATA_KEY=key)
        arguments = (f"--epochs={FOR_EVER}", *FLAGS)
        try:
            replicas.start(*arguments)
            replicas.await_step("chief-0", 15)
            fault = time.time()
            replicas.kill(lost)
            replicas.start(*arguments, only=[lost])

            def look() -> float | None:
                if replicas.running["chief-0"].poll() is not None:
                    replicas.start(*arguments, only=["chief-0"])
                return after(replicas.log("chief-0"), replicas.log(lost), fault)

            return wait_for(look, PATIENCE, "a new step", every=0.1)
        finally:
            replicas.end()


def on_airflow(airflow: AirflowUnderTest, lost: str) -> float:
    """Seconds to a new step, with nobody there."""
    run = airflow.trigger("recovery")
    for name in ("chief-0", "worker-0", "ps-0"):
        run.wait_running(name, deadline=PATIENCE)
    wait_for(lambda: len(STEP.findall(run.log("chief-0"))) >= 3, PATIENCE, "the first steps", every=1.0)
    fault = time.time()
    old = run.kill(lost)
    run.wait_running(lost, deadline=PATIENCE, not_pid=old)
    found = wait_for(lambda: after(run.log("chief-0"), run.log(lost), fault), PATIENCE, "a new step", every=1.0)
    airflow.settle()
    return found


def job() -> dict[str, Any]:
    """The main job in this size."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "jobs" / "digits_ps.yaml").read_text())
    made["program"]["command"] = ["python", "-m", "digits.train_ps", f"--epochs={FOR_EVER}", *FLAGS]
    del made["params"]
    return made | {"name": "recovery", "replicas": {"chief": {}, "worker": {"gpus": 1}, "ps": {}}}


def compare(airflow: AirflowUnderTest, data: Path, key: str, lost: str, runs: int) -> None:
    """Print a line per pair, then the medians."""
    pairs = []
    for number in range(runs):
        pairs.append((by_hand(data, key, lost), on_airflow(airflow, lost)))
        print(f"{lost} {number + 1}: by hand {pairs[-1][0]:.1f} s, on Airflow {pairs[-1][1]:.1f} s", flush=True)
    hand, air = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    ratio = f"ratio {air / hand:.2f}"
    print(f"{lost}: medians of {runs}: by hand {hand:.1f} s, on Airflow {air:.1f} s, {ratio}", flush=True)


def main(runs: int) -> None:
    """One Airflow for everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = make_project(folder / "project")
        os.environ["AIRFLOW__TF_OPERATOR__PROJECT_DIR"] = str(project)
        with DevOpenBao(folder / "openbao") as openbao:
            openbao.seed(project)
            del os.environ["AIRFLOW__TF_OPERATOR__PROJECT_DIR"]
            under_test = AirflowUnderTest(folder, openbao, profile="base")
            data, key = prepare(folder)
            with under_test.airflow:
                under_test.write_job("recovery", job())
                for lost in ("worker-0", "ps-0"):
                    compare(under_test, data, key, lost, runs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
