"""The user's program as the keeper sees it: fork and exec, the tree below, its signals. For one thread only."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tf_operator.runners import kernel, process_tree

NOT_FOUND, NOT_EXECUTABLE = 127, 126


class ExecError(Exception):
    """The program cannot be executed. `code` is the shell's for the same fault."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Program:
    """The program's first process and everything below it. This process has to be a subreaper."""

    def __init__(self) -> None:
        self.pid = 0
        self.status: int | None = None
        """Wait status of the first process; None while it lives."""

    def launch(
        self, argv: Sequence[str], working_dir: str, env: Mapping[str, str], output: int, fds: Sequence[int]
    ) -> None:
        """Start it in a session of its own. `fds` are the locks it inherits. Raises ExecError."""
        parent = os.getpid()
        fault_out, fault_in = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _become(parent, argv, working_dir, env, output, fds, fault_in)
        os.close(fault_in)
        with os.fdopen(fault_out, "rb") as pipe:
            fault = pipe.read().decode()
        if fault:
            os.waitpid(pid, 0)
            step, _, number = fault.partition(" ")
            raise _explain(step, int(number), argv[0], working_dir)
        self.pid = pid

    def tree(self) -> list[process_tree.Process]:
        """Everything that lives."""
        return process_tree.descendants(os.getpid())

    def group_lives(self) -> bool:
        """Whether any process lives that a signal to the group has reached."""
        return any(process.group == self.pid for process in self.tree())

    def signal_group(self, number: int) -> None:
        """Signal the first process and those it started, but for any that left its group."""
        # Once the first process is reaped, its id may belong to a stranger's group.
        if self.status is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """KILL everything that lives now. What is being forked meanwhile needs a second call."""
        for process in self.tree():
            process_tree.send(process, signal.SIGKILL)

    def reap(self) -> None:
        """Collect what has ended; orphans below the program are ours as well."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    self.status = status


def _become(
    parent: int,
    argv: Sequence[str],
    working_dir: str,
    env: Mapping[str, str],
    output: int,
    fds: Sequence[int],
    fault_in: int,
) -> None:
    """In the child: never returns."""
    step = "prepare"
    try:
        os.setsid()
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        _reset_signals()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        for descriptor in fds:
            os.set_inheritable(descriptor, True)
        step = "chdir"
        os.chdir(working_dir)
        step = "exec"
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        os.write(fault_in, f"{step} {error.errno}".encode())
    except ValueError:
        os.write(fault_in, f"{step} {errno.EINVAL}".encode())
    finally:
        os._exit(NOT_FOUND)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _explain(step: str, number: int, command: str, working_dir: str) -> ExecError:
    text = os.strerror(number).lower()
    if step == "chdir":
        return ExecError(NOT_EXECUTABLE, f"working_dir {working_dir}: {text}")
    if step == "exec" and number in (errno.ENOENT, errno.ENOTDIR):
        if "/" in command and (Path(working_dir) / command).exists():
            return ExecError(NOT_FOUND, f"interpreter not found: the one {command} names in its first line")
        return ExecError(NOT_FOUND, f"command not found: {command}")
    if step == "exec":
        return ExecError(NOT_EXECUTABLE, f"cannot execute {command}: {text}")
    return ExecError(NOT_EXECUTABLE, f"cannot prepare {command}: {text}")
