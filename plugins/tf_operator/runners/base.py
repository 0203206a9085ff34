"""The contract of a runner: how one replica's program is started, followed, stopped and removed.

A runner knows nothing of Airflow, of memberships or of TensorFlow. A program it started outlives the process that
called `start`; `find` gives it back to whoever asks next with the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tf_operator.identity import Identity


@dataclass(frozen=True)
class SecretFile:
    """A secret the program reads from a file below its secrets directory."""

    name: str
    content: bytes = field(repr=False)
    mode: int = 0o400


@dataclass(frozen=True)
class SecretBundle:
    """Resolved secrets of one replica, on their way to its program. The repr holds no value."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Sequence[SecretFile] = field(default=(), repr=False)
    mask: Sequence[str] = field(default=(), repr=False)
    """Texts to replace by *** in the program's output."""


@dataclass(frozen=True)
class Launch:
    """Everything a runner needs to start one program.

    `argv` is passed literally (no shell). `env` is complete: the program sees this, the runner's own helps
    (`TF_OPERATOR_*` paths) and the secrets, nothing else. `memory` is in bytes, `cpus` in cores.
    `devices` are the ids the replica was leased, empty for none; `device_fds` the locks of that lease, which the
    program's keeper holds on to for as long as the program lives.
    """

    identity: Identity
    attempt: str
    incarnation: int
    generation: int
    argv: Sequence[str]
    working_dir: str
    env: Mapping[str, str]
    secrets: SecretBundle = SecretBundle()
    memory: int | None = None
    cpus: float | None = None
    termination_grace: float = 30.0
    orphan_timeout: float = 900.0
    runtime: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    device_fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exit:
    """How a program ended. `code` is 0..255 as a shell shows it (128 + n for signal n)."""

    code: int
    signal: str | None = None
    """Signal name (`SIGKILL`) where a signal ended the program."""
    oom_limit: int | None = None
    """The limit in bytes where the program was ended for its memory use."""
    stopped: bool = False
    """True where the end was asked for through `stop` (or the orphan deadline), not the program's own."""
    reason: str | None = None
    """Anything else a person should know in one line (`command not found: x`, `no watcher for 900 s`)."""
    final: bool = False
    """True where no other start can help: a person has to look at the host."""

    @property
    def failed(self) -> bool:
        """Whether it ended non-zero by itself."""
        return self.code != 0 and not self.stopped


@dataclass(frozen=True)
class Handle:
    """A started program, living or ended, as `find` and `start` give it. JSON through `data`."""

    identity: Identity
    attempt: str
    incarnation: int
    generation: int
    address: str
    data: Mapping[str, Any]
    stopping: bool = False
    """Whether `stop` was called for it before `find`: it is on its way out, or has ended that way."""


class Lease(Protocol):
    """An address reserved for a replica on this host, held until `release` or the program's end, whichever is later."""

    @property
    def address(self) -> str:
        """`host:port` (IPv6 hosts in brackets)."""
        ...

    def release(self) -> None:
        """Give it up; absence is normal."""


class Runner(Protocol):
    """What `process`, `docker` and `swarm` have in common. All methods may raise RunnerError."""

    def reserve(self, identity: Identity, preferred: str | None) -> Lease:
        """Reserve an address; `preferred` (the replica's last one) if it can still be had."""
        ...

    def find(self, identity: Identity) -> Handle | None:
        """The program with this identity, if one lives or its end has not been removed yet."""
        ...

    def prepare(self, launch: Launch) -> bool:
        """Have what its start needs and may take minutes (an image); False while that is under way: ask again.

        Called before its devices and secrets are fetched: those are held, or run out.
        """
        ...

    def start(self, launch: Launch, lease: Lease) -> Handle:
        """Start the program. Raises IdentityHeldError if one of this identity lives, LaunchError if it cannot start."""
        ...

    def poll(self, handle: Handle) -> Exit | None:
        """None while it lives. Tells the program that it is watched, which holds off the orphan deadline.

        An engine that is away for a moment is waited for; EngineUnavailableError when that has taken too long.
        """
        ...

    def output(self, handle: Handle, offset: int, limit: int = 65536) -> tuple[bytes, int]:
        """Masked output from `offset` on, and the offset to go on from."""
        ...

    def renew(self, handle: Handle, secrets: SecretBundle, signal: str | None) -> None:
        """Replace the living program's secret files, each atomically, then send its first process `signal`.

        The new values are masked before the program can read them. Its variables cannot be replaced. Nothing happens
        where it has ended.
        """
        ...

    def stop(self, handle: Handle, grace: float) -> None:
        """Ask for TERM, then KILL after `grace` seconds; returns at once. `poll` tells when it has ended."""
        ...

    def hurry(self, patience: float) -> None:
        """From now on wait only so long for an engine that is away, also in calls under way. From any thread."""
        ...

    def remove(self, handle: Handle, keep_output: bool = True) -> None:
        """Remove what an ended program left (a live one is killed first). Absence is normal."""
        ...
