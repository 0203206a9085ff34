"""The keeper: a small detached process that owns one program and outlives whoever asked for it.

    python -I -S -c <bootstrap> <package root> <state_dir> <identity key>      orders (JSON) on standard input

It answers with one line on standard output once the program runs (or why it cannot), and from then on speaks through
the run folder only. It never imports Airflow or pydantic, so that it starts fast and stays small.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tf_operator.runners import kernel, process_tree, renewal, result_file, secret_files, visible
from tf_operator.runners.output_log import OutputLog
from tf_operator.runners.program_process import ExecError, Program
from tf_operator.runners.run_folder import RunFolder

TICK = 1.0
"""Seconds between looks at memory, watchers and stop requests; signals and output are noticed at once."""
KILL_WAIT = 10.0
"""Seconds to wait for killed processes to go, before the end is recorded without them."""
CHUNK = 1 << 16


class Keeper:
    """One program, from its start to the record of its end."""

    def __init__(self, orders: dict[str, Any], folder: RunFolder) -> None:
        self._orders, self._folder = orders, folder
        self._start: int = orders["start"]
        self._secrets = secret_files.secrets_dir(folder.state_dir, folder.key)
        self._has_files = bool(orders["secret_files"])
        self._log = OutputLog(folder.output(self._start), orders["mask"])
        self._result: str | None = orders["env"].get(result_file.VARIABLE)
        self._program = Program()
        self._told_to_end = False
        self._stopping, self._grace = False, 0.0
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._oom_limit: int | None = None
        self._reasons: list[str] = []
        self._watched, self._watched_at = 0, time.monotonic()
        self._next_tick = 0.0
        self._poll = select.poll()
        self._pipe = -1

    # -- the course of things

    def run(self) -> None:
        """Start the program, keep it, record its end."""
        self._listen()
        try:
            self._launch()
        except visible.MismatchError as fault:
            self._log.close()
            self._folder.drop_record()
            say(f"never {fault}")
            return
        except ExecError as fault:
            self._answer()
            self._record({"code": fault.code, "reason": str(fault)})
            return
        self._answer()
        while not self._gave_up() and (self._program.status is None or self._finishes_after_term()):
            self._step()
        self._end_the_rest()
        self._record(self._end())

    def abandon(self, why: str) -> None:
        """Leave nothing behind after a fault of the keeper itself."""
        if self._program.pid:
            self._end_the_rest()
        self._record({"code": 70, "reason": f"the keeper failed ({why}), see {self._folder.keeper_log}"})

    def _listen(self) -> None:
        kernel.become_subreaper()
        self._wake_out, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_wake)
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        self._poll.register(self._wake_out, select.POLLIN)

    def _on_term(self, *_: object) -> None:
        self._told_to_end = True

    def _on_wake(self, *_: object) -> None:
        self._next_tick = 0.0

    def _launch(self) -> None:
        orders, env = self._orders, dict(self._orders["env"])
        visible.check(orders["devices"], env, orders["fds"], self._folder.state_dir / "devices")
        if files := orders.pop("secret_files"):
            decoded = [(name, base64.b64decode(content), mode) for name, content, mode in files]
            secret_files.write(self._secrets, decoded)
            env["TF_OPERATOR_SECRETS_DIR"] = str(self._secrets)
        env[process_tree.MARKER] = str(self._folder.path)
        self._pipe, program_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        try:
            self._program.launch(orders["argv"], orders["working_dir"], env, program_end, orders["fds"])
        finally:
            os.close(program_end)
            # Nothing needs them any more: less for a core dump to show.
            for name in ("env", "mask"):
                orders.pop(name)
        self._poll.register(self._pipe, select.POLLIN)

    def _answer(self) -> None:
        leader = process_tree.read(self._program.pid) if self._program.pid else None
        record = self._orders["record"] | {"pid": self._program.pid or None, "program": leader}
        self._folder.write_record(record | {"keeper": process_tree.read(os.getpid())})
        say("ok")

    def _step(self) -> None:
        now = time.monotonic()
        until = self._next_tick if self._kill_at is None else min(self._next_tick, self._kill_at)
        # At the end there may be nothing to wake us: processes that are no children of ours, or that are slow to die.
        wait = 0.05 if self._killed_at or self._program.status is not None else max(0.0, until - now)
        for descriptor, _ in self._poll.poll(wait * 1000):
            if descriptor == self._wake_out:
                os.read(self._wake_out, 4096)
            else:
                self._read_once()
        self._program.reap()
        now = time.monotonic()
        if self._told_to_end or now >= self._next_tick:
            self._look_around(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill(now)

    # -- what ends a program

    def _look_around(self, now: float) -> None:
        self._next_tick = now + TICK
        # Taken before the request is read: a signal that comes after it brings us here again at once.
        told, self._told_to_end = self._told_to_end, False
        request = self._folder.stop_request(self._start)
        if request:
            self._stop(float(request["grace"]), None, now)
        elif told:
            self._stop(self._orders["grace"], "the keeper was told to end (SIGTERM)", now)
        watched = self._folder.last_watched()
        # Only that the time changed counts, and our own clock since: the wall clock may jump.
        if watched != self._watched:
            self._watched, self._watched_at = watched, now
        elif now - self._watched_at > self._orders["orphan_timeout"]:
            self._stop(self._orders["grace"], f"no watcher for {self._orders['orphan_timeout']:g} s", now)
        if self._has_files:
            pid = self._program.pid if self._program.status is None else None
            renewal.carry_out(self._secrets, self._log.mask, pid)
        limit = self._orders["memory"]
        if limit and self._killed_at is None and process_tree.memory(self._program.tree(), limit) > limit:
            self._oom_limit = limit
            self._kill_at = now

    def _stop(self, grace: float, reason: str | None, now: float) -> None:
        """TERM the first time; a later request can only shorten the grace."""
        if self._kill_at is not None:
            if now + grace < self._kill_at:
                self._kill_at, self._grace = now + grace, grace
            return
        if self._program.status is not None:
            # It ended by itself before it was asked to: who believes it was stopped would start it again.
            return
        self._kill_at = now + grace
        self._stopping = True
        self._grace = grace
        if reason:
            self._reasons.append(reason)
        if grace > 0:
            # CONT, because a frozen program does not see a TERM.
            for number in (signal.SIGTERM, signal.SIGCONT):
                self._program.signal_group(number)

    def _kill(self, now: float) -> None:
        if self._killed_at is None:
            self._killed_at = now
            if self._stopping and self._grace > 0:
                self._reasons.append(f"killed: it did not end within {self._grace:g} s of SIGTERM")
        self._program.kill()

    def _gave_up(self) -> bool:
        return self._killed_at is not None and time.monotonic() - self._killed_at > KILL_WAIT

    def _finishes_after_term(self) -> bool:
        """Whether processes that got the TERM are still using their grace, though the first one has ended."""
        if not self._stopping or self._killed_at is not None:
            return False
        return self._program.group_lives()

    def _end_the_rest(self) -> None:
        """No process of the program may live when its end is recorded."""
        deadline = time.monotonic() + KILL_WAIT
        while self._program.tree() and time.monotonic() < deadline:
            self._program.kill()
            self._read_once()
            self._program.reap()
            time.sleep(0.005)
        if left := self._program.tree():
            pids = ", ".join(str(process.pid) for process in left)
            self._reasons.append(f"processes {pids} cannot be killed (in the kernel, state {left[0].state})")
        self._program.reap()
        while self._read_once():
            pass

    # -- output

    def _read_once(self) -> bool:
        """Take some output; False if there is none now."""
        if self._pipe < 0:
            return False
        try:
            chunk = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        if chunk:
            self._log.write(chunk)
            return True
        self._poll.unregister(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
        return False

    # -- the end

    def _end(self) -> dict[str, Any]:
        status = self._program.status
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return {
            "code": code if code >= 0 else 128 - code,
            "signal": None if code >= 0 else signal_name(-code),
            "oom_limit": self._oom_limit,
            "stopped": self._stopping,
        }

    def _record(self, end: dict[str, Any]) -> None:
        """The last act: whoever reads it may start the next program as soon as our locks are gone."""
        self._log.close()
        if self._result and (withheld := result_file.mask(Path(self._result), self._log.masked)):
            self._reasons.append(withheld)
        try:
            secret_files.remove(self._secrets)
        except OSError as error:
            self._reasons.append(f"secret files not removed: {describe(error)}")
        texts = [end.get("reason"), *self._reasons, self._log.trouble]
        reason = "; ".join(text for text in texts if text) or None
        self._folder.write_exit(self._start, end | {"reason": reason})


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time signals by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def say(text: str) -> None:
    """Answer the starter, who may be gone by now."""
    with contextlib.suppress(OSError):
        os.write(1, f"{text}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def describe(error: BaseException) -> str:
    """One line without values, but for the file an operating system error names."""
    if not isinstance(error, OSError):
        return type(error).__name__
    return f"{error.strerror.lower()}: {error.filename}" if error.strerror and error.filename else str(error)


def main() -> None:
    """Read the orders, detach, keep."""
    folder = RunFolder(Path(sys.argv[1]), sys.argv[2])
    orders = json.load(sys.stdin.buffer)
    # The starter may live for days and must not collect a zombie: the process it waits for ends here.
    if os.fork():
        os._exit(0)
    kernel.set_name("tf-keeper")
    for descriptor in (orders["keeper_fd"], *orders["fds"]):
        os.set_inheritable(descriptor, False)
    keeper = None
    try:
        keeper = Keeper(orders, folder)
        keeper.run()
    except BaseException as error:
        # Only places, no message: a value in it might be a secret.
        sys.stderr.write("".join(traceback.format_tb(error.__traceback__)) + type(error).__name__ + "\n")
        why = describe(error)
        if keeper:
            keeper.abandon(why)
        say(f"error {why}")
        sys.exit(1)
