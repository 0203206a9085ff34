"""`tf-operator pools`: create or update the Airflow pools this installation needs; run where Airflow's database is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tf_operator import settings
from tf_operator.errors import PreflightError
from tf_operator.pools import WantedPool, disagreements, wanted_pools


def pools(
    file: Annotated[Path | None, typer.Option(help="Default: configs/pools.yaml of the project.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare; exit 1 if a pool is not as it should be.")
    ] = False,
) -> None:
    """Create or update the Airflow pools that the jobs' GPUs are granted from."""
    wanted = wanted_pools(file or settings.project_dir() / "configs" / "pools.yaml", count_gpus)
    lines = apply(wanted, change=not check)
    for line in lines:
        typer.echo(line)
    if check and lines:
        typer.echo("set them with `tf-operator pools`", err=True)
        raise typer.Exit(1)
    if not lines:
        typer.echo(f"{len(wanted)} pool(s) are as wanted: {', '.join(f'{p.name} ({p.slots} slots)' for p in wanted)}")


def apply(wanted: list[WantedPool], change: bool) -> list[str]:
    """Compare Airflow's database with `wanted`, and bring it there if `change`. One line per difference found."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with create_session() as session:
            actual = {str(pool.pool): pool for pool in session.scalars(select(Pool))}
            lines = disagreements(wanted, actual)
            if change:
                for pool in wanted:
                    Pool.create_or_update_pool(
                        pool.name,
                        pool.slots,
                        pool.description,
                        pool.include_deferred,
                        team_name=_team(pool, actual.get(pool.name)),
                        session=session,
                    )
                lines = [f"{line}: set" for line in lines]
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise PreflightError(f"Airflow's database cannot be used: {reason}; run it on the scheduler's host") from None
    return lines


def _team(pool: WantedPool, actual: Any) -> str | None:
    """The wanted team, else the one the pool has: Airflow sets what it is not told to none."""
    from airflow.configuration import conf

    if conf.getboolean("core", "multi_team", fallback=False):
        return pool.team or getattr(actual, "team_name", None)
    if pool.team:
        raise PreflightError(
            f"pools.{pool.name}.team = {pool.team}: Airflow's multi-team mode is off ([core] multi_team)"
        )
    return None


def count_gpus() -> int:
    """GPUs of this host, declared or found."""
    from tf_operator.gpus import inventory

    return len(inventory())
