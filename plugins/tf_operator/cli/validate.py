"""`tf-operator validate`: job files read as Airflow would read them, every fault with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate(files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Job files, YAML or JSON.")]) -> None:
    """Check job files; exit code 2 if one has a fault."""
    from tf_operator.errors import JobError
    from tf_operator.job_spec import TensorFlowJob

    faulty = False
    names: dict[str, Path] = {}
    for file in files:
        try:
            job = TensorFlowJob.from_file(file)
        except JobError as error:
            typer.echo(error, err=True)
            faulty = True
        else:
            other = names.setdefault(job.name, file)
            if other.resolve() != file.resolve():
                text = f"{file}: name = {job.name}: {other} has that name, too; give each job a name of its own"
                typer.echo(text, err=True)
                faulty = True
                continue
            typer.echo(f"{file}: job {job.name}: ok")
    if faulty:
        raise typer.Exit(2)
