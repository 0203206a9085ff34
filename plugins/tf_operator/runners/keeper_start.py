"""Start a keeper from any process, and have it outlive that process."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tf_operator
from tf_operator.errors import LaunchError, VisibleDevicesError
from tf_operator.runners import visible
from tf_operator.runners.base import Launch
from tf_operator.runners.run_folder import RunFolder

ANSWER_WAIT = visible.COUNT_WAIT + 30.0
"""Seconds for the keeper's first line, CUDA's count included; a few hundredths are normal, a machine that swaps takes
longer."""
_BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tf_operator.runners.keeper import main; main()"
_PACKAGE_ROOT = str(Path(tf_operator.__file__).parent.parent)


def make_orders(launch: Launch, start: int, record: dict[str, Any], keeper_fd: int, fds: list[int]) -> dict[str, Any]:
    """Everything the keeper is told, secrets included: for a pipe, never for a file or an argument."""
    argv = list(launch.argv)
    python = launch.runtime.get("python")
    if python and argv[0] == "python":
        argv[0] = str(python)
    secrets = launch.secrets
    files = [(file.name, base64.b64encode(file.content).decode(), file.mode) for file in secrets.files]
    return {
        "start": start,
        "record": record,
        "argv": argv,
        "working_dir": launch.working_dir,
        "env": {**launch.env, **secrets.env},
        "secret_files": files,
        "mask": list(secrets.mask),
        "memory": launch.memory,
        "grace": launch.termination_grace,
        "orphan_timeout": launch.orphan_timeout,
        "keeper_fd": keeper_fd,
        "fds": fds,
        "devices": list(launch.devices),
    }


def start_keeper(folder: RunFolder, orders: dict[str, Any], identity: object) -> None:
    """Return when the program runs, or has ended already. Raises LaunchError if the keeper cannot do its work."""
    with folder.keeper_log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE_ROOT, str(folder.state_dir), folder.key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={},
            start_new_session=True,
            pass_fds=(orders["keeper_fd"], *orders["fds"]),
        )
    # `with` waits for the process it started, which ends as soon as the keeper has forked off.
    with process:
        answer = _answer(process, json.dumps(orders).encode())
    if answer.startswith("never "):
        raise VisibleDevicesError(f"{identity}: {answer.removeprefix('never ')}")
    if answer != "ok":
        what = answer.removeprefix("error ") or f"no answer from its keeper, see {folder.keeper_log}"
        raise LaunchError(f"{identity}: the program could not be started: {what}")


def _answer(process: subprocess.Popen[bytes], orders: bytes) -> str:
    """The keeper's first line; empty where none comes in time: then nothing of it goes on."""
    assert process.stdin and process.stdout
    deadline, left, data = time.monotonic() + ANSWER_WAIT, memoryview(orders), b""
    to, source = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(to, False)
    with contextlib.suppress(BrokenPipeError), process.stdin:
        while left and _ready(to, select.POLLOUT, deadline):
            left = left[os.write(to, left) :]
    while b"\n" not in data and _ready(source, select.POLLIN, deadline):
        chunk = os.read(source, 4096)
        if not chunk:
            break
        data += chunk
    if b"\n" not in data:
        # What the process forked off is in its group, whose number is a stranger's once the process is waited for.
        os.killpg(process.pid, signal.SIGKILL)
    return data.decode(errors="replace").strip()


def _ready(descriptor: int, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
