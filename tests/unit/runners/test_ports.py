"""Port leases: never two replicas on one port, and a replica's own port comes back to it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tf_operator.errors import RunnerError
from tf_operator.identity import Identity, ReplicaId
from tf_operator.ports import PortLease, PortLeases

FIRST, LAST = 31000, 31999
"""Where no job takes ports by default, and the kernel gives none."""


def replica(index: int, run: str = "r1") -> Identity:
    return Identity("dag", run, "train", ReplicaId("worker", index))


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen()
        yield


@pytest.fixture
def ports(tmp_path: Path) -> PortLeases:
    return PortLeases(tmp_path, (FIRST, LAST), "127.0.0.1")


def small(tmp_path: Path, size: int = 2) -> PortLeases:
    return PortLeases(tmp_path, (FIRST, FIRST + size - 1), "127.0.0.1")


def test_a_leased_port_can_be_bound_at_once(ports: PortLeases) -> None:
    lease = ports.reserve(replica(0), None)
    with listening("127.0.0.1", lease.port):
        assert lease.address == f"127.0.0.1:{lease.port}"
    lease.release()


def test_an_ipv6_host_is_in_brackets(tmp_path: Path) -> None:
    lease = PortLeases(tmp_path, (FIRST, LAST), "::1").reserve(replica(0), None)
    assert lease.address == f"[::1]:{lease.port}"
    lease.release()


def test_the_choice_is_the_replicas_own_and_repeatable(tmp_path: Path) -> None:
    chosen = []
    for name in ("a", "b"):
        lease = PortLeases(tmp_path / name, (FIRST, LAST), "127.0.0.1").reserve(replica(0), None)
        chosen.append(lease.port)
        lease.release()
    assert chosen[0] == chosen[1]


def test_twenty_pairs_of_runs_at_once_share_no_port(tmp_path: Path) -> None:
    for _ in range(20):
        leases: list[PortLease] = []
        faults: list[BaseException] = []
        # A range hardly larger than what is asked for, so that they meet.
        leaser = PortLeases(tmp_path, (FIRST, FIRST + 9), "127.0.0.1")

        def run(name: str, leaser: PortLeases = leaser, leases: list = leases, faults: list = faults) -> None:
            try:
                for index in range(4):
                    leases.append(leaser.reserve(replica(index, name), None))
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert len({lease.port for lease in leases}) == 8
        for lease in leases:
            with listening("127.0.0.1", lease.port):
                pass
            lease.release()


def test_the_preferred_port_is_given_if_it_is_free(ports: PortLeases) -> None:
    lease = ports.reserve(replica(0), f"127.0.0.1:{FIRST + 500}")
    assert lease.port == FIRST + 500
    other = ports.reserve(replica(1), lease.address)
    assert other.port != lease.port
    lease.release()
    other.release()


def test_a_preferred_port_outside_the_range_is_not_given(ports: PortLeases) -> None:
    lease = ports.reserve(replica(0), "127.0.0.1:1024")
    assert FIRST <= lease.port <= LAST
    lease.release()


def test_a_replica_between_two_tries_gets_its_port_back(tmp_path: Path) -> None:
    ports = small(tmp_path, 3)
    first = ports.reserve(replica(0), None)
    first.release()
    others = [ports.reserve(replica(index), None) for index in (1, 2)]
    assert first.port not in [other.port for other in others]
    assert ports.reserve(replica(0), first.address).port == first.port


def test_the_longest_unused_port_goes_when_all_were_used(tmp_path: Path) -> None:
    ports = small(tmp_path)
    older, newer = ports.reserve(replica(0), None), ports.reserve(replica(1), None)
    for age, lease in ((100, older), (10, newer)):
        lease.release()
        os.utime(tmp_path / str(lease.port), (1e9 - age, 1e9 - age))
    assert ports.reserve(replica(2), None).port == older.port


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_port_somebody_listens_on_is_passed_over(tmp_path: Path, host: str) -> None:
    ports = small(tmp_path)
    wanted = ports.reserve(replica(0), None)
    wanted.release()
    with listening(host, wanted.port):
        lease = ports.reserve(replica(0), wanted.address)
        assert lease.port != wanted.port
        lease.release()


def test_waits_for_its_own_port_while_its_old_keeper_ends(tmp_path: Path) -> None:
    ports = small(tmp_path)
    old = ports.reserve(replica(0), None)
    threading.Timer(0.2, old.release).start()
    assert ports.reserve(replica(0), old.address).port == old.port


def test_an_exhausted_range_is_said_with_the_way_out(tmp_path: Path) -> None:
    ports = small(tmp_path)
    held = [ports.reserve(replica(index), None) for index in range(2)]
    with pytest.raises(RunnerError, match=rf"dag/r1/train/worker-2: no free port in {FIRST}-{FIRST + 1}.*port_range"):
        ports.reserve(replica(2), None)
    for lease in held:
        lease.release()


def test_release_twice_is_harmless_and_a_copy_holds_on(tmp_path: Path) -> None:
    ports = small(tmp_path, 1)
    lease = ports.reserve(replica(0), None)
    copy = os.dup(lease.fds[0])
    lease.release()
    lease.release()
    assert lease.fds == ()
    with pytest.raises(RunnerError):
        ports.reserve(replica(1), None)
    os.close(copy)
    ports.reserve(replica(1), None).release()
