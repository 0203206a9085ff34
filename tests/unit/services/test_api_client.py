"""The client of Airflow's API against a server that answers what it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from api_server import Server, serving

from tf_operator.errors import ApiError
from tf_operator.services.api import AirflowApi

BUSY = (500, {"detail": {"reason": "Database error", "statement": "hidden", "message": "Serious error"}})
BROKEN = (500, {"detail": "no luck"})
FINE = (200, {"is_paused": False})
THERE = (409, {"detail": {"reason": "Unique constraint violation"}})


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def test_a_write_that_a_busy_database_refused_is_tried_again(server: Server) -> None:
    server.answers += [BUSY, BUSY, FINE]
    AirflowApi(server.url).unpause("mine")
    assert server.asked == ["/api/v2/dags/mine"] * 3


def test_any_other_fault_is_told_at_once(server: Server) -> None:
    server.answers += [BROKEN, FINE]
    with pytest.raises(ApiError, match="PATCH /api/v2/dags/mine: .*no luck"):
        AirflowApi(server.url).unpause("mine")
    assert len(server.asked) == 1


def test_a_trigger_that_was_made_although_it_was_refused_makes_no_second_run(server: Server) -> None:
    server.answers += [BUSY, THERE, (200, {"dag_id": "mine", "dag_run_id": "its-name", "state": "queued"})]
    run = AirflowApi(server.url).trigger("mine")
    name = {json.loads(body)["dag_run_id"] for body in server.bodies[:2]}.pop()
    assert server.bodies[0] == server.bodies[1] and name.startswith("manual__")
    assert unquote(server.asked[2]) == f"/api/v2/dags/mine/dagRuns/{name}"
    assert run.run_id == "its-name"


def test_a_name_of_ones_own_that_is_taken_is_an_error(server: Server) -> None:
    server.answers += [THERE]
    with pytest.raises(ApiError, match="Unique constraint"):
        AirflowApi(server.url).trigger("mine", run_id="chosen")


def test_a_login_that_ended_is_made_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "PASSWORD"):
        monkeypatch.setenv(f"TF_OPERATOR_API_{name}", "me")
    ended = (401, {"detail": "Signature has expired"})
    for number in (1, 2):
        server.answers += [ended, (200, {"access_token": f"t{number}"}), FINE]
    api = AirflowApi(server.url)
    api.unpause("mine")
    api.unpause("mine")
    server.answers += [ended, (200, {"access_token": "t3"}), ended]
    with pytest.raises(ApiError, match="Signature has expired"):
        api.unpause("mine")
    assert server.asked.count("/auth/token") == 3


@pytest.mark.parametrize("page", [b"<html>log in</html>", b"[]"])
def test_a_login_page_of_somebody_else_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, page: bytes
) -> None:
    for name in ("USER", "PASSWORD"):
        monkeypatch.setenv(f"TF_OPERATOR_API_{name}", "me")
    server.answers += [(401, {"detail": "log in"}), (200, page)]
    with pytest.raises(ApiError, match="its answer is not JSON|log in"):
        AirflowApi(server.url).unpause("mine")


def test_a_token_that_was_given_is_not_replaced(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_OPERATOR_API_USER", "me")
    server.answers += [(401, {"detail": "no"})]
    with pytest.raises(ApiError, match="no"):
        AirflowApi(server.url, token="mine").unpause("mine")
    assert len(server.asked) == 1


RUN = {"dag_id": "mine", "state": "running"}
POOL = {
    "slots": 1,
    "running_slots": 0,
    "queued_slots": 0,
    "deferred_slots": 0,
    "open_slots": 1,
    "include_deferred": True,
}


def entries(common: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [common | {name: f"{number:03}"} for number in range(230)]


def test_lists_are_complete_though_airflow_gives_pages(server: Server) -> None:
    api = AirflowApi(server.url)
    server.lists = {
        "pools": ("pools", entries(POOL, "name")),
        "dags": ("dags", entries({}, "dag_id")),
        "dags/~/dagRuns": ("dag_runs", entries(RUN, "dag_run_id")),
        "importErrors": ("import_errors", entries({"stack_trace": "t"}, "filename")),
    }
    assert len(api.pools()) == len(api.dags()) == len(api.runs()) == len(api.import_errors()) == 230
    assert len(server.asked) == 4 * 3


def test_a_list_that_grew_shorter_meanwhile_ends(server: Server) -> None:
    server.answers += [
        (200, {"pools": [POOL | {"name": "a"}], "total_entries": 2}),
        (200, {"pools": [], "total_entries": 2}),
    ]
    assert list(AirflowApi(server.url).pools()) == ["a"]
