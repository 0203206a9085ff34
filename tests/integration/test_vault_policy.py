"""`tf-operator vault-policy`: what it prints suffices for the job, and reaches nothing of its neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hvac
import pytest
from postgres_server import PostgresServer
from vault_helpers import Logins, database, leases, put, ref, wait_for

from tf_operator.cli.main import main
from tf_operator.errors import SecretError
from tf_operator.secrets import check, fetch
from tf_operator.secrets.session import Patience, sessions
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
VALUE = "value-of-the-policy-tests"
JOB = """
name: policy-job
program: {command: [python, -c, pass]}
replicas: {chief: {}}
params: {store: {type: string, default: store}}
secrets:
  - {vault: "secret/team/{{ params.store }}#key", env: STORE}
  - {vault: "team/kv2/deep/own#token", env: DEEP}
  - {vault: "kv1/team/old#token", env: OLD}
  - {vault: "database/creds/reader#username", env: DB_USER}
  - {vault: "database/creds/reader#password", file: db.password}
"""
REFS = [
    ref("secret/team/store#key", env="STORE"),
    ref("team/kv2/deep/own#token", env="DEEP"),
    ref("kv1/team/old#token", env="OLD"),
    ref("database/creds/reader#username", env="DB_USER"),
    ref("database/creds/reader#password", file="db.password"),
]
NEIGHBOURS = [
    "secret/team/store2#key",
    "secret/team/store/below#key",
    "secret/team#key",
    "team/kv2/deep/other#token",
    "kv1/team/old2#token",
    "kv1/team/older/below#token",
    "database/creds/writer#username",
    "database/static-creds/reader#username",
]


@pytest.fixture(scope="module", autouse=True)
def secrets(openbao: DevOpenBao, postgres: PostgresServer) -> None:
    """The job's secrets and its neighbours'."""
    for path in ("store", "store2", "store/below"):
        put(openbao, f"secret/data/team/{path}", {"key": VALUE})
    for path in ("own", "other"):
        put(openbao, f"team/kv2/data/deep/{path}", {"token": VALUE})
    for path in ("old", "old2", "older/below"):
        put(openbao, f"kv1/team/{path}", {"token": VALUE})
    database(openbao, postgres, default_ttl="10m", max_ttl="1h")
    role = openbao.client().adapter.get("/v1/database/roles/reader")["data"]
    body = {name: role[name] for name in ("db_name", "creation_statements")}
    openbao.client().adapter.post("/v1/database/roles/writer", json=body)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ADDR", "TOKEN"):
        monkeypatch.delenv(f"VAULT_{name}", raising=False)
        monkeypatch.delenv(f"BAO_{name}", raising=False)
    monkeypatch.delenv("AIRFLOW_CONN_VAULT_DEFAULT", raising=False)
    file = tmp_path / "policy_job.yaml"
    file.write_text(JOB)
    return file


def printed(job: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["vault-policy", str(job), *options]) == 0
    return capsys.readouterr().out


def token(openbao: DevOpenBao, rules: str) -> str:
    """One that may do just what the policy says: without the server's default policy."""
    client = openbao.client()
    client.sys.create_or_update_policy("of-the-job", rules)
    made: Any = client.auth.token.create(policies=["of-the-job"], no_default_policy=True, ttl="1h", no_parent=True)
    return str(made["auth"]["client_token"])


@pytest.mark.parametrize("asked", [True, False])
def test_it_suffices_for_the_job_and_reaches_no_neighbour(
    openbao: DevOpenBao,
    postgres: PostgresServer,
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    asked: bool,
) -> None:
    if asked:
        monkeypatch.setenv("VAULT_ADDR", openbao.addr)
        monkeypatch.setenv("VAULT_TOKEN", openbao.token)
    else:
        # Where nobody is asked, a mount with a slash has to be told.
        job.write_text(JOB.replace('own#token", ', 'own#token", mount: team/kv2, '))
    rules = printed(job, capsys)
    again = Patience(5)

    check(REFS, Logins(openbao, token(openbao, rules)))
    login = Logins(openbao, token(openbao, rules), made_token=True)
    with sessions(login, again) as session:
        fetched = fetch(REFS, session, again)
        assert {fetched.bundle.env[name] for name in ("STORE", "DEEP", "OLD")} == {VALUE}
        (lease,) = fetched.leases
        client = session("vault_default").client
        renewed = client.sys.renew_lease(lease.lease_id, increment=120)
        assert renewed["lease_id"] == lease.lease_id
        client.auth.token.renew_self(increment=60)
        assert client.auth.token.lookup_self()["data"]["policies"] == ["of-the-job"]

        for path in NEIGHBOURS:
            with pytest.raises(SecretError, match="does not grant read on|there is nothing at this path"):
                fetch([ref(path)], session, again)
        refused(client, openbao)

        session("vault_default").revoke(lease)
        assert lease.lease_id.rpartition("/")[2] not in leases(openbao, "database/creds/reader")
    with pytest.raises(hvac.exceptions.Forbidden):
        client.auth.token.lookup_self()
    wait_for(lambda: not postgres.users())


