"""The guard with plain services in place of Airflow's components."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tf_operator.errors import ServiceError
from tf_operator.services.airflow import Airflow
from tf_operator.services.airflow_settings import Setup

PYTHON = sys.executable
# A service that starts a program in a session of its own, and does not care for TERM.
STUBBORN = (
    "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "p = subprocess.Popen(['sleep', '9876'], start_new_session=True); print(p.pid, flush=True); time.sleep(9876)"
)
PLAIN = "import signal, time; print(repr(signal.getsignal(signal.SIGTERM)), flush=True); time.sleep(9876)"


def until(found: Callable[[], Any], deadline: float = 10.0) -> Any:
    end = time.monotonic() + deadline
    while not (value := found()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


class Guarded:
    def __init__(self, folder: Path, cleanup: list[str] | None = None) -> None:
        self.folder = folder
        services = [
            {"name": name, "argv": [PYTHON, "-c", code], "log": str(folder / f"{name}.log"), "patience": 0.5}
            for name, code in (("stubborn", STUBBORN), ("plain", PLAIN))
        ]
        self.process = subprocess.Popen(
            [PYTHON, "-m", "tf_operator.services.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # As most people have it: with it, Python would keep nothing back.
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
        self.tell(json.dumps({"services": services, "order": [["stubborn"], ["plain"]], "cleanup": cleanup}))

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def event(self) -> dict[str, Any]:
        assert self.process.stdout
        event: dict[str, Any] = json.loads(self.process.stdout.readline())
        return event

    def start_both(self) -> dict[str, int]:
        """Names → pids, `program` among them."""
        pids = {}
        for name in ("stubborn", "plain"):
            self.tell(f"start {name}")
            pids[name] = self.event()["pid"]
        program = until(lambda: (self.folder / "stubborn.log").read_text().strip())
        until(lambda: (self.folder / "plain.log").read_text())
        return pids | {"program": int(program)}

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guard = Guarded(tmp_path, [PYTHON, "-c", f"open({str(tmp_path / 'cleaned')!r}, 'w').close()"])
    yield guard
    guard.close()
    guard.process.wait(10)


def living(pids: dict[str, int]) -> list[str]:
    return [name for name, pid in pids.items() if lives(pid)]


def lives(pid: int) -> bool:
    """It may end between two looks."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_everything_ends_when_the_input_closes(guarded: Guarded, tmp_path: Path) -> None:
    pids = guarded.start_both()
    guarded.close()
    assert guarded.process.wait(10) == 0
    assert living(pids) == []
    assert (tmp_path / "cleaned").exists()


def test_a_signal_to_the_guard_does_not_cut_the_end_short(guarded: Guarded) -> None:
    pids = guarded.start_both()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        guarded.process.send_signal(number)
    guarded.tell("stop plain")
    assert guarded.event() == {"event": "exited", "name": "plain", "code": -signal.SIGTERM}
    assert living(pids) == ["stubborn", "program"]
    guarded.close()
    assert guarded.process.wait(10) == 0
    assert living(pids) == []


def test_services_do_not_inherit_ignored_signals(guarded: Guarded, tmp_path: Path) -> None:
    guarded.start_both()
    assert "SIG_DFL" in (tmp_path / "plain.log").read_text()


def test_what_a_killed_service_leaves_ends_with_it(guarded: Guarded) -> None:
    pids = guarded.start_both()
    os.kill(pids["stubborn"], signal.SIGKILL)
    assert guarded.event() == {"event": "exited", "name": "stubborn", "code": -signal.SIGKILL}
    # It may be a program that outlives its watcher on purpose: only the end of all ends it.
    assert living(pids) == ["plain", "program"]
    guarded.close()
    assert guarded.process.wait(10) == 0
    assert living(pids) == []


def test_services_die_with_a_killed_guard(guarded: Guarded) -> None:
    pids = guarded.start_both()
    guarded.process.kill()
    until(lambda: not set(living(pids)) & {"stubborn", "plain"})
    os.kill(pids["program"], signal.SIGKILL)


def test_a_service_can_be_started_again(guarded: Guarded) -> None:
    first = guarded.start_both()["plain"]
    guarded.tell("stop plain")
    assert guarded.event()["event"] == "exited"
    guarded.tell("start plain")
    assert guarded.event()["pid"] != first


def test_who_waits_for_services_whose_guard_was_killed_is_told(tmp_path: Path) -> None:
    """Their ends are reported by nobody then."""
    airflow = Airflow(Setup(home=tmp_path, project=Path(__file__).parents[3]))
    airflow.log_dir.mkdir(parents=True)
    airflow._take_home()
    airflow._start_guard()
    assert airflow._guard
    try:
        airflow._begun["scheduler"] = datetime.now(UTC)
        airflow._pids["scheduler"] = airflow._guard.pid
        airflow._guard.kill()
        for wait in (airflow.wait_for_end, airflow.wait_healthy, lambda: airflow.run_once("pools")):
            with pytest.raises(ServiceError, match="the guard ended, and with it every process of Airflow"):
                wait()
        with pytest.raises(ServiceError, match="the guard ended"):
            airflow.start_component("scheduler")
    finally:
        airflow.stop()
