"""The docker runner for the contract: an engine of the session's own, and what a test sees of a container."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker
from docker_engine import IMAGE, DockerEngine

from tf_operator.runners.base import Handle, Launch
from tf_operator.runners.docker import DockerRunner

from .process_kit import PROBE, ProcessKit

NOBODY = 1 << 22
"""No process has this number."""
CALLER = """
import pickle, sys
(make, arguments), launch = pickle.load(sys.stdin.buffer)
runner = make(*arguments)
runner.start(launch, runner.reserve(launch.identity, None))
"""


class DockerKit(ProcessKit):
    """The docker runner on an empty host of its own."""

    kind = "docker"
    python = "/usr/bin/python3"
    own = ("HOSTNAME", "HOME", "NVIDIA_VISIBLE_DEVICES")
    odd_env = "_umlaut"

    def __init__(self, tmp_path: Path, engine: DockerEngine) -> None:
        self.engine, self.shared = engine, tmp_path
        tmp_path.chmod(0o777)
        super().__init__(tmp_path)
        self.work.chmod(0o777)

    @property
    def recipe(self) -> tuple[Any, tuple[Any, ...]]:
        """What makes such a runner in another process."""
        return DockerRunner, (self.state_dir, self.engine.url)

    def launch(self, *argv: str, **more: Any) -> Launch:
        """The probe and the test's folder are mounted where they are on the host."""
        mounts = [{"source": str(self.shared), "target": str(self.shared)}]
        mounts.append({"source": str(PROBE), "target": str(PROBE), "read_only": True})
        options = {"image": IMAGE, "options": {"mounts": mounts, "pull_policy": "never"}}
        return super().launch(*argv, **(more | {"runtime": options | more.get("runtime", {})}))

    def record(self, out: Path, name: str = "none-0-1") -> dict[str, Any]:
        """With the pids as the host has them."""
        content = super().record(out, name)
        return content | {key: self._host_pid(content[key]) for key in ("pid", "child") if key in content}

    def _host_pid(self, pid: int) -> int:
        spaces = {self._space(one["Id"]) for one in self.engine.api.containers()}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                numbers = (path / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
                if numbers[-1] == str(pid) and (path / "ns/pid").readlink() in spaces:
                    return int(path.name)
        return NOBODY

    def _space(self, container: str) -> Path | None:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.engine.api.inspect_container(container)['State']['Pid']}/ns/pid").readlink()
        return None

    def inside(self, handle: Handle, path: str) -> Path:
        """A path of the container, seen from the host."""
        return Path(f"/proc/{handle.data['pid']}/root{path}")

    def close(self) -> None:
        """End whatever a test left."""
        self.runner.close()
        # What ends by itself may go, or be in the middle of it, between the look and the act.
        for one in self.engine.containers():
            with contextlib.suppress(docker.errors.APIError):
                self.engine.api.remove_container(one["Id"], force=True, v=True)
        for name in self.engine.networks():
            with contextlib.suppress(docker.errors.APIError):
                self.engine.api.remove_network(name)
        for path in self.shared.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                os.chown(path, 0, 0, follow_symlinks=False)


def start_and_die(kit: DockerKit, *argv: str, **more: Any) -> Handle:
    """Started by a process that is gone now."""
    launch = kit.launch(*argv, **more)
    subprocess.run([sys.executable, "-c", CALLER], input=pickle.dumps((kit.recipe, launch)), check=True, timeout=60)
    handle = kit.runner.find(launch.identity)
    assert handle
    return handle


def inspect(kit: DockerKit, handle: Handle) -> dict[str, Any]:
    """What the engine tells of a program's container."""
    found: dict[str, Any] = kit.engine.api.inspect_container(handle.data["container"])
    return found
