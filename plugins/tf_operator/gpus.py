"""Which devices this host has and who has them: a kernel lock for each, held for as long as the program lives."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tf_operator import locks, settings
from tf_operator.errors import DeviceError
from tf_operator.identity import Identity

RETRY = 0.25
"""Seconds between two tries for devices that are not free."""
_PATIENCE = 10.0
"""Seconds to wait for another process' look at the locks: normally a few thousandths."""


@dataclass(frozen=True)
class Device:
    """One device. `memory` in bytes, None where nobody knows (declared ones)."""

    id: str
    name: str
    memory: int | None = None


class Clock(Protocol):
    """The part of `time` that waiting needs; the module itself is one."""

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""
        ...


# -- the inventory


def inventory() -> list[Device]:
    """The devices of this host: those `[tf_operator] gpus` declares, else what the NVIDIA driver reports, else none."""
    declared = settings.get("gpus")
    if declared is None:
        return _driver_devices()
    known = {device.id: device for device in _driver_devices()}
    return [known.get(name, Device(name, "declared")) for name in _declared_ids(declared)]


def _declared_ids(text: str) -> list[str]:
    text = text.strip()
    ids = [str(number) for number in range(int(text))] if text.isdigit() else [part.strip() for part in text.split(",")]
    if len(set(ids)) != len(ids) or not all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) for name in ids):
        raise DeviceError(f"[tf_operator] gpus = {text!r}: give a number of devices (4) or their different ids (0,2)")
    return ids


def _driver_devices() -> list[Device]:
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver of this host fails ({error}): see nvidia-smi") from error
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = None
    # Devices that share the host's memory have none of their own to report.
    with contextlib.suppress(nvml.NVMLError):
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Device(str(index), str(nvml.nvmlDeviceGetName(handle)), memory)


def device_env(ids: Sequence[str]) -> dict[str, str]:
    """Show a program these devices and no other; none for no ids."""
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(ids) or "-1",
        # Ids count as the driver does, not fastest first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": ",".join(ids) or "void",
    }


# -- leases


class DeviceLease:
    """Devices nobody else is given until `release` here and the end of every process that inherited `fds`."""

    def __init__(self, ids: tuple[str, ...], fds: tuple[int, ...]) -> None:
        self.ids = ids
        self.fds = fds

    def release(self) -> None:
        """Close this process' hold. Does nothing the second time."""
        fds, self.fds = self.fds, ()
        for descriptor in fds:
            os.close(descriptor)


@dataclass(frozen=True)
class Holder:
    """Who has a device, or a part of it (`part` of `parts`)."""

    device: str
    who: str
    part: int | None = None
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.device}{'' if self.part is None else f' (part of {self.parts})'}: {self.who}"


