"""Case C-41 and the faults of a read, on a real OpenBao. `resolve` and `check` say the same."""

from __future__ import annotations

from typing import Any

import hvac
import pytest
from vault_helpers import Logins, chain, put, ref, token, wait_for

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets import check, resolve
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
VALUE = "S3cr3t-Zk7xQ9pLwMv2"


@pytest.fixture(scope="module", autouse=True)
def secrets(openbao: DevOpenBao) -> None:
    """The secrets this module reads."""
    put(openbao, "kv1/team/train", {"token": "of-version-1"})
    put(openbao, "kv1/data/train", {"token": "own-path-begins-with-data"})
    put(openbao, "kv2/data/team/train", {"token": "of-version-2", "data": "a key called data", "n": 7, "o": {"a": [1]}})
    put(openbao, "kv2/data/data/own", {"token": "own-path-begins-with-data"})
    put(openbao, "team/kv1/deep/path", {"token": "slashes-1"})
    put(openbao, "team/kv2/data/deep/path", {"token": "slashes-2"})
    put(openbao, "secret/data/training/one", {"value": VALUE})
    put(openbao, "secret/data/training/deleted", {"value": VALUE})
    put(openbao, "secret/data/training/destroyed", {"value": VALUE})
    put(openbao, "secret/data/training/versions", {"value": "first-version"})
    put(openbao, "secret/data/training/versions", {"value": "second-version"})
    put(openbao, "secret/data/elsewhere", {"value": VALUE})
    adapter = openbao.client().adapter
    adapter.delete("/v1/secret/data/training/deleted")
    adapter.put("/v1/secret/destroy/training/destroyed", json={"versions": [1]})


def test_another_engine_is_read_as_it_is(openbao: DevOpenBao) -> None:
    login = Logins(openbao)
    login.client.adapter.post("/v1/cubbyhole/x", json={"value": VALUE})
    assert resolve([ref("cubbyhole/x#value")], login).env == {"VALUE": VALUE}
    told = len(login.asked)
    check([ref("cubbyhole/x#value")], login)
    assert login.asked[told:] == ["get sys/internal/ui/mounts/cubbyhole/x", "post sys/capabilities-self"]


def value(openbao: DevOpenBao, vault: str, **fields: Any) -> str:
    check([ref(vault, **fields)], Logins(openbao))
    return resolve([ref(vault, **fields)], Logins(openbao)).env["VALUE"]


@pytest.mark.parametrize(
    ("vault", "expected"),
    [
        ("kv1/team/train#token", "of-version-1"),
        ("/kv1/team/train#token", "of-version-1"),
        ("kv1/data/train#token", "own-path-begins-with-data"),
        ("kv2/team/train#token", "of-version-2"),
        ("/kv2/team/train#token", "of-version-2"),
        ("kv2/data/team/train#token", "of-version-2"),
        ("kv2/data/own#token", "own-path-begins-with-data"),
        ("kv2/team/train#data", "a key called data"),
        ("kv2/team/train#n", "7"),
        ("kv2/team/train#o", '{"a":[1]}'),
        ("team/kv1/deep/path#token", "slashes-1"),
        ("team/kv2/deep/path#token", "slashes-2"),
    ],
)
def test_c41_both_versions_with_and_without_slash_and_data(openbao: DevOpenBao, vault: str, expected: str) -> None:
    assert value(openbao, vault) == expected


@pytest.mark.parametrize("path", ["team/kv2/deep/path", "deep/path", "/deep/path/"])
@pytest.mark.parametrize("mount", ["team/kv2", "/team/kv2/"])
def test_a_declared_mount(openbao: DevOpenBao, mount: str, path: str) -> None:
    assert value(openbao, f"{path}#token", mount=mount, kv=2) == "slashes-2"


def test_a_version_of_a_secret(openbao: DevOpenBao) -> None:
    assert value(openbao, "secret/training/versions#value", version=1) == "first-version"
    assert value(openbao, "secret/training/versions#value") == "second-version"


