"""A real Docker engine for tests: own data root, socket and network namespace, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import docker

PROJECT = Path(__file__).parents[1]
CACHE = PROJECT / ".state" / "docker-base.tar"
SUITE = "bookworm"
IMAGE = "tf-operator-test:base"
"""Debian with Python, `python` included; built once, then kept in CACHE."""
_UNNEEDED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "var/log",
    "dev",
)


def wait_until(probe: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """The first true answer of `probe`; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(0.05)
    return answer


class DockerEngine:
    """One dockerd. It needs root, Debian's docker.io, debootstrap, iproute2 and util-linux.

    `gpus`: it takes device requests, as with NVIDIA's toolkit; what would bring the devices in does nothing.
    `arguments`: more for its command line.
    """

    def __init__(
        self,
        live_restore: bool = False,
        data_size: str | None = None,
        gpus: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        # Short, because the path of a socket may have 108 characters.
        self.root = Path(tempfile.mkdtemp(prefix="tfde-", dir="/tmp"))
        self.socket = self.root / "docker.sock"
        self.url = f"unix://{self.socket}"
        self.namespace = f"tfde{uuid.uuid4().hex[:8]}"
        self.live_restore, self.data_size, self.gpus = live_restore, data_size, gpus
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        self._api: docker.APIClient | None = None

    # -- life

    def __enter__(self) -> DockerEngine:
        for name in ("data", "exec"):
            (self.root / name).mkdir()
        (self.root / "daemon.json").write_text("{}")
        if self.gpus:
            hook = self.root / "bin" / "nvidia-container-runtime-hook"
            hook.parent.mkdir()
            hook.write_text("#!/bin/sh\nexec cat >/dev/null\n")
            hook.chmod(0o755)
        if self.data_size:
            run("mount", "-t", "tmpfs", "-o", f"size={self.data_size}", "tmpfs", str(self.root / "data"))
        run("ip", "netns", "add", self.namespace)
        run("ip", "-n", self.namespace, "link", "set", "lo", "up")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything in it, then the daemon, then what it left."""
        if self.process and self.process.poll() is not None:
            with contextlib.suppress(Exception):
                self.start()
        with contextlib.suppress(Exception):
            for container in self.api.containers(all=True, quiet=True):
                self.api.remove_container(container["Id"], force=True, v=True)
        for other in self._others:
            other.terminate()
            other.wait(20)
        if self.process and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        self._kill_rest()
        if self.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self._close()
        self._unmount()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)
        self._remove_cgroups()

    def start(self) -> None:
        """Start the daemon (again) and wait until it answers."""
        command = ["dockerd", "-H", self.url, "--data-root", f"{self.root}/data", "--exec-root", f"{self.root}/exec"]
        command += ["--pidfile", f"{self.root}/pid", "--config-file", f"{self.root}/daemon.json", "--bridge=none"]
        command += ["--cgroup-parent", f"/{self.root.name}", "--storage-driver", "overlay2"]
        command += [*(["--live-restore"] if self.live_restore else []), *self.arguments]
        with (self.root / "log").open("ab") as log:
            path = {"PATH": f"{self.root}/bin{os.pathsep}{os.environ['PATH']}"}
            self.process = self.inside(*command, stdout=log, stderr=log, env=os.environ | path)
        wait_until(self._answers, f"dockerd to answer, see {self.root}/log", 60)

    def _answers(self) -> bool:
        assert self.process and self.process.poll() is None, (self.root / "log").read_text()[-2000:]
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
            return bool(self.api.ping())
        except (OSError, docker.errors.DockerException):
            # A socket a killed daemon left, or one that is not served yet.
            self._close()
            return False

    def stop(self) -> None:
        """SIGTERM, as `systemctl stop` sends."""
        self.end(signal.SIGTERM)

    def end(self, number: int) -> None:
        """End the daemon by a signal; containers are the daemon's and the kernel's to care for."""
        assert self.process
        self.process.send_signal(number)
        self.process.wait(60)
        self._close()
        (self.root / "pid").unlink(missing_ok=True)
        # Its containerd dies with it. Where nothing reaps orphans it stays as a zombie, and is taken for a living one.
        (self.root / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def inside(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process in the engine's network namespace."""
        return subprocess.Popen(["nsenter", f"--net=/run/netns/{self.namespace}", *command], **options)

    def beside(self, *command: str) -> subprocess.Popen[bytes]:
        """The same, ended with the engine."""
        other = self.inside(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._others.append(other)
        return other

    def restart(self, number: int = signal.SIGTERM) -> None:
        """End the daemon by a signal and start it again."""
        self.end(number)
        self.start()

    # -- what tests ask it

    @property
    def api(self) -> docker.APIClient:
        """A client of the tests' own."""
        if self._api is None:
            self._api = docker.APIClient(base_url=self.url, version="auto", timeout=60)
        return self._api

    def _close(self) -> None:
        if self._api:
            self._api.close()
            self._api = None

    def with_base_image(self) -> DockerEngine:
        """Import the base image."""
        repository, tag = IMAGE.split(":")
        path = "ENV PATH=/usr/bin:/bin"
        self.api.import_image_from_file(str(base_image()), repository=repository, tag=tag, changes=[path])
        return self

    def containers(self) -> list[dict[str, Any]]:
        """All of them, ended ones too."""
        found: list[dict[str, Any]] = self.api.containers(all=True)
        return found

    def image(self, tag: str, *lines: str) -> str:
        """Build an image on the base image; `lines` are a Dockerfile's. Returns its name."""
        text = "\n".join((f"FROM {IMAGE}", *lines, ""))
        steps = self.api.build(fileobj=io.BytesIO(text.encode()), tag=tag, rm=True, decode=True, network_mode="none")
        done = list(steps)
        assert not any("error" in step for step in done), done[-1]
        return tag

    def networks(self) -> list[str]:
        """Names of all but the engine's own."""
        return [net["Name"] for net in self.api.networks() if net["Name"] not in ("none", "host", "bridge")]

    def left(self) -> list[str]:
        """Names of the containers and networks that are there."""
        return [*(one["Names"][0] for one in self.containers()), *self.networks()]

    # -- the end

    def _kill_rest(self) -> None:
        """Daemon, containerd and shims that are still there; all of them name the engine's folder."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.root).encode() in (path / "cmdline").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)

    def _unmount(self) -> None:
        for _ in range(20):
            mounts = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
            mine = [mount for mount in mounts if mount.startswith(f"{self.root}/")]
            if not mine:
                return
            for mount in reversed(mine):
                subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
            time.sleep(0.1)

    def _remove_cgroups(self) -> None:
        for top in Path("/sys/fs/cgroup").glob(f"**/{self.root.name}"):
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()


def base_image() -> Path:
    """A tar of a small Debian with Python, made once with debootstrap (minutes) and kept."""
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    # Two processes of tests may want it at the same time; the file's end lets go.
    with CACHE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not CACHE.exists():
            _make_base_image()
    return CACHE


def _make_base_image() -> None:
    with tempfile.TemporaryDirectory(prefix="tfbase-") as folder:
        root = Path(folder, "root")
        try:
            run("debootstrap", "--variant=minbase", "--include=python3", SUITE, str(root), timeout=900)
        finally:
            # Where it was broken off its mount stays, and the folder could not be removed.
            subprocess.run(["umount", str(root / "proc")], capture_output=True, check=False)
        (root / "usr/bin/python").symlink_to("python3")
        draft = CACHE.with_suffix(f".{os.getpid()}")
        with tarfile.open(draft, "w") as tar:
            tar.add(root, ".", filter=_needed)
        draft.replace(CACHE)


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.removeprefix("./").startswith(tuple(f"{name}/" for name in _UNNEEDED)) else member


def run(*command: str, timeout: float = 60) -> None:
    """Run to the end; its output is in the assertion where it fails."""
    done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr).decode()[-2000:]}"


@contextlib.contextmanager
def registry(engine: DockerEngine, port: int = 5000, login: tuple[str, str] | None = None) -> Iterator[str]:
    """Debian's docker-registry on the engine's loopback, which needs no TLS; gives its `host:port`.

    It keeps what it was given for as long as the engine lives. `login`: the user and password it asks for.
    """
    config = engine.root / "registry.yml"
    text = (
        "version: 0.1\nstorage:\n  filesystem:\n"
        f"    rootdirectory: {engine.root}/registry\nhttp:\n  addr: 127.0.0.1:{port}\n"
    )
    if login:
        (engine.root / "htpasswd").write_text(f"{login[0]}:{_bcrypt(login[1])}\n")
        text += f"auth:\n  htpasswd:\n    realm: tests\n    path: {engine.root}/htpasswd\n"
    config.write_text(text)
    server = engine.beside("docker-registry", "serve", str(config))
    probe = ["nsenter", f"--net=/run/netns/{engine.namespace}", "python3", "-c"]
    probe.append(f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)")
    try:
        wait_until(
            lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0, "docker-registry to answer"
        )
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def _bcrypt(password: str) -> str:
    """The only hash the registry reads; the system's C library makes it."""
    script = "import crypt, sys; print(crypt.crypt(sys.argv[1], crypt.mksalt(crypt.METHOD_BLOWFISH)))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, password], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class OtherMachine:
    """A machine on a cable to the engine's host, which is its router to everywhere, so to the containers too."""

    address = "10.213.7.2"
    _host = "10.213.7.1"

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._namespace = f"tfom{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> OtherMachine:
        name = self._namespace[4:]
        run("ip", "netns", "add", self._namespace)
        ours, theirs = ("ip", "-n", self._engine.namespace), ("ip", "-n", self._namespace)
        run(*ours, "link", "add", f"h{name}", "type", "veth", "peer", "name", f"o{name}", "netns", self._namespace)
        run(*ours, "addr", "add", f"{self._host}/24", "dev", f"h{name}")
        run(*ours, "link", "set", f"h{name}", "up")
        run(*theirs, "addr", "add", f"{self.address}/24", "dev", f"o{name}")
        run(*theirs, "link", "set", f"o{name}", "up")
        run(*theirs, "link", "set", "lo", "up")
        run(*theirs, "route", "add", "default", "via", self._host)
        return self

    def __exit__(self, *_: object) -> None:
        # The kernel takes a namespace apart later on, and its cable with it: the next one has the same addresses.
        cable = ["ip", "-n", self._engine.namespace, "link", "del", f"h{self._namespace[4:]}"]
        for command in (cable, ["ip", "netns", "del", self._namespace]):
            subprocess.run(command, check=False, capture_output=True)

    def runs(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process on it."""
        return subprocess.Popen(["nsenter", f"--net=/run/netns/{self._namespace}", *command])

    def reaches(self, address: str, port: int) -> bool:
        """Whether it gets a connection."""
        script = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
        command = ["nsenter", f"--net=/run/netns/{self._namespace}", sys.executable, "-I", "-S", "-c", script]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def forward_policy(engine: DockerEngine, policy: str) -> None:
    """DROP is what an engine sets that turned forwarding on itself; ACCEPT is left where it was on before."""
    run("nsenter", f"--net=/run/netns/{engine.namespace}", "iptables", "-w", "10", "-P", "FORWARD", policy)
