"""What a watcher is handed and what it hands back: the machine, the channel to the owner, its memory, the outcome."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from tf_operator.errors import TfOperatorError
from tf_operator.membership import Cluster, Member
from tf_operator.runners.base import Runner, SecretBundle

WAITING = "waiting"
"""An owner's state: between two attempts of one run, in the pool's queue."""


class ChannelError(TfOperatorError):
    """The channel cannot be reached now. An outage, not an answer."""


class Channel(Protocol):
    """How a replica and the owner hear of each other. Every method may raise ChannelError."""

    def publish(self, member: Member) -> None:
        """Make this replica's message known."""
        ...

    def cluster(self) -> Cluster | None:
        """The owner's message of this attempt; None while there is none."""
        ...

    def owner_state(self) -> str:
        """`alive`, `waiting` for its slots between two attempts, or why there is no owner any more in one phrase."""
        ...


class Store(Protocol):
    """What a replica remembers from one try to the next. JSON values; may raise ChannelError."""

    def get(self, key: str) -> Any:
        """The value, or None."""
        ...

    def set(self, key: str, value: Any) -> None:
        """Write or overwrite."""
        ...


class DeviceLease(Protocol):
    """Devices held for a replica; the program's keeper holds them too once it was started with their `fds`."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Device ids."""
        ...

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors of the kernel locks."""
        ...

    @property
    def memory(self) -> int | None:
        """Bytes the program may use of the device it has a part of; None for whole ones, or where nobody knows."""
        ...

    def release(self) -> None:
        """Close our hold."""
        ...


class Leases(Protocol):
    """How long what the secrets grant is good for; see `secrets.custody`. No method raises for a Vault that is away."""

    def bind(self, save: Callable[[list[dict[str, Any]]], bool | None], log: Callable[[str], None]) -> None:
        """Where the record for the next watcher goes (False: not now, None: no longer), what a person should read."""
        ...

    def inherit(self, left: Sequence[dict[str, Any]]) -> None:
        """Take over what an earlier watcher recorded."""
        ...

    def tend(self) -> SecretBundle | None:
        """Renew what is due; files to replace, given again until `delivered`."""
        ...

    def delivered(self) -> None:
        """The program has the new files."""
        ...

    def end(self) -> None:
        """The program has ended, or is none of ours: revoke."""
        ...


class NoLeases:
    """For a job without secrets."""

    def bind(self, save: Callable[[list[dict[str, Any]]], bool | None], log: Callable[[str], None]) -> None:
        """Nothing to record."""

    def inherit(self, left: Sequence[dict[str, Any]]) -> None:
        """Nothing is left."""

    def tend(self) -> SecretBundle | None:
        """Nothing to renew."""
        return None

    def delivered(self) -> None:
        """Nothing was."""

    def end(self) -> None:
        """Nothing to revoke."""


@dataclass(frozen=True)
class Host:
    """What the watcher uses of the machine it runs on."""

    runner: Runner
    secrets: Callable[[], SecretBundle]
    devices: Callable[[], DeviceLease | None]
    """Lease what this replica asked for, without waiting; None where it asked for none. Raises DeviceError."""
    leases: Leases = field(default_factory=NoLeases)
    """How long what `secrets` gave is good for."""
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    name: str = field(default_factory=socket.gethostname)


class Result(StrEnum):
    """How a watch ends."""

    SUCCESS = "success"
    SKIPPED = "skipped"
    """Stopped because of something else: not a fault of this replica."""
    RETRY = "retry"
    FAILED = "failed"
    AGAIN = "again"
    """Everything was let go; the replica is to come back after `Outcome.delay`, which is no retry."""
    SUPERSEDED = "superseded"
    """A newer watcher has the replica; nothing was touched."""


@dataclass(frozen=True)
class Outcome:
    """How a watch ended, and why in one line."""

    result: Result
    text: str
    delay: float = 0.0
    """Seconds to stay away, for AGAIN."""
