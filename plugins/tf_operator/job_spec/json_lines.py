"""A JSON reader that knows the line of every key: the standard one does not tell, and lets a key be given twice."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from tf_operator.job_spec.document import Document, Path

_BLANK = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}


def read_json(text: str) -> Document:
    """Parse JSON text. Raises json.JSONDecodeError."""
    reader = _Reader(text)
    value = reader.value(reader.skip(0), ())
    end = reader.skip(reader.end)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return Document(value, reader.document.lines, reader.document.repeated)


@dataclass
class _Reader:
    text: str
    end: int = 0
    _counted: tuple[int, int] = (0, 1)
    document: Document = field(default_factory=Document)

    def skip(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        return found.end() if found else at

    def line(self, at: int) -> int:
        # From where it last looked, or a file of one long list would be read through for each item.
        before, line = self._counted
        self._counted = at, line + self.text.count("\n", before, at)
        return self._counted[1]

    def value(self, at: int, path: Path) -> Any:
        self.document.enter(path)
        first = self.text[at : at + 1]
        if first == "{":
            return self._object(at, path)
        if first == "[":
            return self._array(at, path)
        if first == '"':
            text, self.end = scanstring(self.text, at + 1, True)
            return text
        for word, value in _WORDS.items():
            if self.text.startswith(word, at):
                self.end = at + len(word)
                return value
        found = _NUMBER.match(self.text, at)
        if not found:
            raise json.JSONDecodeError("Expecting value", self.text, at)
        self.end = found.end()
        try:
            return json.loads(found[0])
        except ValueError as error:
            raise json.JSONDecodeError(str(error).split(";")[0], self.text, at) from None

    def _object(self, at: int, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        at = self.skip(at + 1)
        while self.text[at : at + 1] != "}":
            if values:
                at = self.skip(self._expect(",", at))
            line = self.line(at)
            self._expect('"', at)
            key, end = scanstring(self.text, at + 1, True)
            self.document.note(path, key, line)
            at = self.skip(self._expect(":", self.skip(end)))
            values[key] = self.value(at, (*path, key))
            at = self.skip(self.end)
        self.end = at + 1
        return values

    def _array(self, at: int, path: Path) -> list[Any]:
        values: list[Any] = []
        at = self.skip(at + 1)
        while self.text[at : at + 1] != "]":
            if values:
                at = self.skip(self._expect(",", at))
            item = (*path, len(values))
            self.document.lines[item] = self.line(at)
            values.append(self.value(at, item))
            at = self.skip(self.end)
        self.end = at + 1
        return values

    def _expect(self, character: str, at: int) -> int:
        if self.text[at : at + 1] != character:
            raise json.JSONDecodeError(f"Expecting '{character}'", self.text, at)
        return at + 1
