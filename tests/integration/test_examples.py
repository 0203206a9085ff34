"""The digits programs of all strategies, with no operator at all: trained, ended in the middle, and gone on with."""

from __future__ import annotations

import os
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


def tear(folder: Path, what: str) -> None:
    """As a machine may leave it that crashes while a checkpoint is saved: half of its `data`, or an empty `state`."""
    state = folder / "checkpoint"
    if what == "state":
        state.write_bytes(b"")
        return
    newest = Path(state.read_text().split('"')[1]).name
    (data,) = folder.glob(f"{newest}.data-*")
    os.truncate(data, data.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "torn"),
    [
        ("mwms", "data"),
        ("keras-mwms", "state"),
        ("keras-ps", None),
        ("between-graph-sync", "data"),
        ("in-graph", None),
        pytest.param("keras-ps", "state", marks=pytest.mark.long),
        pytest.param("in-graph", "state", marks=pytest.mark.long),
        pytest.param("between-graph", "data", marks=pytest.mark.long),
        pytest.param("between-graph-chief", None, marks=pytest.mark.long),
    ],
)
def test_trains_and_goes_on_after_the_end_of_everything(make: Make, name: str, torn: str | None) -> None:
    form = FORMS[name]
    replicas = make(name)
    replicas.start(*form.args, SLOW)
    replicas.await_step(form.leader, 100)
    replicas.kill(*replicas.names)
    seen = max(replicas.steps(form.leader))
    if torn:
        tear(replicas.model_dir / ("chief" if "keras" in name else ""), torn)

    replicas.start(*form.args)
    finish(replicas, form)
    restored = replicas.result()["restored_step"]
    readable = seen // 50 * 50 - (50 if torn == "data" else 0)
    assert restored >= readable >= 50, "what was saved is not trained again"
    assert (" going on from " in replicas.log(form.leader)) == bool(torn)
    for one in replicas.names if "mwms" in name else [form.leader]:
        assert f" restored step {restored}\n" in replicas.log(one)
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


CHECKPOINTS = """
import os, shutil, sys
from pathlib import Path
import tensorflow as tf
from digits.checkpoints import pass_over_torn

def manager(folder):
    return tf.train.CheckpointManager(tf.train.Checkpoint(v=v), str(folder), max_to_keep=3)

def halve(file):
    os.truncate(file, file.stat().st_size // 2)

v = tf.Variable(tf.range(1000))
whole = Path(sys.argv[1], "whole")
for number in (50, 100, 150):
    manager(whole).save(checkpoint_number=number)

for case, (damage, left) in {
    "nothing": (lambda f: None, 150),
    "half of the data": (lambda f: halve(f / "ckpt-150.data-00000-of-00001"), 100),
    "no data": (lambda f: (f / "ckpt-150.data-00000-of-00001").unlink(), 100),
    "other data": (lambda f: (f / "ckpt-150.data-00000-of-00001").write_bytes(bytes(9999)), 100),
    "an empty index": (lambda f: (f / "ckpt-150.index").write_bytes(b""), 100),
    "no index": (lambda f: (f / "ckpt-150.index").unlink(), 100),
    "two": (lambda f: [halve(file) for file in f.glob("ckpt-1*.data-*")], 50),
    "an empty state": (lambda f: (f / "checkpoint").write_bytes(b""), 150),
    "all": (lambda f: [halve(file) for file in f.glob("*.data-*")], None),
    "nothing saved": (lambda f: [file.unlink() for file in f.iterdir()], None),
}.items():
    folder = shutil.copytree(whole, Path(sys.argv[1], case))
    damage(folder)
    before = sorted(folder.iterdir())
    try:
        pass_over_torn(folder)
        pass_over_torn(folder)
        told = manager(folder).checkpoints
    except Exception as error:
        told = error
    assert sorted(folder.iterdir()) == before
    expected = [str(folder / f"ckpt-{number}") for number in (50, 100, 150) if left and number <= left]
    print(f"{case}: {'right' if told == expected else told}", flush=True)
"""


def test_the_newest_checkpoint_that_can_be_read_is_found(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHECKPOINTS, str(tmp_path)]
    examples = Path(__file__).resolve().parents[2] / "examples"
    ended = subprocess.run(command, cwd=examples, capture_output=True, text=True, check=False, timeout=120)
    told = dict(line.split(": ", 1) for line in ended.stdout.splitlines() if "going on" not in line)
    refused = told.pop("all", "")
    assert set(told.values()) == {"right"} and len(told) == 9, ended
    assert refused.startswith(f"{tmp_path}/all: no checkpoint can be read: ckpt-150: ")
    assert refused.endswith("; put one back, or move them away to begin anew")
    assert ended.stdout.count("going on from") == 7, "said once, where there is something to say"


@pytest.mark.parametrize("name", ["mwms", "in-graph"])
def test_a_leader_with_no_checkpoint_that_can_be_read_ends_and_says_so(make: Make, name: str) -> None:
    replicas = make(name)
    replicas.model_dir.mkdir()
    tear(replicas.model_dir, "state")
    leader = FORMS[name].leader
    replicas.start(only=[leader])
    replicas.await_exit(leader, code=2)
    last = replicas.log(leader).splitlines()[-1]
    assert last.startswith(f"digits: {replicas.model_dir}: no checkpoint can be read: the file `checkpoint` names none")


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