@pytest.mark.parametrize(
    ("vault", "fields", "session", "expected"),
    [
        ("kv2/team/train#token", {}, {}, "of-version-2"),
        ("kv1/team/train#token", {}, {}, "of-version-1"),
        ("kv1/team/train#token", {"kv": 1}, {}, "of-version-1"),
        ("kv1/team/train#token", {}, {"kv": 1}, "of-version-1"),
        ("kv2/data/team/train#token", {}, {}, "of-version-2"),
        ("team/kv2/deep/path#token", {}, {"mount": "team/kv2"}, "slashes-2"),
        ("team/kv2/deep/path#token", {"mount": "team/kv2"}, {}, "slashes-2"),
    ],
)
def test_mounts_that_the_server_does_not_tell(
    openbao: DevOpenBao, vault: str, fields: dict[str, Any], session: dict[str, Any], expected: str
) -> None:
    login = Logins(openbao, hides_mounts=True, **session)
    assert resolve([ref(vault, **fields)], login).env["VALUE"] == expected
    check([ref(vault, **fields)], login)


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("kv2/team/train#token", {"kv": 1}, "kv: 1 is declared, but the mount kv2 is KV version 2; remove kv"),
    ("kv1/team/train#token", {"kv": 2}, "kv: 2 is declared, but the mount kv1 is KV version 1; remove kv"),
    ("team/kv2/deep/path#token", {"mount": "team"}, "mount: team is declared, but the path is on the mount team/kv2"),
    ("kv1/team/train#token", {"version": 1}, "version: 1, but kv1 is KV version 1; remove version"),
    ("kv2/nowhere#token", {}, "there is nothing at this path (read as kv2/data/nowhere)"),
    ("kv1/team/nowhere#token", {}, "there is nothing at this path (read as kv1/team/nowhere)"),
    (
        "secret/training/versions#value",
        {"version": 9},
        "(version 9, connection vault_default): there is nothing at this path (read as secret/data/",
    ),
    (
        "secret/training/deleted#value",
        {},
        "version 1 was deleted, or expired by its delete_version_after; undelete or write it",
    ),
    ("secret/training/destroyed#value", {}, "version 1 was destroyed; write it again"),
    ("secret/training/one#valeu", {}, "no such key among its 1; did you mean value?"),
    ("kv2/team/train#xyz", {}, "no such key among its 4; it has data, n, o, token"),
    ("kv2#token", {}, "kv2 is a whole mount; write the path of a secret below it"),
    ("secret/training/../elsewhere#value", {}, "must be names with a single / between them, without . and .."),
    ("secret/training//one#value", {}, "must be names with a single / between them, without . and .."),
    ("cubbyhole/x#value", {"kv": 2}, "kv: 2 is declared, but the mount cubbyhole is of type cubbyhole; remove kv"),
    ("cubbyhole/x#value", {"version": 2}, "version: 2, but cubbyhole is no KV mount; remove version"),
    ("auth/token/lookup-self#id", {}, "auth/token/lookup-self is the server's own, and no secret"),
    ("token/lookup-self#id", {"mount": "auth"}, "auth/token/lookup-self is the server's own, and no secret"),
    ("sys/health#version", {}, "sys/health is the server's own, and no secret"),
    ("nomount/x#value", {}, "has nothing mounted there; check the path's mount (read as nomount/data/x)"),
]


