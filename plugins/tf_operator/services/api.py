"""Airflow's REST API, as much of it as the CLI, the demo and the tests need."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from tf_operator.errors import ApiError
from tf_operator.services.api_data import Pool, Run, TaskState

REFUSED_FOR = 20.0
"""Seconds for which a write that the database refused is tried again: SQLite refuses one that crosses another."""
PAGE = 100
"""Entries asked for at once; Airflow gives no more than `[api] maximum_page_limit`, whatever is asked."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class AirflowApi:
    """A client of one Airflow. Raises ApiError, whose `status` is 0 where nothing answers.

    Logs in with `token`, or with user and password where Airflow asks for a login; without either it counts on an
    Airflow that asks for none, as the demo's.
    """

    def __init__(self, base_url: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        self.base_url = base_url.rstrip("/")
        try:
            # A proxy of the environment is for the world outside.
            outside = urlsplit(self.base_url).hostname not in LOOPBACK
            self._http = httpx.Client(base_url=self.base_url, timeout=timeout, trust_env=outside)
        except (ValueError, httpx.InvalidURL) as error:
            raise ApiError(f"Airflow's API at {base_url}: is no URL ({error}); see AIRFLOW__API__BASE_URL") from None
        self._token = self._given = token or os.environ.get("TF_OPERATOR_API_TOKEN")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(self, method: str, path: str, *, body: Any = None, **query: Any) -> Any:
        """Call `/api/v2/<path>`; the answer's JSON (None where it is empty)."""
        again = Retrying(
            retry=retry_if_exception(_is_refused_write),
            wait=wait_random_exponential(0.5, max=3.0),
            stop=stop_after_delay(REFUSED_FOR),
            reraise=True,
        )
        response: httpx.Response = again(self._send, method, f"/api/v2/{path}", body, query)
        return self._content(response)

    def _content(self, response: httpx.Response) -> Any:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise ApiError(f"what answers at {self.base_url} is no Airflow: its answer is not JSON") from None

    def entries(self, path: str, key: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Every entry of a list, page by page; `key` holds them in each answer."""
        seen, more = 0, True
        while more:
            page = self.request("GET", path, limit=PAGE, offset=seen, **query)
            yield from page[key]
            seen += len(page[key])
            more = bool(page[key]) and seen < page["total_entries"]

    def _send(self, method: str, path: str, body: Any, query: Mapping[str, Any]) -> httpx.Response:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        params = {key: value for key, value in query.items() if value is not None}
        try:
            response = self._http.request(method, path, json=body, params=params, headers=headers)
            if response.status_code == httpx.codes.UNAUTHORIZED and self._log_in():
                headers["Authorization"] = f"Bearer {self._token}"
                response = self._http.request(method, path, json=body, params=params, headers=headers)
        except httpx.HTTPError as error:
            raise ApiError(
                f"Airflow's API at {self.base_url} does not answer: {error or type(error).__name__}"
            ) from None
        if response.is_error:
            raise ApiError(f"Airflow's API: {method} {path}: {_detail(response)}", response.status_code)
        return response

    def _log_in(self) -> bool:
        user, password = os.environ.get("TF_OPERATOR_API_USER"), os.environ.get("TF_OPERATOR_API_PASSWORD")
        # A token that was given is not ours to replace; one of a login ends while a long run is followed.
        if self._given or not user:
            return False
        answer = self._http.post("/auth/token", json={"username": user, "password": password})
        found = self._content(answer) if answer.is_success else None
        self._token = found.get("access_token") if isinstance(found, dict) else None
        return bool(self._token)

    # What runs

    def warm_up(self, timeout: float) -> None:
        """Have a server that has just begun build what its tasks speak to: seconds in which it answers nobody."""
        with contextlib.suppress(httpx.HTTPError):
            self._http.get("/execution/health/ping", timeout=timeout)

    def health(self) -> dict[str, Any]:
        """Each component's status and newest heartbeat."""
        answer: dict[str, Any] = self.request("GET", "monitor/health")
        return answer

    def dag(self, dag_id: str) -> dict[str, Any] | None:
        """The DAG as the API tells it; None if Airflow does not know it (yet)."""
        try:
            found: dict[str, Any] = self.request("GET", f"dags/{quote(dag_id, safe='')}")
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise
        return found

    def dags(self) -> list[dict[str, Any]]:
        """The DAGs Airflow knows."""
        return list(self.entries("dags", "dags", exclude_stale=False))

    def reparse(self, dag: Mapping[str, Any]) -> None:
        """Ask for the DAG's file to be read before all others."""
        try:
            self.request("PUT", f"parseDagFile/{quote(dag['file_token'], safe='')}")
        except ApiError as error:
            # The same request is waiting already.
            if error.status != httpx.codes.CONFLICT:
                raise

    def import_errors(self) -> dict[str, str]:
        """Why a DAG file could not be read: file name → text."""
        found = self.entries("importErrors", "import_errors")
        return {entry["filename"]: entry["stack_trace"] for entry in found}

    def unpause(self, dag_id: str) -> None:
        """Let the DAG's runs start."""
        self.request("PATCH", f"dags/{quote(dag_id, safe='')}", body={"is_paused": False})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> Run:
        """Start one run with `conf` (its params). ApiError where a param does not fit its schema."""
        name = run_id or f"manual__{datetime.now(UTC).isoformat()}_{secrets.token_hex(4)}"
        body = {"logical_date": None, "conf": dict(conf or {}), "dag_run_id": name}
        try:
            return Run.read(self.request("POST", f"dags/{quote(dag_id, safe='')}/dagRuns", body=body))
        except ApiError as error:
            # A write that was said to be refused may have been made: a name that nobody else has is that of our run.
            if run_id or error.status != httpx.codes.CONFLICT:
                raise
        return self.run(dag_id, name)

    def run(self, dag_id: str, run_id: str) -> Run:
        """One run."""
        return Run.read(self.request("GET", _run_path(dag_id, run_id)))

    def runs(self, dag_id: str = "~", states: tuple[str, ...] = ()) -> list[Run]:
        """Runs of one DAG (default: of all), newest first."""
        path = f"dags/{quote(dag_id, safe='~')}/dagRuns"
        return [Run.read(raw) for raw in self.entries(path, "dag_runs", state=list(states) or None, order_by="-id")]

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        """Every task instance of the run, mapped ones one by one, by start."""
        found = [
            TaskState.read(raw) for raw in self.entries(f"{_run_path(dag_id, run_id)}/taskInstances", "task_instances")
        ]
        return sorted(found, key=lambda task: (task.start is None, task.start and task.start.timestamp() or 0))

    def tries(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> list[dict[str, Any]]:
        """Every try of one task instance, oldest first."""
        mapped = "" if map_index < 0 else f"/{map_index}"
        answer = self.request("GET", f"{_task_path(dag_id, run_id, task_id)}{mapped}/tries")
        tries: list[dict[str, Any]] = answer["task_instances"]
        return tries

    # What it left

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """One XCom's value; None where there is none."""
        path = f"{_task_path(dag_id, run_id, task_id)}/xcomEntries/{quote(key, safe='')}"
        try:
            value = self.request("GET", path, map_index=map_index, deserialize=False)["value"]
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise
        if isinstance(value, str):
            # Airflow hands a stored JSON text back as it is in the database.
            with contextlib.suppress(ValueError):
                return json.loads(value)
        return value

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """A try's whole log, one line per event, without colours."""
        return "\n".join(_log_line(event) for event in self.log_events(dag_id, run_id, task_id, try_number, map_index))

    def log_events(
        self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1
    ) -> list[dict[str, Any]]:
        """A try's whole log as Airflow keeps it; an exception is in `error_detail`."""
        path = f"{_task_path(dag_id, run_id, task_id)}/logs/{try_number}"
        content = self.request("GET", path, map_index=map_index, full_content=True)["content"]
        return [{"event": event} if isinstance(event, str) else event for event in content]

    # What a person does

    def mark_run(self, dag_id: str, run_id: str, state: Literal["success", "failed", "queued"]) -> None:
        """Set a run's state, as the buttons of the UI do."""
        self.request("PATCH", _run_path(dag_id, run_id), body={"state": state})

    def mark_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        state: Literal["success", "failed", "skipped"],
        map_index: int = -1,
    ) -> None:
        """Set a task instance's state, as the buttons of the UI do."""
        mapped = "" if map_index < 0 else f"/{map_index}"
        self.request("PATCH", f"{_task_path(dag_id, run_id, task_id)}{mapped}", body={"new_state": state})

    def clear_tasks(self, dag_id: str, run_id: str, task_ids: list[str | tuple[str, int]], **options: Any) -> None:
        """Clear tasks (a pair names one map index), only failed ones too unless `only_failed` is given."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": task_ids, "only_failed": False} | options
        self.request("POST", f"dags/{quote(dag_id, safe='')}/clearTaskInstances", body=body)

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """Clear every task of the run."""
        self.request("POST", f"{_run_path(dag_id, run_id)}/clear", body={"dry_run": False, "only_failed": False})

    def pools(self) -> dict[str, Pool]:
        """All pools, by name."""
        return {raw["name"]: Pool.read(raw) for raw in self.entries("pools", "pools")}

    def set_pool(self, name: str, slots: int, description: str = "", include_deferred: bool = True) -> None:
        """Create the pool, or make it so."""
        body = {"slots": slots, "description": description, "include_deferred": include_deferred}
        if name in self.pools():
            self.request("PATCH", f"pools/{quote(name, safe='')}", body={"pool": name} | body)
        else:
            self.request("POST", "pools", body={"name": name} | body)


def _run_path(dag_id: str, run_id: str) -> str:
    return f"dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"


def _task_path(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id, safe='')}"


def _is_refused_write(error: BaseException) -> bool:
    """Whether nothing was written because the database was busy; Airflow says no more than this."""
    return isinstance(error, ApiError) and error.status == 500 and "Database error" in str(error)


def _detail(response: httpx.Response) -> str:
    """The answer's reason in one line."""
    with contextlib.suppress(ValueError, AttributeError):
        detail = response.json().get("detail")
        if detail:
            return " ".join(str(detail if isinstance(detail, str) else json.dumps(detail)).split())
    return f"HTTP {response.status_code}"


def _log_line(event: Mapping[str, Any]) -> str:
    stamp = f"[{event['timestamp']}] " if event.get("timestamp") else ""
    error = f" {json.dumps(event['error_detail'])}" if event.get("error_detail") else ""
    return f"{stamp}{event.get('event', '')}{error}"
