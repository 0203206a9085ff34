"""Replicas of a training program with no operator at all: TF_CONFIG by hand, on free ports of this machine."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet

EXAMPLES = Path(__file__).parents[2] / "examples"
LIBC = ctypes.CDLL(None)
STEP = re.compile(r"^\d+\.\d+ (?:epoch \S+ )?step (\d+) ", re.MULTILINE)


def free_port() -> int:
    """A port nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare(folder: Path) -> tuple[Path, str]:
    """Write the encrypted data set; its path and key."""
    data, key = folder / "digits.npz.enc", Fernet.generate_key().decode()
    command = [sys.executable, "-m", "digits.prepare", "--out", str(data)]
    env = {"PATH": os.defpath, "HOME": str(folder), "DIGITS_DATA_KEY": key}
    subprocess.run(command, cwd=EXAMPLES, env=env, check=True, timeout=60)
    return data, key


class Replicas:
    """The replicas of one program, by name (`worker-0`). A name keeps its address over restarts.

    `sizes`: replicas of each type. Each start has a log of its own: `log(name)` is the newest.
    """

    def __init__(self, folder: Path, program: str, sizes: Mapping[str, int], **env: str) -> None:
        self.folder, self.program, self.env = folder, program, env
        self.cluster = {kind: [f"127.0.0.1:{free_port()}" for _ in range(count)] for kind, count in sizes.items()}
        self.names = [f"{kind}-{index}" for kind, count in sizes.items() for index in range(count)]
        self.model_dir = folder / "model"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.starts: dict[str, int] = {}

    def start(self, *args: str, only: Iterable[str] | None = None, **env: str) -> None:
        """Start replicas, all of them by default."""
        for name in self.names if only is None else only:
            assert name not in self.running or self.running[name].poll() is not None, f"{name} is still running"
            self.starts[name] = self.starts.get(name, 0) + 1
            with self._log_file(name).open("wb") as out:
                self.running[name] = subprocess.Popen(
                    [sys.executable, "-m", self.program, *args],
                    cwd=EXAMPLES,
                    env=self._environment(name) | env,
                    stdout=out,
                    stderr=out,
                    # The kernel ends it with us, also where pytest is killed.
                    preexec_fn=lambda: LIBC.prctl(1, signal.SIGKILL, 0, 0, 0),
                )

    def _environment(self, name: str) -> dict[str, str]:
        kind, _, index = name.rpartition("-")
        return {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "TF_CONFIG": json.dumps({"cluster": self.cluster, "task": {"type": kind, "index": int(index)}}),
            "TF_OPERATOR_MODEL_DIR": str(self.model_dir),
            "TF_OPERATOR_RESULT": str(self.folder / "result.json"),
            **self.env,
        }

    def _log_file(self, name: str) -> Path:
        return self.folder / f"{name}.{self.starts[name]}.log"

    def log(self, name: str) -> str:
        """All that the newest start of `name` printed."""
        return self._log_file(name).read_text(errors="replace")

    def steps(self, name: str) -> list[int]:
        """The steps that the newest start of `name` reported."""
        return [int(step) for step in STEP.findall(self.log(name))]

    def await_step(self, name: str, least: int, seconds: float = 150) -> None:
        """Wait until `name` reports step `least` or a later one."""
        self._await(lambda: max(self.steps(name), default=-1) >= least, f"step {least} of {name}", name, seconds)

    def await_line(self, name: str, text: str, seconds: float = 150) -> None:
        """Wait until the newest start of `name` has printed `text`."""
        self._await(lambda: text in self.log(name), repr(text), name, seconds)

    def _await(self, found: Any, what: str, name: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not found():
            ended = self.running[name].poll()
            told = f"{what} did not come, exit code {ended}; the end of its log:\n{self.log(name)[-3000:]}"
            assert time.monotonic() < deadline, told
            assert ended is None or found(), told
            time.sleep(0.1)

    def kill(self, *names: str) -> None:
        """SIGKILL, all at once."""
        for name in names:
            self.running[name].kill()
        for name in names:
            self.running[name].wait(20)

    def await_exit(self, name: str, code: int = 0, seconds: float = 150) -> None:
        """Wait for the end of `name`, which must have this exit code."""
        got = self.running[name].wait(seconds)
        assert got == code, f"{name} ended with {got}:\n{self.log(name)[-3000:]}"

    def result(self) -> dict[str, Any]:
        """What the deciding replica wrote."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    def end(self) -> None:
        """Nothing is left running."""
        self.kill(*self.running)
