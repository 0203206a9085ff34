"""The least a job's login has to be allowed, as a policy of Vault or OpenBao (HCL). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from tf_operator.errors import SecretError
from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.secrets.kv import NO_KV, Location, api_path, place
from tf_operator.secrets.model import full_path

OWN_TOKEN = {
    "auth/token/lookup-self": ("read", "its own token: how long it is good for"),
    "auth/token/renew-self": ("update", "... longer, while the program runs"),
    "auth/token/revoke-self": ("update", "... and no longer"),
    "sys/capabilities-self": ("update", "plan: whether all this is granted"),
}
LEASES = {"sys/leases/renew": ("increment",), "sys/leases/revoke": ("sync",)}
"""Path → the parameters it takes beside `lease_id`."""


def policy(title: str, places: Sequence[tuple[RenderedSecret, Location]]) -> str:
    """A policy for these references, all of one connection: exact paths, nothing beside them.

    It is enough to check them (plan), to read them, and to keep and end their leases. A location nobody told of is
    covered for every engine it may be. Raises SecretError for a path that a policy would read as a pattern.
    """
    rules: dict[str, tuple[str, str]] = {}
    leased: list[str] = []
    for ref, location in places:
        for path, why in _paths(ref, location).items():
            rules.setdefault(_exact(path, ref), ("read", why))
        for kv, path in location.readings():
            if kv != 2 and location.kv in (NO_KV, None):
                leased.append(api_path(location.mount, kv, path))
    blocks = [_block(path, capability, why) for path, (capability, why) in {**rules, **OWN_TOKEN}.items()]
    if leased:
        blocks += [_leases(path, sorted(set(leased)), others) for path, others in LEASES.items()]
    return "\n\n".join((_comment(title), *blocks)) + "\n"


def _paths(ref: RenderedSecret, location: Location) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for kv, path in location.readings():
        if kv == 2:
            found[api_path(location.mount, 2, path)] = f"the secret {full_path(ref)}"
            found[api_path(location.mount, 2, path, "metadata")] = "plan: whether it is there"
            found[api_path(location.mount, 2, path, "subkeys")] = "plan: which keys it has"
        else:
            found[api_path(location.mount, kv, path)] = f"the secret {full_path(ref)}"
    return found


def _exact(path: str, ref: RenderedSecret) -> str:
    """In a policy, a * at the end and a + alone between slashes match what nobody asked for."""
    if path.endswith("*") or "+" in path.split("/"):
        raise SecretError(f"{place(ref)}: a policy takes {path} for a pattern; write the rule by hand, or rename it")
    return path


def _block(path: str, capability: str, why: str) -> str:
    return f'{_comment(why)}\npath {_quoted(path)} {{\n  capabilities = ["{capability}"]\n}}'


def _leases(path: str, leased: Iterable[str], others: Iterable[str]) -> str:
    ids = ", ".join(_quoted(f"{one}/*") for one in leased)
    more = "".join(f"\n    {_quoted(other)} = []" for other in others)
    what = "the leases of these secrets, and no other"
    allowed = f'  allowed_parameters = {{\n    "lease_id" = [{ids}]{more}\n  }}'
    return f'{_comment(what)}\npath {_quoted(path)} {{\n  capabilities = ["update"]\n{allowed}\n}}'


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in text.splitlines())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
