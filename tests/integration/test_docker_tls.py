"""An engine that is reached by TCP and asks for a certificate, as Docker's own variables describe it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.docker_kit import DockerKit
from docker_engine import DockerEngine, run

from tf_operator.runners.docker import DockerRunner

pytestmark = [pytest.mark.docker]

URL = "tcp://127.0.0.1:2376"
RUN = """
import pickle, sys, time
(make, arguments), launch = pickle.load(sys.stdin.buffer)
runner = make(*arguments)
handle = runner.start(launch, runner.reserve(launch.identity, None))
while not (end := runner.poll(handle)):
    time.sleep(.05)
print(end.code, runner.output(handle, 0)[0].decode())
runner.remove(handle)
"""


def certificates(folder: Path) -> Path:
    """An authority, a server's and a client's certificate, named as Docker names them."""
    # Debian's own settings give what an authority signs here the key identifier of another one.
    plain = folder / "openssl.cnf"
    plain.write_text("[req]\ndistinguished_name=name\n[name]\n")
    new = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", str(plain))
    authority_use = ("-addext", "basicConstraints=critical,CA:TRUE")
    authority = ("-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca-key.pem")
    run(*new, "-keyout", f"{folder}/ca-key.pem", "-out", f"{folder}/ca.pem", "-subj", "/CN=authority", *authority_use)
    for name, use in (("server-", "subjectAltName=IP:127.0.0.1"), ("", "extendedKeyUsage=clientAuth")):
        files = ("-keyout", f"{folder}/{name}key.pem", "-out", f"{folder}/{name}cert.pem")
        run(*new, *authority, *files, "-subj", f"/CN={name}tests", "-addext", use)
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[DockerEngine]:
    """An engine that listens on its host's loopback as well."""
    folder = certificates(tmp_path)
    names = {"tlscacert": "ca.pem", "tlscert": "server-cert.pem", "tlskey": "server-key.pem"}
    files = [f"--{option}={folder}/{name}" for option, name in names.items()]
    with DockerEngine(arguments=("-H", URL, "--tlsverify", *files)) as made:
        yield made.with_base_image()


def start(kit: DockerKit, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end from a process on the engine's host."""
    inside = ["nsenter", f"--net=/run/netns/{kit.engine.namespace}", sys.executable, "-c", RUN]
    given = pickle.dumps(((DockerRunner, (kit.state_dir, URL, None, None, 1.0)), kit.launch("--print", "text:by TLS")))
    # These would stand before the engine's own authority: see docs/docker.md.
    kept = {name: value for name, value in os.environ.items() if name not in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")}
    done = subprocess.run(inside, input=given, env=kept | env, capture_output=True, check=False, timeout=60)
    return subprocess.CompletedProcess(inside, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_the_engine_is_reached_with_a_certificate_and_not_without(tmp_path: Path, engine: DockerEngine) -> None:
    kit = DockerKit(tmp_path, engine)
    done = start(kit, DOCKER_TLS_VERIFY="1", DOCKER_CERT_PATH=str(tmp_path))
    assert done.stdout.split() == ["0", "by", "TLS"], done.stderr
    refused = start(kit)
    assert refused.returncode == 1
    assert f"the Docker engine at {URL} does not answer" in refused.stderr or "HTTPS" in refused.stderr
    kit.close()
