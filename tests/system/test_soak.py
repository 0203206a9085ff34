"""A soak of random faults on a real Airflow: every run green, no program twice, nothing left.

SOAK_SEED chooses another list of faults; SOAK_REPORT a file for the figures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from airflow_under_test import AirflowUnderTest
from soak import Report, Soak
from soak_plan import COMPONENTS, KINDS, make_plans

pytestmark = pytest.mark.airflow

SEED = 32


def soak(airflow: AirflowUnderTest, folder: Path, runs: int, faults: int) -> Report:
    """Run it, print its line, write its figures."""
    report = Soak(airflow, folder, int(os.environ.get("SOAK_SEED", SEED)), runs, faults).run()
    report.write(Path(os.environ.get("SOAK_REPORT", folder / "soak.json")))
    print(report.summary())
    return report


def assert_clean(report: Report, faults: int) -> None:
    assert report.troubles == []
    assert report.green == report.runs and report.done == faults
    assert report.samples and report.doubles == [] and report.leftovers == [] and report.slots_held == 0


@pytest.mark.timeout(900)
def test_a_short_soak(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    assert_clean(soak(airflow, tmp_path, runs=3, faults=8), 8)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_long_soak(airflow: AirflowUnderTest, tmp_path: Path) -> None:
    assert_clean(soak(airflow, tmp_path, runs=12, faults=60), 60)


def test_a_seed_makes_one_list_of_faults() -> None:
    plans = make_plans(1, runs=12, faults=60)
    assert plans == make_plans(1, runs=12, faults=60) != make_plans(2, runs=12, faults=60)
    faults = [fault for plan in plans for fault in plan.faults]
    assert len(plans) == 12 and len(faults) == 60
    assert {fault.kind for fault in faults} == set(KINDS) == {f.kind for p in make_plans(3, 3, 8) for f in p.faults}
    assert all((fault.replica is None) == (fault.kind in COMPONENTS) for fault in faults)
