"""Stands in for `nvidia-ml-py` where no driver can be had: answers from the JSON file that $NVML_RECORDING names.

    {"gpus": [{"name", "uuid", "memory", "pids": [..], "slices": null | [{"uuid", "memory", "pids"} | null, ..]}]}

`slices` null: no MIG; a list: MIG is on, null stands for a place without a slice. Only what the product calls, with the
names, the order of calls and the errors of the real one.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818 - the library's own names
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_NotFound(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_InvalidArgument(NVMLError):  # noqa: N801, N818
    pass


_recording = None


def nvmlInit():  # noqa: N802
    global _recording
    path = os.environ.get("NVML_RECORDING")
    if not path:
        raise NVMLError_DriverNotLoaded("Driver Not Loaded")
    recording = json.loads(Path(path).read_text())
    if "init_fault" in recording:
        raise NVMLError(recording["init_fault"])
    _recording = recording


def nvmlShutdown():  # noqa: N802
    global _recording
    _recording = None


def nvmlDeviceGetCount():  # noqa: N802
    if "fault" in _recording:
        raise NVMLError(_recording["fault"])
    return len(_recording["gpus"])


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    return _recording["gpus"][index]


def nvmlDeviceGetMigMode(handle):  # noqa: N802
    if "slices" not in handle:
        raise NVMLError_NotSupported("Not Supported")
    mode = int(handle["slices"] is not None)
    return [mode, mode]


def nvmlDeviceGetMaxMigDeviceCount(handle):  # noqa: N802
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, number):  # noqa: N802
    places = handle["slices"]
    if number >= len(places) or places[number] is None:
        raise NVMLError_NotFound("Not Found")
    return {"name": handle["name"], **places[number]}


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    if handle["memory"] is None:
        raise NVMLError_NotSupported("Not Supported")
    return SimpleNamespace(total=handle["memory"])


def nvmlDeviceGetName(handle):  # noqa: N802
    return handle["name"]


def nvmlDeviceGetUUID(handle):  # noqa: N802
    return handle["uuid"]


def nvmlDeviceGetComputeRunningProcesses(handle):  # noqa: N802
    return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in handle.get("pids", ())]
