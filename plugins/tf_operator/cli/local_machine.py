"""What `tf-operator local` finds, checks and provides on this machine before a job starts."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tf_operator import locks, model_dir, preflight, run_life
from tf_operator.errors import PreflightError
from tf_operator.job_spec import RenderedJob, TensorFlowJob, plain_context

if TYPE_CHECKING:
    from tf_operator.services.openbao import DevOpenBao

Say = Callable[[str], None]


def render(job: TensorFlowJob, run_id: str, project: Path, params: dict[str, object]) -> RenderedJob:
    """The job of this run, now."""
    context = plain_context(job.name, run_id, datetime.now(UTC))
    return job.render(context, project_dir=project, params=params)


def check(job: RenderedJob, slots_per_gpu: int) -> None:
    """PreflightError with everything that this machine lacks, one line each."""
    preflight.check_settings()
    # The deadline for programs whose watcher is gone is a local run's own, whatever the job says for Airflow.
    policy = job.run_policy.model_copy(update={"orphan_timeout": float("inf")})
    preflight.check(job.model_copy(update={"run_policy": policy}), preflight.Limits(slots_per_gpu=slots_per_gpu))


# -- devices


def with_devices(job: RenderedJob, declared: int | None, slots_per_gpu: int, say: Say) -> RenderedJob:
    """The job with the GPUs this machine can give it. PreflightError where it has some, but not enough.

    A machine with none runs the job all the same: that is what a laptop is for.
    """
    from tf_operator.gpus import inventory

    if declared is not None:
        os.environ["AIRFLOW__TF_OPERATOR__GPUS"] = str(declared)
    asking = [group for group in job.groups if group.gpus and group.count]
    if not asking:
        return job
    here = len(inventory())
    if not here:
        names = ", ".join(group.task_id for group in asking)
        say(f"this machine has no GPU: {names} run without (--gpus N declares some)")
        return job.model_copy(update={"groups": [group.model_copy(update={"gpus": 0}) for group in job.groups]})
    # Shares of a device are not split over two of them.
    shares = sum(group.count * round(group.gpus * slots_per_gpu) for group in asking if group.gpus < 1)
    wanted = sum(group.count * int(group.gpus) for group in asking) + -(-shares // slots_per_gpu)
    if wanted > here:
        raise PreflightError(
            f"job {job.name}: its replicas ask for {wanted} GPUs at once, this machine has {here};"
            " ask for less, or declare more with --gpus"
        )
    return job


# -- model_dir


@contextlib.contextmanager
def claimed(job: RenderedJob, run_id: str) -> Iterator[None]:
    """Have model_dir for this run. PreflightError if it cannot be written or is another run's that has not ended."""
    owner = run_life.owner_of(job.name, run_id, "")
    path = run_life.local_lock(owner)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = locks.acquire(path)
    try:
        model_dir.claim(job.model_dir, owner, lambda holder: _is_over(job.model_dir, holder, owner))
        yield
    finally:
        if not run_life.has_programs(owner):
            model_dir.release(job.model_dir, owner)
        path.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def _is_over(folder: str, holder: run_life.Owner, owner: run_life.Owner) -> bool:
    """A local run lives as long as its process, or a program it left, holds a lock. Of others we cannot know."""
    if not run_life.is_local(holder):
        raise run_life.unknown(folder, holder, "on Airflow")
    return run_life.is_over(folder, holder, owner, has_ended=lambda: True)


# -- secrets


@contextlib.contextmanager
def readable_secrets(job: RenderedJob, project: Path, say: Say) -> Iterator[None]:
    """Make sure that the job's secrets can be read: from the Vault the environment names, else from our own.

    Raises SecretError, or PreflightError if the development server does not start.
    """
    if not job.secrets:
        yield
        return
    with contextlib.ExitStack() as stack:
        if not _is_configured(job):
            stack.enter_context(_development_vault(project, say))
        from tf_operator.secrets import check as check_secrets
        from tf_operator.secrets.environment import login_environment

        check_secrets(job.secrets, login_environment)
        yield


def _is_configured(job: RenderedJob) -> bool:
    variables = {f"AIRFLOW_CONN_{secret.connection.upper()}" for secret in job.secrets}
    return any(os.environ.get(name) for name in (*variables, "VAULT_ADDR", "BAO_ADDR"))


@contextlib.contextmanager
def _development_vault(project: Path, say: Say) -> Iterator[None]:
    # Its seed is the digits example's: it serves the project that has that.
    if not ((project / "configs" / "vault").is_dir() and (project / "examples" / "digits").is_dir()):
        yield
        return
    from tf_operator.services.openbao import DevOpenBao

    with (
        tempfile.TemporaryDirectory(prefix="tf_operator_openbao_") as folder,
        DevOpenBao(Path(folder), project=project) as vault,
    ):
        os.environ["AIRFLOW_CONN_VAULT_DEFAULT"] = _seeded(vault, project)
        say("no Vault is configured: a development OpenBao with the project's seed serves this run")
        try:
            yield
        finally:
            del os.environ["AIRFLOW_CONN_VAULT_DEFAULT"]


def _seeded(vault: DevOpenBao, project: Path) -> str:
    vault.seed(project)
    return vault.airflow_connection_uri()
