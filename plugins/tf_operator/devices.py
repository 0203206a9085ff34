"""What GPUs this host has, and which processes use them: declared, or as the NVIDIA driver tells it."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tf_operator import settings
from tf_operator.errors import DeviceError

MPS = "nvidia-cuda-mps"
"""Begins the names of the daemons that serve several programs on one device: they are nobody's use of it."""
MOST_DECLARED = 1024
_ID = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Device:
    """One device. `memory` in bytes, None where nobody knows (declared ones)."""

    id: str
    """What CUDA_VISIBLE_DEVICES calls it."""
    name: str
    memory: int | None = None
    mig: bool = False
    """A slice the driver made of a device (MIG). CUDA shows a program one of them at most."""
    uuid: str = ""


@dataclass(frozen=True)
class User:
    """A process that computes on a device."""

    pid: int
    ours: bool | None
    """Whether tf_operator started it; None where that cannot be seen, as from another process namespace."""
    text: str
    """For people: `python (pid 4711, user alice)`."""


def inventory() -> list[Device]:
    """The devices of this host: those `[tf_operator] gpus` declares, else what the NVIDIA driver reports, else none."""
    declared = settings.get("gpus")
    if declared is None:
        return driver_devices()
    wanted = declared_ids(declared)
    known = {name: device for device in driver_devices() for name in (device.id, device.uuid)}
    return [known.get(name, Device(name, "declared")) for name in wanted]


def declared_ids(text: str) -> list[str]:
    """`4` → 0,1,2,3; `0,2` → 0,2. DeviceError naming the setting."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,4}", text) and int(text) <= MOST_DECLARED:
        return [str(number) for number in range(int(text))]
    ids = [part.strip() for part in text.split(",")]
    if len(set(ids)) == len(ids) and all(map(_ID.fullmatch, ids)) and not text.isdigit():
        return ids
    raise DeviceError(
        f"[tf_operator] gpus = {text!r}: give a number of devices, at most {MOST_DECLARED} (4; 0 for none), or their"
        " different ids as the driver has them (0,2 or GPU-...)"
    )


def driver_devices() -> list[Device]:
    """What the driver reports; none where there is no driver. A device that is cut up stands for its slices."""
    with _driver() as nvml:
        return [device for device, _ in _found(nvml)] if nvml else []


def device_users() -> dict[str, list[User]]:
    """Who computes on which device now, by device id and uuid. Screens are no use; nor are the daemons of MPS."""
    with _driver() as nvml:
        found: dict[str, list[User]] = {}
        for device, handle in _found(nvml) if nvml else ():
            users = [_user(entry.pid) for entry in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            found[device.id] = found[device.uuid] = [user for user in users if not user.text.startswith(MPS)]
        return found


@contextlib.contextmanager
def _driver() -> Iterator[Any]:
    """The driver's library, None where there is no driver. DeviceError where there is one, and it fails."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        yield None
        return
    except nvml.NVMLError as error:
        raise _failed(error) from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise _failed(error) from error
    finally:
        nvml.nvmlShutdown()


def _failed(error: Exception) -> DeviceError:
    return DeviceError(f"the NVIDIA driver of this host fails ({error}): see nvidia-smi")


def _found(nvml: Any) -> list[tuple[Device, Any]]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    cut_up = [_is_cut_up(nvml, handle) for handle in handles]
    found = []
    for index, handle in enumerate(handles):
        if cut_up[index]:
            found += [(_describe(nvml, part, "", mig=True), part) for part in _slices(nvml, handle)]
        else:
            # CUDA skips devices that are cut up when it counts: then only uuids say which one is meant.
            found.append((_describe(nvml, handle, "" if any(cut_up) else str(index)), handle))
    return found


def _is_cut_up(nvml: Any, handle: Any) -> bool:
    # Most devices cannot be, and say so by an error.
    with contextlib.suppress(nvml.NVMLError):
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    return False


def _slices(nvml: Any, handle: Any) -> Iterator[Any]:
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        # Places that hold no slice answer with an error.
        with contextlib.suppress(nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


def _describe(nvml: Any, handle: Any, name: str, mig: bool = False) -> Device:
    memory = None
    # Devices that share the host's memory have none of their own to report.
    with contextlib.suppress(nvml.NVMLError):
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    return Device(name or uuid, str(nvml.nvmlDeviceGetName(handle)), memory, mig, uuid)


def _user(pid: int) -> User:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            text = f"{process.name()} (pid {pid}, user {process.username()})"
            try:
                ours = "TF_OPERATOR_GENERATION" in process.environ()
            except psutil.AccessDenied:
                ours = False
    except psutil.Error:
        return User(pid, None, f"a process that cannot be seen from here (pid {pid})")
    return User(pid, ours, text)
