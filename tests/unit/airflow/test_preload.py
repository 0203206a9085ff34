"""The scheduler has what tasks need before it forks them; a task then imports nothing of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

CODE = """
import sys
from airflow.listeners.listener import get_listener_manager
get_listener_manager().hook.on_starting(component=None)
before = set(sys.modules)
assert "tf_operator.operators.replica" in before, "the plugin's listener was not called"
heavy = {"tensorflow", "docker", "pynvml", "sklearn"} & before
assert not heavy, heavy
sys.path.insert(0, sys.argv[1])
import tf_jobs
import tf_operator.secrets.session
late = sorted(name for name in set(sys.modules) - before if name.startswith("tf_operator"))
assert not late, late
"""


def test_a_component_that_starts_loads_what_its_tasks_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(ROOT / "dags")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
