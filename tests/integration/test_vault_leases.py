"""What a program's dynamic secrets live by: renewed, fetched anew, ended, on a real OpenBao and a real PostgreSQL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hvac
import pytest
import requests
from postgres_server import PostgresServer
from typer.testing import CliRunner
from vault_helpers import Json, database, leases, ref, wait_for

from tf_operator.cli.main import app
from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners.base import SecretBundle
from tf_operator.runners.run_folder import RunFolder
from tf_operator.secrets import VaultSession
from tf_operator.secrets.custody import HAND_OVER, Custody, end_left
from tf_operator.secrets.ledger import Ledger, ledgers
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
IDENTITY = Identity("job", "run", "train", ReplicaId("worker", 0))
CREDS = "database/creds/reader"
FILES = [ref(f"{CREDS}#username", file="user"), ref(f"{CREDS}#password", file="password")]
VARIABLES = [ref(f"{CREDS}#username", env="DB_USER"), ref(f"{CREDS}#password", env="DB_PASSWORD")]
LEAST = """
path "database/creds/reader" { capabilities = ["read"] }
path "secret/data/leases" { capabilities = ["read"] }
"""
ENDS_BY_ID = """
path "sys/leases/revoke" { capabilities = ["update"] }
path "auth/token/revoke-accessor" { capabilities = ["update"] }
"""


class Clock:
    """The real one, and what a test adds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Bench:
    """A login with tokens of its own, and what a replica's watcher keeps."""

    def __init__(self, server: DevOpenBao, postgres: PostgresServer, folder: Path) -> None:
        self.server, self.postgres, self.folder = server, postgres, folder
        self.clock, self.logged, self.stored = Clock(), list[str](), list[Json]()
        self.policy, self.ttl, self.makes_tokens = LEAST + ENDS_BY_ID, "10m", True
        self.away: Exception | None = None
        self.accessors_before = self.accessors()

    def accessors(self) -> set[str]:
        return set(self.server.client().adapter.list("/v1/auth/token/accessors")["data"]["keys"])

    def login(self, connection: str) -> VaultSession:
        if self.away:
            raise self.away
        self.server.client().sys.create_or_update_policy("leases", self.policy)
        made = self.server.client().auth.token.create_orphan(policies=["default", "leases"], ttl=self.ttl)
        plain = requests.Session()
        plain.trust_env = False
        client = hvac.Client(url=self.server.addr, token=made["auth"]["client_token"], session=plain, timeout=5)
        return VaultSession(connection, client, made_token=self.makes_tokens)

    def custody(self, refs: list[Any]) -> Custody:
        def save(record: list[Json]) -> bool:
            self.stored = json.loads(json.dumps(record))
            return True

        made = Custody(refs, self.login, IDENTITY, self.ledger, self.clock)
        made.bind(save, self.logged.append)
        return made

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder, IDENTITY.key)

    def works(self, bundle: SecretBundle) -> bool:
        user, password = (file.content.decode() for file in bundle.files)
        return self.postgres.ask("SELECT current_user", user, password) == [user]

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not leases(self.server, CREDS) and not self.postgres.users())
        # Not `==`: a token of an earlier test may run out meanwhile. And OpenBao ends one a moment after it says so.
        wait_for(lambda: self.accessors() <= self.accessors_before)
        assert (self.stored, list(ledgers(self.folder))) == ([], [])


@pytest.fixture
def bench(openbao: DevOpenBao, postgres: PostgresServer, tmp_path: Path) -> Bench:
    database(openbao, postgres, default_ttl="10m", max_ttl="1h")
    openbao.client().sys.revoke_prefix(CREDS)
    wait_for(lambda: not postgres.users())
    return Bench(openbao, postgres, tmp_path)


def until(found: Callable[[], SecretBundle | None], seconds: float) -> SecretBundle | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if bundle := found():
            return bundle
        time.sleep(0.05)
    return None


