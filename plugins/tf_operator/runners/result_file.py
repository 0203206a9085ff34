"""What a program leaves as its result: a plain file of its own, masked like its output. Standard library only.

Whoever reads it may read more than the program may, so that no link of the program's is followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

VARIABLE = "TF_OPERATOR_RESULT"
LIMIT = 1 << 20
"""Bytes of a result: it is kept with the run, in Airflow's database."""
FOLDER = (".tf_operator", "results")
"""Where results are, below the model_dir."""


class UnfitError(ValueError):
    """It is no file that could be read; the text says why."""


def read(path: Path) -> bytes:
    """The file's bytes. OSError where there is none, UnfitError where it is no plain file of its own, or too much."""
    try:
        place, own = path.parent.resolve(), path.parents[len(FOLDER)].resolve().joinpath(*FOLDER)
    except RuntimeError:
        raise UnfitError("leads in a circle; make no links there") from None
    if place != own:
        raise UnfitError(f"leads to {place}; make no links there")
    descriptor = os.open(place / path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnfitError("is no plain file; write one")
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise UnfitError(f"more than {LIMIT} bytes; put large things into model_dir")
    return content


def mask(path: Path, masked: Callable[[bytes], bytes] | None) -> str | None:
    """Star secrets out of it; what cannot be masked is removed. None for `masked`: they are not known any more.

    Returns what became of it in a few words, where it was removed.
    """
    try:
        content = read(path)
    except (OSError, UnfitError):
        return None  # nobody will read it either
    if masked is not None:
        safe = masked(content)
        if safe == content:
            return None
        draft = path.with_name(f"{path.name}.masked")
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
            with draft.open("xb") as file:
                file.write(safe)
            draft.replace(path)
            return None
        with contextlib.suppress(OSError):
            draft.unlink()
    with contextlib.suppress(OSError):
        path.unlink()
    return "its result is withheld: the secrets in it could not be masked"
