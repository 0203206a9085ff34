"""What `tf-operator local` shows: each replica's output, what is done with it, and how far everybody is."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tf_operator.identity import ReplicaId
from tf_operator.membership import Cluster, Member

STYLES = {"ready": "yellow", "running": "cyan", "stalled": "red", "exited": "magenta"}
COLOURS = ("blue", "green", "magenta", "cyan", "yellow", "bright_blue", "bright_green", "bright_magenta")


class Screen:
    """Lines from any thread; on a terminal a table of the replicas stays below them, elsewhere changes are lines."""

    def __init__(self, replicas: list[ReplicaId], console: Console | None = None) -> None:
        # A progress bar's signs are no reason to end a training on a terminal that cannot show them.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        self._console = console or Console(highlight=False, soft_wrap=True, markup=False)
        self._replicas = replicas
        self._colours = {r: COLOURS[number % len(COLOURS)] for number, r in enumerate(replicas)}
        self._lock = threading.Lock()
        self._seen: dict[str, str] = {}
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def output(self, replica: ReplicaId, line: str) -> None:
        """A line the program printed."""
        self._print(Text.assemble((f"[{replica}] ", self._colours[replica]), Text(line)))

    def note(self, replica: ReplicaId, line: str) -> None:
        """What was done with the program, or happened to it."""
        name = str(replica)
        self._print(Text(line if line.startswith(name) else f"{name}: {line}", style="dim"))

    def say(self, line: str) -> None:
        """A line about the run."""
        self._print(Text(line))

    def progress(self, cluster: Cluster, members: Mapping[ReplicaId, Member]) -> None:
        """Where everybody is now."""
        if self._live:
            self._live.update(self._table(cluster, members))
            return
        self._tell("job", f"{cluster.phase}, generation {cluster.generation}{_because(cluster)}")
        for replica in self._replicas:
            if member := members.get(replica):
                self._tell(str(replica), str(member.status))

    def _tell(self, name: str, text: str) -> None:
        if self._seen.get(name) != text:
            self._seen[name] = text
            self._print(Text(f"{name}: {text}"))

    def _print(self, text: Text) -> None:
        with self._lock:
            self._console.print(text)

    def _table(self, cluster: Cluster, members: Mapping[ReplicaId, Member]) -> Table:
        table = Table.grid(padding=(0, 2))
        for replica in self._replicas:
            member = members.get(replica)
            status = str(member.status) if member else "-"
            again = f"start {member.failures + 1}" if member and member.failures else ""
            where = member.address if member else ""
            table.add_row(
                Text(str(replica), self._colours[replica]), Text(status, STYLES.get(status, "")), where, again
            )
        table.add_row(Text("job", "bold"), str(cluster.phase), f"generation {cluster.generation}", cluster.reason)
        return table


def _because(cluster: Cluster) -> str:
    return f": {cluster.reason}" if cluster.reason else ""


def complain(line: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
