"""That somebody looks after a replica's program: a sign its folder keeps, and a lock that ends with the watcher."""

from __future__ import annotations

import contextlib
import os

from tf_operator import locks
from tf_operator.runners.run_folder import RunFolder


class Watches:
    """The watches of this process."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def look(self, folder: RunFolder) -> None:
        """Say that somebody looks, and hold the lock that tells so for as long as this process lives."""
        with contextlib.suppress(FileNotFoundError):
            folder.touch_watched()
            if folder.key not in self._held:
                # Whoever asks if it is watched holds it for a moment.
                descriptor = locks.acquire(folder.watched, shared=True, wait=0.5)
                if descriptor is not None:
                    self._held[folder.key] = descriptor

    def drop(self, folder: RunFolder) -> None:
        """Look no longer. Absence is normal."""
        if (descriptor := self._held.pop(folder.key, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Look after nothing any more."""
        while self._held:
            os.close(self._held.popitem()[1])
