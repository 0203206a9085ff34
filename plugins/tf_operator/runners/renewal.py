"""New contents for a living program's secret files: left for its keeper in the program's own memory-backed directory.

The keeper masks them before the program can read them. Standard library only and light: the keeper imports it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_operator.runners import secret_files

if TYPE_CHECKING:
    from tf_operator.runners.base import SecretBundle

# No secret file's name begins with a dot.
REQUEST = ".renewal"
FAULT = ".renewal-fault"


def request(place: Path, secrets: SecretBundle, number: str | None) -> None:
    """Leave the request in the secrets directory `place`. OSError where that is not there (any more)."""
    files = [(file.name, base64.b64encode(file.content).decode(), file.mode) for file in secrets.files]
    text = json.dumps({"files": files, "mask": list(secrets.mask), "signal": number})
    (place / FAULT).unlink(missing_ok=True)
    secret_files.replace(place, [(REQUEST, text.encode(), 0o600)])


def is_open(place: Path) -> bool:
    """Whether the keeper has not carried it out yet."""
    return (place / REQUEST).exists()


def fault(place: Path) -> str | None:
    """Why it could not be carried out, in one line."""
    with contextlib.suppress(FileNotFoundError):
        return (place / FAULT).read_text()
    return None


def carry_out(place: Path, mask: Callable[[Sequence[str]], None], pid: int | None) -> None:
    """The keeper's part: mask, replace, send the signal to `pid` (None: it has ended). Never raises OSError."""
    try:
        wanted: dict[str, Any] = json.loads((place / REQUEST).read_bytes())
    except OSError:
        return
    try:
        mask(wanted["mask"])
        decoded = [(name, base64.b64decode(content), mode) for name, content, mode in wanted["files"]]
        secret_files.replace(place, decoded)
        if wanted["signal"] and pid:
            os.kill(pid, getattr(signal, wanted["signal"]))
    except OSError as error:
        with contextlib.suppress(OSError):
            (place / FAULT).write_text((error.strerror or type(error).__name__).lower())
    finally:
        (place / REQUEST).unlink(missing_ok=True)
