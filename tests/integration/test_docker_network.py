"""The network is the fence: TensorFlow's gRPC asks nobody who he is, so nobody else may reach it."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.docker_kit import DockerKit
from docker_engine import OtherMachine, forward_policy, wait_until

from tf_operator.runners.base import Handle

pytestmark = pytest.mark.docker

SERVE = "import http.server as h; h.HTTPServer(('', 2222), h.SimpleHTTPRequestHandler).serve_forever()"
ASK = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=2).status)"


def networks_of(kit: DockerKit, handle: Handle) -> dict[str, str]:
    """Its networks and its addresses in them."""
    found = kit.engine.api.inspect_container(handle.data["container"])
    assert found["NetworkSettings"]["Ports"] in ({}, None), "nothing is published"
    return {name: network["IPAddress"] for name, network in found["NetworkSettings"]["Networks"].items()}


def start(kit: DockerKit, *argv: str, outbound: bool = False, **more: Any) -> Handle:
    """Start a program, with a way out or without."""
    launch = kit.launch(*argv, **more)
    runtime = {**launch.runtime, "options": {**launch.runtime["options"], "outbound": outbound}}
    launch = dataclasses.replace(launch, runtime=runtime)
    return kit.runner.start(launch, kit.runner.reserve(launch.identity, None))


def serve(kit: DockerKit, outbound: bool = False) -> Handle:
    """A ps that listens on every address, as TensorFlow does, and has been reached by its peer."""
    handle = start(kit, "python3", "-c", SERVE, identity=kit.identity("ps"), outbound=outbound)
    again = f"for i in $(seq 50); do python3 -c '{ASK}' http://ps-0:2222 && exit 0; sleep .2; done; exit 1"
    assert kit.wait(kit.start("sh", "-c", again)).code == 0
    return handle


def test_peers_reach_each_other_by_name_and_no_other_container_does(kit: DockerKit) -> None:
    (address,) = networks_of(kit, serve(kit)).values()
    # Other runs of the same job: by address, from inside their own fence and with a way out; and by name.
    for role, outbound, url in (
        ("worker", False, f"http://{address}:2222"),
        ("chief", True, f"http://{address}:2222"),
        ("ps", False, "http://ps-0:2222"),
    ):
        identity = kit.identity(role, run=f"other-{role}")
        other = start(kit, "python3", "-c", ASK, url, identity=identity, outbound=outbound)
        assert kit.wait(other, 40).code == 1
        assert re.search(rb"timed out|unreachable|refused", kit.output(other)), kit.output(other)
    # A container that is none of ours, on the engine's ordinary kind of network.
    api = kit.engine.api
    network = api.create_network("strangers", driver="bridge")["Id"]
    command = ["python3", "-c", ASK, f"http://{address}:2222"]
    host = api.create_host_config(network_mode=network)
    stranger = api.create_container("tf-operator-test:base", command, host_config=host)["Id"]
    api.start(stranger)
    assert api.wait(stranger)["StatusCode"] == 1
    assert b"timed out" in api.logs(stranger)


def test_no_other_machine_reaches_a_port_whatever_the_host_forwards(kit: DockerKit) -> None:
    (address,) = networks_of(kit, serve(kit)).values()
    with OtherMachine(kit.engine) as other:
        try:
            for policy in ("DROP", "ACCEPT"):
                forward_policy(kit.engine, policy)
                assert not other.reaches(address, 2222), policy
        finally:
            forward_policy(kit.engine, "DROP")


def test_with_a_way_out_the_hosts_forward_policy_is_the_fence(kit: DockerKit, tmp_path: Path) -> None:
    addresses = networks_of(kit, serve(kit, outbound=True))
    assert len(addresses) == 2
    (inner, outer) = (address for _, address in sorted(addresses.items(), key=lambda item: item[0].endswith("-out")))
    forward_policy(kit.engine, "DROP")
    with OtherMachine(kit.engine) as other:
        assert not other.reaches(inner, 2222)
        assert not other.reaches(outer, 2222), "an engine that turns forwarding on forbids it for all but its own"
        # What docs/docker.md warns of; also shows that this test would notice.
        forward_policy(kit.engine, "ACCEPT")
        try:
            assert other.reaches(outer, 2222)
            assert not other.reaches(inner, 2222)
        finally:
            forward_policy(kit.engine, "DROP")


def test_a_program_gets_out_only_if_it_may(kit: DockerKit, tmp_path: Path) -> None:
    with OtherMachine(kit.engine) as other:
        server = other.runs(sys.executable, "-m", "http.server", "8000", "--directory", str(tmp_path))
        try:
            wait_until(lambda: other.reaches(other.address, 8000), "the server")
            ask = ("python3", "-c", ASK, f"http://{other.address}:8000")
            shut = start(kit, *ask)
            assert kit.wait(shut).code == 1
            assert re.search(rb"timed out|unreachable", kit.output(shut)), kit.output(shut)
            out = start(kit, *ask, outbound=True, identity=kit.identity("chief"))
            assert kit.wait(out).code == 0, kit.output(out)
        finally:
            server.kill()
            server.wait()


def test_the_networks_go_with_the_last_container_of_the_run(kit: DockerKit) -> None:
    first = start(kit, "--exit", "0", outbound=True)
    second = kit.start("--exit", "0", identity=kit.identity("ps"))
    kit.wait(first), kit.wait(second)
    kit.runner.remove(first)
    assert len(kit.engine.networks()) == 2
    kit.runner.remove(second)
    assert kit.engine.networks() == []
