"""A program's output on its way to a file: masked, and never a reason for the program to fail."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class _Filter(Protocol):
    def add(self, texts: Sequence[str]) -> None: ...
    def feed(self, chunk: bytes) -> bytes: ...
    def flush(self) -> bytes: ...
    def whole(self, data: bytes) -> bytes: ...


class OutputLog:
    """Appends to one file. What cannot be written (disk full) is counted, said in the file later, and in `trouble`."""

    def __init__(self, path: Path, mask: Sequence[str]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._masker = _masker(mask)
        self._missing = 0  # bytes lost since the last that could be written
        self._lost = 0
        self._why = ""

    @property
    def trouble(self) -> str | None:
        """What was lost and why, in a few words; None if nothing was."""
        return f"{self._lost} bytes of output lost: {self._why}" if self._lost else None

    def mask(self, texts: Sequence[str]) -> None:
        """Star these out as well, from here on."""
        if self._masker:
            self._masker.add(texts)
        else:
            self._masker = _masker(texts)

    def masked(self, data: bytes) -> bytes:
        """The same for something that is no part of the output."""
        return self._masker.whole(data) if self._masker else data

    def write(self, chunk: bytes) -> None:
        """Take output as it comes."""
        self._append(self._masker.feed(chunk) if self._masker else chunk)

    def close(self) -> None:
        """Write what masking held back: the output has ended. Does nothing the second time."""
        if self._descriptor < 0:
            return
        if self._masker:
            self._append(self._masker.flush())
        os.close(self._descriptor)
        self._descriptor = -1

    def _append(self, data: bytes) -> None:
        if self._missing and data:
            gap = f"\n[tf_operator: {self._missing} bytes of output lost here: {self._why}]\n"
            self._missing = self._missing if self._put(gap.encode()) else 0
        lost = len(data) if self._missing else self._put(data)
        self._missing += lost
        self._lost += lost

    def _put(self, data: bytes) -> int:
        """Write; return how many bytes could not be written."""
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                self._why = (error.strerror or str(error)).lower()
                break
        return len(data)


def _masker(texts: Sequence[str]) -> _Filter | None:
    if not texts:
        return None
    # Only here, because most programs have no secret and the keeper has to start fast.
    from tf_operator.masking import Masker

    return Masker(texts)
