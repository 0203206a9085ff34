"""A YAML reader that knows the line of every key, and reads scalars as JSON would.

YAML 1.1, which PyYAML reads, makes `on` true, `0400` 256, `1:30` 90 and `2024-01-01` a date; here they are text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode
from yaml.constructor import ConstructorError

from tf_operator.job_spec.document import Document, Path

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc, valid-type]
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", list("-+0123456789.")),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", ["<"]),
)
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read_yaml(text: str) -> Document:
    """Parse one YAML document. Raises yaml.YAMLError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        document = Document()
        value = None if node is None else _Reader(loader, document).value(node, (), ())
    finally:
        loader.dispose()
    return Document(value, document.lines, document.repeated)


class _Reader:
    def __init__(self, loader: Any, document: Document) -> None:
        self._loader = loader
        self._document = document

    def value(self, node: Node, path: Path, above: tuple[Node, ...]) -> Any:
        self._document.enter(path)
        if any(node is other for other in above):
            raise ConstructorError(None, None, "an alias stands inside what it names", node.start_mark)
        if isinstance(node, MappingNode):
            return self._mapping(node, path, (*above, node))
        if isinstance(node, SequenceNode):
            return self._sequence(node, path, (*above, node))
        return self._scalar(node)

    def _scalar(self, node: Node) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            raise ConstructorError(None, None, str(error).split(";")[0], node.start_mark) from None

    def _sequence(self, node: SequenceNode, path: Path, above: tuple[Node, ...]) -> list[Any]:
        self._plain_tag(node, "seq")
        values = []
        for index, item in enumerate(node.value):
            self._document.lines.setdefault((*path, index), item.start_mark.line + 1)
            values.append(self.value(item, (*path, index), above))
        return values

    def _mapping(self, node: MappingNode, path: Path, above: tuple[Node, ...]) -> dict[str, Any]:
        self._plain_tag(node, "map")
        merged: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = self._merge(value_node, path, above) | merged
                continue
            key = self._key(key_node)
            self._document.note(path, key, line)
            values[key] = self.value(value_node, (*path, key), above)
        return merged | values

    def _merge(self, node: Node, path: Path, above: tuple[Node, ...]) -> dict[str, Any]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in reversed(sources):
            if not isinstance(source, MappingNode):
                raise ConstructorError(None, None, "`<<` takes a mapping or a list of mappings", node.start_mark)
            # A merged key may be given again beside `<<`: its lines are not the place to look for repetitions.
            merged |= _Reader(self._loader, Document(counter=self._document.counter)).value(source, path, above)
        return merged

    def _key(self, node: Node) -> str:
        key = self._scalar(node) if isinstance(node, ScalarNode) else None
        if not isinstance(key, str):
            raise ConstructorError(None, None, "a key must be text; put it in quotes", node.start_mark)
        return key

    def _plain_tag(self, node: Node, kind: str) -> None:
        if node.tag != f"tag:yaml.org,2002:{kind}":
            raise ConstructorError(None, None, f"the tag {node.tag} has no meaning here", node.start_mark)