def test_past_max_ttl_there_are_new_credentials_before_the_old_ones_end(bench: Bench) -> None:
    database(bench.server, bench.postgres, default_ttl="15s", max_ttl="30s")
    bench.ttl = "15s"
    custody = bench.custody(FILES)
    begun = time.monotonic()
    custody.fetch()
    second = until(custody.tend, 45)
    assert 15 < time.monotonic() - begun < 30, "renewed before, and fetched anew before the old ones end"
    assert second and bench.works(second), bench.logged
    assert {file.name for file in second.files} == {"user", "password"}
    assert second.files[1].content.decode() in second.mask
    custody.delivered()
    assert until(custody.tend, 1) is None
    custody.end()
    bench.assert_nothing_left()
    assert bench.logged[-1] == f"fetched anew, as the lease could not be renewed: {CREDS}"


def test_what_was_replaced_is_ended_after_a_minute(bench: Bench) -> None:
    custody = bench.custody(FILES)
    first = custody.fetch()
    custody.inherit([])
    again = bench.custody(FILES)
    again.inherit(bench.stored)
    second = again.tend()
    assert second and bench.works(second)
    assert again.tend() is None, "it is given again after a pause"
    bench.clock.ahead += 6
    assert again.tend() is second
    again.delivered()
    assert bench.works(first) and len(bench.postgres.users()) == 2
    bench.clock.ahead += HAND_OVER
    assert again.tend() is None
    assert bench.works(second) and len(bench.postgres.users()) == 1
    again.end()
    bench.assert_nothing_left()


def test_the_record_has_no_secret_and_is_enough_to_end_what_is_left(bench: Bench) -> None:
    custody = bench.custody(FILES)
    values = [file.content.decode() for file in custody.fetch().files]
    (grant,) = bench.stored
    assert grant["accessor"] and [path for _, path in grant["leases"]] == [CREDS]
    text = json.dumps(bench.stored) + bench.ledger.path.read_text()
    assert not [value for value in values if value in text]
    assert bench.ledger.path.stat().st_mode & 0o777 == 0o600
    end_left(bench.ledger, bench.login, bench.logged.append)
    bench.stored = []
    bench.assert_nothing_left()
    assert bench.logged == []


def test_a_newer_watcher_keeps_its_record(bench: Bench) -> None:
    older = bench.custody(FILES)
    older.fetch()
    newer = bench.custody(FILES)
    newer.inherit(bench.stored)
    record = bench.stored
    older.bind(lambda record: None, bench.logged.append)
    bench.server.client().sys.revoke_prefix(CREDS)
    wait_for(lambda: not bench.postgres.users())
    bench.clock.ahead += 3600
    assert [older.tend() for _ in range(2)] == [None, None]
    assert "a newer watcher has worker-0" in bench.logged[-1]
    assert bench.postgres.users() == [], "nothing is fetched that nobody would end"
    older.end()
    assert bench.stored == record
    assert bench.ledger.read() == record
    newer.end()
    bench.assert_nothing_left()


def test_variables_are_said_to_be_beyond_help_and_end_all_the_same(bench: Bench) -> None:
    custody = bench.custody(VARIABLES)
    custody.fetch()
    assert "it is in a variable, which nobody can replace" in bench.logged[0]
    heir = bench.custody(VARIABLES)
    heir.inherit(bench.stored)
    assert heir.tend() is None
    assert "a variable not be replaced" in bench.logged[-1]
    assert len(bench.postgres.users()) == 1, "the program uses it"
    heir.end()
    bench.assert_nothing_left()


def test_static_secrets_leave_nothing_to_tend(bench: Bench) -> None:
    bench.server.client().secrets.kv.v2.create_or_update_secret("leases", {"key": "a-value"}, mount_point="secret")
    custody = bench.custody([ref("secret/leases#key")])
    assert custody.fetch().env == {"VALUE": "a-value"}
    bench.assert_nothing_left()
    assert custody.tend() is None


