"""The main job with no Airflow: it trains, and heals a worker and a ps that were killed with -9 (issue 2, item 11)."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from local_bench import LocalBench, wait_until

from tf_operator.cli import local_machine
from tf_operator.job_spec import RenderedJob, TensorFlowJob
from tf_operator.local import new_run_id

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.tensorflow, pytest.mark.vault, pytest.mark.timeout(400)]


class DigitsBench(LocalBench):
    """configs/jobs/digits_ps.yaml as it is, with these params."""

    def __init__(self, folder: Path, **params: Any) -> None:
        super().__init__(folder, {})
        self.params = params

    def render(self) -> RenderedJob:
        self.run_id = new_run_id()
        job = TensorFlowJob.from_file(PROJECT / "configs" / "jobs" / "digits_ps.yaml")
        rendered = local_machine.render(job, self.run_id, PROJECT, self.params)
        rendered = rendered.model_copy(update={"model_dir": str(self.folder / "model")})
        return local_machine.with_devices(rendered, None, 1, self.notes.append)

    def said(self, name: str, pattern: str, times: int = 1) -> list[str]:
        """Wait until a replica has printed so many lines with the pattern; what it matched."""

        def look() -> list[str] | None:
            assert self.outcome is None or self.outcome.succeeded, self.outcome
            found = [match[0] for line in self.lines.get(name, []) if (match := re.search(pattern, line))]
            assert self.outcome is None or len(found) >= times, f"the job ended before {name} printed {pattern}"
            return found if len(found) >= times else None

        found: list[str] = wait_until(f"{name} to print {pattern} {times} times", look, 150)
        return found

    def kill(self, name: str) -> None:
        os.kill(self.members[name][-1].pid, signal.SIGKILL)


def steps(lines: list[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := re.search(r"(?:epoch \d+/\d+|restored) step (\d+)", line))]


def test_three_workers_train_and_heal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path / "state"))
    bench = DigitsBench(tmp_path, workers=3, epochs=14, step_delay=0.05)
    with local_machine.readable_secrets(bench.render(), PROJECT, print):
        bench.start()
        bench.said("chief-0", r"epoch 1/14")
        bench.kill("worker-1")
        bench.said("worker-1", r"worker-1 serves", 2)
        assert len(bench.said("chief-0", r"first step")) == 1, "the chief goes on without it"
        bench.kill("ps-0")
        restored = bench.said("chief-0", r"restored step \d+")
        outcome = bench.finish(200)
    assert outcome.succeeded, outcome.reason
    assert outcome.result["accuracy"] > 0.9
    assert outcome.result["epochs"] == 14
    assert len(restored) == 1
    done = steps(bench.lines["chief-0"])
    at = done.index(int(restored[0].split()[-1]))
    # It goes on from the last checkpoint: nothing before it is done again.
    assert max(done[:at], default=0) <= done[at + 1]
    assert done == sorted(done)
    assert outcome.cluster.generation == 2
    assert {name: told[-1].failures for name, told in bench.members.items()} == {
        "chief-0": 0,
        "worker-0": 0,
        "worker-1": 1,
        "worker-2": 0,
        "ps-0": 1,
    }
    incarnations = {name: told[-1].incarnation for name, told in bench.members.items()}
    assert incarnations == {"chief-0": 1, "worker-0": 1, "worker-1": 2, "worker-2": 1, "ps-0": 2}
    bench.assert_nothing_left()
