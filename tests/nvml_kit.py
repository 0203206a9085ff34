"""A host whose NVIDIA driver says what a test wants: recordings for `standins/pynvml.py`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

STANDINS = Path(__file__).parent / "standins"
GIB = 1 << 30


def gpu(number: int, pids: tuple[int, ...] = (), slices: Any = "none", memory: int | None = 80 * GIB) -> dict[str, Any]:
    """One device. `slices`: "none" for one that cannot be cut up."""
    found = {"name": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-{number}", "memory": memory, "pids": list(pids)}
    return found if slices == "none" else found | {"slices": slices}


def cut(name: str, pids: tuple[int, ...] = ()) -> dict[str, Any]:
    """One MIG slice."""
    return {"uuid": f"MIG-{name}", "memory": 10 * GIB, "pids": list(pids)}


def record(tmp_path: Path, *gpus: dict[str, Any], **more: Any) -> dict[str, str]:
    """The environment in which a process finds this driver."""
    file = tmp_path / "nvml.json"
    file.write_text(json.dumps({"gpus": gpus, **more}))
    return {"NVML_RECORDING": str(file), "PYTHONPATH": str(STANDINS)}


def use(patch: pytest.MonkeyPatch, tmp_path: Path, *gpus: dict[str, Any], **more: Any) -> None:
    """This process finds this driver."""
    patch.setenv("NVML_RECORDING", record(tmp_path, *gpus, **more)["NVML_RECORDING"])
    # Loaded from its file and put there by the patch, so that it goes with it, and each test has one of its own.
    spec = importlib.util.spec_from_file_location("pynvml", STANDINS / "pynvml.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    patch.setitem(sys.modules, "pynvml", module)
