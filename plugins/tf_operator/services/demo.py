"""`make demo`: the main job on a real Airflow, and what happened, printed. `make airflow`: the services alone."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from tf_operator import settings
from tf_operator.errors import TfOperatorError
from tf_operator.services.stack import services, wanted_port

MAIN_JOB = Path("configs/jobs/digits_ps.yaml")
WANTED_ACCURACY = 0.9
INTERRUPTED = 130


def demo() -> int:
    """Start the services, run the main job, print what happened, end everything. 0 if the job did what it should."""
    console = wide_console()
    begun = time.monotonic()
    try:
        console.print("starting OpenBao and Airflow ...")
        code = _demo(settings.project_dir(), console, begun)
    except KeyboardInterrupt:
        console.print("interrupted; everything was ended")
        return INTERRUPTED
    except TfOperatorError as error:
        console.print(f"demo: {error}", highlight=False, markup=False, soft_wrap=True)
        return 1
    console.print(
        f"demo: {'done' if code == 0 else 'failed'} in {time.monotonic() - begun:.0f} s, everything was ended"
    )
    return code


def wide_console() -> Console:
    """Tables are not squeezed where nobody looks at a terminal's width."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _demo(project: Path, console: Console, begun: float) -> int:
    from tf_operator.cli.run import follow_to_end
    from tf_operator.job_spec.job import TensorFlowJob
    from tf_operator.services import jobs
    from tf_operator.services.airflow import fail_unfinished
    from tf_operator.services.summary import collect, show

    job = TensorFlowJob.from_file(project / MAIN_JOB)
    with services(project, wanted_port()) as airflow:
        console.print(f"services are up after {time.monotonic() - begun:.1f} s: {airflow.url}", highlight=False)
        # A machine that was switched off leaves runs which hold the GPUs ours is to have.
        fail_unfinished(airflow.api)
        run = jobs.start_run(airflow.api, job, project / MAIN_JOB, {})
        follow_to_end(airflow.api, run.dag_id, run.run_id, console)
        summary = collect(airflow.api, run.dag_id, run.run_id)
        show(summary, console)
        if summary.run.state != "success":
            return 1
        if summary.accuracy is None or summary.accuracy <= WANTED_ACCURACY:
            console.print(f"the accuracy is not over {WANTED_ACCURACY}")
            return 1
    return 0


def foreground() -> int:
    """Start the services, tell how to use them, and wait for Ctrl-C."""
    console = wide_console()
    try:
        console.print("starting OpenBao and Airflow ...")
        with services(settings.project_dir(), wanted_port() or 8080) as airflow:
            console.print(f"Airflow: {airflow.url} (no login: everybody on this machine is admin)", highlight=False)
            console.print(f"run a job: .venv/bin/tf-operator run {MAIN_JOB}; Ctrl-C ends everything", highlight=False)
            airflow.wait_for_end()
    except KeyboardInterrupt:
        console.print("ended")
        return 0
    except TfOperatorError as error:
        console.print(f"airflow: {error}", highlight=False, markup=False, soft_wrap=True)
        return 1
    return 0
