"""The client of Airflow's API against a server that answers what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tf_operator.errors import ApiError
from tf_operator.services.api import AirflowApi

BUSY = (500, {"detail": {"reason": "Database error", "statement": "hidden", "message": "Serious error"}})
BROKEN = (500, {"detail": "no luck"})
FINE = (200, {"is_paused": False})


class Server(ThreadingHTTPServer):
    answers: list[tuple[int, dict[str, Any]]]
    asked: list[str]


class _Handler(BaseHTTPRequestHandler):
    def do_PATCH(self) -> None:
        assert isinstance(self.server, Server)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        code, content = self.server.answers.pop(0)
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), _Handler) as made:
        made.answers, made.asked = [], []
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
