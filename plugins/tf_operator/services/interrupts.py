"""What ends a program from outside: Ctrl-C, `make`'s TERM, a closed terminal's HUP."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[None]:
    """TERM and HUP as KeyboardInterrupt, as Ctrl-C is."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not cut an orderly end short; what is done inside has to be bounded."""
    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
        yield


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handler: Callable[..., Any] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread only, and lets only that one choose.
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
