"""`tf-operator clean`: remove what programs have left on this host though nobody watches them any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tf_operator import locks, settings
from tf_operator.errors import RunnerError
from tf_operator.runners.leftovers import Leftover, is_watched, leftovers
from tf_operator.runners.leftovers import clean as remove
from tf_operator.runners.run_folder import RunFolder

SETTLED = 60.0
"""Seconds after which a program has started for which leases were fetched: one that is starting is not watched yet."""


def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only list.")] = False,
    running: Annotated[
        bool,
        typer.Option("--running", help="Also stop programs that run without a watcher; Airflow may yet adopt them."),
    ] = False,
    keep_output: Annotated[bool, typer.Option("--keep-output", help="Leave the programs' output files.")] = False,
) -> None:
    """List or remove what ended programs left: run folders, secret files, containers and networks, leases.

    With --running also programs nobody watches.
    """
    state_dir = settings.state_dir()
    places = [(leftovers(state_dir), remove), *_docker(state_dir)]
    chosen = 0
    for found, clean_up in places:
        wanted = [each for each in found if running or each.state != "running"]
        chosen += len(wanted)
        for each in found:
            kept = "" if each in wanted else " (kept: --running would stop it)"
            typer.echo(f"{each}{kept}")
        if yes:
            for line in clean_up(state_dir, wanted, keep_output):
                typer.echo(line)
    leases = _leases(state_dir, yes)
    chosen += leases
    if not leases and not any(found for found, _ in places):
        typer.echo(f"nothing is left in {state_dir}")
    elif chosen and not yes:
        typer.echo(f"{chosen} to remove; repeat with --yes")


def _leases(state_dir: Path, yes: bool) -> int:
    """What programs were granted whose watchers died: revoked through the connections of this environment."""
    from tf_operator.secrets.ledger import ledgers

    count = 0
    for ledger in ledgers(state_dir):
        if ledger.age() < SETTLED or _is_alive(state_dir, ledger.key):
            continue
        from tf_operator.secrets.custody import describe, end_left
        from tf_operator.secrets.environment import login_environment

        count += 1
        who = ledger.identity()
        typer.echo(f"{who}: {describe(ledger.read())} ({ledger.path})")
        if yes:
            if revoked := end_left(ledger, login_environment, typer.echo):
                typer.echo(f"revoked: {describe(revoked)} of {who}")
            if kept := ledger.read():
                typer.echo(
                    f"kept on record: {describe(kept)} of {who}; give the connection in AIRFLOW_CONN_<ID> and repeat,"
                    f" or remove {ledger.path} once they have run out"
                )
    return count


def _is_alive(state_dir: Path, key: str) -> bool:
    """Whether somebody watches, or a program lives that Airflow may yet adopt."""
    for folder in (RunFolder(state_dir, key), RunFolder(state_dir / "docker", key)):
        record = folder.record()
        unended = record is not None and not folder.exit(record["start"])
        if unended or is_watched(folder) or locks.is_held(folder.keeper_lock):
            return True
    return False


def _docker(state_dir: Path) -> list[tuple[list[Leftover], Callable[[Path, list[Leftover], bool], list[str]]]]:
    """What is left on the engine. A host where no docker job has run need not have one that answers."""
    from tf_operator.runners import docker_leftovers

    try:
        return [(docker_leftovers.leftovers(state_dir), docker_leftovers.clean)]
    except RunnerError as error:
        if (state_dir / "docker").is_dir():
            typer.echo(f"containers are not looked at: {error}")
        return []
