"""Nobody waits for ever behind smaller jobs.

Airflow gives free slots to whatever fits in them, so small jobs can overtake a large one without end. A job that has
waited for `[tf_operator] reserve_after` says so in an Airflow Variable. From then on the plan of every other job of
that pool whose priority is not higher waits, in the triggerer, until that job has its slots. Those whose plan has ended
by then may still overtake: they are finitely many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import Variable
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tf_operator import airflow_io
from tf_operator.plan import GroupRef, Plan

TICK = 2.0
SAY_AGAIN = 60.0


def prefix(pool: str) -> str:
    """What the keys of a pool's waiting jobs begin with."""
    return f"tf_operator/turn/{pool}/"


def take(ref: GroupRef, plan: Plan) -> None:
    """Say that this job goes before all that come later."""
    value = {
        **airflow_io.whose(ref),
        "slots": plan.slots,
        "priority": plan.job.scheduling.priority,
        "since": time.time(),
    }
    Variable.set(airflow_io.entry_key(prefix(plan.pool), ref), value, serialize_json=True)


def give_up(ref: GroupRef, plan: Plan) -> None:
    """Say that it waits no longer. Absence is normal."""
    Variable.delete(airflow_io.entry_key(prefix(plan.pool), ref))


def before(pool: str, ref: GroupRef, priority: int) -> list[dict[str, Any]]:
    """Jobs that go before this one. One whose admission waits no longer is dropped."""
    found = airflow_io.entries(prefix(pool), "admission")
    return [entry for entry in found if entry["priority"] >= priority and not airflow_io.is_whose(entry, ref)]


def describe(found: list[dict[str, Any]], pool: str) -> str:
    """Who goes first, in one line."""
    names = [f"{GroupRef(e['dag_id'], e['run_id'], e['group_id'])} ({e['slots']} slots)" for e in found]
    return f"after {', '.join(names)}, which has waited for slots of pool {pool} for long and goes first"


class TurnTrigger(BaseTrigger):
    """Waits while another job goes first. Ends with the seconds it `waited`, or with `too_late` after `timeout`."""

    def __init__(
        self, pool: str, dag_id: str, run_id: str, group_id: str, priority: int, timeout: float | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pool, self.priority, self.timeout = pool, priority, timeout
        self.ref = GroupRef(dag_id, run_id, group_id)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The kwargs of the defer."""
        whose = airflow_io.whose(self.ref)
        own = {"pool": self.pool, "priority": self.priority, "timeout": self.timeout}
        return "tf_operator.turns.TurnTrigger", whose | own

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until nobody goes first; say whom it waits for."""
        began, said = time.monotonic(), ("", 0.0)
        while True:
            try:
                found = await sync_to_async(before)(self.pool, self.ref, self.priority)
            except Exception as error:
                self.log.warning("Airflow does not answer now: %s: %s", type(error).__name__, error)
                await asyncio.sleep(TICK)
                continue
            now = time.monotonic()
            if not found:
                yield TriggerEvent({"waited": now - began})  # type: ignore[no-untyped-call]
                return
            text = describe(found, self.pool)
            if self.timeout is not None and now - began > self.timeout:
                late = f"schedule_timeout: {self.timeout:.0f} s over (run_policy.schedule_timeout); it waited {text}"
                yield TriggerEvent({"too_late": late})  # type: ignore[no-untyped-call]
                return
            if text != said[0] or now - said[1] >= SAY_AGAIN:
                said = (text, now)
                self.log.info("waits %s (for %.0f s now)", text, now - began)
            await asyncio.sleep(TICK)
