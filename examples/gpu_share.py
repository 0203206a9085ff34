"""Keep to the part of a GPU the replica was given.

A replica with `gpus: 0.25` gets its limit in TF_OPERATOR_GPU_MEMORY_MB. TensorFlow 2.21 reads no environment variable
that bounds what it takes of a device in all, so the program has to say it; copy these lines, and call them first.
"""

import os

import tensorflow as tf


def limit_gpu_memory() -> int | None:
    """Bound what TensorFlow takes of every visible GPU; the bound in MiB, None where there is none to keep to.

    To be called before TensorFlow first uses a GPU: RuntimeError otherwise.
    """
    text = os.environ.get("TF_OPERATOR_GPU_MEMORY_MB")
    if not text:
        return None
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=int(text))
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.set_logical_device_configuration(device, [limit])
    return int(text)
