"""Ways to log in at the session's OpenBao: each as an Airflow connection, good and bad ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from vault_helpers import Json

from tf_operator.services.openbao import DevOpenBao

ISSUER = "tests"
ACCOUNT = "system:serviceaccount:training:trainer"


def connection(openbao: DevOpenBao, auth_type: str, extra: Json | None = None, **fields: Any) -> str:
    """An Airflow connection, as JSON."""
    host, _, port = openbao.addr.removeprefix("http://").partition(":")
    extra = {"auth_type": auth_type, **(extra or {})}
    return json.dumps({"conn_type": "vault", "host": host, "port": int(port), "extra": extra, **fields})


def approle(openbao: DevOpenBao) -> str:
    client = openbao.client()
    client.sys.enable_auth_method("approle")
    client.auth.approle.create_or_update_approle("training", token_policies=["training"], token_ttl="10m")
    role = client.auth.approle.read_role_id("training")["data"]["role_id"]
    secret = client.auth.approle.generate_secret_id("training")["data"]["secret_id"]
    return connection(openbao, "approle", login=role, password=secret)


def userpass(openbao: DevOpenBao) -> str:
    """At a mount of its own name, with a slash in it."""
    client = openbao.client()
    client.sys.enable_auth_method("userpass", path="people/here")
    body = {"password": "pass-of-trainer", "token_policies": ["training"], "token_ttl": "10m"}
    client.adapter.post("/v1/auth/people/here/users/trainer", json=body)
    extra = {"auth_mount_point": "people/here"}
    return connection(openbao, "userpass", extra, login="trainer", password="pass-of-trainer")


class JwtIssuer:
    """An identity provider as far as OpenBao sees one: a key of which it knows the public half."""

    def __init__(self, openbao: DevOpenBao) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        client = openbao.client()
        client.sys.enable_auth_method("jwt")
        settings = {"jwt_validation_pubkeys": [public.decode()], "bound_issuer": ISSUER}
        client.adapter.post("/v1/auth/jwt/config", json=settings)
        role = {"role_type": "jwt", "user_claim": "sub", "bound_audiences": ["vault"], "bound_subject": "trainer"}
        client.adapter.post("/v1/auth/jwt/role/training", json={**role, "token_policies": ["training"]})

    def token(self, subject: str = "trainer", seconds: float = 300) -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": subject, "aud": "vault", "iat": now - 600, "exp": now + int(seconds)}
        return jwt.encode(claims, self._key, algorithm="ES256")


def service_account_token() -> str:
    """As Kubernetes mounts it into a pod. Its signature is for the token review to judge."""
    claims = {
        "iss": "kubernetes/serviceaccount",
        "sub": ACCOUNT,
        "kubernetes.io/serviceaccount/namespace": "training",
        "kubernetes.io/serviceaccount/service-account.name": "trainer",
        "kubernetes.io/serviceaccount/service-account.uid": "uid-of-trainer",
    }
    return jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), algorithm="ES256")


def some_certificate() -> str:
    """OpenBao wants Kubernetes' CA, also where there is no TLS."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@contextmanager
def token_reviews(openbao: DevOpenBao, known: str) -> Iterator[None]:
    """Kubernetes' API as far as OpenBao asks it: whether a service account's token is good."""

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802 - the name http.server looks for
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            good = self.path.endswith("/tokenreviews") and asked["spec"]["token"] == known
            user = {"username": ACCOUNT, "uid": "uid-of-trainer", "groups": []}
            status = {"authenticated": True, "user": user} if good else {"error": "unknown"}
            answer = json.dumps({**asked, "status": status}).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        client = openbao.client()
        client.sys.enable_auth_method("kubernetes")
        host = f"http://127.0.0.1:{server.server_port}"
        settings = {"kubernetes_host": host, "disable_local_ca_jwt": True, "kubernetes_ca_cert": some_certificate()}
        client.adapter.post("/v1/auth/kubernetes/config", json=settings)
        role = {"bound_service_account_names": "trainer", "bound_service_account_namespaces": "training"}
        role |= {"token_policies": "training", "audience": ""}
        client.adapter.post("/v1/auth/kubernetes/role/training", json=role)
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def all_connections(openbao: DevOpenBao, folder: Path) -> Iterator[dict[str, str]]:
    """Name → connection. Those named `bad_...` do not work."""
    issuer, account = JwtIssuer(openbao), service_account_token()
    jwt_file, account_file, token_file = folder / "jwt", folder / "service-account", folder / "token"
    jwt_file.write_text(issuer.token() + "\n")
    account_file.write_text(account)
    (folder / "other-account").write_text(account + "x")
    token_file.write_text(openbao.training_token())
    kubernetes = {"kubernetes_role": "training", "kubernetes_jwt_path": str(account_file)}
    role = approle(openbao)
    user = userpass(openbao)
    with token_reviews(openbao, account):
        yield {
            "token": openbao.airflow_connection_uri(),
            "token_file": connection(openbao, "token", {"token_path": str(token_file)}),
            "approle": role,
            "userpass": user,
            "jwt": connection(openbao, "jwt", {"jwt_role": "training", "jwt_token": issuer.token()}),
            "jwt_file": connection(openbao, "jwt", {"jwt_role": "training", "jwt_token_path": str(jwt_file)}),
            "kubernetes": connection(openbao, "kubernetes", kubernetes),
            "bad_token": connection(openbao, "token", password="no-such-token"),
            "bad_approle": connection(openbao, "approle", login=json.loads(role)["login"], password="wrong-secret-id"),
            "bad_userpass": user.replace("pass-of-trainer", "pass-of-another"),
            "bad_mount": connection(
                openbao, "userpass", {"auth_mount_point": "nowhere"}, login="trainer", password="pass-of-another"
            ),
            "bad_subject": connection(openbao, "jwt", {"jwt_role": "training", "jwt_token": issuer.token("somebody")}),
            "bad_expired": connection(
                openbao, "jwt", {"jwt_role": "training", "jwt_token": issuer.token(seconds=-300)}
            ),
            "bad_account": connection(
                openbao, "kubernetes", kubernetes | {"kubernetes_jwt_path": str(folder / "other-account")}
            ),
            "bad_file": connection(openbao, "kubernetes", kubernetes | {"kubernetes_jwt_path": "/no/such/file"}),
            "bad_extra": connection(openbao, "token", {"namespace": "team"}, password=openbao.training_token()),
        }
