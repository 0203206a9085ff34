"""Dynamic credentials: a real OpenBao makes users of a real PostgreSQL."""

from __future__ import annotations

import json
import subprocess

import pytest
from postgres_server import PostgresServer
from vault_helpers import Logins, chain, database, leases, ref, token, wait_for

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets import Lease, check, fetch, resolve
from tf_operator.secrets.session import Patience, sessions
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
REFS = [
    ref("database/creds/reader#username", env="DB_USER"),
    ref("database/creds/reader#password", file="db.password"),
]


@pytest.fixture(autouse=True)
def engine(openbao: DevOpenBao, postgres: PostgresServer) -> None:
    database(openbao, postgres, default_ttl="10m", max_ttl="1h")


def test_one_read_gives_a_user_that_lives_by_its_lease(openbao: DevOpenBao, postgres: PostgresServer) -> None:
    login, granted = Logins(openbao), list[Lease]()
    again = Patience(5)
    with sessions(login, again) as session:
        fetched = fetch(REFS, session, again, granted.append)
        user, password = fetched.bundle.env["DB_USER"], fetched.bundle.files[0].content.decode()
        assert postgres.ask("SELECT current_user", user, password) == [user]
        assert (user in postgres.users(), password in fetched.bundle.mask) == (True, True)

        (lease,) = fetched.leases
        assert granted == [lease]
        assert (lease.path, lease.connection, lease.renewable) == ("database/creds/reader", "vault_default", True)
        assert 590 < lease.duration <= 600
        assert leases(openbao, "database/creds/reader") == [lease.lease_id.rpartition("/")[2]]
        assert len([asked for asked in login.asked if asked.endswith("database/creds/reader")]) == 2  # mount, read

        session("vault_default").revoke(lease)
        session("vault_default").revoke(lease)
    assert leases(openbao, "database/creds/reader") == []
    assert postgres.users() == []
    with pytest.raises(subprocess.CalledProcessError):
        postgres.ask("SELECT 1", user, password)


def test_the_token_of_a_login_takes_its_leases_along(openbao: DevOpenBao, postgres: PostgresServer) -> None:
    rules = 'path "database/creds/reader" { capabilities = ["read"] }'
    login = Logins(openbao, token(openbao, rules), made_token=True)
    again = Patience(5)
    with sessions(login, again) as session:
        fetch(REFS, session, again)
        assert len(postgres.users()) == 1
    # The server answers before it has dropped them.
    wait_for(lambda: not leases(openbao, "database/creds/reader") and not postgres.users())


def test_a_fault_after_the_grant_leaves_the_lease_to_whoever_was_told(openbao: DevOpenBao) -> None:
    granted: list[Lease] = []
    again = Patience(5)
    with sessions(Logins(openbao), again) as session:
        with pytest.raises(SecretError, match="no such key among its 2; did you mean username"):
            fetch([ref("database/creds/reader#user")], session, again, granted.append)
        for lease in granted:
            session("vault_default").revoke(lease)
    assert len(granted) == 1
    assert leases(openbao, "database/creds/reader") == []


def test_where_nobody_keeps_leases_none_is_left(openbao: DevOpenBao, postgres: PostgresServer) -> None:
    with pytest.raises(SecretError, match="it lives by a lease, which nobody would renew here"):
        resolve(REFS, Logins(openbao))
    assert leases(openbao, "database/creds/reader") == []
    assert postgres.users() == []


@pytest.mark.parametrize("hides_mounts", [False, True])
def test_plan_makes_no_lease(openbao: DevOpenBao, postgres: PostgresServer, hides_mounts: bool) -> None:
    """Decision: a dynamic path is never read to check it."""
    login = Logins(openbao, hides_mounts=hides_mounts)
    check(REFS, login)
    assert not [asked for asked in login.asked if asked == "get database/creds/reader"]
    assert leases(openbao, "database/creds/reader") == []
    assert postgres.users() == []


def test_plan_sees_a_policy_that_does_not_let_us_read(openbao: DevOpenBao) -> None:
    stranger = Logins(openbao, token(openbao, 'path "database/creds/other" { capabilities = ["read"] }'))
    for do in (check, resolve):
        with pytest.raises(SecretError, match="does not grant read on database/creds/reader") as caught:
            do(REFS, stranger)
        assert not isinstance(caught.value, SecretUnavailableError)


def test_mounts_that_the_server_does_not_tell(openbao: DevOpenBao, postgres: PostgresServer) -> None:
    again = Patience(5)
    with sessions(Logins(openbao, hides_mounts=True), again) as session:
        (lease,) = fetch(REFS, session, again).leases
        session("vault_default").revoke(lease)
    assert postgres.users() == []


def test_a_role_that_does_not_exist(openbao: DevOpenBao) -> None:
    with pytest.raises(SecretError, match=r"creds/nobody#username .* the engine has no such role \(read as ") as caught:
        resolve([ref("database/creds/nobody#username")], Logins(openbao))
    assert not isinstance(caught.value, SecretUnavailableError)


def test_a_database_that_is_down_may_come_back(openbao: DevOpenBao) -> None:
    with PostgresServer() as gone:
        database(openbao, gone, "down/database", default_ttl="10m")
    with pytest.raises(SecretUnavailableError, match="cannot answer now") as caught:
        resolve([ref("down/database/creds/reader#username")], Logins(openbao), patience=0.5)
    assert gone.password not in chain(caught.value)


def test_the_whole_answer_as_one_file(openbao: DevOpenBao, postgres: PostgresServer) -> None:
    """A user name and its password belong together: in one file they also change together."""
    again = Patience(5)
    with sessions(Logins(openbao), again) as session:
        fetched = fetch([ref("database/creds/reader#*", file="db.json")], session, again)
        values = json.loads(fetched.bundle.files[0].content)
        assert postgres.ask("SELECT current_user", values["username"], values["password"]) == [values["username"]]
        assert {values["password"], values["username"]} <= set(fetched.bundle.mask)
        session("vault_default").revoke(fetched.leases[0])
