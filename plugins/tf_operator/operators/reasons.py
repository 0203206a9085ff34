"""Why a task of the group failed, left where `result` finds it: its one line and its alert are what people read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException, AirflowSkipException

from tf_operator import airflow_io
from tf_operator.plan import GroupRef

log = logging.getLogger(__name__)


def clearing(context: Context) -> str:
    """What plan's reasons belong to, as it may fail before it has made an attempt: the run's clears, as Airflow counts
    them. One that was left before the last clear is old.
    """
    return f"clear {context['dag_run'].clear_number}"


def one_line(error: Exception, task_id: str) -> str:
    """What an error says, as a part of `result`'s line; of several faults the first."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = lines[0] if isinstance(error, AirflowException) else f"{type(error).__name__}: {lines[0]}"
    return text if len(lines) == 1 else f"{text} (and {len(lines) - 1} more in the log of {task_id})"


@contextmanager
def quotable(ref: GroupRef, task: str, of: str) -> Iterator[None]:
    """Leave what ends the block by an error; see `airflow_io.leave_reason`."""
    try:
        yield
    except (AirflowRescheduleException, AirflowSkipException):
        raise
    except Exception as error:
        try:
            airflow_io.leave_reason(ref, task, of, one_line(error, ref.task(task)))
        except Exception as fault:
            # The task must fail with its own error, not with that of telling it.
            log.warning("result cannot say why: %s: %s", type(fault).__name__, fault)
        raise
