"""A small process that owns a set of services, and ends them all whatever happens to whoever asked for them.

It reads commands from its standard input (`start NAME`, `stop NAME`), reports one JSON object per line on its standard
output, and ends everything when the input closes: at a request, at a crash and at a `kill -9` of the launcher alike.
It is a subreaper, so what a killed service leaves behind falls to it and is ended too. It imports no Airflow.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from tf_operator.runners.kernel import become_subreaper, die_with_parent

TICK = 0.1


@dataclass(frozen=True)
class Service:
    """One service. `patience` is how many seconds it has between TERM and KILL."""

    name: str
    argv: list[str]
    log: str
    patience: float = 10.0
    children_first: bool = False
    """TERM its children before itself: an Airflow scheduler waits for its running tasks for ever otherwise."""


class Guard:
    """Starts, reaps and ends services. `report` gets every event."""

    def __init__(self, services: Iterable[Service], report: Callable[[dict[str, Any]], None]) -> None:
        self._services = {service.name: service for service in services}
        self._report = report
        self._pids: dict[str, int] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        become_subreaper()

    def start(self, name: str) -> None:
        """Start the service unless it runs."""
        if name in self._pids:
            return
        service = self._services[name]
        with open(service.log, "ab") as log:  # noqa: PTH123 - one descriptor for the child
            process = subprocess.Popen(
                service.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._started.append(process)
        self._pids[name] = process.pid
        self._report({"event": "started", "name": name, "pid": process.pid})

    def reap(self) -> None:
        """Collect every child that ended, the orphans that fell to us included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name, known in list(self._pids.items()):
                if known == pid:
                    del self._pids[name]
                    self._report({"event": "exited", "name": name, "code": os.waitstatus_to_exitcode(status)})

    def stop(self, names: Iterable[str]) -> None:
        """TERM the services, wait, KILL them; what they started goes with them. Services run down side by side."""
        running = [self._services[name] for name in names if name in self._pids]
        family: list[psutil.Process] = []
        for service in running:
            main = psutil.Process(self._pids[service.name])
            family += [main, *_descendants(main)]
            if service.children_first:
                # Only the nearest: a LocalExecutor worker passes it on to its task and reports the task's end.
                _signal(_children(main), signal.SIGTERM)
            _signal([main], signal.SIGTERM)
        patience = max((service.patience for service in running), default=0.0)
        self._wait(lambda: not any(service.name in self._pids for service in running), patience)
        _signal(family, signal.SIGKILL)
        self._wait(lambda: not any(process.is_running() for process in family), 5.0)

    def stop_all(self, order: list[list[str]], cleanup: list[str] | None) -> None:
        """End the services group by group, run `cleanup`, and kill whatever is still below us."""
        for names in order:
            began = time.monotonic()
            self.stop(names)
            print(f"{names}: ended in {time.monotonic() - began:.1f} s", file=sys.stderr)  # noqa: T201 - our own log
        if cleanup:
            self._run(cleanup, deadline=20.0)
        for _ in range(5):
            left = _descendants(psutil.Process())
            if not left:
                break
            self._report({"event": "left", "pids": [process.pid for process in left]})
            _signal(left, signal.SIGKILL)
            self._wait(lambda left=left: not any(process.is_running() for process in left), 2.0)  # type: ignore[misc]
        self._report({"event": "ended"})

    def _run(self, argv: list[str], deadline: float) -> None:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)
        self._started.append(process)
        self._wait(lambda: not psutil.pid_exists(process.pid), deadline)

    def _wait(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.reap()
        while not done() and time.monotonic() < deadline:
            time.sleep(TICK / 2)
            self.reap()


def _die_with_parent() -> None:
    die_with_parent(signal.SIGKILL)


def _children(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
    try:
        return process.children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    return _children(process, recursive=True)


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _say(event: dict[str, Any]) -> None:
    # The launcher may be dead: its services still have to be ended. Past `sys.stdout`, whose buffer would keep what
    # nobody reads and turn it into exit code 120 at the very end.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _commands(guard: Guard) -> None:
    """Carry out commands until the input closes."""
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], TICK)
        guard.reap()
        if not ready:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            verb, _, name = line.decode().partition(" ")
            if verb == "start":
                guard.start(name)
            elif verb == "stop":
                guard.stop([name])


def main() -> None:
    """Read the plan (one JSON line: services, order, cleanup), then commands."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the launcher's end ends us: a signal meant for all would cut the ordered stop short. A handler and not
        # SIG_IGN, which the services would inherit.
        signal.signal(number, lambda *_: None)
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    plan = json.loads(line)
    guard = Guard([Service(**service) for service in plan["services"]], _say)
    try:
        _commands(guard)
    finally:
        guard.stop_all(plan["order"], plan.get("cleanup"))


if __name__ == "__main__":
    main()
