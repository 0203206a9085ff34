"""Jobs made of the probe: no TensorFlow, so that a system test costs seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROBE = Path(__file__).resolve().parents[1] / "probe.py"
FOREVER = ("--bind", "--sleep", "ever")


def probe(*flags: str) -> list[str]:
    """The command of a probe."""
    return [sys.executable, str(PROBE), *flags]


def probe_job(out: Path, **change: Any) -> dict[str, Any]:
    """Chief, two workers, a ps: the chief ends after a second and thereby the job. `change`: top-level keys."""
    job: dict[str, Any] = {
        "program": {"command": probe("--out", str(out), *FOREVER)},
        "replicas": {
            "chief": {"command": probe("--out", str(out), "--wait-peers", "--sleep", "1")},
            "worker": {"replicas": 2},
            "ps": {},
        },
        "retry_delay": "1s",
        "run_policy": {"termination_grace": "5s", "orphan_timeout": "5m"},
    }
    return job | change


def starts(out: Path, replica: str) -> list[dict[str, Any]]:
    """What each start of a replica recorded, first to last. One that is just being written is not there yet."""
    files = sorted(out.glob(f"{replica}-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
    return [json.loads(text) for file in files if (text := file.read_text())]
