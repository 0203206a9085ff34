"""The last look before a program starts: what it will see of the GPUs is what it was given. Standard library only.

The keeper does this, with the program's own environment: whatever went wrong on the way shows here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

DRIVER = Path("/dev/nvidiactl")
"""There where an NVIDIA driver is loaded."""
COUNT_WAIT = 60.0
"""Seconds for CUDA to count: a driver without persistence sets up every device first."""
_COUNT = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    print("unknown")
else:
    number, code = ctypes.c_int(0), cuda.cuInit(0)
    code = code or cuda.cuDeviceGetCount(ctypes.byref(number))
    print(0 if code == 100 else number.value if code == 0 else "unknown")
"""
"""100 is CUDA's word for `no device`. What else fails is for the program to report."""


class MismatchError(Exception):
    """The program would see other devices than it was given."""


def check(given: Sequence[str], env: Mapping[str, str], fds: Iterable[int], devices: Path) -> None:
    """Compare the ids `given` with the locks behind `fds` (below `devices`), the environment and CUDA's own count."""
    shown = [name for name in env.get("CUDA_VISIBLE_DEVICES", "-1").split(",") if name != "-1"]
    if sorted(shown) != sorted(given):
        raise MismatchError(_text(given, f"its CUDA_VISIBLE_DEVICES shows {_names(shown)}"))
    held = _held(fds, devices)
    if held != set(given):
        raise MismatchError(_text(given, f"it holds the locks of {_names(sorted(held))}"))
    if (given or DRIVER.exists()) and (seen := count(env)) is not None and seen != len(given):
        raise MismatchError(
            _text(given, f"CUDA shows it {seen} under CUDA_VISIBLE_DEVICES={env.get('CUDA_VISIBLE_DEVICES')}")
        )


def count(env: Mapping[str, str]) -> int | None:
    """How many devices CUDA shows a program with this environment; None where there is no CUDA that could tell."""
    # Heavy for a keeper, and most programs have no device.
    import subprocess

    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        # A process of its own: one that has begun with CUDA holds memory on every device it sees.
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _COUNT],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=COUNT_WAIT,
            check=True,
        )
        return int(done.stdout)
    return None


def _held(fds: Iterable[int], devices: Path) -> set[str]:
    """The devices whose locks these descriptors are; a part's lock is named `<id>.<parts>.<n>`."""
    paths = [Path(f"/proc/self/fd/{descriptor}").readlink() for descriptor in fds]
    return {path.name.partition(".")[0] for path in paths if path.parent == devices}


def _names(ids: Sequence[str]) -> str:
    return ", ".join(ids) or "none"


def _text(given: Sequence[str], what: str) -> str:
    return f"given GPUs {_names(given)}, but {what}: not started; compare `tf-operator gpus` with nvidia-smi"
