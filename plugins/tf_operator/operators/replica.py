"""One replica: an Airflow task that watches a program it does not own."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tf_operator import airflow_io
from tf_operator.errors import PreflightError, RunnerError
from tf_operator.host import host_for
from tf_operator.identity import ReplicaId
from tf_operator.operators.retry import ReplicaFailedError
from tf_operator.plan import GroupRef, Place, Plan
from tf_operator.supervision import ChannelError, Outcome, Result, Watcher

KILL_PATIENCE = 4.0
"""Seconds to see a program end after a person ended its task: Airflow sends KILL 5 s after TERM."""

ENDED_BY_PERSON = frozenset({"failed", "success", "skipped", "restarting", "removed"})
"""States that tell a person's act from Airflow having lost touch: `running`, or none at all where a scheduler that took
itself for dead has reset the task. The row of a deleted run is not there: a person did that, too."""


class _Terminated(BaseException):
    """TERM reached the task. Not an Exception: nothing on the way may take it for a fault of its own."""


class _Orphaned(BaseException):
    """The task's supervisor is gone: nobody hears this process any more."""


class ReplicaOperator(BaseOperator):
    """Watches one replica. `index` counts within the mapped task; `offset` is the replica index of its first."""

    def __init__(self, *, role: str, offset: int, group_id: str, index: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.role = role
        self.offset = offset
        self.group_id = group_id
        self.index = index
        self._terminated = threading.Event()
        self._supervisor_pid = 0

    def execute(self, context: Context) -> None:
        """Watch to the end; the outcome decides whether the task succeeds, is skipped, retried or failed."""
        ti = context["ti"]
        self._supervisor_pid = os.getppid()
        ref = GroupRef(ti.dag_id, str(ti.run_id), self.group_id)
        replica = ReplicaId(self.role, self.offset + (self.index or 0))
        place = Place(self.task_id, -1 if ti.map_index is None else ti.map_index)
        plan = airflow_io.plan_in_force(ref)
        if plan is None:
            raise AirflowFailException(f"{ref.task('plan')} has left no plan: clear the whole group")
        try:
            watcher = self._watcher(context, ref, place, plan, replica)
        except (RunnerError, PreflightError) as error:
            raise AirflowFailException(f"{replica}: {error}") from None
        try:
            outcome = watcher.run()
        except _Orphaned:
            os._exit(1)
        except _Terminated:
            raise AirflowException(self._on_terminated(ref, place, watcher)) from None
        except ChannelError as error:
            raise AirflowException(f"{replica}: Airflow cannot be reached: {error}") from None
        self._end(outcome)

    def _watcher(self, context: Context, ref: GroupRef, place: Place, plan: Plan, replica: ReplicaId) -> Watcher:
        identity = ref.identity(replica)
        return Watcher(
            plan.job,
            plan.attempt,
            identity,
            host=host_for(plan.job, identity, plan.slots_per_gpu, login=_login),
            channel=airflow_io.AirflowChannel(ref, place, plan),
            store=airflow_io.AirflowStore(context["task_state_store"]),
            emit=lambda line: print(line, flush=True),  # noqa: T201 - the supervisor reads stdout; twice as fast as the log
            log=self.log.info,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        """Every wait of the watch comes through here: the one place where it notices that it has to end."""
        self._terminated.wait(seconds)
        if self._terminated.is_set():
            raise _Terminated
        if os.getppid() != self._supervisor_pid:
            raise _Orphaned

    def on_kill(self) -> None:
        """Runs in the signal handler, in between any two bytecodes: only note it here."""
        self._terminated.set()

    def _on_terminated(self, ref: GroupRef, place: Place, watcher: Watcher) -> str:
        try:
            state = airflow_io.task_states(ref, [place.task_id]).get(place.state_key, "removed")
        except Exception:
            state = "running"
        if state not in ENDED_BY_PERSON:
            return "Airflow lost touch with this task; its program was left running, to be adopted by the retry"
        ended = f"ended from outside (the task became {state})"
        try:
            watcher.stop_by_person()
            deadline = time.monotonic() + KILL_PATIENCE
            while watcher.alive() and time.monotonic() < deadline:
                time.sleep(0.1)
            if not watcher.alive():
                watcher.revoke_secrets()
        except (RunnerError, OSError) as error:
            return f"{ended}, but its program cannot be seen to stop: the next try, or cleanup, ends it: {error}"
        return f"{ended}: its program was told to stop"

    def _end(self, outcome: Outcome) -> None:
        self.log.info(outcome.text)
        if outcome.result is Result.SKIPPED:
            raise AirflowSkipException(outcome.text)
        if outcome.result is Result.AGAIN:
            # Airflow counts no try for it, and no place is taken until then.
            raise airflow_io.away_for(outcome.delay)
        if outcome.result is not Result.SUCCESS:
            raise ReplicaFailedError(outcome.text, final=outcome.result is not Result.RETRY)


def _login(connection: str) -> Any:
    from tf_operator.secrets.airflow_login import login_airflow

    return login_airflow(connection)
