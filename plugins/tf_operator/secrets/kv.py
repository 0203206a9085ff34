"""Where a secret is, and reading it: KV mounts of either version, any other engine; told by the server or guessed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tf_operator.errors import SecretError
from tf_operator.job_spec.rendered import SERVERS_OWN, WHOLE_SECRET, RenderedSecret
from tf_operator.secrets.faults import DeniedError, NotThereError, gone
from tf_operator.secrets.model import Lease, full_path
from tf_operator.secrets.session import VaultSession

KV_TYPES = ("kv", "generic")
NO_KV = 0
"""In place of a KV version: another engine, whose path is read as it is."""
OWN_TYPES = ("system", "identity", "token", "ns_system", "ns_identity", "ns_token")


def place(ref: RenderedSecret) -> str:
    """Return the beginning of every message about `ref`."""
    version = f"version {ref.version}, " if ref.version else ""
    return f"secret {full_path(ref)}#{ref.key} ({version}connection {ref.connection})"


@dataclass(frozen=True)
class Location:
    """A secret's mount and its path below it. `kv` is None where nobody told the version; `told`: by the server."""

    mount: str
    path: str
    kv: int | None
    told: bool

    def readings(self) -> list[tuple[int, str]]:
        """Return (KV version, path below it) in the order in which they are tried."""
        readings = [(2 if self.kv is None else self.kv, self.path)]
        if self.path.startswith("data/") and self.kv in (None, 2):
            # People copy the API's path, `data/` included; a secret's own path may begin so too, and goes first.
            readings.append((2, self.path.removeprefix("data/")))
        if self.kv is None:
            readings.append((1, self.path))
        return readings


def api_path(mount: str, kv: int, path: str, part: str = "data") -> str:
    """Return the API path of a secret; `part` (data, metadata, subkeys) exists in version 2 only."""
    return f"{mount}/{part}/{path}" if kv == 2 else f"{mount}/{path}"


def locate(ref: RenderedSecret, session: VaultSession) -> Location:
    """Ask the server for the mount; if it does not say, take the declared, the connection's, or the first part."""
    _clean(ref.path, ref)
    declared = _clean(ref.mount, ref) if ref.mount else None
    full = full_path(ref)
    if full.partition("/")[0] in SERVERS_OWN:
        raise SecretError(f"{place(ref)}: {full} is the server's own, and no secret; name a path of a secrets engine")
    try:
        told = session.get(f"sys/internal/ui/mounts/{full}", place(ref))
    except (DeniedError, NotThereError):
        return assumed(ref, session.mount, session.kv)
    mount = str(told.get("path", "")).strip("/")
    kind, version = told.get("type"), int((told.get("options") or {}).get("version") or 1)
    if declared and declared != mount:
        raise SecretError(
            f"{place(ref)}: mount: {declared} is declared, but the path is on the mount {mount}; remove mount"
        )
    if kind in OWN_TYPES:
        raise SecretError(f"{place(ref)}: {full} is the server's own, and no secret; name a path of a secrets engine")
    if kind not in KV_TYPES:
        return _other_engine(ref, mount, full, str(kind))
    if ref.kv and ref.kv != version:
        raise SecretError(
            f"{place(ref)}: kv: {ref.kv} is declared, but the mount {mount} is KV version {version}; remove kv"
        )
    return Location(mount, _below(full, mount, ref), version, told=True)


def read(ref: RenderedSecret, session: VaultSession) -> tuple[dict[str, Any], Lease | None]:
    """Return the secret's keys and values, and the lease where the engine grants one."""
    location = locate(ref, session)

    def reading(kv: int, path: str) -> tuple[dict[str, Any], Lease | None]:
        params = {"version": ref.version} if ref.version and kv == 2 else {}
        answer = session.answer(api_path(location.mount, kv, path), place(ref), **params)
        return _inner(answer["data"], ref) if kv == 2 else answer["data"], _lease(answer, ref)

    found: tuple[dict[str, Any], Lease | None] = first_reading(ref, session, location, reading)
    return found


