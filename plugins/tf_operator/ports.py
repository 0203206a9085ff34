"""Ports leased to replicas by kernel lock. Nobody listens on a leased port, so the program can bind it at once."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tf_operator import locks
from tf_operator.errors import RunnerError
from tf_operator.identity import Identity

OWN_PORT_WAIT = 2.0
"""Seconds to wait for one's own last port: its old program has ended, its keeper is about to."""


class PortLease:
    """A port nobody else is given until `release` here and the end of every process that inherited `fds`."""

    def __init__(self, host: str, port: int, descriptor: int) -> None:
        self.port = port
        self._host = host
        self._descriptor: int | None = descriptor

    @property
    def address(self) -> str:
        """`host:port`, IPv6 hosts in brackets."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to hand down; empty once released."""
        return () if self._descriptor is None else (self._descriptor,)

    def release(self) -> None:
        """Close this process' hold. Does nothing the second time."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class PortLeases:
    """The ports of one host, `first` to `last`, leased through files in `folder`."""

    def __init__(self, folder: Path, port_range: tuple[int, int], host: str) -> None:
        self._folder = folder
        self._first, self._last = port_range
        self._host = host

    def reserve(self, identity: Identity, preferred: str | None) -> PortLease:
        """Lease the preferred port, else the replica's own last one, else one nobody had, else the longest unused.

        Raises RunnerError if every port of the range is leased or bound.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for port in self._candidates(identity.key, preferred):
            own = locks.read_note(self._folder / str(port)) == identity.key
            lease = self._try(port, identity.key, OWN_PORT_WAIT if own else 0.0)
            if lease:
                return lease
        raise RunnerError(
            f"{identity}: no free port in {self._first}-{self._last} on this host: all are leased or bound; "
            "widen `port_range` of [tf_operator], or see `tf-operator clean`"
        )

    def _candidates(self, key: str, preferred: str | None) -> Iterator[int]:
        wanted = _port_of(preferred)
        if wanted is not None and self._first <= wanted <= self._last:
            yield wanted
        size = self._last - self._first + 1
        start = int(hashlib.sha256(key.encode()).hexdigest(), 16) % size
        others = []
        for step in range(size):
            port = self._first + (start + step) % size
            # A replica between two tries holds no lock: whose port it was last stays written in the file.
            if locks.read_note(self._folder / str(port)) in ("", key):
                yield port
            else:
                others.append(port)
        yield from sorted(others, key=lambda port: (self._folder / str(port)).stat().st_mtime_ns)

    def _try(self, port: int, key: str, wait: float) -> PortLease | None:
        descriptor = locks.acquire(self._folder / str(port), wait=wait)
        if descriptor is None:
            return None
        if _is_bound(port):
            os.close(descriptor)
            return None
        locks.write_note(descriptor, key)
        return PortLease(self._host, port, descriptor)


def _port_of(address: str | None) -> int | None:
    text = (address or "").rpartition(":")[2]
    return int(text) if text.isdigit() else None


def _is_bound(port: int) -> bool:
    """Whether somebody outside the leases has the port, on any address of either family."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As servers do: connections of the port's last program that linger in TIME_WAIT are no obstacle.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                return True
    return False
