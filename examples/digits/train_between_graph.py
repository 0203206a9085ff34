"""Between-graph replication on the digits, through tf.compat.v1: asynchronous, or synchronous with --sync.

Each worker has a graph and a session of its own; the variables are on the ps. The leader (the chief, else worker 0)
makes them, saves a checkpoint every --save-every global steps and restores the last one. With --sync, one global step
takes the mean gradient of all workers (SyncReplicasOptimizer). The ps save and restore: they must see the model_dir.
"""

from __future__ import annotations

import argparse
import sys
import threading
from typing import Any

from digits.data import Digits
from digits.replica import LEARNING_RATE, Task, inputs, run, serve, start_server, stepwise, task, write_result


def build(args: argparse.Namespace, place: Task, digits: Digits) -> tuple[Any, Any, list[Any]]:
    """Make this replica's graph; return its training step, its progress, and the optimizer's hooks."""
    import tensorflow as tf

    from digits.sessions import Progress, make_accuracy, make_weights, random_loss, v1

    own = f"/job:{place.kind}/task:{place.index}"
    with v1.device(v1.train.replica_device_setter(worker_device=own, cluster=tf.train.ClusterSpec(place.cluster))):
        step = v1.train.get_or_create_global_step()
        weights = make_weights()
        loss = random_loss(weights, digits, args.batch_size)
        optimizer = v1.train.GradientDescentOptimizer(LEARNING_RATE)
        hooks = []
        if args.sync:
            optimizer = v1.train.SyncReplicasOptimizer(optimizer, place.trainers, place.trainers)
        train = optimizer.minimize(loss, global_step=step)
        if args.sync:
            hooks.append(optimizer.make_session_run_hook(place.leads))
        progress = Progress(train, loss, make_accuracy(weights, digits), args, place.leads)
    return train, progress, hooks


def follow(args: argparse.Namespace, place: Task, digits: Digits) -> None:
    """Train in step with the others; the leader writes the result."""
    from digits.sessions import follower_session, leader_session, train_to, v1

    # This replica needs the ps and itself: it must not wait for other workers, or be ended by their loss.
    config = v1.ConfigProto(device_filters=["/job:ps", f"/job:{place.kind}/task:{place.index}"])
    master = start_server(place, config).target
    train, progress, hooks = build(args, place, digits)
    open_session = leader_session if place.leads else follower_session
    with open_session(master, progress, hooks, config) as session:
        train_to(session, progress, train)
        # SyncReplicasOptimizer's thread is cancelled with the session, and would report that as an error.
        threading.excepthook = lambda _: None
    if place.leads:
        write_result(progress.measured)


def train() -> None:
    """Run this process's role."""
    parser = stepwise(__doc__)
    parser.add_argument("--sync", action="store_true", help="one global step takes the gradients of all workers")
    args = parser.parse_args()
    place = task("chief", "worker", "ps")
    if place.kind == "ps":
        serve(place)
    else:
        follow(args, place, inputs(args))


if __name__ == "__main__":
    sys.exit(run(train))
