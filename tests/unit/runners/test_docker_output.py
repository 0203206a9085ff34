"""A container's log on its way to a file: a full disk is told, whatever is lost by it (C-38)."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest

from tf_operator.runners.docker_output import Follower, Spool

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: the test mounts a small disk of its own")

MOMENT = b"2026-01-02T03:04:05.000000006Z "
LINES = [b"before\n", *(b"%d" % number * 1000 + b"\n" for number in range(1000)), b"mark fault no such command\n"]


class Engine(BaseHTTPRequestHandler):
    """The two answers of an engine that an ended container's log takes, with the real client at the other end."""

    def do_GET(self) -> None:  # noqa: N802
        self.send_response(200)
        self.end_headers()
        if self.path.partition("?")[0].endswith("/json"):
            self.wfile.write(b'{"State": {"Running": false}}')
            return
        for line in LINES:
            self.wfile.write(struct.pack(">B3xI", 1, len(MOMENT) + len(line)) + MOMENT + line)

    def log_message(self, *_: Any) -> None:
        """Not into the test's output."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_c38_a_full_disk_is_told_with_its_place_and_the_entrys_word_is_not_lost(url: str, disk: Path) -> None:
    spool = Spool(disk / "output.1.log")

    def follower() -> Follower:
        return Follower(spool, "c1", lambda: docker.APIClient(base_url=url, version="1.43"), "mark", [])

    first = follower()
    first.finish(patience=2.5)
    assert not first.done
    assert first.trouble == f"output incomplete: no space left on device: {disk}/output.1.log"
    assert first.told == ["fault no such command"]
    assert spool.read(0, 7) == b"before\n", "what there was room for is there"
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    second = follower()
    second.finish(patience=2.5)
    assert (second.done, second.trouble, second.told) == (True, None, ["fault no such command"])
    assert spool.path.read_bytes() == b"".join(LINES[:-1])
