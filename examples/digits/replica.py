"""What the training programs share: their place in the cluster, their inputs, their lines, their result and their end.

No TensorFlow is imported before it is needed: what is wrong with the inputs is said within a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from digits.data import DataError, Digits, key_from_environment, load

HIDDEN = 64
LEARNING_RATE = 0.3

LOST = ("UnavailableError", "AbortedError", "DeadlineExceededError", "CancelledError")
"""What TensorFlow raises where a peer is gone: one class for each way to notice it.

Not InternalError and UnknownError: those are faults of one's own, such as a port that is taken, a GPU that fails, or an
exception in the program's Python code behind a data set.
"""


def say(text: str) -> None:
    """Print a line at once, with the seconds since 1970 in front."""
    print(f"{time.time():.2f} {text}", flush=True)


@dataclass(frozen=True)
class Task:
    """What this process is, in the cluster of TF_CONFIG."""

    kind: str
    index: int
    cluster: dict[str, list[str]]

    @property
    def leads(self) -> bool:
        """True for the chief, or worker 0 where there is none: it saves the checkpoints and writes the result."""
        return self.kind == "chief" or ("chief" not in self.cluster and (self.kind, self.index) == ("worker", 0))

    @property
    def trainers(self) -> int:
        """How many replicas train: the workers, and the chief where there is one."""
        return len(self.cluster.get("worker", [])) + len(self.cluster.get("chief", []))

    def __str__(self) -> str:
        return f"{self.kind}-{self.index}"


def task(*kinds: str) -> Task:
    """Read TF_CONFIG; DataError where this process is none of `kinds`."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        found = Task(str(config["task"]["type"]), int(config["task"]["index"]), dict(config["cluster"]))
    except (KeyError, ValueError, TypeError):
        raise DataError("TF_CONFIG is not set, or has no task: start this program as a replica of a job") from None
    if found.kind not in kinds:
        raise DataError(f"TF_CONFIG gives this process the role {found.kind}: {', '.join(kinds)} are known here")
    return found


class Arguments(argparse.ArgumentParser):
    """A command line that tells what is wrong with it as the other inputs do: in one line, without its usage."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        raise DataError(f"{message}; see --help")


def whole(text: str) -> int:
    """Read a number of steps, epochs or images."""
    if text.isdecimal() and len(text) < 10 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} must be a whole number from 1 to 999999999")


def seconds(text: str) -> float:
    """Read a time to wait."""
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) <= threading.TIMEOUT_MAX:
            return number
    raise argparse.ArgumentTypeError(f"{text} must be a number of seconds, 0 or more")


def options(about: str | None) -> argparse.ArgumentParser:
    """Return the command line that all programs understand."""
    parser = Arguments(description=about)
    parser.add_argument("--batch-size", type=whole, default=32, help="of each replica that trains")
    parser.add_argument("--step-delay", type=seconds, default=0.0, help="seconds to wait after each step")
    parser.add_argument("--data", type=Path, default=os.environ.get("DIGITS_DATA") or None)
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("TF_OPERATOR_MODEL_DIR") or None)
    return parser


def stepwise(about: str | None) -> argparse.ArgumentParser:
    """Return the command line of the programs that count steps, not epochs."""
    parser = options(about)
    parser.add_argument("--steps", type=whole, default=500)
    parser.add_argument("--save-every", type=whole, default=50, help="steps from one checkpoint and line to the next")
    return parser


def inputs(args: argparse.Namespace) -> Digits:
    """Check the paths and read the data; DataError where one is missing."""
    if not args.data:
        raise DataError("no data set: give --data, or set DIGITS_DATA")
    if not args.model_dir:
        raise DataError("no place for checkpoints: give --model-dir, or set TF_OPERATOR_MODEL_DIR")
    try:
        args.model_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{args.model_dir}: {error.strerror}: give a --model-dir that can be written") from None
    return load(args.data, key_from_environment())


def serve(place: Task) -> NoReturn:
    """Work for the others until stopped. Never returns."""
    server = start_server(place)
    say(f"{place} serves at {server.target}")
    while True:
        server.join()


def start_server(place: Task, config: Any = None) -> Any:
    """Start this process's TensorFlow server, at its address of TF_CONFIG."""
    import tensorflow as tf

    return tf.distribute.Server(
        tf.train.ClusterSpec(place.cluster), place.kind, place.index, protocol="grpc", config=config
    )


def write_result(result: dict[str, Any]) -> None:
    """Print the result, and leave it where TF_OPERATOR_RESULT says: whole, or not at all."""
    say("result " + json.dumps(result))
    if target := os.environ.get("TF_OPERATOR_RESULT"):
        part = Path(f"{target}.{os.getpid()}")
        part.write_text(json.dumps(result))
        part.replace(target)


def is_lost(error: BaseException) -> bool:
    """Return whether TensorFlow says that a peer is gone; its coordinator wraps what a step or its input said."""
    found = getattr(error, "original_exception", error)
    return any(kind.__name__ in LOST for kind in type(found).__mro__)


def run(program: Callable[[], None]) -> int:
    """Run a program; return its exit code: 0 trained, 2 an input is missing or wrong. A lost cluster ends it with 1."""
    try:
        program()
    except DataError as error:
        print(f"digits: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if not is_lost(error):
            raise
        # TensorFlow's account is fifty lines long; the last line is what people are shown first.
        traceback.print_exc()
        lines = str(error).splitlines()
        say("the cluster is lost: " + next((line for line in lines if "onnect" in line), lines[0]).strip())
        # An ordinary end would first try to free what is on the lost peer, and bury that line.
        leave(1)
    return 0


def leave(code: int) -> NoReturn:
    """End the process at once: a clean exit would wait 5 s for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
