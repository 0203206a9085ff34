"""Which secrets a job may name at all, by the beginnings of their paths: a fence before the server's own policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.secrets.model import full_path

DEFAULT_CONNECTION = "vault_default"


def outside_prefixes(references: Sequence[RenderedSecret], prefixes: Sequence[str]) -> list[RenderedSecret]:
    """The references that are not below one of `prefixes`, in their order.

    A prefix is whole path parts with the mount (`secret/training` covers `secret/training/x`, not `secret/training2`),
    on the connection `vault_default`; on another one, `connection:path`. An empty prefix covers nothing; `other:`
    is all of that connection. Where a path can be read in two ways, both have to be inside.
    """
    fences = [_fence(prefix) for prefix in prefixes if prefix.strip("/")]
    return [
        ref
        for ref in references
        if not all(any(_covers(fence, ref.connection, parts) for fence in fences) for parts in _readings(ref))
    ]


def _fence(prefix: str) -> tuple[str, list[str]]:
    connection, colon, path = prefix.partition(":")
    if not colon:
        connection, path = DEFAULT_CONNECTION, prefix
    return connection, [part for part in path.split("/") if part]


def _covers(fence: tuple[str, list[str]], connection: str, parts: list[str]) -> bool:
    return connection == fence[0] and parts[: len(fence[1])] == fence[1] and not {"", ".", ".."} & set(parts)


def _readings(ref: RenderedSecret) -> Iterator[list[str]]:
    """The path's parts, and without a `data` that may be the API's own: where the mount ends, nobody says here."""
    parts = full_path(ref).split("/")
    yield parts
    if ref.kv == 1:
        return
    mount = [part for part in (ref.mount or "").split("/") if part]
    places = [len(mount)] if mount else range(1, len(parts))
    for place in places:
        if parts[place : place + 1] == ["data"]:
            yield parts[:place] + parts[place + 1 :]
