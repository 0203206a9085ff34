"""Which devices this host has and who has them: a kernel lock for each, held for as long as the program lives."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_operator import locks
from tf_operator.devices import Device, User, device_users, inventory
from tf_operator.errors import DeviceError, NoSuchDeviceError
from tf_operator.identity import Identity, ReplicaId

__all__ = ["Device", "DeviceLease", "DeviceLeases", "Holder", "device_env", "holders", "inventory"]

CONTEXT = 512 << 20
"""Bytes of a device that CUDA takes in each program beside TensorFlow's own: a part's memory is less by it."""
_PATIENCE = 10.0
"""Seconds to wait for another process' look at the locks: normally a few thousandths."""

Users = Mapping[str, Sequence[User]]


def device_env(ids: Sequence[str]) -> dict[str, str]:
    """Show a program these devices and no other; none for no ids."""
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(ids) or "-1",
        # Ids count as the driver does, not fastest first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": ",".join(ids) or "void",
    }


class DeviceLease:
    """Devices nobody else is given until `release` here and the end of every process that inherited `fds`.

    `memory`: bytes a program may use of the one device it has a part of; None for whole devices, or where nobody knows.
    """

    def __init__(self, ids: tuple[str, ...], fds: tuple[int, ...], memory: int | None = None) -> None:
        self.ids = ids
        self.fds = fds
        self.memory = memory

    def release(self) -> None:
        """Close this process' hold. Does nothing the second time."""
        fds, self.fds = self.fds, ()
        for descriptor in fds:
            os.close(descriptor)


@dataclass(frozen=True)
class Holder:
    """Who has a device, or a part of it (`part` of `parts`). `identity` is None for a process that is not ours."""

    device: str
    who: str
    part: int | None = None
    parts: int = 1
    identity: Identity | None = None
    since: float | None = None
    """Seconds since the epoch, by the host's clock: for people."""

    def __str__(self) -> str:
        return f"{self.device}{'' if self.part is None else f' (part of {self.parts})'}: {self.who}"


