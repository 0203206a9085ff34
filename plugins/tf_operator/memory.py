"""What a replica remembers from one watcher to the next: its incarnation, its address, its starts and faults."""

from __future__ import annotations

import contextlib
from typing import Any

from tf_operator.runners.base import Handle
from tf_operator.watching import ChannelError, Store


class Memory:
    """A replica's counters in the store. Every method may raise ChannelError, and may then be called again.

    The incarnation grows over all attempts; faults are counted within one. A fault is a start (incarnation and
    generation) in a list, so that it counts once, however often a watcher dies while it writes it down.
    """

    def __init__(self, store: Store, attempt: str, token: str) -> None:
        self._store, self._attempt, self._token = store, attempt, token
        self._record: dict[str, Any] | None = None
        self._saved_position: dict[str, Any] | None = None

    # -- whose the replica is

    def claim(self) -> None:
        """Become the newest watcher; every older one leaves the replica alone from now on."""
        self._store.set("watcher", self._token)

    def is_claimed(self) -> bool:
        """Whether this is still the newest watcher."""
        return self._store.get("watcher") in (None, self._token)

    def ended_by_person(self) -> None:
        """Note that a person ended the present program: not to be adopted, no fault. Best effort."""
        with contextlib.suppress(ChannelError):
            record = self._read()
            self._store.set("ended_by_person", [self._attempt, record["incarnation"]])

    # -- numbers

    @property
    def incarnation(self) -> int:
        """The present one."""
        return int(self._read()["incarnation"])

    @property
    def address(self) -> str | None:
        """The replica's last address."""
        address: str | None = self._read()["address"]
        return address

    @property
    def failures(self) -> int:
        """Own faults in this attempt."""
        return len(self._read()["failed"])

    def may_adopt(self, handle: Handle) -> bool:
        """Whether the program is the one this attempt is to go on with."""
        record = self._read()
        return (
            not handle.stopping
            and record["attempt"] == handle.attempt == self._attempt
            and record["incarnation"] == handle.incarnation
            and [handle.incarnation, handle.generation] not in record["failed"]
            and not self._person_ended(record)
        )

    def next_incarnation(self, stopped: bool = False, address: str | None = None) -> bool:
        """Begin the next one. True where a program was started that nobody has seen end: that counts as a fault.

        Not one that was `stopped`: whoever asked for its end may not have lived, or been able, to write that down.
        `address`: where it is at another one.
        """
        record = dict(self._read())
        lost = [record["incarnation"], record["started"]]
        same = record["attempt"] == self._attempt
        seen = lost in record["failed"] or stopped or self._person_ended(record)
        vanished = same and record["started"] and not seen
        self._write(
            attempt=self._attempt,
            incarnation=record["incarnation"] + 1,
            address=address or record["address"],
            failed=(record["failed"] if same else []) + ([lost] if vanished else []),
            started=0,
        )
        return bool(vanished)

    def save(self, **change: Any) -> None:
        """Write down `address`, or `started`: the generation a program is being started in, 0 for none."""
        self._write(**{**self._read(), **change})

    def add_failure(self, generation: int) -> None:
        """Count the start in this generation as a fault of its own, once."""
        record = self._read()
        start = [record["incarnation"], generation]
        if start not in record["failed"]:
            self.save(failed=[*record["failed"], start], started=0)

    # -- output

    def position(self) -> dict[str, Any] | None:
        """What `save_position` wrote last."""
        position: dict[str, Any] | None = self._store.get("output")
        return position

    def save_position(self, position: dict[str, Any] | None) -> None:
        """Write down how far the output has been logged, where that has changed."""
        if position and position != self._saved_position:
            self._store.set("output", position)
            self._saved_position = position

    # -- leases

    def leases(self) -> list[dict[str, Any]]:
        """What `save_leases` wrote last."""
        return list(self._store.get("leases") or [])

    def save_leases(self, record: list[dict[str, Any]]) -> bool | None:
        """Write down what the next watcher would have to end. False: not now. None: a newer watcher has done so."""
        try:
            if not self.is_claimed():
                return None
            self._store.set("leases", record)
        except ChannelError:
            return False
        return True

    # -- the store

    def _read(self) -> dict[str, Any]:
        if self._record is None:
            empty: dict[str, Any] = {"attempt": None, "incarnation": 0, "address": None, "failed": [], "started": 0}
            self._record = {**empty, **(self._store.get("replica") or {})}
        return self._record

    def _write(self, **record: Any) -> None:
        self._store.set("replica", record)
        self._record = record

    def _person_ended(self, record: dict[str, Any]) -> bool:
        return bool(self._store.get("ended_by_person") == [self._attempt, record["incarnation"]])
