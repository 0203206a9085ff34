"""Replace secrets by stars in a program's output, whatever the borders of its chunks. Standard library only."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, quote_plus

STARS = b"***"
MIN_LENGTH = 6
"""Shorter texts are not masked: they occur in ordinary output. Airflow's own masker draws the same line."""


class Masker:
    """Replaces texts in a stream of bytes.

    The longest text counts where several begin at one place, and texts that overlap are covered as one. What could be
    the beginning of a text is held back until the next chunk or `flush`; everything else is given out at once.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._known: set[bytes] = set()
        self._held = b""
        self._covered = 0  # so many bytes of `_held` belong to a text whose stars are out already
        self.add(texts)

    def add(self, texts: Sequence[str]) -> None:
        """Replace these as well, from the next chunk on."""
        self._known |= {text.encode("utf-8", "surrogateescape") for text in texts} - {b""}
        known = self._known
        # One regular expression finds the few places where a text may begin; only there texts are compared.
        self._width = min((MIN_LENGTH, *map(len, known)))
        self._texts: dict[bytes, list[bytes]] = {}
        for text in sorted(known, key=len, reverse=True):
            self._texts.setdefault(text[: self._width], []).append(text)
        self._begins = {head[:size] for head in self._texts for size in range(1, self._width)}
        self._find = re.compile(_any_of(list(self._texts))).search if known else None

    @property
    def holds_back(self) -> bool:
        """Whether something was fed that has not come out yet."""
        return bool(self._held)

    def feed(self, chunk: bytes) -> bytes:
        """Return the masked output that is certain by now."""
        return self._mask(self._held + chunk, last=False)

    def whole(self, data: bytes) -> bytes:
        """Return `data`, which is no part of the stream, masked."""
        beside = copy.copy(self)
        beside._held, beside._covered = b"", 0
        return beside._mask(data, last=True)

    def flush(self) -> bytes:
        """Return what was held back: the stream has ended."""
        return self._mask(self._held, last=True)

    def _mask(self, data: bytes, last: bool) -> bytes:
        spans, keep = self._scan(data, last)
        out, done = [], self._covered
        for start, end in spans:
            if start >= done:
                out += [data[done:start], STARS]
            done = max(done, end)
        if done < keep:
            out.append(data[done:keep])
            done = keep
        self._held, self._covered = data[keep:], done - keep
        return b"".join(out)

    def _scan(self, data: bytes, last: bool) -> tuple[list[tuple[int, int]], int]:
        """Return where texts are, and from where on `data` could be the beginning of one (its end if nowhere)."""
        spans: list[tuple[int, int]] = []
        if self._find is None:
            return spans, len(data)
        hit = self._find(data)
        while hit:
            at = hit.start()
            candidates = self._texts[hit.group()]
            # A longer text that may still come true goes before a shorter one that is there.
            if not last and any(len(data) - at < len(text) and text.startswith(data[at:]) for text in candidates):
                return spans, at
            end = next((at + len(text) for text in candidates if data.startswith(text, at)), None)
            if end:
                spans.append((at, end))
            hit = self._find(data, at + 1)
        if not last:
            for at in range(max(0, len(data) - self._width + 1), len(data)):
                if data[at:] in self._begins:
                    return spans, at
        return spans, len(data)


def _any_of(heads: list[bytes]) -> bytes:
    """Return a pattern for any of `heads` (all of one length), as a trie: several times faster than a list of them."""
    if heads == [b""]:
        return b""
    tails: dict[bytes, list[bytes]] = {}
    for head in sorted(heads):
        tails.setdefault(head[:1], []).append(head[1:])
    if len(tails) > 1 and all(rest == [b""] for rest in tails.values()):
        return b"[" + b"".join(map(re.escape, tails)) + b"]"
    branches = [re.escape(first) + _any_of(rest) for first, rest in tails.items()]
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"


def mask_texts(value: str | bytes) -> list[str]:
    """Return the texts under which a secret may show up in output, longest first.

    These are the value, its lines, the strings of a JSON value, and of each its base64, URL, JSON and Python spellings.
    Texts under MIN_LENGTH characters are left out, and nothing is derived from them; `too_short` tells.
    Bytes that are no UTF-8 appear as surrogate escapes.
    """
    text = _as_text(value)
    texts: set[str] = set()
    for part in _parts(text):
        if len(part) >= MIN_LENGTH:
            texts.update(_spellings(part))
    return sorted((text for text in texts if len(text) >= MIN_LENGTH), key=lambda text: (-len(text), text))


def too_short(value: str | bytes) -> bool:
    """Whether the secret, or a string of a JSON secret, is too short to be masked."""
    text = _as_text(value)
    return any(0 < len(part) < MIN_LENGTH for part in (text, *_json_strings(text)))


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _parts(text: str) -> Iterator[str]:
    for whole in (text, *_json_strings(text)):
        yield whole
        yield whole.strip()
        for line in whole.splitlines():
            yield line
            yield line.strip()


def _json_strings(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(_leaves(value)) if isinstance(value, dict | list) else []


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def _spellings(text: str) -> Iterator[str]:
    data = text.encode("utf-8", "surrogateescape")
    yield text
    yield from (quote(data), quote(data, safe=""), quote_plus(data))
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode()
        # What all encodings of a longer text that begins with this one (`echo $SECRET | base64`) have in common.
        yield encode(data[: len(data) // 3 * 3]).decode()
    yield from base64.encodebytes(data).decode().splitlines()