class DeviceLeases:
    """The device locks of one host: `<id>` for a device, exclusive for all of it and shared for a part;
    `<id>.<parts>.<n>` for part n.

    Everybody looks and takes under one short lock, so a replica gets all it asked for or nothing, and nobody waits
    while holding a part of what another waits for.
    """

    def __init__(
        self,
        state_dir: Path,
        devices: Sequence[Device] | None = None,
        users: Callable[[], Users] | None = None,
    ) -> None:
        self._folder = state_dir / "devices"
        self._devices = {device.id: device for device in (inventory() if devices is None else devices)}
        self._ids = list(self._devices)
        # Devices that somebody names are not the driver's.
        self._users: Callable[[], Users] = users or (device_users if devices is None else dict)

    def acquire(self, identity: Identity, gpus: float, slots_per_gpu: int = 1) -> DeviceLease:
        """Lease whole devices, or for `gpus` < 1 that part of one.

        Raises NoSuchDeviceError if it can never be had here, DeviceError if not now: it names the holders.
        """
        wanted = self._parts(identity, gpus, slots_per_gpu)
        if not wanted:
            return DeviceLease((), ())
        if lease := self._try(identity, int(gpus), wanted, slots_per_gpu):
            return lease
        raise DeviceError(self._why(identity, gpus))

    def holders(self) -> list[Holder]:
        """Who has what now, in device order."""
        with self._alone():
            return [holder for name in self._ids for holder in self._holders_of(name)]

    @property
    def devices(self) -> list[Device]:
        """The devices of this host."""
        return list(self._devices.values())

    def strangers(self) -> list[Holder]:
        """Processes on our devices that belong to no lease: such a device is not given out."""
        users, held = self._users(), {holder.device for holder in self.holders()}
        return [
            Holder(name, user.text)
            for name in self._ids
            for user in users.get(name, ())
            if user.ours is False or name not in held
        ]

    def held_keys(self) -> set[str]:
        """Identity keys of the replicas whose programs hold a device."""
        return {holder.identity.key for holder in self.holders() if holder.identity}

    def _parts(self, identity: Identity, gpus: float, slots: int) -> int:
        """How many parts of one device are asked for: all of them for whole devices."""
        if gpus >= 1 and gpus == int(gpus):
            self._check_number(identity, int(gpus))
            return slots
        parts = gpus * slots
        if gpus < 0 or gpus > 1 or abs(parts - round(parts)) > 1e-6 or (gpus and not round(parts)):
            raise NoSuchDeviceError(
                f"{identity}: gpus {gpus:g} cannot be had with slots_per_gpu {slots}: "
                f"give a whole number, or a multiple of 1/{slots} below 1"
            )
        if gpus and not self._ids:
            raise NoSuchDeviceError(f"{identity}: asks for {gpus:g} GPUs, this host has none")
        return round(parts)

    def _check_number(self, identity: Identity, gpus: int) -> None:
        if gpus > len(self._ids):
            raise NoSuchDeviceError(
                f"{identity}: asks for {gpus} GPUs, this host has {len(self._ids)}: "
                "ask for less, or declare more in `gpus` of [tf_operator]"
            )
        if gpus > len(self._fit_for(gpus)):
            raise NoSuchDeviceError(
                f"{identity}: asks for {gpus} GPUs, of this host's devices {len(self._fit_for(gpus))} are no MIG"
                " slices: CUDA gives a program one slice at most; ask for 1, with more replicas"
            )

    def _fit_for(self, whole: int) -> list[str]:
        return [name for name in self._ids if whole <= 1 or not self._devices[name].mig]

    def _try(self, identity: Identity, whole: int, parts: int, slots: int) -> DeviceLease | None:
        users = self._users()
        with self._alone():
            note = _note(identity)
            # The replica's own last devices first: its caches are warm, and a fixed order keeps the rest together.
            order = sorted(self._fit_for(whole), key=lambda name: identity.key not in locks.read_note(self._path(name)))
            if whole:
                return self._take_whole(order, whole, note, users)
            free = [name for name in order if all(user.ours is not False for user in users.get(name, ()))]
            return next(filter(None, (self._take_parts(name, parts, slots, note) for name in free)), None)

    def _take_whole(self, order: Sequence[str], whole: int, note: str, users: Users) -> DeviceLease | None:
        taken: dict[str, int] = {}
        for name in order:
            # Where the lock is free nobody who computes there has a lease: a stranger, or what a killed one left.
            if len(taken) == whole or users.get(name):
                continue
            descriptor = locks.acquire(self._path(name))
            if descriptor is not None:
                locks.write_note(descriptor, note)
                taken[name] = descriptor
        lease = DeviceLease(tuple(sorted(taken, key=self._ids.index)), tuple(taken.values()))
        if len(taken) == whole:
            return lease
        lease.release()
        return None

    def _take_parts(self, name: str, parts: int, slots: int, note: str) -> DeviceLease | None:
        device = locks.acquire(self._path(name), shared=True)
        if device is None:
            return None
        total = self._devices[name].memory
        memory = None if total is None else max(total * parts // slots - CONTEXT, total * parts // slots // 2)
        lease = DeviceLease((name,), (device,), memory)
        # Parts of different sizes on one device would add up to more than it has.
        if all(holder.parts == slots for holder in self._part_holders(name)):
            for number in range(slots):
                part = locks.acquire(self._path(f"{name}.{slots}.{number}"))
                if part is not None:
                    locks.write_note(part, note)
                    lease.fds += (part,)
                if len(lease.fds) == parts + 1:
                    return lease
        lease.release()
        return None

    def _holders_of(self, name: str) -> list[Holder]:
        path = self._path(name)
        return [_holder(path, name)] if locks.is_held(path) else self._part_holders(name)

    def _part_holders(self, name: str) -> list[Holder]:
        found = []
        for path in sorted(self._folder.glob(f"{name}.*.*")):
            parts, number = path.name.removeprefix(f"{name}.").split(".")
            if locks.is_held(path):
                found.append(_holder(path, name, int(number), int(parts)))
        return found

    def _why(self, identity: Identity, gpus: float) -> str:
        held = "; ".join(map(str, self.holders())) or "nobody now"
        foreign = "; ".join(map(str, self.strangers()))
        return (
            f"{identity}: {gpus:g} GPUs are not free now; this host has {len(self._ids)}, held by {held}"
            f"{f', and in use by what tf_operator did not start: {foreign}' if foreign else ''}"
        )

    def _path(self, name: str) -> Path:
        return self._folder / name

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        look = self._path(".look")
        descriptor = locks.acquire(look, wait=_PATIENCE)
        if descriptor is None:
            raise DeviceError(f"{look} has been locked for {_PATIENCE:g} s: see who with fuser")
        try:
            yield
        finally:
            os.close(descriptor)


def _note(identity: Identity) -> str:
    replica = identity.replica
    place = [identity.dag_id, identity.run_id, identity.group_id, replica.role, replica.index]
    return json.dumps({"key": identity.key, "identity": place, "since": time.time()})


def _holder(path: Path, device: str, part: int | None = None, parts: int = 1) -> Holder:
    try:
        note: dict[str, Any] = json.loads(locks.read_note(path))
        dag, run, group, role, index = note["identity"]
        identity = Identity(dag, run, group, ReplicaId(role, index))
        return Holder(device, str(identity), part, parts, identity, note["since"])
    except (ValueError, KeyError, TypeError):
        return Holder(device, "unknown", part, parts)


def holders(state_dir: Path, devices: Sequence[Device] | None = None) -> list[Holder]:
    """Who has which device of this host now."""
    return DeviceLeases(state_dir, devices).holders()
