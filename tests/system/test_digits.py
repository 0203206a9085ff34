"""The main job on a real Airflow, with real TensorFlow: it trains, heals, and comes out as the local run does."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest
from airflow_under_test import AirflowUnderTest
from run_under_test import RunUnderTest, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.timeout(600)]

REPLICAS = ("chief-0", "worker-0", "worker-1", "ps-0")


def steps(log: str) -> list[int]:
    """The step counters a chief printed."""
    return [int(number) for number in re.findall(r"\bstep[ =](\d+)", log)]


def restored(log: str) -> list[int]:
    """The steps it resumed from."""
    return [int(number) for number in re.findall(r"restored step (\d+)", log)]


def test_the_main_job(airflow: AirflowUnderTest) -> None:
    name = airflow.copy_job("digits_ps.yaml", schedule=None)
    run = airflow.trigger(name)
    run.wait("success", deadline=240)
    result = run.xcom("result")
    assert result["metrics"]["accuracy"] > 0.9
    assert result["generation"] == 1 and result["model_dir"]

    spans = {
        task.name: (task.raw["start_date"], task.raw["end_date"]) for task in run.tasks() if _is_replica(task.task_id)
    }
    assert len(spans) == 4
    for (one, a), (other, b) in combinations(spans.items(), 2):
        assert a[0] < b[1] and b[0] < a[1], f"{one} and {other} did not overlap"
    assert run.cluster()["spec"].keys() == {"chief", "worker", "ps"}
    assert run.task("cluster").raw["pool_slots"] == 2
    assert (run.dag_id, run.run_id) not in airflow.held_slots("gpu")


def _is_replica(task_id: str) -> bool:
    return task_id.rpartition(".")[2] in ("chief", "worker", "ps")


@pytest.mark.timeout(900)
def test_a_worker_and_then_a_ps_killed(airflow: AirflowUnderTest) -> None:
    name = airflow.copy_job("digits_ps.yaml", name="digits-heals", schedule=None)
    run = airflow.trigger(name, epochs=20, step_delay=0.05)
    for replica in REPLICAS:
        run.wait_running(replica, deadline=120)
    _wait_for_steps(run, 1)
    before = run.cluster()["spec"]

    worker, chief = run.kill("worker-1"), run.pid("chief-0")
    run.wait_running("worker-1", not_pid=worker, deadline=90)
    assert run.pid("chief-0") == chief, "the chief's process goes on"
    assert run.failures("worker-1") == {"worker-1": 1}
    assert run.cluster()["spec"] == before, "the same address"

    ps = run.kill("ps-0")
    run.wait_running("ps-0", not_pid=ps, deadline=90)
    run.wait_running("chief-0", not_pid=chief, deadline=90)
    others = ("chief-0", "worker-0")
    assert run.failures(*others) == dict.fromkeys(others, 0), "the loss of a ps costs them no retry of theirs"
    run.wait("success", deadline=300)

    log = run.logs("chief-0")
    assert len(set(restored(log))) == 1, "resumed from its checkpoint"
    printed = log[: log.index("restored step")]
    assert restored(log)[0] >= max(steps(printed), default=0) - 100, "not lost beyond the last checkpoint"
    assert run.xcom("result")["metrics"]["accuracy"] > 0.9
    assert run.xcom("result")["generation"] == 2


def _wait_for_steps(run: RunUnderTest, least: int) -> None:
    wait_for(lambda: max(steps(run.logs("chief-0")), default=0) >= least, 120, "the first steps", every=1.0)


def test_local_comes_out_the_same(airflow: AirflowUnderTest) -> None:
    """One plan, one outcome: the job file through `tf-operator plan`, on Airflow, and with no Airflow at all."""
    name = airflow.copy_job("digits_ps.yaml", name="digits-both", schedule=None)
    file = f"configs/jobs/{name}.yaml"
    planned = json.loads(airflow.tf_operator("plan", file, "--param", "workers=3", "--json").stdout)
    run = airflow.trigger(name, workers=3)
    run.wait("success", deadline=240)
    local = airflow.tf_operator("local", file, "--param", "workers=3", timeout=240)
    assert local.returncode == 0, local.stderr[-2000:]

    lengths = {role: len(addresses) for role, addresses in planned["cluster"].items()}
    assert {role: len(addresses) for role, addresses in run.cluster()["spec"].items()} == lengths
    assert lengths == {"chief": 1, "worker": 3, "ps": 1}
    assert run.task("cluster").raw["pool_slots"] == planned["pool_slots"] == 3
    accuracy = [float(number) for number in re.findall(r'"?accuracy"?:? ?([0-9.]+)', local.stdout)]
    assert accuracy and accuracy[-1] > 0.9 and run.xcom("result")["metrics"]["accuracy"] > 0.9