def first_reading(
    ref: RenderedSecret, session: VaultSession, location: Location, reading: Callable[[int, str], Any]
) -> Any:
    """Return what the first possible reading gives; SecretError, the most telling one, if none is possible."""
    if ref.version and location.kv in (1, NO_KV):
        kind = "KV version 1" if location.kv else "no KV mount"
        raise SecretError(f"{place(ref)}: version: {ref.version}, but {location.mount} is {kind}; remove version")
    errors: list[NotThereError | DeniedError] = []
    for kv, path in location.readings():
        if ref.version and kv == 1:
            continue
        try:
            return reading(kv, path)
        except (NotThereError, DeniedError) as caught:
            errors.append(_worded(caught, session, location, api_path(location.mount, kv, path)))
    ranks = ("deleted", "destroyed", "absent", "denied", "wrong version", "no mount", "wrong engine")
    raise min(errors, key=lambda error: ranks.index(getattr(error, "state", "denied")))


def pick(ref: RenderedSecret, keys: dict[str, Any]) -> Any:
    """Return the value of the reference's key, all keys for `*`; the error names keys only."""
    if ref.key in keys:
        return keys[ref.key]
    if ref.key == WHOLE_SECRET:
        return keys
    from difflib import get_close_matches

    near = get_close_matches(ref.key, [str(key) for key in keys], n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(map(str, keys))[:5]) or 'none'}"
    raise SecretError(f"{place(ref)}: the secret has no such key among its {len(keys)}; {hint}")


def _worded(
    error: NotThereError | DeniedError, session: VaultSession, location: Location, path: str
) -> NotThereError | DeniedError:
    """Add what this reading was to the server's answer, without its context."""
    if isinstance(error, DeniedError):
        if error.bad_token:
            return error
        what = "path or namespace" if session.client.adapter.namespace else "path"
        return DeniedError(f"{error}: the token's policy does not grant read on {path}, or the {what} is wrong")
    if error.state in ("deleted", "destroyed", "wrong version"):
        return error
    unsure = (
        "" if location.told or not location.kv else f"; kv: {location.kv} is declared, is the mount of that version?"
    )
    return NotThereError(f"{error} (read as {path}){unsure}", error.state)


def assumed(ref: RenderedSecret, mount: str | None = None, kv: int | None = None) -> Location:
    """Where a secret is when nobody can be asked: at the declared mount, else `mount` (a connection's), else the first
    part of the path. `kv` is the connection's, for a reference that declares none.
    """
    _clean(ref.path, ref)
    full, own = full_path(ref), (mount or "").strip("/")
    declared = _clean(ref.mount, ref) if ref.mount else None
    found = declared or (own if own and full.startswith(f"{own}/") else full.partition("/")[0])
    return Location(found, _below(full, found, ref), ref.kv or kv, told=False)


def _other_engine(ref: RenderedSecret, mount: str, full: str, kind: str) -> Location:
    if ref.kv:
        raise SecretError(f"{place(ref)}: kv: {ref.kv} is declared, but the mount {mount} is of type {kind}; remove kv")
    return Location(mount, _below(full, mount, ref), NO_KV, told=True)


def _lease(answer: dict[str, Any], ref: RenderedSecret) -> Lease | None:
    # Static secrets have a duration too (a hint how often to look), but no lease id.
    if not answer.get("lease_id"):
        return None
    duration, renewable = float(answer.get("lease_duration") or 0), bool(answer.get("renewable"))
    return Lease(str(answer["lease_id"]), duration, renewable, full_path(ref), ref.connection)


def _below(full: str, mount: str, ref: RenderedSecret) -> str:
    path = full.removeprefix(mount).strip("/")
    if not path:
        raise SecretError(f"{place(ref)}: {mount} is a whole mount; write the path of a secret below it")
    return path


def _clean(path: str, ref: RenderedSecret) -> str:
    """Return the path without outer slashes. Dots would be resolved on the way, past what a check has seen."""
    parts = path.strip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise SecretError(f"{place(ref)}: {path} must be names with a single / between them, without . and ..")
    return "/".join(parts)


def _inner(data: dict[str, Any], ref: RenderedSecret) -> dict[str, Any]:
    """Return the user's part of a version 2 answer: always one level down, whatever the user's keys are called."""
    inner = data.get("data")
    if inner is None and (left := gone(place(ref), data.get("metadata") or {})):
        raise left
    if not isinstance(inner, dict) or "metadata" not in data:
        raise SecretError(f"{place(ref)}: the mount does not answer as KV version 2; correct or remove kv")
    return inner