def test_a_fault_after_the_grant_leaves_nothing(bench: Bench) -> None:
    custody = bench.custody([*FILES, ref("secret/absent#key", env="KEY")])
    with pytest.raises(SecretError, match="absent"):
        custody.fetch()
    bench.assert_nothing_left()


@pytest.mark.parametrize(
    "trouble",
    [SecretUnavailableError("sealed"), ConnectionError("Airflow's API server"), SecretError("no such connection")],
)
def test_a_vault_that_is_away_at_the_end_leaves_a_record_for_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    monkeypatch.setattr("tf_operator.secrets.custody.END_PATIENCE", 0)
    bench.custody(FILES).fetch()
    heir = bench.custody(FILES)
    heir.inherit(bench.stored)
    bench.away = trouble
    assert heir.tend() is None
    heir.end()
    assert "the next watcher or `tf-operator clean` will" in bench.logged[-1]
    assert len(bench.ledger.read()) == 1 and len(bench.postgres.users()) == 1
    bench.away = None
    (revoked,) = end_left(bench.ledger, bench.login, bench.logged.append)
    assert [path for _, path in revoked["leases"]] == [CREDS]
    bench.stored = []
    bench.assert_nothing_left()


def test_without_the_right_to_end_leases_the_token_takes_them_along(bench: Bench) -> None:
    bench.policy = LEAST
    custody = bench.custody(FILES)
    custody.fetch()
    custody.end()
    bench.assert_nothing_left()
    assert bench.logged == []


def test_a_token_that_was_given_stays_and_its_leases_end(bench: Bench) -> None:
    bench.makes_tokens = False
    custody = bench.custody(FILES)
    custody.fetch()
    (grant,) = bench.stored
    assert grant["accessor"] is None
    custody.end()
    assert len(bench.accessors() - bench.accessors_before) == 1
    bench.accessors_before = bench.accessors()
    bench.assert_nothing_left()


def test_what_may_not_be_ended_is_said(bench: Bench) -> None:
    bench.policy = LEAST
    bench.custody(FILES).fetch()
    assert end_left(bench.ledger, bench.login, bench.logged.append) == []
    (said,) = bench.logged
    assert "permission denied" in said and said.endswith("the lease is left to run out by itself")
    bench.server.client().sys.revoke_prefix(CREDS)


def test_clean_lists_and_revokes_what_nobody_watches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(bench.folder))
    monkeypatch.setenv("VAULT_ADDR", bench.server.addr)
    monkeypatch.setenv("VAULT_TOKEN", bench.server.token)
    bench.custody(FILES).fetch()

    def clean(*flags: str) -> str:
        return CliRunner().invoke(app, ["clean", *flags]).output

    assert "1 lease" not in clean("--yes"), "its program may be starting"
    monkeypatch.setattr("tf_operator.cli.clean.SETTLED", 0.0)
    folder = RunFolder(bench.folder, IDENTITY.key)
    folder.create()
    folder.write_record({"start": 1})
    assert "1 lease" not in clean(), "its program lives, and may be adopted"
    folder.forget()
    assert "job/run/train/worker-0: 1 lease: database/creds/reader" in clean()
    assert len(bench.postgres.users()) == 1
    monkeypatch.setenv("VAULT_TOKEN", "wrong")
    said = clean("--yes")
    assert "permission denied: the connection's token is wrong, expired or revoked" in said
    assert "kept on record: 1 lease: database/creds/reader of job/run/train/worker-0" in said
    assert "revoked: 1 lease" not in said and len(bench.postgres.users()) == 1
    monkeypatch.setenv("VAULT_TOKEN", bench.server.token)
    said = clean("--yes")
    assert "revoked: 1 lease: database/creds/reader of job/run/train/worker-0" in said
    assert "kept on record" not in said
    bench.stored = []
    bench.assert_nothing_left()
