"""Plugin import and DAG parse time: `python benchmarks/parse.py [files]`. Aim: 100 job files in under 2 s on 2 cores.

Each figure is the median of 5 fresh processes, in which Airflow itself is loaded already, as in its DAG processor.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MEASURE = """
import sys, time
import airflow.settings, airflow.sdk, airflow.dag_processing.dagbag
begun = time.perf_counter()
import tf_operator.task_group
imported = time.perf_counter()
sys.path.insert(0, sys.argv[1])
import tf_jobs
print(imported - begun, time.perf_counter() - imported, len([d for d in vars(tf_jobs) if d.startswith("job-")]))
"""


def main(files: int) -> None:
    """Print import time and parse time of `files` job files, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder, "configs", "jobs")
        jobs.mkdir(parents=True)
        text = (ROOT / "configs" / "jobs" / "digits_ps.yaml").read_text()
        for number in range(files):
            (jobs / f"job_{number:03}.yaml").write_text(text.replace("name: digits-ps", f"name: job-{number:03}"))
        env = {"AIRFLOW__TF_OPERATOR__PROJECT_DIR": folder, "AIRFLOW_HOME": f"{folder}/home", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-c", MEASURE, str(ROOT / "dags")]
        found = []
        for _ in range(5):
            answer = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()
            assert int(answer[-1]) == files
            found.append((float(answer[-3]), float(answer[-2])))
    print(f"import tf_operator.task_group: {statistics.median(each[0] for each in found):.2f} s")
    print(f"parse {files} job files: {statistics.median(each[1] for each in found):.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
