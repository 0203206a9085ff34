"""What a connection of type `vault` may say, in the words of the Airflow provider."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_operator.errors import SecretError

COMMON = frozenset({"auth_type", "auth_mount_point", "kv_engine_version", "use_tls", "client_kwargs"})
METHODS: Mapping[str, frozenset[str]] = {
    "token": frozenset({"token_path"}),
    "approle": frozenset({"role_id"}),
    "userpass": frozenset(),
    "ldap": frozenset(),
    "jwt": frozenset({"jwt_role", "jwt_token", "jwt_token_path"}),
    "kubernetes": frozenset({"kubernetes_role", "kubernetes_jwt_path"}),
    "github": frozenset({"token_path"}),
    "aws_iam": frozenset({"role_id", "region"}),
    "gcp": frozenset({"role_id", "gcp_key_path", "gcp_keyfile_dict", "gcp_scopes"}),
}
"""auth_type → the extras it has beside the common ones."""
CONFIGURING = ("azure", "radius")
"""With these the provider's client does not log in: it overwrites the server's own settings of the auth method."""
CLIENT_OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "verify": (lambda value: isinstance(value, bool | str), "true, false or the path of a CA file"),
    "cert": (
        lambda value: isinstance(value, str) or (_are_texts(value) and len(value) == 2),
        "the path of a PEM file, or a list of two: certificate and key",
    ),
    "namespace": (lambda value: isinstance(value, str), "a text"),
    "proxies": (
        lambda value: isinstance(value, dict) and _are_texts(list(value.values())),
        "a JSON object: scheme to URL",
    ),
    "timeout": (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value > 0,
        "a number of seconds above 0, without quotation marks",
    ),
}
"""Of client_kwargs: option → its rule, also in words. hvac knows more options, but they would change whom we talk to,
or what an answer means."""
TLS_SCHEMES = ("vaults", "https")
SCHEMES = ("vault", "http", *TLS_SCHEMES)


@dataclass(frozen=True)
class Described:
    """A connection as somebody wrote it down. The repr holds nothing secret."""

    address: str
    login: str | None
    password: str | None = field(repr=False)
    mount: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def method(self) -> str:
        """How it logs in."""
        return str(self.extra.get("auth_type") or "token")

    @property
    def kv(self) -> int | None:
        """The version of the KV mounts where the server does not tell."""
        return int(self.extra["kv_engine_version"]) if self.extra.get("kv_engine_version") else None

    @property
    def client_options(self) -> dict[str, Any]:
        """Of client_kwargs, what is set."""
        return usable(_as_dict(self.extra.get("client_kwargs") or {}))


def usable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of client_kwargs, what is set, as requests takes it. An empty verify would be none at all."""
    found = {name: options[name] for name in _set(options)}
    if isinstance(found.get("cert"), list):
        found["cert"] = tuple(found["cert"])
    return found


def check_extra(extra: Mapping[str, Any], where: str) -> None:
    """SecretError for what would be ignored, or should be: unknown extras, and those of another auth_type.

    Empty ones do not count: Airflow's form leaves them.
    """
    method = str(extra.get("auth_type") or "token")
    if method in CONFIGURING:
        raise SecretError(
            f"{where}: auth_type {method}: the Airflow provider would change the server's settings instead of logging"
            f" in; use one of {', '.join(METHODS)}"
        )
    if method not in METHODS:
        raise SecretError(f"{where}: auth_type {method} is not known; use one of {', '.join(METHODS)}")
    for name in _set(extra):
        if name in CLIENT_OPTIONS:
            raise SecretError(f"{where}: extra {name}: it belongs into client_kwargs; move it there")
        if name not in COMMON | METHODS[method]:
            known = any(name in extras for extras in METHODS.values())
            rule = f"has no meaning with auth_type {method}" if known else "is not known"
            allowed = ", ".join(sorted(COMMON | METHODS[method]))
            raise SecretError(f"{where}: extra {name}: {rule}; remove it, or use {allowed}")
    _check_options(extra, where)
    version = str(extra.get("kv_engine_version") or "2")
    if version not in ("1", "2"):
        raise SecretError(f"{where}: kv_engine_version: {version}: must be 1 or 2; correct or remove it")


def _check_options(extra: Mapping[str, Any], where: str) -> None:
    try:
        options = _as_dict(extra.get("client_kwargs") or {})
        unknown = sorted(set(_set(options)) - set(CLIENT_OPTIONS))
    except (ValueError, TypeError, AttributeError):
        options, unknown = {}, ["(no JSON object)"]
    if unknown:
        allowed = ", ".join(sorted(CLIENT_OPTIONS))
        raise SecretError(f"{where}: client_kwargs: {', '.join(unknown)}: not allowed; use {allowed}")
    for name in _set(options):
        holds, rule = CLIENT_OPTIONS[name]
        if not holds(options[name]):
            raise SecretError(f"{where}: client_kwargs.{name}: must be {rule}; correct or remove it")


def check_token(token: str, where: str) -> None:
    """SecretError for a token that no request can carry: it goes into a header."""
    if token != token.strip():
        raise SecretError(f"{where}: its token begins or ends with white space (a line's end?); remove that")
    if not (token.isascii() and token.isprintable()):
        raise SecretError(f"{where}: its token has characters that no request can carry (only ASCII); correct it")


def address_of(scheme: str, host: str | None, port: Any, extra: Mapping[str, Any]) -> str | None:
    """Return the server's URL by the rules of the Airflow provider; None if this is no vault connection."""
    if scheme not in SCHEMES or not host:
        return None
    tls = extra.get("use_tls")
    secure = scheme in TLS_SCHEMES if tls is None else str(tls).strip().lower() in ("true", "t", "1", "yes", "y", "on")
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}" + (f":{int(port)}" if port else "")


def _set(values: Mapping[str, Any]) -> Iterable[str]:
    return [name for name, value in values.items() if value is not None and value != ""]


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _as_dict(options: Any) -> dict[str, Any]:
    found = json.loads(options) if isinstance(options, str) else options
    return dict(found.items())
