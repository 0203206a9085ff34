"""The gate before the replicas: while a job waits for its slots, this is the task to look at.

It lives in the triggerer, costs no worker, and ends only by an end event, but where it gives up waiting. Hundreds may
wait at the same time, and the triggerer answers about 40 calls a second for all of them: so they look seldom, are
rung for by their own cluster, and share what they know of the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakValueDictionary

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async

from tf_operator import airflow_io, turns
from tf_operator.errors import PreflightError
from tf_operator.plan import GroupRef, Plan
from tf_operator.preflight import reserve_after

TICK = 1.0
CALM = 5.0
"""Seconds between two looks once it has waited for FRESH: for who waits long, and in case its cluster is elsewhere."""
FRESH = 10.0
SAY_AGAIN = 60.0
ASK_AGAIN = 5.0
"""Seconds between looks at who holds a pool: several calls each, for all who wait in this triggerer together."""
NOT_OPENED = frozenset({"failed", "skipped", "upstream_failed", "removed"})
"""States of `cluster` or admission behind which no replica will ever start."""

_bells: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
_known: dict[str, tuple[float, list[dict[str, Any]]]] = {}


def ring(ref: GroupRef) -> None:
    """The cluster of this job has its slots: its admission, if it waits in this triggerer, looks at once."""
    if bell := _bells.get(str(ref)):
        bell.set()


async def _holders(pool: str) -> list[dict[str, Any]]:
    asked, found = _known.get(pool, (float("-inf"), []))
    now = time.monotonic()
    if now - asked < ASK_AGAIN:
        return found
    if found:
        # Those who ask meanwhile get what was known.
        _known[pool] = (now, found)
    found = await sync_to_async(airflow_io.holders)(pool)
    _known[pool] = (now, found)
    return found


class AdmissionTrigger(BaseTrigger):
    """Opens the gate when the cluster of this attempt holds its slots and no replica of an older try still runs."""

    def __init__(self, group_id: str, replica_tasks: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.group_id = group_id
        self.replica_tasks = replica_tasks
        self._began = time.monotonic()
        self._said: tuple[str, float] = ("", 0.0)
        self._gave_up = ""
        self._refused = ""
        self._attempt = ""
        self._plan: Plan | None = None
        self._goes_first = False
        self._bell = asyncio.Event()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The kwargs the DAG was parsed with; the run's ids come with the task instance."""
        return (
            "tf_operator.admission.AdmissionTrigger",
            {"group_id": self.group_id, "replica_tasks": self.replica_tasks},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the slots; say what is waited for, how long, and what is in the way."""
        ti = self.task_instance
        if ti is None:
            yield TaskFailedEvent()
            return
        ref = GroupRef(ti.dag_id, ti.run_id, self.group_id)
        self._bell = _bells.setdefault(str(ref), self._bell)
        while True:
            try:
                verdict = await self._look(ref)
            except PreflightError as error:
                # A setting of the triggerer's host: another look would find it no better.
                self.log.error("%s", error)
                self._gave_up, verdict = str(error), None
            except Exception as error:
                self.log.warning("Airflow does not answer now: %s: %s", type(error).__name__, error)
                verdict = None
            if self._goes_first and (self._gave_up or verdict is not None):
                await self._give_up_turn(ref)
            if self._gave_up:
                # The one way out over a worker: from there the cluster task can be taken out of the pool's queue.
                yield TriggerEvent({"too_late": self._gave_up})  # type: ignore[no-untyped-call]
                return
            if self._refused:
                await self._leave_reason(ref)
            if verdict is not None:
                yield TaskSuccessEvent() if verdict else TaskFailedEvent()
                return
            await self._pause()

    async def _pause(self) -> None:
        """Until the cluster of this job rings, if it lives in this triggerer; else for a while."""
        fresh = time.monotonic() - self._began < FRESH
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._bell.wait(), TICK if fresh else CALM)
        self._bell.clear()

    async def _look(self, ref: GroupRef) -> bool | None:
        """True: open. False: never. None: wait."""
        plan = self._plan or await sync_to_async(airflow_io.plan_in_force)(ref)
        if plan is None:
            return self._refuse(f"{ref.task('plan')} has left no plan: clear the whole group")
        self._plan, self._attempt = plan, plan.attempt
        cluster_id = ref.task("cluster")
        wanted = [cluster_id, *map(ref.task, self.replica_tasks)]
        states = await sync_to_async(airflow_io.task_states)(ref, wanted)
        state = states.get(cluster_id)
        if state in NOT_OPENED or state == "success":
            # No reason of ours: the cluster task has left its own, or a person has ended it.
            self.log.error("not opened: the task %s is %s; its log says why", cluster_id, state)
            return False
        if state == "deferred":
            # Many may wait, and each look costs the triggerer a call: the plan is read again only where it matters.
            self._plan = None
        if state == "deferred" and not await self._still_running(cluster_id, states):
            cluster = await sync_to_async(airflow_io.read_cluster)(ref, plan.attempt)
            if cluster and cluster.phase.terminal:
                return self._refuse(f"not opened: the job has {cluster.phase}: {cluster.reason}")
            if cluster:
                self.log.info("opened after %.0f s: %s holds %d slots of pool %s", *self._facts(cluster_id, plan))
                return True
        return await self._wait(ref, plan, state)

    def _refuse(self, text: str) -> bool:
        self._refused = text
        self.log.error("%s", text)
        return False

    async def _leave_reason(self, ref: GroupRef) -> None:
        try:
            await sync_to_async(airflow_io.leave_reason)(ref, "admission", self._attempt, self._refused)
        except Exception as error:
            self.log.warning("result cannot say why: %s: %s", type(error).__name__, error)

    def _facts(self, cluster_id: str, plan: Plan) -> tuple[float, str, int, str]:
        return time.monotonic() - self._began, cluster_id, plan.slots, plan.pool

    async def _still_running(self, cluster_id: str, states: dict[str, str | None]) -> bool:
        old = [key for key, state in states.items() if state in ("running", "restarting") and key != cluster_id]
        if old:
            await self._say(f"waiting until the replicas of the last try have ended: {', '.join(sorted(old))}")
        return bool(old)

    async def _wait(self, ref: GroupRef, plan: Plan, state: str | None) -> bool | None:
        waited = time.monotonic() - self._began
        limit = plan.job.run_policy.schedule_timeout
        if limit is not None and plan.waited + waited > limit:
            self._gave_up = (
                f"schedule_timeout: pool {plan.pool} had no {plan.slots} slots free within {limit:.0f} s"
                f" (run_policy.schedule_timeout); {await self._in_the_way(ref, plan)}"
            )
            self.log.error("%s", self._gave_up)
            return False
        if state == "scheduled" and not self._goes_first and waited > reserve_after():
            await sync_to_async(turns.take)(ref, plan)
            self._goes_first = True
            self.log.info("has waited for more than %.0f s: jobs that come now go after it", reserve_after())
        if state != "deferred":
            await self._say(
                f"waiting for {plan.slots} slots of pool {plan.pool} ({ref.task('cluster')} is {state or 'new'});"
                f" {await self._in_the_way(ref, plan)}"
            )
        return None

    async def _in_the_way(self, ref: GroupRef, plan: Plan) -> str:
        try:
            found = await _holders(plan.pool)
        except Exception as error:
            return f"who holds them is not known now ({type(error).__name__})"
        others = [holder for holder in found if not airflow_io.is_whose(holder, ref)]
        if not others:
            return "no other tf_operator job holds any"
        return "held by " + ", ".join(
            f"{GroupRef(h['dag_id'], h['run_id'], h['group_id'])} ({h['slots']} slots)" for h in others
        )

    async def _give_up_turn(self, ref: GroupRef) -> None:
        """Who waits behind this job asks for its task's state too, so that this may fail."""
        try:
            if plan := self._plan or await sync_to_async(airflow_io.plan_in_force)(ref):
                await sync_to_async(turns.give_up)(ref, plan)
        except Exception as error:
            self.log.warning("its turn is not taken back yet: %s: %s", type(error).__name__, error)

    async def _say(self, text: str) -> None:
        """Log what is new, and the same again each minute."""
        now = time.monotonic()
        if text != self._said[0] or now - self._said[1] >= SAY_AGAIN:
            self._said = (text, now)
            self.log.info("%s (for %.0f s now)", text, now - self._began)
