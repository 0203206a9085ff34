"""From references to what a program gets: environment, files, and the texts to star out of its output."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tf_operator.errors import SecretError
from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.masking import MIN_LENGTH, mask_texts, too_short
from tf_operator.runners.base import SecretBundle, SecretFile
from tf_operator.secrets.kv import pick, place, read
from tf_operator.secrets.model import Fetched, Lease, full_path
from tf_operator.secrets.session import PATIENCE, Login, Patience, VaultSession, sessions

log = logging.getLogger(__name__)
LONGEST_ENV = 128 * 1024
"""Linux refuses a program one of whose variables (NAME=value and its end) is longer."""


def resolve(refs: Sequence[RenderedSecret], login: Login, *, patience: float = PATIENCE) -> SecretBundle:
    """Read every secret, with one login per connection that ends with the read: so, none that lives by a lease.

    A sealed or unreachable Vault is asked again for `patience` seconds in all.
    Raises SecretError, or SecretUnavailableError where a later try may help. Messages hold no value.
    """
    again = Patience(patience)
    with sessions(login, again) as session:
        fetched = fetch(refs, session, again, lambda lease: _refuse(lease, session(lease.connection)))
    return fetched.bundle


def _refuse(lease: Lease, session: VaultSession) -> None:
    with contextlib.suppress(SecretError):
        session.revoke(lease)
    raise SecretError(
        f"secret {lease.path} (connection {lease.connection}): it lives by a lease, which nobody would renew here"
    )


def fetch(
    refs: Sequence[RenderedSecret],
    session: Callable[[str], VaultSession],
    again: Patience,
    granted: Callable[[Lease], None] = lambda lease: None,
) -> Fetched:
    """Read every secret through sessions (connection id → session) that stay open, as `sessions` gives them.

    `granted` is told of a lease before anything else can go wrong: whoever made it has to end it, on an error too.
    One read serves all references to a path, so a user name and its password belong together. Raises as `resolve`.
    """
    env: dict[str, str] = {}
    files: list[SecretFile] = []
    masks: set[str] = set()
    leases: list[Lease] = []
    read_once: dict[tuple[Any, ...], dict[str, Any]] = {}
    for ref in refs:
        source = (ref.connection, full_path(ref), ref.kv, ref.version)
        if source not in read_once:
            read_once[source], lease = again(lambda ref=ref: read(ref, session(ref.connection)))  # type: ignore[misc]
            if lease is not None:
                granted(lease)
                leases.append(lease)
        stored = pick(ref, read_once[source])
        content = decoded(ref, stored)
        _cover(ref, (stored, content), session(ref.connection), masks)
        if ref.file is not None:
            files.append(SecretFile(ref.file, content, ref.mode))
        else:
            env[str(ref.env)] = _as_variable(ref, content)
    bundle = SecretBundle(env=env, files=files, mask=sorted(masks, key=lambda text: (-len(text), text)))
    return Fetched(bundle, tuple(leases))


def decoded(ref: RenderedSecret, stored: Any) -> bytes:
    """Return the bytes the program gets.

    Without `decode`: a string as it is, anything else as JSON. `base64`: what the string encodes. `json`: what the
    string says in JSON; a JSON string as it is, anything else as compact JSON.
    """
    if stored is None:
        raise SecretError(f"{place(ref)}: the key is there, but has no value (null); write one")
    if ref.decode == "base64":
        return _from_base64(ref, stored)
    if ref.decode == "json" and isinstance(stored, str):
        stored = _from_json(ref, stored)
    text = stored if isinstance(stored, str) else json.dumps(stored, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _from_base64(ref: RenderedSecret, stored: Any) -> bytes:
    # The errors of these modules hold the text they were given: ours is raised where they are gone.
    if isinstance(stored, str):
        packed = "".join(stored.split()).translate(str.maketrans("-_", "+/")).rstrip("=")
        try:
            return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
        except (binascii.Error, ValueError):
            pass
    raise SecretError(f"{place(ref)}: decode: base64, but the value is no base64; store it encoded, or remove decode")


def _from_json(ref: RenderedSecret, stored: str) -> Any:
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        pass
    raise SecretError(f"{place(ref)}: decode: json, but the value is no JSON; correct it, or remove decode")


def _as_variable(ref: RenderedSecret, content: bytes) -> str:
    if b"\0" in content:
        raise SecretError(
            f"{place(ref)}: env: {ref.env}: the value has a NUL byte, which no variable can hold; use file"
        )
    if len(content) + len(str(ref.env)) + 2 > LONGEST_ENV:
        raise SecretError(
            f"{place(ref)}: env: {ref.env}: {len(content)} bytes are too long for a variable (128 KiB); use file"
        )
    try:
        return content.decode()
    except UnicodeDecodeError:
        pass
    raise SecretError(
        f"{place(ref)}: env: {ref.env}: the value is binary (no UTF-8), which no variable can hold; use file"
    )


def _cover(ref: RenderedSecret, forms: tuple[Any, bytes], session: VaultSession, masks: set[str]) -> None:
    """Collect the value's spellings, and tell the session's owner before the value goes anywhere."""
    stored, content = forms
    texts = set(mask_texts(content))
    if isinstance(stored, str):
        texts.update(mask_texts(stored))
    if too_short(content):
        log.warning("%s: it is, or holds a part, under %d characters: not masked in output", place(ref), MIN_LENGTH)
    if session.register_masks:
        session.register_masks(sorted(texts))
    masks.update(texts)