@pytest.mark.parametrize("do", [resolve, check])
@pytest.mark.parametrize(("vault", "fields", "expected"), FAULTS)
def test_c41_faults(openbao: DevOpenBao, do: Any, vault: str, fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(SecretError) as caught:
        do([ref(vault, **fields)], Logins(openbao))
    message = str(caught.value)
    assert expected in message
    full = f"{fields.get('mount')}/{vault}" if vault == "token/lookup-self#id" else vault
    version = f"version {fields['version']}, " if "version" in fields else ""
    assert message.startswith(f"secret {full} ({version}connection vault_default): ")
    assert "\n" not in message
    assert not isinstance(caught.value, SecretUnavailableError)
    assert VALUE not in chain(caught.value)


@pytest.mark.parametrize("do", [resolve, check])
def test_c41_a_wrong_declared_version_that_the_server_does_not_tell(openbao: DevOpenBao, do: Any) -> None:
    login = Logins(openbao, hides_mounts=True)
    with pytest.raises(SecretError, match="KV version 2, read as version 1|kv: 1 is declared, is the mount"):
        do([ref("kv2/team/train#token", kv=1)], login)
    with pytest.raises(SecretError, match="kv: 2 is declared, is the mount of that version"):
        do([ref("kv1/team/train#token", kv=2)], login)


@pytest.mark.parametrize("do", [resolve, check])
def test_c44_forbidden_is_not_asked_again(openbao: DevOpenBao, do: Any) -> None:
    """Case C-44: the message names the path, and that the policy or the path may be wrong."""
    login = Logins(openbao, openbao.training_token())
    with pytest.raises(SecretError) as caught:
        do([ref("secret/elsewhere#value")], login)
    assert "the token's policy does not grant read on secret/data/elsewhere, or the path is wrong" in str(caught.value)
    assert not isinstance(caught.value, SecretUnavailableError)
    assert len(login.asked) == len(set(login.asked))


class ComingAdapter(hvac.adapters.JSONAdapter):
    """hvac's default from version 3 on, as far as it shows: a deleted version's answer is handed out, not raised."""

    def request(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().request(*args, **kwargs)
        except hvac.exceptions.InvalidPath as error:
            if ((error.json or {}).get("data") or {}).get("metadata"):
                return error.json
            raise


@pytest.mark.parametrize("do", [resolve, check])
@pytest.mark.parametrize("adapter", [hvac.adapters.JSONAdapter, ComingAdapter], ids=["present", "coming"])
@pytest.mark.parametrize(("path", "state"), [("deleted", "was deleted"), ("destroyed", "was destroyed")])
@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_hvacs_present_and_coming_default_for_deleted_versions(
    openbao: DevOpenBao, path: str, state: str, adapter: Any, do: Any
) -> None:
    """`raise_on_deleted_version` is for callers of its KV methods; what we read does not depend on it, nor warns."""
    client = hvac.Client(url=openbao.addr, token=openbao.token, adapter=adapter)
    with pytest.raises(SecretError, match=f"secret/training/{path}#value .*version 1 {state}"):
        do([ref(f"secret/training/{path}#value")], lambda _: client)


@pytest.mark.parametrize("raises", [True, False])
def test_hvac_itself_differs_as_the_test_above_says(openbao: DevOpenBao, raises: bool) -> None:
    kv = openbao.client().secrets.kv.v2
    ask = {"path": "training/deleted", "mount_point": "secret", "raise_on_deleted_version": raises}
    if raises:
        with pytest.raises(hvac.exceptions.InvalidPath):
            kv.read_secret_version(**ask)
    else:
        assert kv.read_secret_version(**ask)["data"]["data"] is None


def test_a_version_that_expired(openbao: DevOpenBao) -> None:
    openbao.client().adapter.post("/v1/secret/metadata/training/brief", json={"delete_version_after": "4s"})
    put(openbao, "secret/data/training/brief", {"value": VALUE})
    brief = [ref("secret/training/brief#value")]
    assert resolve(brief, Logins(openbao)).env == {"VALUE": VALUE}

    def told(do: Any) -> str:
        try:
            do(brief, Logins(openbao))
        except SecretError as error:
            return str(error)
        return ""

    wait_for(lambda: told(resolve) != "", 20)
    assert "version 1 was deleted, or expired by its delete_version_after" in told(resolve)
    assert told(check) == told(resolve)


@pytest.mark.parametrize("do", [resolve, check])
def test_a_token_that_is_not_known(openbao: DevOpenBao, do: Any) -> None:
    with pytest.raises(SecretError, match="the connection's token is wrong, expired or revoked"):
        do([ref("secret/training/one#value")], Logins(openbao, "no-such-token"))


def test_a_mount_that_does_not_exist_with_little_rights(openbao: DevOpenBao) -> None:
    with pytest.raises(SecretError, match="does not grant read on nomount/data/x, or the path is wrong"):
        resolve([ref("nomount/x#value")], Logins(openbao, openbao.training_token()))


def test_the_shipped_policy_is_enough_and_no_more(openbao: DevOpenBao) -> None:
    login = Logins(openbao, openbao.training_token())
    check([ref("secret/training/one#value")], login)
    assert resolve([ref("secret/data/training/one#value")], login).env["VALUE"] == VALUE
    with pytest.raises(SecretError, match="no such key"):
        check([ref("secret/training/one#other")], login)
    policies = openbao.client().auth.token.lookup(openbao.training_token())["data"]["policies"]
    assert "root" not in policies


def test_check_reads_no_value(openbao: DevOpenBao) -> None:
    login = Logins(openbao)
    check([ref("secret/training/one#value"), ref("kv1/team/train#token")], login)
    assert login.asked
    assert not [asked for asked in login.asked if asked.startswith("get") and ("/data/" in asked or "get kv1" in asked)]


def test_check_does_with_read_alone(openbao: DevOpenBao) -> None:
    """A policy that hides metadata, subkeys and lists is no fault."""
    rules = 'path "secret/data/training/*" { capabilities = ["read"] } path "kv1/*" { capabilities = ["read"] }'
    refs = [ref("secret/training/one#value"), ref("kv1/team/train#token", env="B")]
    login = Logins(openbao, token(openbao, rules))
    check(refs, login)
    assert resolve(refs, login).env == {"VALUE": VALUE, "B": "of-version-1"}
