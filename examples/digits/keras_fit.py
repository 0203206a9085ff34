"""What the two `fit` programs share: the model, what is printed and saved at the end of each epoch, and the result.

Keras 3 can train with neither ParameterServerStrategy nor MultiWorkerMirroredStrategy; tf-keras (Keras 2) can.
TensorFlow takes it for `tf.keras` where TF_USE_LEGACY_KERAS=1 is set before TensorFlow is imported.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from digits.data import DataError, Digits
from digits.replica import HIDDEN, LEARNING_RATE, options, say, whole


def arguments(about: str | None) -> argparse.Namespace:
    """Read the command line; DataError without legacy Keras."""
    parser = options(about)
    parser.add_argument("--epochs", type=whole, default=6)
    parser.add_argument("--steps-per-epoch", type=whole, default=100)
    args = parser.parse_args()
    if os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):
        raise DataError("TF_USE_LEGACY_KERAS=1 is not set: Keras 3 cannot do this, put it into program.env")
    return args


def make_model() -> Any:
    """Create and compile the model; in the strategy's scope. Built at once: BackupAndRestore needs its variables."""
    import tensorflow as tf

    model = tf.keras.Sequential(
        [tf.keras.Input((64,)), tf.keras.layers.Dense(HIDDEN, "relu"), tf.keras.layers.Dense(10)]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.SGD(LEARNING_RATE), loss=loss)
    return model


def callbacks(args: argparse.Namespace, delay_each_step: bool) -> list[Any]:
    """Return what saves, restores and reports. `model_dir` must be the same directory for all replicas.

    The backup stays when training ends: what is started again after that has nothing left to train.
    """
    import tensorflow as tf

    class Report(tf.keras.callbacks.Callback):  # type: ignore[misc]
        restored = 0

        def on_train_begin(self, logs: Any = None) -> None:
            self.restored = steps(self.model)
            if self.restored:
                say(f"restored step {self.restored}")

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            say(f"epoch {epoch + 1}/{args.epochs} step {steps(self.model)} loss {(logs or {}).get('loss', 0.0):.4f}")

    class Delay(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(args.step_delay)

    class DelayAtEpochEnd(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            time.sleep(args.step_delay * args.steps_per_epoch)

    # In this order: it restores before Report looks, and a line is printed when its epoch is saved.
    found = [tf.keras.callbacks.BackupAndRestore(str(args.model_dir), delete_checkpoint=False), Report()]
    if args.step_delay:
        found.append(Delay() if delay_each_step else DelayAtEpochEnd())
    return found


def steps(model: Any) -> int:
    """Return the steps done in all, over restarts."""
    return int(model.optimizer.iterations.numpy())


def result(model: Any, digits: Digits, restored: int) -> dict[str, Any]:
    """Measure on the held-out images, in this process alone."""
    import tensorflow as tf

    guesses = tf.argmax(model(digits.test_x, training=False), axis=1).numpy()
    return {
        "accuracy": round(float((guesses == digits.test_y).mean()), 4),
        "steps": steps(model),
        "restored_step": restored,
        "tensorflow": tf.__version__,
    }
