"""Files that people write: text to a document, with every fault of the text itself told in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tf_operator.errors import JobFileError
from tf_operator.job_spec.document import Document, TooLargeError, readable
from tf_operator.job_spec.faults import Fault, Source, explained


def read_job_file(path: str | os.PathLike[str]) -> tuple[dict[str, object], Source]:
    """Read a job's YAML or JSON file. JobFileError as `read_mapping`."""
    return read_mapping(path, "no job; write a mapping with the keys name, program, replicas")


def read_mapping(path: str | os.PathLike[str], otherwise: str) -> tuple[dict[str, object], Source]:
    """Read a YAML or JSON file. JobFileError if it cannot be read, is malformed, or gives a key twice.

    `otherwise` says what a file that is no mapping holds, and what to write.
    """
    place = os.fspath(path)
    text = _read(place)
    document = _parse(place, text)
    source = Source(place, document.lines)
    if not isinstance(document.value, dict):
        raise JobFileError(f"{place}:1: the file holds {otherwise}")
    if document.repeated:
        again = {path_ for path_, _, _ in document.repeated}
        faults = [
            Fault(path_, f"is given twice, first on line {first}; keep one", line=line)
            for path_, first, line in document.repeated
            if not any(path_[:length] in again for length in range(len(path_)))
        ]
        raise explained(faults, document.value.get("name"), source)
    return document.value, source


LARGEST = 256 * 1024


def _read(place: str) -> str:
    try:
        with Path(place).open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise JobFileError(f"{place}: is larger than {LARGEST // 1024} KiB; shorten it")
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise JobFileError(f"{place}: cannot be read: {error.strerror}; name a file of YAML or JSON") from None
    except UnicodeDecodeError as error:
        raise JobFileError(f"{place}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except ValueError as error:
        raise JobFileError(f"{readable(place)}: cannot be read: {error}; name a file of YAML or JSON") from None


def _parse(place: str, text: str) -> Document:
    try:
        return _parse_json(place, text) if place.endswith(".json") else _parse_yaml(place, text)
    except TooLargeError as error:
        raise JobFileError(f"{place}: {error}") from None
    except RecursionError:
        raise JobFileError(f"{place}: is nested too deep; a few levels are enough") from None


def _parse_json(place: str, text: str) -> Document:
    from tf_operator.job_spec.json_lines import read_json

    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        raise JobFileError(
            f"{place}:{error.lineno}: is not JSON: {error.msg} (column {error.colno}); correct it"
        ) from None


def _parse_yaml(place: str, text: str) -> Document:
    import yaml

    from tf_operator.job_spec.yaml_lines import read_yaml

    try:
        return read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # The end of the text counts as a line of its own.
        line = f":{min(mark.line + 1, text.count(chr(10), 0, -1) + 1)}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise JobFileError(f"{place}{line}: is not YAML: {problem}; correct it") from None
