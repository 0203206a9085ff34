"""What the two `tf.compat.v1` programs share: the network, and a session that restores, saves and reports.

Imports TensorFlow, and turns eager execution off: import it once the inputs are known to be right.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import tensorflow as tf

from digits.checkpoints import pass_over_torn
from digits.data import Digits
from digits.replica import HIDDEN, say

v1 = tf.compat.v1
v1.disable_eager_execution()

PATIENCE_S = 7200


def make_weights() -> list[Any]:
    """Create the weights, where the enclosing device says."""
    he = v1.variance_scaling_initializer(2.0, seed=1)
    return [
        v1.get_variable("kernel1", [64, HIDDEN], initializer=he),
        v1.get_variable("bias1", [HIDDEN], initializer=v1.zeros_initializer()),
        v1.get_variable("kernel2", [HIDDEN, 10], initializer=he),
        v1.get_variable("bias2", [10], initializer=v1.zeros_initializer()),
    ]


def logits(weights: list[Any], x: Any) -> Any:
    """Return ten numbers for each image."""
    w1, b1, w2, b2 = weights
    return tf.nn.relu(x @ w1 + b1) @ w2 + b2


def random_loss(weights: list[Any], digits: Digits, batch_size: int) -> Any:
    """Return the loss on a random batch. The images are part of the graph."""
    which = v1.random_uniform([batch_size], 0, len(digits.train_x), dtype=tf.int32)
    x, y = tf.gather(tf.constant(digits.train_x), which), tf.gather(tf.constant(digits.train_y), which)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(weights, x)))


def make_accuracy(weights: list[Any], digits: Digits) -> Any:
    """Return the share of held-out images that are recognised."""
    guesses = tf.argmax(logits(weights, tf.constant(digits.test_x)), axis=1)
    return tf.reduce_mean(tf.cast(tf.equal(guesses, tf.constant(digits.test_y)), tf.float32))


class Progress(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Follows the global step, says where training stands, and measures in the end."""

    def __init__(self, train: Any, loss: Any, accuracy: Any, args: argparse.Namespace, leads: bool = True) -> None:
        self.global_step = v1.train.get_global_step()
        with tf.control_dependencies([train]):
            self.after_step = tf.identity(self.global_step.read_value())
        self.loss, self.accuracy, self.args, self.leads = loss, accuracy, args, leads
        self.step = self.restored = self.said = 0
        self.last_loss = 0.0
        self.measured: dict[str, Any] = {}

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Say where this session begins. Called again for each new session after a loss."""
        self.step = self.restored = int(session.run(self.global_step))
        self.said = self.step // self.args.save_every
        say(f"{'restored' if self.leads else 'joined at'} step {self.step}" if self.step else "session ready")

    def before_run(self, run_context: Any) -> Any:
        """Ask for the step, and the loss, beside what is run."""
        return v1.train.SessionRunArgs([self.after_step, self.loss])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Say a line every --save-every global steps. The leader's come from `saved`."""
        step, loss = run_values.results
        self.step, self.last_loss = int(step), float(loss)
        if not self.leads and self.step // self.args.save_every != self.said:
            self.said = self.step // self.args.save_every
            say(f"step {self.step} loss {self.last_loss:.4f}")

    def saved(self, step: int) -> None:
        """Say what is saved: it will not be trained again."""
        if step > self.restored:
            say(f"step {step} loss {self.last_loss:.4f}")

    def end(self, session: Any) -> None:
        """Measure, as the last thing the session does."""
        step, accuracy = session.run([self.global_step, self.accuracy])
        self.measured = {
            "accuracy": round(float(accuracy), 4),
            "steps": int(step),
            "restored_step": self.restored,
            "tensorflow": tf.__version__,
        }


class SaySaved(v1.train.CheckpointSaverListener):  # type: ignore[misc,name-defined]
    """Tells Progress of each checkpoint."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def after_save(self, session: Any, global_step_value: Any) -> None:
        """Called by the hook that saved."""
        self.progress.saved(int(global_step_value))


class FollowerSession(v1.train.SessionCreator):  # type: ignore[misc,name-defined]
    """Makes the session of a replica that does not lead: it waits until the leader has made the variables.

    MonitoredTrainingSession would do, but looks only every 30 s whether they are there.
    """

    def __init__(self, master: str, scaffold: Any, config: Any) -> None:
        self.master, self.scaffold, self.config = master, scaffold, config

    def create_session(self) -> Any:
        """Return the session, after at most PATIENCE_S."""
        self.scaffold.finalize()
        manager = v1.train.SessionManager(
            local_init_op=self.scaffold.local_init_op,
            ready_op=self.scaffold.ready_op,
            ready_for_local_init_op=self.scaffold.ready_for_local_init_op,
            recovery_wait_secs=1,
        )
        return manager.wait_for_session(self.master, self.config, max_wait_secs=PATIENCE_S)


def leader_session(master: str, progress: Progress, hooks: list[Any], config: Any = None) -> Any:
    """Return a session that makes or restores the variables and saves a checkpoint every --save-every steps.

    It survives the loss of a ps or worker: TensorFlow makes it anew and restores the last checkpoint.
    """
    pass_over_torn(progress.args.model_dir)
    folder, every, scaffold = str(progress.args.model_dir), progress.args.save_every, v1.train.Scaffold()
    saver = v1.train.CheckpointSaverHook(folder, save_steps=every, scaffold=scaffold, listeners=[SaySaved(progress)])
    return v1.train.MonitoredTrainingSession(
        master,
        is_chief=True,
        checkpoint_dir=folder,
        scaffold=scaffold,
        # In this order: a new session saves what it has restored, and Progress must know by then that this is not new.
        hooks=[progress, *hooks, saver],
        save_checkpoint_secs=None,
        save_checkpoint_steps=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        # It would wait two minutes for SyncReplicasOptimizer's thread, which waits for gradients that never come.
        stop_grace_period_secs=1,
        config=config,
    )


def follower_session(master: str, progress: Progress, hooks: list[Any], config: Any = None) -> Any:
    """Return a session that works on the leader's variables."""
    return v1.train.MonitoredSession(FollowerSession(master, v1.train.Scaffold(), config), [progress, *hooks])


def train_to(session: Any, progress: Progress, train: Any) -> None:
    """Run steps until the global step is reached; none where it was reached before."""
    while not session.should_stop() and progress.step < progress.args.steps:
        session.run(train)
        time.sleep(progress.args.step_delay)
