"""A container's output on its way to a file of ours: in order, masked, resumed by time wherever it broke off.

The engine knows times, no offsets; our file gives the contract's offsets, to this process and to the next. Trouble
with the log is told, and decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException, NotFound
from urllib3.exceptions import HTTPError

from tf_operator import locks
from tf_operator.errors import RunnerError
from tf_operator.masking import Masker
from tf_operator.runners.docker_engine import Client

RECENT = 1000
"""Entries remembered for resuming: two streams' times may be slightly out of order, so a border is no exact place."""
FLUSH = 1 << 16
PAUSE = 1.0
"""Seconds until what could not be written is tried again."""
SAVE = 0.2
"""Seconds between two records of how far we have come; what came after the last one is copied again."""


class Spool:
    """One start's output file, and how far it has come. Whoever holds its lock writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path.with_suffix(".state")
        self._lock = path.with_suffix(".lock")

    def acquire(self) -> int | None:
        """Become the writer; None while another process is."""
        # A container may outlive the folder: a state_dir in memory is empty after a restart of the host.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return locks.acquire(self._lock)

    @property
    def state(self) -> dict[str, Any]:
        """`size` written, `recent` entries, `done`, the `told` marks."""
        with contextlib.suppress(OSError, ValueError):
            content: dict[str, Any] = json.loads(self._state.read_text())
            return content
        return {}

    def save(self, **state: Any) -> None:
        """Replace the state."""
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.replace(self._state)

    def read(self, offset: int, limit: int) -> bytes:
        """Masked output; empty where there is none (yet)."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def forget(self, keep_output: bool) -> None:
        """Remove the files."""
        for path in (self._state, self._lock, *(() if keep_output else (self.path,))):
            path.unlink(missing_ok=True)


class Follower:
    """A thread that carries one container's log into its spool until the log ends."""

    def __init__(
        self, spool: Spool, container: str, connect: Callable[[], Client], mark: str, mask: Sequence[str]
    ) -> None:
        self._spool, self._container, self._connect = spool, container, connect
        self._mark = f"{mark} ".encode()
        self._mask = list(mask)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        # In memory, because the disk may be what is full.
        self._trouble: str | None = None
        self._told: list[str] = []
        self._again_at = 0.0

    @property
    def done(self) -> bool:
        """Whether all there was has been written, by us or by another process."""
        return bool(self._spool.state.get("done"))

    @property
    def told(self) -> list[str]:
        """What the container's entry said about itself."""
        return self._told or list(self._spool.state.get("told", ()))

    @property
    def trouble(self) -> str | None:
        """What is missing from the file, in one line."""
        return None if self.done else self._trouble

    def add(self, mask: Sequence[str]) -> None:
        """Mask these as well, from the next entry of the log on."""
        self._mask.extend(text for text in mask if text not in self._mask)

    def tend(self) -> None:
        """Have somebody follow: us, unless another process does. Returns at once."""
        if self.done or (self._thread and self._thread.is_alive()) or time.monotonic() < self._again_at:
            return
        lock = self._spool.acquire()
        if lock is None:
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(lock,), daemon=True, name=f"log {self._container[:12]}")
        self._thread.start()

    def finish(self, patience: float) -> None:
        """The container has ended: wait until its log has too, as long as there is progress."""
        size, since = -1, time.monotonic()
        while not self.done and time.monotonic() - since < patience:
            self.tend()
            now = self._spool.path.stat().st_size if self._spool.path.exists() else 0
            # What is copied again after a full disk is no progress.
            if now > size:
                size, since = now, time.monotonic()
            time.sleep(0.01)
        if not self.done:
            self._trouble = self._trouble or f"output incomplete: its log has not ended within {patience:g} s"
            self._listen()

    def _listen(self) -> None:
        """What its entry told may stand behind what could not be written."""
        away = contextlib.suppress(DockerException, requests.RequestException, HTTPError, RunnerError)
        with away, contextlib.closing(self._connect()) as api:
            payloads = (frame[2] for frame in _entries(api, self._container, None) if frame)
            self._told = [told for payload in payloads if (told := _mark_in(payload, self._mark)[1])]

    def close(self) -> None:
        """Stop following; the next one resumes."""
        self._stop.set()

    def _run(self, lock: int) -> None:
        try:
            with contextlib.closing(self._connect()) as api:
                _Copy(self._spool, self._mask, self._mark, self._stop).run(api, self._container)
            self._trouble = None
        except Exception as error:  # whatever it is: the program's state does not depend on its log
            self._note(error)
        finally:
            os.close(lock)

    def _note(self, error: Exception) -> None:
        if isinstance(error, (DockerException, requests.RequestException, HTTPError, RunnerError)):
            return  # the engine went away; the next look resumes
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            why = f"{(error.strerror or str(error)).lower()}: {self._spool.path}"
        self._trouble, self._again_at = f"output incomplete: {why}", time.monotonic() + PAUSE


