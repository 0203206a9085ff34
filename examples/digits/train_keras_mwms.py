"""Synchronous training on the digits with tf-keras `fit` and MultiWorkerMirroredStrategy.

All replicas are workers and do the same steps. A checkpoint is saved after each epoch, and all go on from the last.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from digits.checkpoints import pass_over_torn
from digits.data import Digits
from digits.keras_fit import arguments, callbacks, make_model, result
from digits.replica import Task, inputs, leave, run, say, task, write_result


def make_dataset(digits: Digits, batch_size: int) -> Any:
    """Return endless batches of the whole cluster; each worker reads its own part of the data."""
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices((digits.train_x, digits.train_y))
    batches = pairs.shuffle(len(digits.train_x)).repeat().batch(batch_size)
    choices = tf.data.Options()
    choices.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(choices)


def fit(args: argparse.Namespace, place: Task, digits: Digits) -> dict[str, Any]:
    """Train what is left of the epochs; return the result."""
    import tensorflow as tf

    if place.leads:
        pass_over_torn(args.model_dir / "chief")  # where BackupAndRestore saves
    say("waiting for the cluster")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    say("the cluster is complete")
    with strategy.scope():
        model = make_model()
    batches = make_dataset(digits, args.batch_size * strategy.num_replicas_in_sync)
    chosen = callbacks(args, delay_each_step=True)
    model.fit(batches, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, verbose=0, callbacks=chosen)
    return result(model, digits, chosen[1].restored)


def train() -> None:
    """Run this process's role."""
    args = arguments(__doc__)
    place = task("chief", "worker")
    found = fit(args, place, inputs(args))
    if place.leads:
        write_result(found)


if __name__ == "__main__":
    if code := run(train):
        leave(code)
    sys.exit(0)
