"""Device leases: whole devices, parts, all or none, and locks that die with their holder."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from tf_operator.errors import DeviceError
from tf_operator.gpus import Device, DeviceLeases, device_env, holders, inventory
from tf_operator.identity import Identity, ReplicaId

FOUR = [Device(str(number), "declared") for number in range(4)]


def replica(index: int, run: str = "r1") -> Identity:
    return Identity("dag", run, "train", ReplicaId("worker", index))


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch):
    return lambda text: monkeypatch.setenv("AIRFLOW__TF_OPERATOR__GPUS", text)


@pytest.mark.parametrize(
    ("text", "ids"), [("4", ["0", "1", "2", "3"]), ("0", []), ("0,2", ["0", "2"]), (" 7 , GPU-b-1 ", ["7", "GPU-b-1"])]
)
def test_inventory_is_what_is_declared(declare, text: str, ids: list[str]) -> None:
    declare(text)
    assert [device.id for device in inventory()] == ids


@pytest.mark.parametrize(
    "text", ["-1", "0,0", "../x", "1.5", "0,,1", "none", "auto", "gpu0,gpu1", "2000000000", "²", "GPU-.."]
)
def test_a_bad_declaration_names_the_setting(declare, text: str) -> None:
    declare(text)
    with pytest.raises(DeviceError, match=r"\[tf_operator\] gpus"):
        inventory()


def test_environment_shows_the_leased_devices_and_nothing_without() -> None:
    assert device_env(("1", "3"))["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert device_env(())["CUDA_VISIBLE_DEVICES"] == "-1"
    assert device_env(())["NVIDIA_VISIBLE_DEVICES"] != "all"


def test_whole_devices_are_disjoint_and_the_error_names_who_has_them(tmp_path: Path) -> None:
    leases = DeviceLeases(tmp_path, FOUR)
    first, second = leases.acquire(replica(0), 2), leases.acquire(replica(1), 2)
    assert (first.ids, second.ids) == (("0", "1"), ("2", "3"))
    with pytest.raises(DeviceError, match=r"0: dag/r1/train/worker-0; 1: .*; 2: dag/r1/train/worker-1"):
        leases.acquire(replica(2), 1)
    assert [str(holder) for holder in holders(tmp_path, FOUR)][0] == "0: dag/r1/train/worker-0"
    first.release()
    first.release()
    third = leases.acquire(replica(2), 1)
    assert third.ids == ("0",)
    second.release()
    third.release()
    assert holders(tmp_path, FOUR) == []


def test_all_or_none(tmp_path: Path) -> None:
    leases = DeviceLeases(tmp_path, FOUR)
    three = leases.acquire(replica(0), 3)
    with pytest.raises(DeviceError):
        leases.acquire(replica(1), 2)
    one = leases.acquire(replica(2), 1)
    assert one.ids == ("3",)
    three.release()
    one.release()


def test_parts_fill_one_device_and_exclude_whole_leases(tmp_path: Path) -> None:
    leases = DeviceLeases(tmp_path, FOUR[:2])
    parts = [leases.acquire(replica(index), 0.25, slots_per_gpu=4) for index in range(5)]
    assert [part.ids[0] for part in parts] == ["0", "0", "0", "0", "1"]
    with pytest.raises(DeviceError, match=r"part of 4"):
        leases.acquire(replica(9), 1, slots_per_gpu=4)
    parts.pop().release()
    whole = leases.acquire(replica(9), 1, slots_per_gpu=4)
    assert whole.ids == ("1",)
    with pytest.raises(DeviceError):
        leases.acquire(replica(10), 0.25, slots_per_gpu=4)
    for lease in (*parts, whole):
        lease.release()


def test_parts_of_different_sizes_never_share_a_device(tmp_path: Path) -> None:
    leases = DeviceLeases(tmp_path, FOUR[:2])
    half = leases.acquire(replica(0), 0.5, slots_per_gpu=2)
    quarter = leases.acquire(replica(1), 0.25, slots_per_gpu=4)
    assert (half.ids, quarter.ids) == (("0",), ("1",))
    half.release()
    quarter.release()


@pytest.mark.parametrize(("gpus", "slots"), [(1.5, 2), (0.3, 4), (-1, 1), (0.5, 1), (5, 1)])
def test_what_can_never_be_had_is_refused_at_once(tmp_path: Path, gpus: float, slots: int) -> None:
    with pytest.raises(DeviceError, match="worker-0"):
        DeviceLeases(tmp_path, FOUR).acquire(replica(0), gpus, slots)


def test_no_device_asked_for_is_an_empty_lease(tmp_path: Path) -> None:
    lease = DeviceLeases(tmp_path, []).acquire(replica(0), 0)
    assert (lease.ids, lease.fds) == ((), ())


def test_a_lease_lives_as_long_as_any_process_that_inherited_it(tmp_path: Path) -> None:
    leases = DeviceLeases(tmp_path, FOUR[:1])
    lease = leases.acquire(replica(0), 1)
    hold, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_go)
        os.read(hold, 1)
        os._exit(0)
    os.close(hold)
    lease.release()
    with pytest.raises(DeviceError, match="worker-0"):
        leases.acquire(replica(1), 1)
    os.close(let_go)
    os.waitpid(child, 0)
    leases.acquire(replica(1), 1).release()


def test_a_replica_gets_its_own_last_device_back(tmp_path: Path) -> None:
    leases = DeviceLeases(tmp_path, FOUR)
    first, second = leases.acquire(replica(0), 1), leases.acquire(replica(1), 1)
    first.release()
    second.release()
    again = leases.acquire(replica(1), 1)
    assert again.ids == ("1",)
    again.release()


def test_twenty_replicas_at_once_never_share(tmp_path: Path) -> None:
    leases = DeviceLeases(tmp_path, FOUR)
    held: list[str] = []
    clashes: list[str] = []
    guard = threading.Lock()

    def work(index: int) -> None:
        lease = None
        while lease is None:
            with contextlib.suppress(DeviceError):
                lease = leases.acquire(replica(index), 1 + index % 3)
        with guard:
            clashes.extend(name for name in lease.ids if name in held)
            held.extend(lease.ids)
        with guard:
            for name in lease.ids:
                held.remove(name)
        lease.release()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not clashes
    assert not any(thread.is_alive() for thread in threads)
