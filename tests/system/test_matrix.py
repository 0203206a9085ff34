"""Every strategy's real program × every loss that exists there, on a real Airflow: what docs/recovery.md says.

Two rows run at once: most of a row is waiting. `-m "long or not long" -k "test_the_matrix and in_graph"` for a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow_under_test import ROOT, AirflowUnderTest
from matrix import PART, ROWS, Row, check, write_jobs

AT_ONCE = 2
Driven = Callable[[Row], str]
pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def driven(request: pytest.FixtureRequest, session_airflow: AirflowUnderTest) -> Iterator[Driven]:
    """Runs the chosen rows ahead of their tests, AT_ONCE at a time; calling it waits for one row's end."""
    session_airflow.revive()
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    rows = [item.callspec.params["row"] for item in items if "driven" in item.fixturenames]
    write_jobs(session_airflow, {row.form for row in rows})
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="row")
    futures = {row: pool.submit(check, session_airflow, row) for row in dict.fromkeys(rows)}
    try:
        yield lambda row: futures[row].result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        session_airflow.settle()
        pool.shutdown()


@pytest.mark.parametrize("row", [row for row in ROWS if str(row) in PART], ids=str)
def test_a_part_of_the_matrix(driven: Driven, row: Row) -> None:
    print(driven(row))


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_matrix(driven: Driven, row: Row) -> None:
    print(driven(row))


def test_the_table_says_of_every_row_what_its_test_holds() -> None:
    """No Airflow: docs/recovery.md and the rows are one."""
    cells = [
        line.split("|") for line in (ROOT / "docs" / "recovery.md").read_text().splitlines() if line.count("|") == 5
    ]
    told = {cell[1].strip(" `"): cell[3].strip() for cell in cells}
    rows = {str(row): str(row.again) for row in ROWS}
    assert {name: told.get(name) for name in rows} == rows
    assert set(PART) < set(rows)
