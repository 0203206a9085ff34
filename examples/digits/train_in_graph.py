"""In-graph replication on the digits, through tf.compat.v1: one client, one graph, a tower on each worker.

The chief is the client: it has the only session, and puts the variables on the ps and a tower on each worker. Workers
and ps serve. The chief's session restores the last checkpoint and goes on by itself when one of them comes back.
"""

from __future__ import annotations

import argparse
import sys

from digits.data import Digits
from digits.replica import LEARNING_RATE, Task, inputs, run, serve, start_server, stepwise, task, write_result


def lead(args: argparse.Namespace, place: Task, digits: Digits) -> None:
    """Build the one graph and train it."""
    import tensorflow as tf

    from digits.sessions import Progress, leader_session, make_accuracy, make_weights, random_loss, train_to, v1

    master = start_server(place).target
    ps, workers = len(place.cluster.get("ps", [])), len(place.cluster["worker"])
    with v1.device(v1.train.replica_device_setter(ps, "/job:ps", worker_device="/job:chief/task:0")):
        step = v1.train.get_or_create_global_step()
        weights = make_weights()
        accuracy = make_accuracy(weights, digits)
    towers = []
    for index in range(workers):
        with v1.device(f"/job:worker/task:{index}"):
            towers.append(random_loss(weights, digits, args.batch_size))
    loss = tf.add_n(towers) / workers
    optimizer = v1.train.GradientDescentOptimizer(LEARNING_RATE)
    train = optimizer.minimize(loss, global_step=step, colocate_gradients_with_ops=True)
    progress = Progress(train, loss, accuracy, args)
    with leader_session(master, progress, []) as session:
        train_to(session, progress, train)
    write_result(progress.measured)


def train() -> None:
    """Run this process's role."""
    args = stepwise(__doc__).parse_args()
    place = task("chief", "worker", "ps")
    if place.kind == "chief":
        lead(args, place, inputs(args))
    else:
        serve(place)


if __name__ == "__main__":
    sys.exit(run(train))
