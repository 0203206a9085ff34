"""Following a run of a job to its end: one line per task, and why it ended as it did."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tf_operator.errors import ApiError
from tf_operator.services.api import AirflowApi
from tf_operator.services.api_data import Run, TaskState

STYLES = {
    "success": "green",
    "failed": "red",
    "running": "cyan",
    "deferred": "magenta",
    "up_for_retry": "yellow",
    "skipped": "dim",
}
OUTAGE_SECONDS = 60.0


class Progress(Protocol):
    """Shows how far a run is."""

    def update(self, run: Run, tasks: list[TaskState]) -> None:
        """Take the newest states."""
        ...


class LiveProgress:
    """A table that stays in place, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def update(self, run: Run, tasks: list[TaskState]) -> None:
        """Redraw."""
        table = Table.grid(padding=(0, 2))
        for task in tasks:
            if task.state is None and task.map_index < 0 and task.start is None:
                continue
            style = STYLES.get(task.state or "", "")
            tries = f"try {task.try_number}" if task.try_number > 1 else ""
            table.add_row(
                task.name, f"[{style}]{task.state or '-'}[/]" if style else task.state or "-", lasted(task), tries
            )
        table.add_row("[bold]run", run.state, lasted(run))
        self._live.update(table)


class PlainProgress:
    """A line where a state changed, for a pipe or a CI log."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seen: dict[tuple[str, int], tuple[str | None, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def update(self, run: Run, tasks: list[TaskState]) -> None:
        """Say what changed since the last time."""
        for task in tasks:
            key, now = (task.task_id, task.map_index), (task.state, task.try_number)
            if task.state is not None and self._seen.get(key) != now:
                self._seen[key] = now
                tries = f" (try {task.try_number})" if task.try_number > 1 else ""
                self._say(f"{datetime.now():%H:%M:%S}  {task.name:<12} {task.state}{tries} {lasted(task)}".rstrip())


def progress(console: Console) -> AbstractContextManager[Progress]:
    """What suits the console."""
    if console.is_terminal:
        return LiveProgress(console)
    return PlainProgress(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))


def follow(api: AirflowApi, dag_id: str, run_id: str, show: Progress, every: float = 1.0) -> Run:
    """Show the run's progress until it ends. ApiError after an outage."""
    last_answer = time.monotonic()
    while True:
        try:
            run, tasks = api.run(dag_id, run_id), api.tasks(dag_id, run_id)
            last_answer = time.monotonic()
        except ApiError as error:
            away = error.status in (0, 429) or error.status >= 500
            if not away or time.monotonic() - last_answer > OUTAGE_SECONDS:
                raise
        else:
            show.update(run, tasks)
            if run.finished:
                return run
        time.sleep(every)


def failure_reason(api: AirflowApi, dag_id: str, run_id: str) -> str:
    """Why the run failed, in one line: what `result` said, else the first task that failed."""
    failed = [task for task in api.tasks(dag_id, run_id) if task.state == "failed"]
    failed.sort(key=lambda task: (task.name not in {"result", "plan"}, task.name == "plan"))
    for task in failed:
        if text := _last_error(api, dag_id, run_id, task):
            return f"{task.name}: {text}"
    if failed:
        return f"{failed[0].name} failed; its log tells more"
    return "no task failed: the run itself was marked failed, or timed out"


def _last_error(api: AirflowApi, dag_id: str, run_id: str, task: TaskState) -> str:
    try:
        events = api.log_events(dag_id, run_id, task.task_id, max(task.try_number, 1), task.map_index)
    except ApiError:
        return ""
    for event in reversed(events):
        details: list[dict[str, Any]] = event.get("error_detail") or []
        for detail in details:
            text = str(detail.get("exc_value") or "").strip()
            if text:
                return text.splitlines()[0]
    return ""


def lasted(what: Run | TaskState) -> str:
    """How long it has run, as `1:05`; empty where it has not started."""
    if what.start is None:
        return ""
    seconds = int(((what.end or datetime.now(UTC)) - what.start).total_seconds())
    return f"{seconds // 60}:{seconds % 60:02d}"