class DeviceLeases:
    """The device locks of one host: `<id>` for a device, exclusive for all of it and shared for a part;
    `<id>.<parts>.<n>` for part n.

    Everybody looks and takes under one short lock, so a replica gets all it asked for or nothing, and nobody waits
    while holding a part of what another waits for.
    """

    def __init__(self, state_dir: Path, devices: Sequence[Device] | None = None) -> None:
        self._folder = state_dir / "devices"
        self._ids = [device.id for device in (inventory() if devices is None else devices)]

    def acquire(
        self,
        identity: Identity,
        gpus: float,
        slots_per_gpu: int = 1,
        timeout: float = 0.0,
        clock: Clock = time,
    ) -> DeviceLease:
        """Lease whole devices, or for `gpus` < 1 that part of one.

        Raises DeviceError if it can never be had here, or not within `timeout` seconds: it names the holders.
        """
        wanted = self._parts(identity, gpus, slots_per_gpu)
        if not wanted:
            return DeviceLease((), ())
        deadline = clock.monotonic() + timeout
        while True:
            lease = self._try(identity, int(gpus), wanted, slots_per_gpu)
            if lease:
                return lease
            if clock.monotonic() >= deadline:
                raise DeviceError(self._why(identity, gpus, timeout))
            clock.sleep(RETRY)

    def holders(self) -> list[Holder]:
        """Who has what now, in device order."""
        with self._alone():
            return [holder for name in self._ids for holder in self._holders_of(name)]

    def _parts(self, identity: Identity, gpus: float, slots: int) -> int:
        """How many parts of one device are asked for: all of them for whole devices."""
        if gpus >= 1 and gpus == int(gpus):
            if gpus > len(self._ids):
                raise DeviceError(
                    f"{identity}: asks for {gpus:g} GPUs, this host has {len(self._ids)}: "
                    "ask for less, or declare more in `gpus` of [tf_operator]"
                )
            return slots
        parts = gpus * slots
        if gpus < 0 or gpus > 1 or abs(parts - round(parts)) > 1e-6 or (gpus and not round(parts)):
            raise DeviceError(
                f"{identity}: gpus {gpus:g} cannot be had with slots_per_gpu {slots}: "
                f"give a whole number, or a multiple of 1/{slots} below 1"
            )
        if gpus and not self._ids:
            raise DeviceError(f"{identity}: asks for {gpus:g} GPUs, this host has none")
        return round(parts)

    def _try(self, identity: Identity, whole: int, parts: int, slots: int) -> DeviceLease | None:
        with self._alone():
            note = json.dumps({"who": str(identity), "key": identity.key})
            # The replica's own last devices first: its caches are warm, and a fixed order keeps the rest together.
            order = sorted(self._ids, key=lambda name: identity.key not in locks.read_note(self._folder / name))
            if not whole:
                return next(filter(None, (self._take_parts(name, parts, slots, note) for name in order)), None)
            taken: dict[str, int] = {}
            for name in order:
                descriptor = locks.acquire(self._folder / name) if len(taken) < whole else None
                if descriptor is not None:
                    locks.write_note(descriptor, note)
                    taken[name] = descriptor
            lease = DeviceLease(tuple(sorted(taken, key=self._ids.index)), tuple(taken.values()))
            if len(taken) == whole:
                return lease
            lease.release()
            return None

    def _take_parts(self, name: str, parts: int, slots: int, note: str) -> DeviceLease | None:
        device = locks.acquire(self._folder / name, shared=True)
        if device is None:
            return None
        lease = DeviceLease((name,), (device,))
        # Parts of different sizes on one device would add up to more than it has.
        if all(holder.parts == slots for holder in self._part_holders(name)):
            for number in range(slots):
                part = locks.acquire(self._folder / f"{name}.{slots}.{number}")
                if part is not None:
                    locks.write_note(part, note)
                    lease.fds += (part,)
                if len(lease.fds) == parts + 1:
                    return lease
        lease.release()
        return None

    def _holders_of(self, name: str) -> list[Holder]:
        path = self._folder / name
        return [Holder(name, _who(path))] if locks.is_held(path) else self._part_holders(name)

    def _part_holders(self, name: str) -> list[Holder]:
        found = []
        for path in sorted(self._folder.glob(f"{name}.*.*")):
            parts, number = path.name.removeprefix(f"{name}.").split(".")
            if locks.is_held(path):
                found.append(Holder(name, _who(path), int(number), int(parts)))
        return found

    def _why(self, identity: Identity, gpus: float, timeout: float) -> str:
        held = "; ".join(map(str, self.holders())) or "nobody now"
        waited = f"not free within {timeout:g} s" if timeout else "not free now"
        return f"{identity}: {gpus:g} GPUs are {waited}; this host has {len(self._ids)}, held by {held}"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = locks.acquire(self._folder / ".look", wait=_PATIENCE)
        if descriptor is None:
            raise DeviceError(f"{self._folder / 'look'} has been locked for {_PATIENCE:g} s: see who with fuser")
        try:
            yield
        finally:
            os.close(descriptor)


def _who(path: Path) -> str:
    try:
        return str(json.loads(locks.read_note(path))["who"])
    except (ValueError, KeyError):
        return "unknown"


def holders(state_dir: Path, devices: Sequence[Device] | None = None) -> list[Holder]:
    """Who has which device of this host now."""
    return DeviceLeases(state_dir, devices).holders()