def refused(client: Any, openbao: DevOpenBao) -> None:
    """Everything that is none of the job's business."""
    foreign = openbao.client().adapter.get("/v1/database/creds/writer")["lease_id"]
    for method, path, body in (
        ("get", "secret/data/team/store2", None),
        ("list", "secret/metadata/team", None),
        ("list", "kv1/team", None),
        ("post", "secret/data/team/store", {"data": {"key": "overwritten"}}),
        ("delete", "secret/data/team/store", None),
        ("delete", "secret/metadata/team/store", None),
        ("put", "sys/leases/revoke", {"lease_id": foreign, "sync": True}),
        ("put", "sys/leases/renew", {"lease_id": foreign}),
        ("put", f"sys/leases/revoke/{foreign}", None),
        ("put", "sys/leases/revoke-prefix/database/creds/reader", None),
        ("list", "sys/leases/lookup/database/creds/reader", None),
        ("post", "auth/token/create", {}),
        ("list", "auth/token/accessors", None),
        ("get", "sys/policies/acl/of-the-job", None),
    ):
        with pytest.raises(hvac.exceptions.Forbidden):
            getattr(client.adapter, method)(f"/v1/{path}", **({} if body is None else {"json": body}))
    openbao.client().sys.revoke_lease(foreign)


def test_as_the_server_tells_it_is_no_wider_than_the_engines_need(
    openbao: DevOpenBao, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VAULT_ADDR", openbao.addr)
    monkeypatch.setenv("VAULT_TOKEN", openbao.token)
    rules = printed(job, capsys, "--param", "store=store2")
    paths = [line.split('"')[1] for line in rules.splitlines() if line.startswith("path ")]
    assert paths == [
        "secret/data/team/store2",
        "secret/metadata/team/store2",
        "secret/subkeys/team/store2",
        "team/kv2/data/deep/own",
        "team/kv2/metadata/deep/own",
        "team/kv2/subkeys/deep/own",
        "kv1/team/old",
        "database/creds/reader",
        "auth/token/lookup-self",
        "auth/token/renew-self",
        "auth/token/revoke-self",
        "sys/capabilities-self",
        "sys/leases/renew",
        "sys/leases/revoke",
    ]
    assert VALUE not in rules


def test_the_example_needs_no_leases(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(JOB.partition('  - {vault: "team')[0].replace("env: STORE", "kv: 2, env: STORE"))
    assert "leases" not in printed(job, capsys)


@pytest.mark.parametrize(
    ("old", "new", "options", "expected"),
    [
        ("{{ params.store }}", "{{ run_id }}", (), "secrets[0].vault = secret/team/one: it changes from run to run"),
        ("{{ params.store }}", "{{ ds }}", (), "it changes from run to run"),
        ("{{ params.store }}", "store*", (), "a policy takes secret/data/team/store* for a pattern"),
        ("{{ params.store }}", "+", (), "a policy takes secret/data/team/+ for a pattern"),
        ("env: OLD", "env: OLD, connection: other", (), "several connections (other, vault_default); choose by"),
        ("env: OLD", "env: OLD", ("--connection", "other"), "none has the connection other; the job has vault_default"),
        (JOB[JOB.index("secrets:") :], "", (), "secrets: the job has none, so it needs no policy"),
    ],
)
def test_what_no_policy_can_say(
    job: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, options: tuple[str, ...], expected: str
) -> None:
    job.write_text(JOB.replace(old, new))
    assert main(["vault-policy", str(job), *options]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1
