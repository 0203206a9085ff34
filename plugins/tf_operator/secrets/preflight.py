"""Plan's check: can every secret be read? No value is read, and no lease is made."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.secrets.faults import DeniedError, NotThereError, gone
from tf_operator.secrets.kv import NO_KV, Location, api_path, first_reading, locate, pick, place
from tf_operator.secrets.session import PATIENCE, Login, Patience, VaultSession, sessions

log = logging.getLogger(__name__)


def check(refs: Sequence[RenderedSecret], login: Login, *, patience: float = PATIENCE) -> None:
    """Raise for the first secret that could not be read, the same errors as `resolve`.

    Asked: the token's capabilities; on KV version 2 whether the version exists, and which keys it has where the policy
    lets us see (`subkeys`); on version 1 whether the path is listed, likewise. What is hidden from us is not an error.
    Other engines' paths are never read: that would make what nobody uses, and a lease for it.
    """
    again = Patience(patience)
    with sessions(login, again) as session:
        for ref in refs:
            again(lambda ref=ref: _check(ref, session(ref.connection)))  # type: ignore[misc]


def _check(ref: RenderedSecret, session: VaultSession) -> None:
    location = locate(ref, session)
    if location.kv == NO_KV and ref.env:
        log.warning("%s: env: %s: where its engine grants a lease, it ends with that; use file", place(ref), ref.env)

    def reading(kv: int, path: str) -> None:
        _check_capability(ref, session, api_path(location.mount, kv, path))
        if kv == 2:
            _check_version(ref, session, location, path)
            _check_key(ref, session, location, path)
        elif kv == 1:
            _check_listed(ref, session, location, path)

    first_reading(ref, session, location, reading)


def _check_capability(ref: RenderedSecret, session: VaultSession, path: str) -> None:
    try:
        answer = session.post("sys/capabilities-self", place(ref), {"paths": [path]})
    except NotThereError:
        return
    except DeniedError as denied:
        if denied.bad_token:
            raise
        return
    granted = answer.get(path, ())
    if granted and not {"read", "root"} & set(granted):
        raise DeniedError(f"{place(ref)}: permission denied")


def _check_version(ref: RenderedSecret, session: VaultSession, location: Location, path: str) -> None:
    try:
        metadata = session.get(api_path(location.mount, 2, path, "metadata"), place(ref))
    except DeniedError:
        return
    number = ref.version or metadata.get("current_version")
    version: dict[str, Any] | None = (metadata.get("versions") or {}).get(str(number))
    if version is None:
        raise NotThereError(f"{place(ref)}: there is nothing at this path", "absent")
    if left := gone(place(ref), {**version, "version": number}):
        raise left


def _check_key(ref: RenderedSecret, session: VaultSession, location: Location, path: str) -> None:
    params = {"version": ref.version} if ref.version else {}
    try:
        answer = session.get(api_path(location.mount, 2, path, "subkeys"), place(ref), **params)
    except (DeniedError, NotThereError):
        return
    if isinstance(keys := answer.get("subkeys"), dict):
        pick(ref, keys)


def _check_listed(ref: RenderedSecret, session: VaultSession, location: Location, path: str) -> None:
    folder, _, name = path.rpartition("/")
    try:
        listed = session.list(f"{location.mount}/{folder}".rstrip("/"), place(ref))
    except DeniedError:
        return
    except NotThereError as error:
        if error.state == "wrong engine":  # a mount nobody told us of, and no KV
            return
        raise
    if name not in listed.get("keys", [name]):
        raise NotThereError(f"{place(ref)}: there is nothing at this path", "absent")
