"""A real PostgreSQL of a test's own: on a free loopback port, in a folder of its own, gone with whoever started it."""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

START_TIMEOUT = 30.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def binaries() -> Path:
    """Where Debian's newest PostgreSQL has its programs; FileNotFoundError where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise FileNotFoundError("no /usr/lib/postgresql/*/bin/initdb: install the Debian package postgresql")
    return found[-1].parent


class PostgresServer:
    """The super user is `postgres` with `password`, the database `postgres`. Ended with the thread that started it."""

    def __init__(self) -> None:
        self.password = secrets.token_hex(12)
        self.port = 0
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        # The server refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None

    def __enter__(self) -> PostgresServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Make the folder, start the server in it and wait until it answers."""
        self._folder = Path(tempfile.mkdtemp(prefix="tf_operator_postgres_"))
        password = self._folder / "password"
        password.write_text(self.password)
        if self._user:
            who = pwd.getpwnam(self._user)
            for path in (self._folder, password):
                os.chown(path, who.pw_uid, who.pw_gid)
        data = str(self._folder / "data")
        options = ["--username=postgres", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync", "--locale=C"]
        self._run(["initdb", "-D", data, *options])
        password.unlink()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = {"unix_socket_directories": "", "fsync": "off", "shared_buffers": "16MB", "max_connections": "50"}
        options = [f"--{name}={value}" for name, value in settings.items()]
        log = (self._folder / "postgres.log").open("wb")
        with log:
            self._process = subprocess.Popen(
                [binaries() / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={"PATH": os.defpath},
                user=self._user,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "postgres.log").read_text()
            assert time.monotonic() < deadline, f"PostgreSQL did not answer within {START_TIMEOUT:.0f} s"
            time.sleep(0.05)

    def stop(self) -> None:
        """End it at once and remove its folder. It may have ended already."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)  # its fast shutdown: clients are cut off
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        if self._folder.name:
            shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, query: str, user: str = "postgres", password: str | None = None) -> list[str]:
        """The lines psql prints for `query`; CalledProcessError with psql's words where it is refused."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", user, "-d", "postgres"]
        ran = subprocess.run(
            [binaries() / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", *address, "-c", query],
            env={"PATH": os.defpath, "PGPASSWORD": self.password if password is None else password},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if ran.returncode:
            raise subprocess.CalledProcessError(ran.returncode, "psql", ran.stdout, ran.stderr)
        return ran.stdout.splitlines()

    def users(self) -> list[str]:
        """Who may log in, without the super user: what a database engine has made and not yet dropped."""
        return self.ask("SELECT rolname FROM pg_roles WHERE rolcanlogin AND NOT rolsuper ORDER BY 1")

    def _answers(self) -> bool:
        try:
            return self.ask("SELECT 1") == ["1"]
        except subprocess.CalledProcessError:
            return False

    def _run(self, command: list[str]) -> None:
        name, *arguments = command
        subprocess.run(
            [binaries() / name, *arguments],
            env={"PATH": os.defpath},
            cwd=self._folder,
            user=self._user,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=True,
        )


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
