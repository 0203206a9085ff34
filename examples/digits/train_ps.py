"""Asynchronous parameter-server training on the digits, as one program for every role.

It reads TF_CONFIG for the cluster and knows nothing of who started it. The chief trains: it decrypts the data, hands it
to the workers, saves a checkpoint after each epoch and goes on from the last one it finds.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from digits.checkpoints import pass_over_torn
from digits.data import Digits
from digits.replica import HIDDEN, LEARNING_RATE, inputs, leave, options, run, say, serve, task, whole, write_result


@dataclass
class Model:
    """The variables, all of them on the ps: what a lost worker knew is lost with nothing."""

    weights: list[Any]
    step: Any
    epoch: Any
    loss: Any  # summed over the epoch's steps

    def logits(self, x: Any) -> Any:
        import tensorflow as tf

        w1, b1, w2, b2 = self.weights
        return tf.nn.relu(x @ w1 + b1) @ w2 + b2


def make_model() -> Model:
    """Create the variables; in the strategy's scope."""
    import tensorflow as tf

    def kernel(rows: int, columns: int, seed: int) -> Any:
        start = tf.random.stateless_normal([rows, columns], [seed, 0], stddev=(2 / rows) ** 0.5)
        return tf.Variable(start, name=f"kernel{seed}")

    weights = [
        kernel(64, HIDDEN, 1),
        tf.Variable(tf.zeros([HIDDEN])),
        kernel(HIDDEN, 10, 2),
        tf.Variable(tf.zeros([10])),
    ]
    step, epoch = (tf.Variable(0, dtype=tf.int64, name=name) for name in ("step", "epoch"))
    return Model(weights, step, epoch, tf.Variable(0.0, name="loss"))


def make_step(model: Model) -> Callable[[Any], Any]:
    """Return one training step, run by a worker on a batch of its own data."""
    import tensorflow as tf

    @tf.function
    def step(batches: Any) -> None:
        x, y = next(batches)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model.logits(x)))
        for weight, gradient in zip(model.weights, tape.gradient(loss, model.weights), strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        model.loss.assign_add(loss)
        model.step.assign_add(1)

    return step


def make_batches(coordinator: Any, digits: Digits, batch_size: int) -> Any:
    """Return each worker's endless batches. The arrays travel from the chief inside the data set's graph."""
    import tensorflow as tf

    def dataset(_: Any = None) -> Any:
        pairs = tf.data.Dataset.from_tensor_slices((digits.train_x, digits.train_y))
        return pairs.shuffle(len(digits.train_x)).repeat().batch(batch_size).prefetch(2)

    @tf.function
    def per_worker() -> Any:
        return coordinator.strategy.distribute_datasets_from_function(dataset)

    return iter(coordinator.create_per_worker_dataset(per_worker))


class Training:
    """What the chief does: restore, train epoch by epoch, save, and measure in the end."""

    def __init__(self, args: argparse.Namespace, digits: Digits) -> None:
        import tensorflow as tf

        self.args = args
        self.digits = digits
        self.stepped = False
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        pass_over_torn(args.model_dir)
        say("waiting for the cluster")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        say("the cluster is complete")
        with strategy.scope():
            self.model = make_model()
        model = self.model
        self.checkpoint = tf.train.Checkpoint(step=model.step, epoch=model.epoch, weights=model.weights)
        self.manager = tf.train.CheckpointManager(self.checkpoint, str(args.model_dir), max_to_keep=3)
        # Saved by the chief, so that the ps need not see model_dir.
        self.options = tf.train.CheckpointOptions(experimental_io_device="/job:chief")

    def run(self) -> dict[str, Any]:
        """Train what is left of the epochs; return the result."""
        if self.manager.latest_checkpoint:
            self.checkpoint.restore(self.manager.latest_checkpoint, self.options).assert_consumed()
            say(f"restored step {self.steps}")
        batches = make_batches(self.coordinator, self.digits, self.args.batch_size)
        self.step = functools.partial(self.coordinator.schedule, make_step(self.model), args=(batches,))
        for epoch in range(int(self.model.epoch.numpy()) + 1, self.args.epochs + 1):
            self.epoch(epoch)
        return self.result()

    def epoch(self, epoch: int) -> None:
        """Have the workers do an epoch's steps. A step that a lost worker had begun is done again by another."""
        began = time.monotonic()
        for _ in range(self.args.steps_per_epoch):
            self.step()
            if not self.stepped:
                self.coordinator.join()
                self.stepped = True
                say(f"first step at {time.time():.3f}")
            time.sleep(self.args.step_delay)
        self.coordinator.join()
        loss = float(self.model.loss.numpy()) / self.args.steps_per_epoch
        self.model.loss.assign(0.0)
        self.model.epoch.assign(epoch)
        self.manager.save(options=self.options)
        spent = time.monotonic() - began
        say(f"epoch {epoch}/{self.args.epochs} step {self.steps} loss {loss:.4f} in {spent:.2f} s")

    @property
    def steps(self) -> int:
        """Steps done in all, over restarts."""
        return int(self.model.step.numpy())

    def result(self) -> dict[str, Any]:
        """Measure on the held-out images."""
        import tensorflow as tf

        guesses = tf.argmax(self.model.logits(self.digits.test_x), axis=1).numpy()
        return {
            "accuracy": round(float((guesses == self.digits.test_y).mean()), 4),
            "steps": self.steps,
            "epochs": int(self.model.epoch.numpy()),
            "tensorflow": tf.__version__,
        }


def train() -> None:
    """Run this process's role."""
    parser = options(__doc__)
    parser.add_argument("--epochs", type=whole, default=5)
    parser.add_argument("--steps-per-epoch", type=whole, default=100)
    args = parser.parse_args()
    place = task("chief", "worker", "ps")
    if place.kind != "chief":
        serve(place)
    training = Training(args, inputs(args))
    write_result(training.run())
    # An ordinary end would first free what is on the ps and the workers, while TensorFlow's own threads are still at
    # work on it, and is now and then aborted (SIGABRT) after a good result.
    leave(0)


if __name__ == "__main__":
    sys.exit(run(train))
