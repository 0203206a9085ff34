"""Look at something time after time while a test does its work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def sampled(look: Callable[[], T], every: float) -> Iterator[list[T]]:
    """What `look` gave each `every` seconds until the end of the block. What it raised is raised there."""
    samples: list[T] = []
    failures: list[BaseException] = []
    enough = threading.Event()

    def sample() -> None:
        try:
            while not enough.wait(every):
                samples.append(look())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=sample, name="sampler")
    thread.start()
    try:
        yield samples
    finally:
        enough.set()
        thread.join()
    if failures:
        raise failures[0]
