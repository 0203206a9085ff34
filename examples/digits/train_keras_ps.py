"""Asynchronous training on the digits with tf-keras `fit` and ParameterServerStrategy.

The chief trains; workers and ps serve it. A checkpoint is saved after each epoch, by the ps, so chief and ps must share
the model_dir. Started again, the chief goes on with the next epoch.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from digits.checkpoints import pass_over_torn
from digits.data import Digits
from digits.keras_fit import arguments, callbacks, make_model, result
from digits.replica import inputs, leave, run, say, serve, task, write_result


def fit(args: argparse.Namespace, digits: Digits) -> None:
    """Train what is left of the epochs, write the result, and end the process."""
    import tensorflow as tf

    def dataset(_: Any) -> Any:
        # The arrays travel to the workers inside the data set's graph.
        pairs = tf.data.Dataset.from_tensor_slices((digits.train_x, digits.train_y))
        return pairs.shuffle(len(digits.train_x)).repeat().batch(args.batch_size).prefetch(2)

    pass_over_torn(args.model_dir / "chief")  # where BackupAndRestore saves
    say("waiting for the cluster")
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    say("the cluster is complete")
    with strategy.scope():
        model = make_model()
    # A loop over steps does not exist here: fit hands whole epochs to the workers.
    chosen = callbacks(args, delay_each_step=False)
    batches = tf.keras.utils.experimental.DatasetCreator(dataset)
    model.fit(batches, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, verbose=0, callbacks=chosen)
    write_result(result(model, digits, chosen[1].restored))
    leave(0)  # with the coordinator still alive: see train_ps.py


def train() -> None:
    """Run this process's role."""
    args = arguments(__doc__)
    place = task("chief", "worker", "ps")
    if place.kind == "chief":
        fit(args, inputs(args))
    else:
        serve(place)


if __name__ == "__main__":
    sys.exit(run(train))
