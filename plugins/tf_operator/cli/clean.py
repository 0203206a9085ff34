"""`tf-operator clean`: remove what programs have left on this host though nobody watches them any more."""

from __future__ import annotations

from typing import Annotated

import typer

from tf_operator import settings
from tf_operator.runners.leftovers import clean as remove
from tf_operator.runners.leftovers import leftovers


def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only list.")] = False,
    running: Annotated[
        bool,
        typer.Option("--running", help="Also stop programs that run without a watcher; Airflow may yet adopt them."),
    ] = False,
    keep_output: Annotated[bool, typer.Option("--keep-output", help="Leave the programs' output files.")] = False,
) -> None:
    """List or remove ended programs' run folders, secret files and, with --running, programs nobody watches."""
    found = leftovers(settings.state_dir())
    chosen = [each for each in found if running or each.state != "running"]
    for each in found:
        kept = "" if each in chosen else " (kept: --running would stop it)"
        typer.echo(f"{each}{kept}")
    if not found:
        typer.echo(f"nothing is left in {settings.state_dir()}")
    if yes and chosen:
        for line in remove(settings.state_dir(), chosen, keep_output=keep_output):
            typer.echo(line)
    elif chosen:
        typer.echo(f"{len(chosen)} to remove; repeat with --yes")
