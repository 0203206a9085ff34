"""A part of a device: what TensorFlow makes of the settings. This machine may have no GPU: its place is taken."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# TensorFlow's context with one device more: what is asked for here is what its runtime would be started with.
SCRIPT = """
import json
import tensorflow as tf
from tensorflow.python.eager import context
from gpu_share import limit_gpu_memory

here = context.context()
here._initialize_physical_devices()
gpu = context.PhysicalDevice("/physical_device:GPU:0", "GPU")
here._physical_devices.append(gpu)
here._visible_device_list.append(gpu)
here._memory_growth_map = {gpu: False}
limit = limit_gpu_memory()
devices = here._compute_gpu_options().experimental.virtual_devices
print(json.dumps({"limit": limit, "told": [list(each.memory_limit_mb) for each in devices]}))
"""


@pytest.mark.parametrize(("given", "told"), [("19968", [[19968.0]]), (None, [])])
def test_the_limit_reaches_tensorflows_runtime(given: str | None, told: list[list[float]]) -> None:
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    env |= {"TF_OPERATOR_GPU_MEMORY_MB": given} if given else {}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"limit": given and int(given), "told": told}


def test_this_tensorflow_reads_the_variable_we_set() -> None:
    spec = find_spec("tensorflow")
    assert spec and spec.origin
    library = Path(spec.origin).parent / "libtensorflow_framework.so.2"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        assert content.find(b"TF_FORCE_GPU_ALLOW_GROWTH") > 0