class _Copy:
    """One connection's worth of log, from where the spool's state says on."""

    def __init__(self, spool: Spool, mask: Sequence[str], mark: bytes, stop: threading.Event) -> None:
        state = spool.state
        self._spool, self._mark, self._stop = spool, mark, stop
        self._mask, self._masked = mask, len(mask)
        self._masker = Masker(mask)
        self._recent: deque[str] = deque(state.get("recent", ()), maxlen=RECENT)
        self._known = Counter(self._recent)
        self._told: list[str] = list(state.get("told", ()))
        self._size = int(state.get("size", 0))
        self._saved = 0.0

    def run(self, api: Client, container: str) -> None:
        """Copy until the log or the connection ends."""
        since = min((key.split(" ")[0] for key in self._recent), default=None)
        with self._spool.path.open("ab") as file:
            os.fchmod(file.fileno(), 0o600)
            # What a killed writer wrote after its last saved state comes again.
            file.truncate(self._size)
            pending = b""
            for frame in _entries(api, container, since):
                if frame is not None:
                    pending += self._take(*frame)
                if frame is None or len(pending) >= FLUSH:
                    self._append(file, pending)
                    pending = b""
                    self._save_sometimes()
                if self._stop.is_set():
                    return
            self._append(file, pending)
            if not _runs(api, container):
                self._append(file, self._masker.flush())
                self._save(done=True)

    def _take(self, moment: str, stream: int, payload: bytes) -> bytes:
        key = f"{moment} {stream} {len(payload)}"
        if self._known[key]:
            self._known[key] -= 1
            return b""
        self._recent.append(key)
        payload, told = _mark_in(payload, self._mark)
        if told:
            self._told.append(told)
        if len(self._mask) > self._masked:
            self._masked = len(self._mask)
            self._masker.add(self._mask)
        return self._masker.feed(payload)

    def _append(self, file: Any, data: bytes) -> None:
        if data:
            file.write(data)
            file.flush()
            self._size += len(data)

    def _save_sometimes(self) -> None:
        # What the masker holds back is in no file yet: a state saved now would lose it.
        if time.monotonic() - self._saved > SAVE and not self._masker.holds_back:
            self._save(done=False)

    def _save(self, done: bool) -> None:
        self._spool.save(size=self._size, recent=list(self._recent), told=self._told, done=done)
        self._saved = time.monotonic()


def _mark_in(payload: bytes, mark: bytes) -> tuple[bytes, str]:
    """What an entry of the log has from the program, and what from the container's entry."""
    output, _, told = payload.partition(mark)
    return output, told.decode(errors="replace").strip()


def _runs(api: Client, container: str) -> bool:
    """An engine that shuts down ends its answers too."""
    try:
        return bool(api.inspect_container(container)["State"]["Running"])
    except NotFound:
        return False


def _entries(api: Client, container: str, since: str | None) -> Iterator[tuple[str, int, bytes] | None]:
    """(time, stream, text) of every entry of the log from `since` on; None where nothing more is there just now."""
    params: dict[str, Any] = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": 1}
    if since:
        params["since"] = _seconds(since)
    response = api._get(api._url("/containers/{0}/logs", container), params=params, stream=True, timeout=(60, None))
    api._raise_for_status(response)
    data = b""
    try:
        for chunk in response.iter_content(None):
            data += chunk
            at = 0
            while len(data) - at >= 8:
                stream, size = struct.unpack(">B3xI", data[at : at + 8])
                if len(data) - at - 8 < size:
                    break
                moment, _, payload = data[at + 8 : at + 8 + size].partition(b" ")
                yield moment.decode(), stream, payload
                at += 8 + size
            data = data[at:]
            yield None
    finally:
        response.close()


def _seconds(moment: str) -> str:
    """`2026-01-02T03:04:05.000000006Z` as the engine's `since` takes it, to the nanosecond."""
    from datetime import UTC, datetime

    whole, _, fraction = moment.rstrip("Z").partition(".")
    return f"{int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())}.{fraction or '0'}"
