"""`tf-operator local`: the job of a file on this machine, with no Airflow; the inner loop."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tf_operator.cli.local_screen import Screen
    from tf_operator.job_spec import RenderedJob
    from tf_operator.local import LocalOutcome, LocalRun

INTERRUPTED = 130


def local(
    file: Annotated[Path, typer.Argument(help="A job file.")],
    param: Annotated[list[str] | None, typer.Option("--param", help="name=value; may be repeated.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="Act as a machine with so many GPUs.")] = None,
) -> None:
    """Run a job on this machine, without Airflow. Ctrl-C stops it, a second Ctrl-C at once.

    The exit code is 0 only if the job succeeded.
    """
    from tf_operator import settings
    from tf_operator.cli import local_machine
    from tf_operator.cli.local_screen import Screen
    from tf_operator.cli.params import read_params
    from tf_operator.gang import evaluate
    from tf_operator.job_spec import TensorFlowJob
    from tf_operator.local import new_run_id
    from tf_operator.pools import configured_slots_per_gpu

    job_file = TensorFlowJob.from_file(file)
    project = settings.project_of(file)
    run_id = new_run_id()
    job = local_machine.render(job_file, run_id, project, read_params(param or [], job_file.param_specs))
    screen = Screen(job.replicas)
    pool = evaluate(job_file.gang(), job.params).pool
    per_gpu = configured_slots_per_gpu(project / "configs" / "pools.yaml", pool)
    local_machine.check(job, per_gpu)
    job = local_machine.with_devices(job, gpus, per_gpu, screen.say)
    with local_machine.claimed(job, run_id), local_machine.readable_secrets(job, project, screen.say):
        screen.say(f"job {job.name}, run {run_id}: {len(job.replicas)} replicas, model_dir {job.model_dir}")
        outcome = _run(job, run_id, per_gpu, screen)
    raise typer.Exit(_report(job, outcome, screen))


def _run(job: RenderedJob, run_id: str, slots_per_gpu: int, screen: Screen) -> LocalOutcome:
    from tf_operator.host import host_for
    from tf_operator.local import LocalRun
    from tf_operator.secrets.environment import login_environment

    run = LocalRun(
        job,
        run_id,
        host_for=lambda _, identity: host_for(job, identity, slots_per_gpu, login=login_environment),
        emit=screen.output,
        log=screen.note,
        say=screen.say,
        on_change=screen.progress,
    )
    with _signals(run), screen:
        return run.run()


@contextlib.contextmanager
def _signals(run: LocalRun) -> Iterator[None]:
    """Turn signals into requests, so that none breaks into the middle of a decision."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        run.interrupt()

    def end(number: int, _frame: FrameType | None) -> None:
        run.stop(f"ended by {signal.Signals(number).name}")

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: end, signal.SIGHUP: end}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(job: RenderedJob, outcome: LocalOutcome, screen: Screen) -> int:
    from tf_operator.cli.local_screen import complain

    if outcome.result is not None:
        screen.say(f"result: {json.dumps(outcome.result)}")
    screen.say(f"model_dir: {job.model_dir}")
    if outcome.succeeded:
        screen.say(f"job {job.name} succeeded: {outcome.reason}")
        return 0
    drawn = outcome.cluster.consequences
    complain(f"job {job.name} failed: {outcome.reason}" + (f"; drawn down by it: {', '.join(drawn)}" if drawn else ""))
    return INTERRUPTED if outcome.interrupted else 1
