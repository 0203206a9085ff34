"""A server in the place of Airflow's API: it answers what it is told to, and its lists page by page as Airflow does."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MAXIMUM_PAGE_LIMIT = 100


class Server(ThreadingHTTPServer):
    """`answers` (JSON, or bytes as they are) are given one after another, but where the path is one of `lists`: path →
    key and entries."""

    answers: list[tuple[int, dict[str, Any] | bytes]]
    lists: dict[str, tuple[str, list[dict[str, Any]]]]
    asked: list[str]
    bodies: list[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str) -> tuple[int, dict[str, Any] | bytes]:
        address = urlsplit(path)
        if (name := address.path.removeprefix("/api/v2/")) not in self.lists:
            return self.answers.pop(0)
        key, entries = self.lists[name]
        query = parse_qs(address.query)
        limit, offset = int(query.get("limit", ["50"])[0]), int(query.get("offset", ["0"])[0])
        page = entries[offset : offset + min(limit, MAXIMUM_PAGE_LIMIT)]
        return 200, {key: page, "total_entries": len(entries)}


class _Handler(BaseHTTPRequestHandler):
    def do_PATCH(self) -> None:
        assert isinstance(self.server, Server)
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.asked.append(self.path)
        code, content = self.server.answer(self.path)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH  # noqa: N815 - the base class asks for these names

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server that has been told nothing yet."""
    with Server(("127.0.0.1", 0), _Handler) as made:
        made.answers, made.lists, made.asked, made.bodies = [], {}, [], []
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()
