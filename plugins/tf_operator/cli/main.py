"""`tf-operator`: the command line. A command's module is loaded only when that command is run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tf_operator.errors import TfOperatorError

COMMANDS: dict[str, tuple[str, str]] = {
    "validate": ("tf_operator.cli.validate:validate", "Check job files."),
    "plan": ("tf_operator.cli.plan:plan", "Show what a job becomes: tasks, pool and slots, ClusterSpec, TF_CONFIG."),
    "local": ("tf_operator.cli.local:local", "Run a job file on this machine, without Airflow."),
    "run": ("tf_operator.cli.run:run", "Run a job file on Airflow and follow it to its end."),
    "schema": ("tf_operator.cli.schema:schema", "Print the JSON Schema of job files."),
    "vault-policy": (
        "tf_operator.cli.vault_policy:vault_policy",
        "Print the least a job's Vault login must be allowed.",
    ),
    "gpus": ("tf_operator.cli.gpus:gpus", "Show this host's devices, who holds them, and who waits."),
    "clean": ("tf_operator.cli.clean:clean", "Remove what programs have left on this host."),
    "pools": ("tf_operator.cli.pools:pools", "Create or update the Airflow pools."),
}
"""Name → `module:function` and the line in the list of commands. A new command is one entry here and its module."""


class _Lazy(TyperCommand):
    """Stands for a command in lists and hands over to it when it is called."""

    def __init__(self, name: str, target: str, help_line: str) -> None:
        super().__init__(name, help=help_line)
        self._target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        module, _, function = self._target.partition(":")
        body: Callable[..., None] = getattr(import_module(module), function)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(self.name)(body)
        return typer.main.get_command(single).make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else _Lazy(cmd_name, *entry)


app = typer.Typer(cls=_Commands, add_completion=False, rich_markup_mode=None)


@app.callback()
def _root() -> None:
    """Distributed TensorFlow training on Apache Airflow."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit code 2 and one line on stderr for what a person has to correct, 130 after Ctrl-C."""
    command = typer.main.get_command(app)
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        code = command.main(given or ["--help"], "tf-operator", standalone_mode=False)
    except TfOperatorError as error:
        typer.echo(error, err=True)
        return 2
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error
        typer.echo(f"tf-operator: {what}; run it as the user this belongs to, with space on the disk", err=True)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return 130
    # typer carries a private copy of click: its usage errors have no public name, only their method.
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        message = " ".join(error.format_message().split()).rstrip(".")
        typer.echo(f"tf-operator: {message}; see tf-operator --help", err=True)
        return 2
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
