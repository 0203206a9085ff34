"""What the driver says, and what of it may be given out. The driver is a recording: this machine may have none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nvml_kit import GIB, cut, gpu, record, use

from tf_operator.devices import device_users, inventory
from tf_operator.errors import DeviceError, NoSuchDeviceError
from tf_operator.gpus import CONTEXT, DeviceLeases, device_env
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners import docker_spec
from tf_operator.runners.base import Launch

ME = Identity("dag", "r1", "train", ReplicaId("worker", 0))
OTHER = Identity("dag", "r1", "train", ReplicaId("worker", 1))


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__TF_OPERATOR__GPUS", raising=False)


def test_no_driver_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, tmp_path)
    monkeypatch.delenv("NVML_RECORDING")
    assert (inventory(), device_users()) == ([], {})


@pytest.mark.parametrize("when", ["fault", "init_fault"])
def test_a_driver_that_fails_is_one_line_and_not_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    use(monkeypatch, tmp_path, **{when: "GPU is lost"})
    with pytest.raises(DeviceError, match=r"the NVIDIA driver of this host fails \(GPU is lost\): see nvidia-smi"):
        inventory()


def test_devices_are_named_as_cuda_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, tmp_path, gpu(0), gpu(1, slices=None, memory=None))
    assert [(device.id, device.memory, device.mig) for device in inventory()] == [
        ("0", 80 * GIB, False),
        ("1", None, False),
    ]
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__GPUS", "1,GPU-0,7")
    assert [(device.id, device.name[:6]) for device in inventory()] == [
        ("1", "NVIDIA"),
        ("0", "NVIDIA"),
        ("7", "declar"),
    ]


def test_a_device_that_is_cut_up_stands_for_its_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, tmp_path, gpu(0, slices=[cut("a"), None, cut("b")]), gpu(1))
    found = inventory()
    assert [(device.id, device.mig) for device in found] == [("MIG-a", True), ("MIG-b", True), ("GPU-1", False)]
    leases = DeviceLeases(tmp_path)
    with pytest.raises(NoSuchDeviceError, match="of this host's devices 1 are no MIG slices"):
        leases.acquire(ME, 2)
    one = leases.acquire(ME, 1)
    assert one.ids == ("MIG-a",)
    one.release()


def test_a_device_with_a_stranger_is_avoided_and_the_stranger_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        use(monkeypatch, tmp_path, gpu(0, pids=(stranger.pid,)), gpu(1))
        leases = DeviceLeases(tmp_path)
        mine = leases.acquire(ME, 1)
        assert mine.ids == ("1",)
        for gpus, slots in ((1, 1), (0.5, 2)):
            with pytest.raises(
                DeviceError, match=rf"in use by what tf_operator did not start: 0: sleep \(pid {stranger.pid}"
            ):
                leases.acquire(OTHER, gpus, slots)
        mine.release()
    finally:
        stranger.kill()
        stranger.wait()


def test_parts_are_shared_with_programs_of_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = subprocess.Popen(["sleep", "600"], env={**os.environ, "TF_OPERATOR_GENERATION": "1"})
    try:
        use(monkeypatch, tmp_path, gpu(0, pids=(ours.pid,)))
        leases = DeviceLeases(tmp_path)
        first, second = leases.acquire(ME, 0.25, 4), leases.acquire(OTHER, 0.25, 4)
        assert first.ids == second.ids == ("0",)
        assert leases.strangers() == []
        first.release()
        second.release()
        # Nobody has a lease, and yet it computes: what a killed keeper left.
        assert [str(left) for left in leases.strangers()] and not leases.holders()
        with pytest.raises(DeviceError, match="did not start"):
            leases.acquire(OTHER, 1)
    finally:
        ours.kill()
        ours.wait()


def test_a_part_s_memory_leaves_room_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, tmp_path, gpu(0))
    lease = DeviceLeases(tmp_path).acquire(ME, 0.25, 4)
    assert lease.memory == 20 * GIB - CONTEXT
    lease.release()
    whole = DeviceLeases(tmp_path).acquire(ME, 1, 4)
    assert whole.memory is None
    whole.release()


def test_a_container_is_given_the_lease_s_devices_not_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path, gpu(0), gpu(1), gpu(2))
    leases = DeviceLeases(tmp_path)
    first, mine = leases.acquire(OTHER, 1), leases.acquire(ME, 2)
    fields: dict[str, Any] = {"attempt": "a", "incarnation": 1, "generation": 1, "argv": ["x"], "working_dir": "/app"}
    fields |= {"identity": ME, "runtime": {"image": "i:1"}}
    launch = Launch(env=device_env(mine.ids), devices=mine.ids, **fields)
    (request,) = docker_spec.host_config_of(launch)["device_requests"]
    assert (request["DeviceIDs"], request["Count"], request["Capabilities"]) == (["1", "2"], 0, [["gpu"]])
    assert "device_requests" not in docker_spec.host_config_of(Launch(env=device_env(()), **fields))
    for lease in (first, mine):
        lease.release()


def test_the_command_shows_holders_parts_and_strangers(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    driver = record(tmp_path, gpu(0), gpu(1), gpu(2, pids=(stranger.pid,)), gpu(3))
    env = {**os.environ, **driver, "AIRFLOW__TF_OPERATOR__STATE_DIR": str(tmp_path)}
    from tf_operator.devices import Device

    leases = DeviceLeases(tmp_path, [Device(str(number), "x") for number in range(4)])
    held = [leases.acquire(ME, 1), leases.acquire(OTHER, 0.5, 4)]
    command = [sys.executable, "-m", "tf_operator.cli.main", "gpus", "--local"]
    try:
        text = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
        told = json.loads(
            subprocess.run([*command, "--json"], env=env, capture_output=True, text=True, check=True).stdout
        )
    finally:
        stranger.kill()
        stranger.wait()
        for lease in held:
            lease.release()
    assert text[0].startswith("0  NVIDIA H100 80GB HBM3, 80 GiB: dag/r1/train/worker-0 since 20")
    assert "1  " in text[1] and "dag/r1/train/worker-1 (2/4 of it) since" in text[1]
    assert text[2].endswith(
        f"sleep (pid {stranger.pid}, user {_user()}): not tf_operator's, so the device is given to nobody"
    )
    assert text[3].endswith(": free")
    first = told["devices"][0]["holders"][0]
    assert {key: first[key] for key in ("dag_id", "run_id", "role", "index")} == {
        "dag_id": "dag",
        "run_id": "r1",
        "role": "worker",
        "index": 0,
    }


def _user() -> str:
    import psutil

    return psutil.Process().username()
