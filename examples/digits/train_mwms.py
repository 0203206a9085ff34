"""Synchronous training on the digits with MultiWorkerMirroredStrategy, in a loop of our own.

All replicas are workers and do the same steps. The leader (the chief, else worker 0) saves a checkpoint every
--save-every steps into the shared model_dir; all restore the last one. A lost worker ends every other one's program.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import Any

from digits.checkpoints import pass_over_torn
from digits.data import DataError, Digits
from digits.replica import HIDDEN, LEARNING_RATE, Task, inputs, leave, run, say, stepwise, task, write_result


class Training:
    """What each worker does: restore, train, save, and measure in the end."""

    def __init__(self, args: argparse.Namespace, place: Task, digits: Digits) -> None:
        import tensorflow as tf

        self.args, self.place, self.digits = args, place, digits
        if place.leads:
            pass_over_torn(args.model_dir)  # before the others are met: they wait below until it is done
        say("waiting for the cluster")
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        say("the cluster is complete")
        with self.strategy.scope():
            self.weights = make_weights()
            self.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.checkpoint = tf.train.Checkpoint(step=self.step, weights=self.weights)
        # A save may need values of all workers, so all must take part in it; only the leader's copy is kept.
        own = args.model_dir if place.leads else args.model_dir / "not_leading" / str(place)
        if not place.leads:
            shutil.rmtree(own, ignore_errors=True)  # nobody reads it, and a torn one would end this program
        self.manager = tf.train.CheckpointManager(self.checkpoint, str(own), max_to_keep=3 if place.leads else 1)

    def run(self) -> dict[str, Any]:
        """Train what is left of the steps; return the result."""
        restored = self.restore()
        batches, train = iter(self.batches()), self.make_step()
        step = restored
        while step < self.args.steps:
            loss = train(batches)
            step += 1
            time.sleep(self.args.step_delay)
            if step % self.args.save_every == 0 or step == self.args.steps:
                self.manager.save(checkpoint_number=step)
                say(f"step {step} loss {float(self.strategy.experimental_local_results(loss)[0]):.4f}")
        return self.result(restored)

    def restore(self) -> int:
        """Restore the leader's last checkpoint, everybody the same one; return its step."""
        import tensorflow as tf

        latest = tf.train.latest_checkpoint(str(self.args.model_dir))
        if latest:
            self.checkpoint.restore(latest).assert_consumed()
        step = int(self.step.numpy())
        if self.sum_over_replicas(step) != step * self.strategy.num_replicas_in_sync:
            raise DataError(f"{self.args.model_dir}: this replica finds step {step}, another one a different step: "
                            "all replicas must share the model_dir")  # fmt: skip
        if latest:
            say(f"restored step {step}")
        return step

    def sum_over_replicas(self, number: int) -> int:
        """Return the sum of the replicas' numbers; each waits here for all others."""
        import tensorflow as tf

        @tf.function
        def total() -> Any:
            numbers = self.strategy.run(lambda: tf.constant(number, tf.int64))
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None)

        return int(total())

    def batches(self) -> Any:
        """Return the endless batches of the cluster; each worker reads its own part of the data."""
        import tensorflow as tf

        def dataset(context: Any) -> Any:
            pairs = tf.data.Dataset.from_tensor_slices((self.digits.train_x, self.digits.train_y))
            mine = pairs.shard(context.num_input_pipelines, context.input_pipeline_id)
            return mine.shuffle(len(self.digits.train_x)).repeat().batch(self.args.batch_size).prefetch(2)

        return self.strategy.distribute_datasets_from_function(dataset)

    def make_step(self) -> Any:
        """Return one training step of the whole cluster."""
        import tensorflow as tf

        def one_replica(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(self.weights, x)))
            for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
                weight.assign_sub(LEARNING_RATE * gradient)  # the mean over all replicas: see make_weights
            return loss

        @tf.function
        def step(batches: Any) -> Any:
            loss = self.strategy.run(one_replica, args=(next(batches),))
            self.step.assign_add(1)
            return loss

        return step

    def result(self, restored: int) -> dict[str, Any]:
        """Measure on the held-out images."""
        import tensorflow as tf

        guesses = tf.argmax(logits(self.weights, self.digits.test_x), axis=1).numpy()
        return {
            "accuracy": round(float((guesses == self.digits.test_y).mean()), 4),
            "steps": int(self.step.numpy()),
            "restored_step": restored,
            "tensorflow": tf.__version__,
        }


def make_weights() -> list[Any]:
    """Create the weights; in the strategy's scope. An update takes the mean over all replicas."""
    import tensorflow as tf

    def variable(start: Any) -> Any:
        return tf.Variable(start, aggregation=tf.VariableAggregation.MEAN)

    def kernel(rows: int, columns: int, seed: int) -> Any:
        return variable(tf.random.stateless_normal([rows, columns], [seed, 0], stddev=(2 / rows) ** 0.5))

    return [kernel(64, HIDDEN, 1), variable(tf.zeros([HIDDEN])), kernel(HIDDEN, 10, 2), variable(tf.zeros([10]))]


def logits(weights: list[Any], x: Any) -> Any:
    """Return ten numbers for each image."""
    import tensorflow as tf

    w1, b1, w2, b2 = weights
    return tf.nn.relu(x @ w1 + b1) @ w2 + b2


def train() -> None:
    """Run this process's role."""
    args = stepwise(__doc__).parse_args()
    place = task("chief", "worker")
    result = Training(args, place, inputs(args)).run()
    if place.leads:
        write_result(result)


if __name__ == "__main__":
    if code := run(train):
        leave(code)
    sys.exit(0)
