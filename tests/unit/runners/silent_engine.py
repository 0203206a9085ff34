"""What no engine does when asked to: a socket behind which one stalls, breaks off, or shows what it is asked."""

from __future__ import annotations

import json
import socketserver
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

PROGRESS = {"status": "Downloading"}


class SilentEngine:
    """Knows no image and no container. `pull`: what its answer to a pull is made of, see `_Handler._pull`."""

    def __init__(self, *pull: Any) -> None:
        self.pull, self.asked = pull, [""]
        self.networks: list[dict[str, Any]] = []
        self.over = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="tfse-", dir="/tmp")
        path = str(Path(self._folder.name) / "s")
        self.url = f"unix://{path}"
        self._server = type("Server", (socketserver.ThreadingMixIn, socketserver.UnixStreamServer), {})(path, _Handler)
        self._server.daemon_threads, self._server.engine = True, self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> SilentEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _serve(self) -> None:
        engine: SilentEngine = self.server.engine  # type: ignore[attr-defined]
        url = urlparse(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, query = "/" + unquote(url.path).partition("/v1.41/")[2], parse_qs(url.query)
        engine.asked.append(f"{self.command} {path}")
        if url.path == "/version":
            self._answer(200, {"ApiVersion": "1.41"})
        elif path == "/images/create":
            self._pull(engine)
        elif path == "/containers/json":
            self._answer(200, [])
        elif path == "/networks":
            wanted = json.loads(query["filters"][0])["label"]
            self._answer(200, [net for net in engine.networks if all(_has(net["Labels"], one) for one in wanted)])
        elif self.command == "DELETE":
            engine.networks = [net for net in engine.networks if net["Id"] != path.rpartition("/")[2]]
            self._answer(204, None)
        else:
            self._answer(404, {"message": "no such thing"})

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the library's names

    def _answer(self, code: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _pull(self, engine: SilentEngine) -> None:
        """Numbers are seconds to wait, dicts steps, `None` the end of the answer; else it stays without an end."""
        begun = False
        for step in engine.pull:
            if isinstance(step, float):
                time.sleep(step)
            elif step is None:
                self.wfile.write(b"0\r\n\r\n")
                return
            elif step == "break":
                self.close_connection = True
                return
            else:
                if not begun:
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                begun, data = True, json.dumps(step).encode() + b"\r\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        engine.over.wait(30)
        self.close_connection = True


def _has(labels: dict[str, str], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in labels and (not equals or labels[name] == value)
