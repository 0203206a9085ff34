"""The client of Airflow's API against a server that answers what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from tf_operator.errors import ApiError
from tf_operator.services.api import AirflowApi

BUSY = (500, {"detail": {"reason": "Database error", "statement": "hidden", "message": "Serious error"}})
BROKEN = (500, {"detail": "no luck"})
FINE = (200, {"is_paused": False})
THERE = (409, {"detail": {"reason": "Unique constraint violation"}})


class Server(ThreadingHTTPServer):
    answers: list[tuple[int, dict[str, Any]]]
    asked: list[str]
    bodies: list[bytes]


class _Handler(BaseHTTPRequestHandler):
    def do_PATCH(self) -> None:
        assert isinstance(self.server, Server)
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.asked.append(self.path)
        code, content = self.server.answers.pop(0)
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH  # noqa: N815 - the base class asks for these names

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), _Handler) as made:
        made.answers, made.asked, made.bodies = [], [], []
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_write_that_a_busy_database_refused_is_tried_again(server: Server) -> None:
    server.answers += [BUSY, BUSY, FINE]
    AirflowApi(f"http://127.0.0.1:{server.server_port}").unpause("mine")
    assert server.asked == ["/api/v2/dags/mine"] * 3


def test_any_other_fault_is_told_at_once(server: Server) -> None:
    server.answers += [BROKEN, FINE]
    with pytest.raises(ApiError, match="PATCH /api/v2/dags/mine: .*no luck"):
        AirflowApi(f"http://127.0.0.1:{server.server_port}").unpause("mine")
    assert len(server.asked) == 1


def test_a_trigger_that_was_made_although_it_was_refused_makes_no_second_run(server: Server) -> None:
    server.answers += [BUSY, THERE, (200, {"dag_id": "mine", "dag_run_id": "its-name", "state": "queued"})]
    run = AirflowApi(f"http://127.0.0.1:{server.server_port}").trigger("mine")
    name = {json.loads(body)["dag_run_id"] for body in server.bodies[:2]}.pop()
    assert server.bodies[0] == server.bodies[1] and name.startswith("manual__")
    assert unquote(server.asked[2]) == f"/api/v2/dags/mine/dagRuns/{name}"
    assert run.run_id == "its-name"


def test_a_name_of_ones_own_that_is_taken_is_an_error(server: Server) -> None:
    server.answers += [THERE]
    with pytest.raises(ApiError, match="Unique constraint"):
        AirflowApi(f"http://127.0.0.1:{server.server_port}").trigger("mine", run_id="chosen")
