"""Case C-59: clocks that are minutes apart. Nothing is ended, stolen or put in order by a wall clock."""

from __future__ import annotations

import ast
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_bench import FOREVER, PROBE, LocalBench, wait_until

import tf_operator

pytestmark = pytest.mark.local

TEN_MINUTES = 600
TRAINS = """
import os, pathlib, time
print("clock", time.time(), flush=True)
step = 0
while not pathlib.Path("enough").exists():
    step += 1
    print("step", step, flush=True)
    checkpoint = pathlib.Path(os.environ["TF_OPERATOR_MODEL_DIR"], "checkpoint")
    checkpoint.write_text(str(step))
    os.utime(checkpoint, (time.time(), time.time()))
    time.sleep(0.5)
"""
TELLS = {
    "airflow_io.py": "when a GPU was taken, for a person to read; the dates of a run",
    "cli/local_machine.py": "the dates of a run, for its templates",
    "runners/leftovers.py": "how long nobody has looked, for a person to read",
    "runners/docker_leftovers.py": "the same",
    "gpus.py": "since when a device is held, for a person to read",
    "secrets/ledger.py": "whether a record may still be about to change, by `clean`: a living job is told by its locks",
    "secrets/faults.py": "whether a secret's version was deleted: the server's times",
    "turns.py": "who asked a pool first: the order of a queue, nobody is ended by it",
}
"""Where a wall clock is read, and why no decision about a living job hangs on it."""


def skewed(skew: str) -> dict[str, str]:
    """The environment of a program whose clock is wrong."""
    if not shutil.which("faketime"):
        assert not os.environ.get("CI"), "Debian's faketime is not installed"
        pytest.skip("Debian's faketime is not installed")
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return {"LD_PRELOAD": str(library), "FAKETIME": skew}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBench]:
    """A chief ten minutes behind and a worker ten minutes ahead, with deadlines of seconds."""
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    made = LocalBench(
        tmp_path,
        {
            "chief": {"command": [sys.executable, "-c", TRAINS], "env": skewed("-10m")},
            "worker": {"command": [*PROBE, "--out", str(tmp_path / "out"), *FOREVER], "env": skewed("+10m")},
        },
        strategy="none",
        model_dir="models/shared",
        run_policy={"termination_grace": "5s", "stall_timeout": "15s", "start_timeout": "60s", "active_deadline": "5m"},
    )
    yield made
    made.close()


def test_c59_replicas_whose_clocks_differ_by_minutes_are_left_alone(bench: LocalBench) -> None:
    first = bench.command()
    (record,) = wait_until("the worker", lambda: bench.starts("worker-0"))
    assert abs(record["started"] - time.time() - TEN_MINUTES) < 60, "its clock is wrong indeed"

    _, refusal = bench.command().communicate(timeout=30)
    assert "models/shared" in refusal, "the checkpoints' dates do not give the model_dir away"

    checkpoint = bench.folder / "models" / "shared" / "checkpoint"
    # Each takes half a second, so this is longer than stall_timeout.
    wait_until("the chief to train", lambda: checkpoint.exists() and int(checkpoint.read_text() or 0) >= 40, 90)
    (bench.folder / "enough").touch()
    out, err = first.communicate(timeout=60)
    assert (first.returncode, err) == (0, "")
    chief = [line.removeprefix("[chief-0] ") for line in out.splitlines() if line.startswith("[chief-0] ")]
    # It was told when the training began.
    assert abs(float(chief[0].removeprefix("clock ")) - time.time() + TEN_MINUTES) < 300, "and so is the chief's"
    assert len(chief) > 40
    assert chief[1:] == [f"step {number}" for number in range(1, len(chief))], "once, in their order"
    assert len(bench.starts("worker-0")) == 1
    assert "generation 2" not in out
    bench.assert_nothing_left()


def test_c59_no_decision_reads_a_wall_clock() -> None:
    root = Path(str(tf_operator.__file__)).parent
    readers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "services" not in path.parts and _reads_wall_clock(ast.parse(path.read_text()))
    }
    assert readers <= TELLS.keys(), "use time.monotonic, or say here why it is only told"


def _reads_wall_clock(tree: ast.AST) -> bool:
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return bool(calls & {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"})
