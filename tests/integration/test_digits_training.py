"""The digits example with no operator at all: TF_CONFIG by hand, as its README says."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

LIBC = ctypes.CDLL(None)
PROJECT = Path(__file__).resolve().parents[2]


class HandMadeCluster:
    """Starts replicas of `digits.train_ps` on free ports, each with its output in a file."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.data = folder / "digits.npz.enc"
        self.key = Fernet.generate_key().decode()
        self.cluster: dict[str, list[str]] = {"chief": [], "ps": [], "worker": []}
        for role in ["chief", "ps"] + ["worker"] * workers:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.cluster[role].append(f"127.0.0.1:{free.getsockname()[1]}")
        self.running: list[subprocess.Popen[bytes]] = []

    def python(self, *argv: str, output: Path, **env: str) -> subprocess.Popen[bytes]:
        base = {"PATH": os.defpath, "HOME": str(self.folder), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "1"}
        paths = {"DIGITS_DATA": str(self.data), "TF_OPERATOR_MODEL_DIR": str(self.folder / "model")}
        mine = {"TF_OPERATOR_RESULT": str(self.folder / "result.json"), "GRPC_FAIL_FAST": "use_caller"}
        with output.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *argv],
                cwd=PROJECT / "examples",
                env={**base, **paths, **mine, **env},
                stdout=out,
                stderr=out,
                preexec_fn=lambda: LIBC.prctl(1, signal.SIGKILL, 0, 0, 0),
            )
        self.running.append(process)
        return process

    def replica(self, role: str, index: int, *args: str, **env: str) -> subprocess.Popen[bytes]:
        config = json.dumps({"cluster": self.cluster, "task": {"type": role, "index": index}})
        env = {"TF_CONFIG": config, "DIGITS_DATA_KEY": self.key} | env
        return self.python("-m", "digits.train_ps", *args, output=self.log(f"{role}-{index}"), **env)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def prepare(self, code: int = 0) -> str:
        output = self.log("prepare")
        process = self.python("-m", "digits.prepare", "--out", str(self.data), output=output, DIGITS_DATA_KEY=self.key)
        assert process.wait(60) == code, output.read_text()
        return output.read_text()

    def wait_for_line(self, name: str, text: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log(name).read_text():
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log(name).read_text()[-3000:]}"
            time.sleep(0.1)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result

    def end(self) -> None:
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait(20)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandMadeCluster]:
    made = HandMadeCluster(tmp_path, workers=2)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.tensorflow
@pytest.mark.timeout(400)
def test_trains_resumes_and_survives_a_lost_ps(cluster: HandMadeCluster) -> None:
    """One cluster for three things, as starting TensorFlow is what takes the time."""
    assert "written" in cluster.prepare()
    ps = cluster.replica("ps", 0)
    workers = [cluster.replica("worker", index) for index in range(2)]

    # A ps is lost in the middle of the second epoch: the chief ends by itself, and says so in its last line.
    chief = cluster.replica("chief", 0, "--epochs=5", "--step-delay=0.05")
    cluster.wait_for_line("chief-0", "epoch 1/5 step 100 ")
    time_of_loss = time.monotonic()
    ps.kill()
    assert chief.wait(60) == 1
    assert time.monotonic() - time_of_loss < 30
    last = cluster.log("chief-0").read_text().strip().splitlines()[-1]
    assert "the cluster is lost: " in last
    assert "Traceback" in cluster.log("chief-0").read_text()

    # The same workers go on with a new ps and a new chief, from the checkpoint.
    cluster.replica("ps", 0)
    chief = cluster.replica("chief", 0, "--epochs=3")
    assert chief.wait(200) == 0, cluster.log("chief-0").read_text()[-3000:]
    told = cluster.log("chief-0").read_text()
    assert " restored step 100\n" in told
    assert "epoch 1/" not in told
    assert "first step at " in told
    assert "epoch 3/3 step 300 " in told
    result = cluster.result()
    assert result["accuracy"] > 0.9
    assert (result["epochs"], result["steps"]) == (3, 300)
    assert result["tensorflow"].startswith("2.")

    # Nothing is left to do: the result is given again, and nothing is trained. Not even where the file that names the
    # checkpoints is empty, as a machine may leave it that crashes.
    (cluster.folder / "model" / "checkpoint").write_bytes(b"")
    chief = cluster.replica("chief", 0, "--epochs=3")
    assert chief.wait(200) == 0
    assert "first step" not in cluster.log("chief-0").read_text()
    assert cluster.result() == result
    assert [worker.poll() for worker in workers] == [None, None]
    workers[0].terminate()
    assert workers[0].wait(20) == -signal.SIGTERM


WRONG: list[tuple[dict[str, str], str]] = [
    ({"DIGITS_DATA_KEY": ""}, "DIGITS_DATA_KEY is not set"),
    ({"DIGITS_DATA_KEY": "not-a-key-but-secret"}, "DIGITS_DATA_KEY is no key: 32 bytes in URL-safe base64 are needed"),
    ({"DIGITS_DATA_KEY": "ünïcode-but-secret"}, "DIGITS_DATA_KEY is no key"),
    ({"DIGITS_DATA_KEY": Fernet.generate_key().decode()}, "the key in DIGITS_DATA_KEY does not open this data set"),
    (
        {"DIGITS_DATA": "/nowhere/digits.enc"},
        "/nowhere/digits.enc: No such file or directory: python -m",
    ),
    ({"DIGITS_DATA": ""}, "no data set: give --data, or set DIGITS_DATA"),
    ({"TF_OPERATOR_MODEL_DIR": ""}, "no place for checkpoints: give --model-dir"),
    ({"TF_CONFIG": ""}, "TF_CONFIG is not set, or has no task"),
    (
        {"TF_CONFIG": '{"cluster": {}, "task": {"type": "evaluator", "index": 0}}'},
        "gives this process the role evaluator",
    ),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandMadeCluster]:
    """A data set, and nothing that runs."""
    made = HandMadeCluster(tmp_path_factory.mktemp("prepared"), workers=1)
    try:
        made.prepare()
        yield made
    finally:
        made.end()


@pytest.mark.parametrize(("env", "expected"), WRONG)
def test_wrong_input_is_one_clear_line(prepared: HandMadeCluster, env: dict[str, str], expected: str) -> None:
    chief = prepared.replica("chief", 0, **env)
    assert chief.wait(60) == 2
    told = prepared.log("chief-0").read_text()
    assert expected in told
    assert told.startswith("digits: ")
    assert len(told.splitlines()) == 1, "said before TensorFlow is imported, which has much to say"
    assert not env.get("DIGITS_DATA_KEY") or env["DIGITS_DATA_KEY"] not in told


def test_prepare_keeps_what_is_right(cluster: HandMadeCluster) -> None:
    assert "written" in cluster.prepare()
    first = cluster.data.read_bytes()
    assert "kept" in cluster.prepare()
    assert cluster.data.read_bytes() == first
    assert cluster.key.encode() not in first
    cluster.data.write_bytes(first[:-7])
    assert "written" in cluster.prepare()
    cluster.data.write_text("somebody's notes")
    assert "something else than a data set" in cluster.prepare(code=2)
    assert cluster.data.read_text() == "somebody's notes"
