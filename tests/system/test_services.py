"""The services end whole, whatever happens to who started them, and the demo works again at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from airflow_under_test import ROOT, make_project
from run_under_test import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]


def _hears_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Launcher:
    """`python -m tf_operator.services <command>` in a process group of its own, as a shell starts it."""

    def __init__(self, project: Path, command: str) -> None:
        self.output = project / f"{command}.out"
        env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tf_operator.services", command],
                cwd=project,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                # As at a terminal: what runs in the background of a script begins with SIGINT ignored.
                preexec_fn=_hears_ctrl_c,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for_text(self, pattern: str, deadline: float) -> None:
        def said() -> bool:
            assert self.process.poll() is None or re.search(pattern, self.text), self.text
            return re.search(pattern, self.text) is not None

        wait_for(said, deadline, lambda: f"{pattern!r} in: {self.text}")

    def ctrl_c(self) -> None:
        """What a terminal does: the signal goes to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = make_project(tmp_path_factory.mktemp("services") / "project")
    (folder / "configs/jobs/digits_ps.yaml").write_bytes((ROOT / "configs/jobs/digits_ps.yaml").read_bytes())
    yield folder
    for process in processes_of(folder):
        process.kill()


def processes_of(project: Path) -> list[psutil.Process]:
    """Everything that works for this project: by folder, arguments or environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            places = [process.cwd(), *process.cmdline(), *process.environ().values()]
            if any(str(project) in place for place in places):
                found.append(process)
    return found


@pytest.mark.tensorflow
@pytest.mark.vault
def test_demo_after_ctrl_c_in_the_middle(project: Path) -> None:
    interrupted = Launcher(project, "demo")
    interrupted.wait_for_text(r"worker-1 +running", 240)
    wait_for(lambda: _programs(project), 60, "a program to live")
    interrupted.ctrl_c()
    assert interrupted.process.wait(120) == 130, interrupted.text
    assert processes_of(project) == []
    assert "interrupted; everything was ended" in interrupted.text

    again = Launcher(project, "demo")
    assert again.process.wait(480) == 0, again.text
    assert processes_of(project) == []
    accuracy = re.search(r"accuracy +([\d.]+)", again.text)
    assert accuracy, again.text
    assert float(accuracy[1]) > 0.9
    assert re.search(r"all 4 replicas ran side by side for [\d.]+ s", again.text), again.text


@pytest.mark.vault
def test_a_killed_launcher_leaves_nothing_and_the_next_one_starts(project: Path) -> None:
    killed = Launcher(project, "airflow")
    wait_for(lambda: any("scheduler" in " ".join(_cmdline(p)) for p in processes_of(project)), 120, "a scheduler")
    killed.process.kill()
    killed.process.wait(20)

    # At once: it waits for what the killed one started to be gone, two schedulers on one database would be worse.
    following = Launcher(project, "airflow")
    following.wait_for_text(r"Airflow: http://127.0.0.1:\d+", 240)
    assert len(_dag_processors(project)) == 1

    second = Launcher(project, "demo")
    assert second.process.wait(60) == 1
    assert f"process {following.process.pid} runs an Airflow in it already" in second.text

    # `make` and a closed terminal send other signals than Ctrl-C.
    following.process.send_signal(signal.SIGTERM)
    assert following.process.wait(120) == 0, following.text
    assert processes_of(project) == []


def _programs(project: Path) -> list[psutil.Process]:
    return [p for p in processes_of(project) if "digits.train_ps" in _cmdline(p)]


def _dag_processors(project: Path) -> list[psutil.Process]:
    """Without the children that parse for one: forked, they have its command line."""
    named = {p.pid: p for p in processes_of(project) if _cmdline(p)[-1:] == ["dag-processor"]}
    return [p for p in named.values() if _parent(p) not in named]


def _parent(process: psutil.Process) -> int | None:
    with suppress(psutil.Error):
        return process.ppid()
    return None


def _cmdline(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []
