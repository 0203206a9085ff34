"""Waiting for something with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tf_operator.errors import ServiceError

T = TypeVar("T")


def wait_for(found: Callable[[], T | None], deadline: float, what: str | Callable[[], str], every: float = 0.3) -> T:
    """Ask again every `every` seconds until `found` gives something true.

    ServiceError after `deadline` seconds, saying `what` was waited for.
    """
    end = time.monotonic() + deadline
    while True:
        if value := found():
            return value
        if time.monotonic() > end:
            raise ServiceError(f"waited {deadline:.0f} s in vain for {what if isinstance(what, str) else what()}")
        time.sleep(every)
