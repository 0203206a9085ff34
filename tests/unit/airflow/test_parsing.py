"""Parsing DAG files touches no network, no daemon and no secret (invariant 2), and drags nothing heavy in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

PARSE = """
import socket, sys

def refuse(*args, **kwargs):
    raise AssertionError(f"parsing opened a connection: {args}")

socket.socket.connect = refuse
socket.create_connection = refuse
sys.path.insert(0, sys.argv[1])
import tf_jobs
assert "digits-ps" in vars(tf_jobs), sorted(vars(tf_jobs))
heavy = {"tensorflow", "docker", "hvac", "pynvml", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""


def test_parsing_the_dags_opens_no_connection_and_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(ROOT / "dags")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_the_package_imports_neither_airflow_nor_pydantic() -> None:
    code = "import sys, tf_operator; assert not {'airflow', 'pydantic', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
