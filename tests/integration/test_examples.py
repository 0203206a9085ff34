"""The digits programs of all strategies, with no operator at all: trained, ended in the middle, and gone on with."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tf_replicas import Replicas, prepare

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(420)]

EPOCHS = ("--epochs=4", "--steps-per-epoch=100")
STEPS = ("--steps=400", "--save-every=50")
SLOW = "--step-delay=0.05"
"""So that it is in the middle, also where the test comes seconds late."""


@dataclass(frozen=True)
class Form:
    """One strategy's program, and the smallest cluster that shows it."""

    program: str
    sizes: dict[str, int]
    leader: str
    args: tuple[str, ...] = STEPS
    env: dict[str, str] = field(default_factory=dict)
    ends_by_itself: tuple[str, ...] = ()
    """Replicas beside the leader that end with it."""


LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
WORKERS = {"worker": 2}
FORMS = {
    "mwms": Form("digits.train_mwms", WORKERS, "worker-0", ends_by_itself=("worker-1",)),
    "keras-mwms": Form("digits.train_keras_mwms", WORKERS, "worker-0", EPOCHS, LEGACY, ("worker-1",)),
    "keras-ps": Form("digits.train_keras_ps", {"chief": 1, "worker": 1, "ps": 1}, "chief-0", EPOCHS, LEGACY),
    "between-graph": Form("digits.train_between_graph", WORKERS | {"ps": 1}, "worker-0", ends_by_itself=("worker-1",)),
    "between-graph-sync": Form(
        "digits.train_between_graph", WORKERS | {"ps": 1}, "worker-0", ("--sync", *STEPS), {}, ("worker-1",)
    ),
    "between-graph-chief": Form(
        "digits.train_between_graph", {"chief": 1, "worker": 1, "ps": 1}, "chief-0", ends_by_itself=("worker-0",)
    ),
    "in-graph": Form("digits.train_in_graph", {"chief": 1, "worker": 1, "ps": 1}, "chief-0"),
}
Make = Callable[[str], Replicas]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The encrypted data set and its key."""
    return prepare(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def make(tmp_path: Path, data: tuple[Path, str]) -> Iterator[Make]:
    """Makes the replicas of a form, and ends them with the test."""
    made: list[Replicas] = []

    def replicas(name: str) -> Replicas:
        form = FORMS[name]
        env = {"DIGITS_DATA": str(data[0]), "DIGITS_DATA_KEY": data[1]} | form.env
        made.append(Replicas(tmp_path, form.program, form.sizes, **env))
        return made[-1]

    try:
        yield replicas
    finally:
        for one in made:
            one.end()


def finish(replicas: Replicas, form: Form) -> None:
    """Wait for the end of all that end by themselves, and look at the result."""
    replicas.await_exit(form.leader)
    for name in form.ends_by_itself:
        replicas.await_exit(name, seconds=30)
    serving = set(replicas.names) - {form.leader, *form.ends_by_itself}
    assert {name for name in replicas.names if replicas.running[name].poll() is None} == serving
    result = replicas.result()
    assert result["accuracy"] > 0.9, result
    assert 400 <= result["steps"] < 410, "asynchronous workers may do a step more each"


@pytest.mark.parametrize(
    "name",
    [
        "mwms",
        "keras-mwms",
        "keras-ps",
        "between-graph-sync",
        "in-graph",
        pytest.param("between-graph", marks=pytest.mark.long),
        pytest.param("between-graph-chief", marks=pytest.mark.long),
    ],
)
def test_trains_and_goes_on_after_the_end_of_everything(make: Make, name: str) -> None:
    form = FORMS[name]
    replicas = make(name)
    replicas.start(*form.args, SLOW)
    replicas.await_step(form.leader, 100)
    replicas.kill(*replicas.names)
    seen = max(replicas.steps(form.leader))

    replicas.start(*form.args)
    finish(replicas, form)
    restored = replicas.result()["restored_step"]
    assert restored >= seen // 50 * 50 >= 100, "what was saved is not trained again"
    assert f" restored step {restored}\n" in replicas.log(form.leader)
    assert min(replicas.steps(form.leader)) > restored


# CI has their like on a real Airflow: tests/system/test_matrix.py.
@pytest.mark.long
@pytest.mark.parametrize("lost", ["worker-0", "ps-0"])
def test_in_graph_goes_on_when_a_server_comes_back(make: Make, lost: str) -> None:
    check_that_it_heals_by_itself(make("in-graph"), FORMS["in-graph"], lost)


@pytest.mark.long
@pytest.mark.parametrize("lost", ["ps-0", "worker-1"])
def test_between_graph_goes_on_when_a_replica_comes_back(make: Make, lost: str) -> None:
    check_that_it_heals_by_itself(make("between-graph"), FORMS["between-graph"], lost)


@pytest.mark.long
@pytest.mark.parametrize("lost", ["ps-0", "worker-0", "worker-1"])
def test_synchronous_between_graph_goes_on_when_a_replica_comes_back(make: Make, lost: str) -> None:
    check_that_it_heals_by_itself(make("between-graph-sync"), FORMS["between-graph-sync"], lost)


@pytest.mark.long
@pytest.mark.parametrize("lost", ["worker-0", "chief-0"])
def test_between_graph_with_a_chief_goes_on_when_a_replica_comes_back(make: Make, lost: str) -> None:
    check_that_it_heals_by_itself(make("between-graph-chief"), FORMS["between-graph-chief"], lost)


def check_that_it_heals_by_itself(replicas: Replicas, form: Form, lost: str) -> None:
    """Kill one replica, start it again at its address, and nothing else: the job goes on, none of the others ends."""
    replicas.start(*form.args, "--step-delay=0.04")
    for name in (form.leader, *form.ends_by_itself):
        replicas.await_step(name, 50)
    replicas.await_step(form.leader, 100)
    replicas.kill(lost)
    replicas.start(*form.args, "--step-delay=0.04", only=[lost])
    finish(replicas, form)
    assert replicas.starts == {name: 1 + (name == lost) for name in replicas.names}
    if lost == form.leader:
        assert replicas.result()["restored_step"] >= 100
    elif lost.startswith("ps"):
        assert " restored step " in replicas.log(form.leader)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mwms", "keras-mwms"])
@pytest.mark.parametrize("lost", ["worker-0", "worker-1"])
def test_a_lost_mirrored_worker_ends_the_others_which_say_so(make: Make, name: str, lost: str) -> None:
    form = FORMS[name]
    replicas = make(name)
    replicas.start(*form.args, SLOW)
    replicas.await_step(form.leader, 100)
    replicas.kill(lost)
    began = time.monotonic()
    (other,) = set(replicas.names) - {lost}
    replicas.await_exit(other, code=1, seconds=40)
    assert time.monotonic() - began < 30
    assert "the cluster is lost: " in replicas.log(other).splitlines()[-1]

    replicas.start(*form.args)
    finish(replicas, form)
    assert replicas.result()["restored_step"] >= 100


@pytest.mark.long
@pytest.mark.parametrize("name", ["mwms", "keras-mwms", "keras-ps", "between-graph-sync", "in-graph"])
def test_what_was_trained_is_not_trained_again(make: Make, name: str) -> None:
    form = FORMS[name]
    replicas = make(name)
    replicas.start(*form.args)
    finish(replicas, form)
    first = replicas.result()
    replicas.kill(*replicas.names)
    replicas.start(*form.args)
    finish(replicas, form)
    assert replicas.steps(form.leader) == []
    assert replicas.result() == first | {"restored_step": first["steps"]}


@pytest.mark.long
def test_mirrored_workers_that_share_no_model_dir_say_so(make: Make, tmp_path: Path) -> None:
    replicas = make("mwms")
    replicas.start("--steps=50", "--save-every=50")
    for name in replicas.names:
        replicas.await_exit(name)
    replicas.start("--steps=100", only=["worker-0"])
    replicas.start("--steps=100", only=["worker-1"], TF_OPERATOR_MODEL_DIR=str(tmp_path / "own"))
    replicas.await_exit("worker-1", code=2)
    assert "this replica finds step 0, another one a different step" in replicas.log("worker-1")


WRONG: list[tuple[str, str, dict[str, str], str]] = [
    ("mwms", "worker-0", {"DIGITS_DATA_KEY": ""}, "DIGITS_DATA_KEY is not set"),
    ("mwms", "worker-0", {"TF_OPERATOR_MODEL_DIR": ""}, "no place for checkpoints: give --model-dir"),
    ("mwms", "worker-0", {"TF_CONFIG": ""}, "TF_CONFIG is not set, or has no task"),
    ("keras-ps", "chief-0", {"TF_USE_LEGACY_KERAS": ""}, "TF_USE_LEGACY_KERAS=1 is not set"),
    ("keras-mwms", "worker-0", {"TF_USE_LEGACY_KERAS": "0"}, "TF_USE_LEGACY_KERAS=1 is not set"),
    ("between-graph", "worker-0", {"DIGITS_DATA": ""}, "no data set: give --data, or set DIGITS_DATA"),
    ("in-graph", "chief-0", {"DIGITS_DATA": "/nowhere/digits"}, "/nowhere/digits: No such file or directory"),
    (
        "mwms",
        "worker-0",
        {"TF_CONFIG": '{"cluster": {}, "task": {"type": "ps", "index": 0}}'},
        "gives this process the role ps: chief, worker are known here",
    ),
]


@pytest.mark.parametrize(("name", "replica", "env", "expected"), WRONG)
def test_wrong_input_is_one_line(make: Make, name: str, replica: str, env: dict[str, str], expected: str) -> None:
    replicas = make(name)
    replicas.start(only=[replica], **env)
    replicas.await_exit(replica, code=2)
    told = replicas.log(replica)
    assert expected in told
    assert told.startswith("digits: ")
    assert len(told.splitlines()) == 1, "said before TensorFlow is imported"


ARGUMENTS: list[tuple[str, str, str]] = [
    ("mwms", "--batch-size=0", "argument --batch-size: 0 must be a whole number from 1 to 999999999"),
    ("mwms", "--steps=1e3", "argument --steps: 1e3 must be a whole number from 1"),
    ("in-graph", "--save-every=0", "argument --save-every: 0 must be"),
    ("between-graph", "--steps=99999999999999999999", "argument --steps: 99999999999999999999 must be"),
    ("keras-ps", "--epochs=-1", "argument --epochs: -1 must be"),
    ("keras-mwms", "--steps-per-epoch=", "argument --steps-per-epoch:  must be"),
    ("mwms", "--step-delay=nan", "argument --step-delay: nan must be a number of seconds, 0 or more"),
    ("mwms", "--step-delay=1e999", "argument --step-delay: 1e999 must be"),
    ("mwms", "--workers=2", "unrecognized arguments: --workers=2; see --help"),
    ("mwms", "--model-dir=/proc/model", "/proc/model: No such file or directory: give a --model-dir that can be"),
]


@pytest.mark.parametrize(("name", "argument", "expected"), ARGUMENTS)
def test_a_wrong_argument_is_one_line(make: Make, name: str, argument: str, expected: str) -> None:
    replicas = make(name)
    leader = FORMS[name].leader
    replicas.start(argument, only=[leader])
    replicas.await_exit(leader, code=2)
    (line,) = replicas.log(leader).splitlines()
    assert line.startswith(f"digits: {expected}")


def test_what_a_lost_peer_looks_like() -> None:
    """Also where the coordinator wraps it: an ordinary end would hang there, or be aborted."""
    script = (
        "from digits.replica import is_lost\n"
        "import tensorflow as tf\n"
        "from tensorflow.python.distribute.coordinator import cluster_coordinator as c\n"
        "gone = tf.errors.UnavailableError(None, None, 'failed to connect')\n"
        "lost = gone, c.PSUnavailableError(gone), c.ClosureInputError(gone), c.ClosureAbortedError(gone)\n"
        "assert all(map(is_lost, lost))\n"
        "own = ValueError('nan'), tf.errors.InvalidArgumentError(None, None, 'nan'), c.ClosureInputError(TypeError())\n"
        "assert not any(map(is_lost, own))\n"
        "taken = tf.errors.UnknownError(None, None, 'Could not start gRPC server')\n"
        "broken = tf.errors.InternalError(None, None, 'cudaGetDevice() failed. Status: initialization error')\n"
        "assert not is_lost(taken) and not is_lost(broken)\n"
    )
    examples = Path(__file__).resolve().parents[2] / "examples"
    subprocess.run([sys.executable, "-c", script], cwd=examples, check=True, timeout=120)
