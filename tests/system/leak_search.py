"""Looks for secrets wherever a job, Airflow or the product could have put them, by value and by spelling."""

from __future__ import annotations

import base64
import json
import stat
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psutil
from airflow_under_test import AirflowUnderTest, files_below
from run_under_test import RunUnderTest

from tf_operator.errors import ApiError

SHARED_MEMORY = Path("/dev/shm")


def forms(value: str) -> list[bytes]:
    """The value as it is, as JSON and Python write it, in URLs, and in base64 at each of the three alignments."""
    raw = value.encode()
    # Of what stands before or after it in a longer text the characters at its ends depend, too: those are left out.
    aligned = [base64.b64encode(b"x" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)]
    urls = [urllib.parse.quote(value, safe=safe).encode() for safe in ("", "/")]
    written = [json.dumps(value)[1:-1].encode(), json.dumps(value, ensure_ascii=False)[1:-1].encode()]
    websafe = [form.translate(bytes.maketrans(b"+/", b"-_")) for form in aligned]
    return sorted({raw, *aligned, *websafe, *urls, urllib.parse.quote_plus(value).encode(), *written})


class Search:
    """For some values. Places are named as people find them; an empty answer means that nothing was found."""

    def __init__(self, airflow: AirflowUnderTest, values: Iterable[str]) -> None:
        self._airflow = airflow
        self._forms = {form for value in values for form in forms(value)}
        self._begun = time.time()
        self._processes: set[str] = set()

    def holds(self, data: bytes | str) -> bool:
        """Whether a secret is in it, in any form."""
        text = data.encode() if isinstance(data, str) else data
        return any(form in text for form in self._forms)

    def hits(self, runs: Iterable[RunUnderTest]) -> list[str]:
        """Where they are, after the end of `runs`; processes as `watching` saw them."""
        found = self.processes
        found += ["the database"] if self.holds(self._airflow.dump_db()) else []
        found += [f"file {path}" for path in self._files() if self._is_in(path)]
        for run in runs:
            found += [f"API {place}" for place, answer in self._answers(run) if self.holds(answer)]
        return found

    @property
    def processes(self) -> list[str]:
        """What `watching` saw."""
        return [f"process {name}" for name in sorted(self._processes)]

    @contextmanager
    def watching(self, every: float = 0.5) -> Iterator[None]:
        """Look at arguments of all processes, and at the environment of all but the programs."""
        enough = threading.Event()

        def look() -> None:
            while not enough.wait(every):
                self._look_at_processes()

        thread = threading.Thread(target=look, name="process-watch")
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
            self._look_at_processes()

    def _look_at_processes(self) -> None:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self.holds("\0".join(process.cmdline())):
                    self._processes.add(f"{process.name()}: arguments")
                environ = process.environ()
                if "TF_OPERATOR_MODEL_DIR" not in environ and self.holds("\0".join(environ.values())):
                    self._processes.add(f"{process.name()}: environment")

    def _files(self) -> Iterator[Path]:
        """All of Airflow's, the jobs' and the project's; all shared memory; what others may read of temporary files."""
        yield from self._airflow.files()
        for folder in ("configs", "dags"):
            yield from files_below(self._airflow.project / folder)
        yield from files_below(SHARED_MEMORY)
        yield from (path for path in Path(tempfile.gettempdir()).glob("*") if self._is_open_and_new(path))

    def _is_open_and_new(self, path: Path) -> bool:
        with suppress(OSError):
            about = path.stat()
            return bool(about.st_mode & stat.S_IROTH) and about.st_mtime >= self._begun - 1
        return False

    def _is_in(self, path: Path) -> bool:
        with suppress(OSError):
            return path.is_file() and self.holds(path.read_bytes())
        return False

    def _answers(self, run: RunUnderTest) -> Iterator[tuple[str, str]]:
        """What Airflow's API tells of a run, its DAG, its tasks, their tries, XComs and logs."""
        dag = f"dags/{quote(run.dag_id, safe='')}"
        here = f"{dag}/dagRuns/{quote(run.run_id, safe='')}"
        paths = [dag, f"{dag}/details", f"{dag}/tasks", f"dagSources/{quote(run.dag_id, safe='')}", here]
        paths += [f"{here}/taskInstances", "eventLogs", "importErrors", "variables"]
        for task in run.tasks():
            there = f"{here}/taskInstances/{quote(task.task_id, safe='')}"
            index = "" if task.map_index < 0 else f"/{task.map_index}"
            paths.append(f"{there}{index}/tries")
            keys = self._airflow.api.request("GET", f"{there}/xcomEntries", map_index=task.map_index)["xcom_entries"]
            paths += [
                f"{there}/xcomEntries/{quote(entry['key'], safe='')}?map_index={task.map_index}" for entry in keys
            ]
            tries = self._airflow.api.tries(run.dag_id, run.run_id, task.task_id, task.map_index)
            for number in (one["try_number"] for one in tries):
                with suppress(ApiError):
                    events = self._airflow.api.log_events(run.dag_id, run.run_id, task.task_id, number, task.map_index)
                    yield f"log of {task.name}, try {number}", json.dumps(list(events), ensure_ascii=False, default=str)
        for path in paths:
            with suppress(ApiError):
                path, _, query = path.partition("?")
                options = dict(urllib.parse.parse_qsl(query))
                yield path, json.dumps(self._airflow.api.request("GET", path, **options), ensure_ascii=False)
