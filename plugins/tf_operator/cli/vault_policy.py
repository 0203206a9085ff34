"""`tf-operator vault-policy`: the policy a job needs, as narrow as it can be."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tf_operator.job_spec.rendered import RenderedSecret
    from tf_operator.secrets.kv import Location

RUNS = (("one", datetime(2026, 1, 1, tzinfo=UTC)), ("another", datetime(2027, 2, 3, 4, 5, 6, tzinfo=UTC)))
"""What a path says in both of them, it says in every run."""


def vault_policy(
    file: Annotated[Path, typer.Argument(help="A job file.")],
    param: Annotated[list[str] | None, typer.Option("--param", help="name=value; may be repeated.")] = None,
    connection: Annotated[str | None, typer.Option(help="Which one, where the job has several.")] = None,
) -> None:
    """Print a policy (HCL) that lets a login read this job's secrets and nothing else.

    Where the environment has the connection (AIRFLOW_CONN_<ID>, VAULT_ADDR and VAULT_TOKEN), its server is asked which
    engine each secret is in; else both KV versions are covered where the job file does not say.
    """
    from tf_operator.secrets.policy import policy

    references = _references(file, param or [], connection)
    places, told = _places(references)
    one = references[0].connection
    source = "Engines as the server told them." if told else "No server was asked: engines are taken from the file."
    title = f"What the login of connection {one} needs for {file.name}, by `tf-operator vault-policy`.\n{source}"
    typer.echo(policy(title, places), nl=False)


def _references(file: Path, param: list[str], connection: str | None) -> list[RenderedSecret]:
    from tf_operator import settings
    from tf_operator.cli.params import read_params
    from tf_operator.errors import JobError
    from tf_operator.job_spec import TensorFlowJob, plain_context

    job = TensorFlowJob.from_file(file)
    project = settings.project_of(file)
    params = read_params(param, job.param_specs)
    first, second = (
        job.render(plain_context(job.name, run, moment), project_dir=project, params=params).secrets
        for run, moment in RUNS
    )
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        if a != b:
            raise JobError(
                f"{file}: secrets[{index}].vault = {a.path}: it changes from run to run, which no policy of exact paths"
                " can cover; name a fixed path, or one with params and give them by --param"
            )
    names = sorted({ref.connection for ref in first})
    if not names:
        raise JobError(f"{file}: secrets: the job has none, so it needs no policy")
    if connection is None and len(names) > 1:
        raise JobError(f"{file}: secrets: the job has several connections ({', '.join(names)}); choose by --connection")
    if connection is not None and connection not in names:
        raise JobError(f"{file}: secrets: none has the connection {connection}; the job has {', '.join(names)}")
    return [ref for ref in first if ref.connection == (connection or names[0])]


def _places(references: list[RenderedSecret]) -> tuple[list[tuple[RenderedSecret, Location]], bool]:
    from tf_operator.secrets.environment import is_known, login_environment
    from tf_operator.secrets.kv import assumed, locate
    from tf_operator.secrets.session import Patience, sessions

    if not is_known(references[0].connection):
        return [(ref, assumed(ref)) for ref in references], False
    again = Patience(0)
    with sessions(login_environment, again) as session:
        places = [(ref, again(lambda ref=ref: locate(ref, session(ref.connection)))) for ref in references]  # type: ignore[misc]
    return places, all(location.told for _, location in places)
