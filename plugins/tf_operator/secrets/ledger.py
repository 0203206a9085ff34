"""What a replica's watcher has to end, on this host: for a teardown, and for `tf-operator clean`.

Connections, token accessors and lease ids: of no use to anybody without a token of his own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tf_operator.identity import Identity, ReplicaId

Record = list[dict[str, Any]]


class Ledger:
    """One replica's file below `<state_dir>/leases`."""

    def __init__(self, state_dir: Path, key: str) -> None:
        self.key = key
        self.path = state_dir / "leases" / f"{key}.json"

    def write(self, identity: Identity, record: Sequence[dict[str, Any]]) -> None:
        """Replace it, or remove it where there is nothing to end. Raises OSError."""
        if not record:
            self.path.unlink(missing_ok=True)
            return
        # Its age is that of the last change: who failed to end it may try again at once.
        if list(record) == self.read():
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        who = [identity.dag_id, identity.run_id, identity.group_id, str(identity.replica)]
        new = self.path.with_suffix(f".{os.getpid()}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"identity": who, "grants": list(record)}, file)
        new.replace(self.path)

    def read(self) -> Record:
        """What is to be ended; empty where nothing is."""
        content = self._content()
        return list(content["grants"]) if content else []

    def identity(self) -> Identity | None:
        """Whose it is."""
        if (content := self._content()) is None:
            return None
        dag_id, run_id, group_id, replica = content["identity"]
        return Identity(dag_id, run_id, group_id, ReplicaId.parse(replica))

    def age(self) -> float:
        """Seconds since it was written, by file time."""
        try:
            return max(0.0, time.time() - self.path.stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def _content(self) -> dict[str, Any] | None:
        try:
            value = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, dict) else None


def ledgers(state_dir: Path) -> Iterator[Ledger]:
    """Every replica's with something to end."""
    for path in sorted((state_dir / "leases").glob("*.json")):
        yield Ledger(state_dir, path.stem)
