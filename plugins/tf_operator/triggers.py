"""The owner of the membership: it lives in the triggerer and costs no worker.

It ends its task only by an end event and catches everything else: any other way out would send the task back
through the pool, to queue for slots it only needs in order to fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async

from tf_operator import airflow_io
from tf_operator.admission import NOT_OPENED, ring
from tf_operator.identity import ReplicaId
from tf_operator.membership import Cluster, Member, Owner, Phase, begin
from tf_operator.membership.decide import GONE
from tf_operator.pace import pause
from tf_operator.plan import GroupRef, Place, Plan, places

TICK = 1.0
READS_PER_TICK = 10
"""Members of running replicas read in turn each tick; the triggerer answers about 40 calls a second in all. Those that
decide who is to blame for an end are read in each."""
THAWED = 10.0
"""Seconds between two looks after which this process may have stood still while another took the job up."""


class ClusterTrigger(BaseTrigger):
    """Owns the membership of one attempt while its task holds the job's pool slots."""

    def __init__(self, dag_id: str, run_id: str, group_id: str, mapped: list[str], plan: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ref = GroupRef(dag_id, run_id, group_id)
        self.mapped = mapped
        self.plan = Plan.model_validate(plan)
        self._places: dict[ReplicaId, Place] = dict(places(self.ref, self.plan.job, set(mapped)))
        self._members: dict[ReplicaId, Member] = {}
        self._states: dict[ReplicaId, str | None] = {}
        self._admission: str | None = None
        self._why_not_opened = ""
        self._own: str | None = None
        self._turn = 0
        self._said = ""
        self._forming = (0, 0.0)
        self._looked = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The kwargs of the defer: what changes later is in the cluster's XCom."""
        return (
            "tf_operator.triggers.ClusterTrigger",
            {
                "dag_id": self.ref.dag_id,
                "run_id": self.ref.run_id,
                "group_id": self.ref.group_id,
                "mapped": self.mapped,
                "plan": self.plan.model_dump(mode="json"),
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Lead the attempt to its end, hold the slots until the replicas have let go, then end the task."""
        tries_left = max(0, self.plan.job.run_policy.backoff_limit - self.plan.again)
        owner = Owner(self.plan.job, begin(self.plan.job, self.plan.attempt, tries_left, self.plan.elapsed))
        try:
            owner = await self._take_up(owner)
            await self._lead(owner)
        except Exception as error:
            self.log.exception("the cluster trigger failed")
            owner.fail(f"the cluster trigger failed: {type(error).__name__}: {error}")
            await self._publish(owner.cluster)
        try:
            await self._wind_up(owner)
        except Exception:
            self.log.exception("could not wait for the replicas to let go")
            owner.fail_for_good()
            await self._publish(owner.cluster)
        cluster = owner.cluster
        await self._quietly(airflow_io.unregister_holder, self.plan.pool, self.ref)
        self.log.info("cluster %s: %s", cluster.phase, cluster.reason)
        if cluster.again_after is not None:
            # Meant to lead back through the pool: the slots are free from here on.
            yield TriggerEvent({"again_after": cluster.again_after})  # type: ignore[no-untyped-call]
            return
        yield TaskSuccessEvent() if cluster.phase is Phase.SUCCEEDED else TaskFailedEvent()

    async def _take_up(self, owner: Owner) -> Owner:
        """Go on from the message of an earlier triggerer; begin with one where there is none."""
        while True:
            try:
                earlier = await sync_to_async(airflow_io.read_cluster)(self.ref, self.plan.attempt)
                break
            except Exception as error:
                self.log.warning("Airflow does not answer now: %s: %s", type(error).__name__, error)
                await asyncio.sleep(TICK)
        if earlier is not None:
            return Owner(self.plan.job, earlier)
        if wrong := self._wrong_slots():
            owner.fail(wrong)
        await self._quietly(airflow_io.keep_plan, self.ref, self.plan)
        await self._publish(owner.cluster)
        return owner

    async def _lead(self, owner: Owner) -> None:
        await self._quietly(airflow_io.register_holder, self.plan.pool, self.ref, self.plan.slots)
        self.log.info("holding %d slots of pool %s for %s", self.plan.slots, self.plan.pool, self.ref)
        ring(self.ref)
        while not owner.cluster.phase.terminal:
            # Cleared or ended by a person: until the triggerer notices, this trigger is nobody's word any more.
            since = time.monotonic()
            if await self._look(owner) and self._own in ("deferred", None) and self._step(owner, since):
                await self._publish(owner.cluster)
            if not owner.cluster.phase.terminal:
                await asyncio.sleep(pause(self._formed_for(owner.cluster)))

    def _formed_for(self, cluster: Cluster) -> float | None:
        """Seconds this generation has been forming; None once it runs."""
        if cluster.phase is not Phase.FORMING:
            return None
        if self._forming[0] != cluster.generation:
            self._forming = (cluster.generation, time.monotonic())
        return time.monotonic() - self._forming[1]

    def _step(self, owner: Owner, since: float) -> bool:
        if self._admission in NOT_OPENED:
            why = self._why_not_opened or "it did not open, its log says why"
            owner.fail(f"{self.ref.task('admission')} is {self._admission}: {why}")
            return True
        return owner.step(self._members, self._states, since)

    def _wrong_slots(self) -> str | None:
        """The net beneath the policy: what the task holds must be what the plan needs."""
        slots = getattr(self.task_instance, "pool_slots", None)
        if slots is None or slots == self.plan.slots:
            return None
        return (
            f"pool_slots: the task holds {slots}, the job's replicas need {self.plan.slots};"
            " the tf_operator cluster policy has not seen this run's params: clear the whole group to try again"
        )

    async def _publish(self, cluster: Cluster) -> None:
        """The message must arrive: without it the replicas would act on an old one."""
        line = f"{cluster.phase}, generation {cluster.generation}: {cluster.reason}".rstrip(": ")
        if line != self._said:
            self._said = line
            self.log.info("%s", line)
        while not await self._quietly(airflow_io.write_cluster, self.ref, cluster):
            await asyncio.sleep(TICK)

    async def _look(self, owner: Owner) -> bool:
        """Read the states, then the members worth reading now. False where Airflow does not answer."""
        try:
            admission, cluster = self.ref.task("admission"), self.ref.task("cluster")
            wanted = {admission, cluster, *(place.task_id for place in self._places.values())}
            states = await sync_to_async(airflow_io.task_states)(self.ref, wanted)
            before, self._admission, self._own = self._states, states.get(admission), states.get(cluster)
            if self._admission in NOT_OPENED:
                said = await sync_to_async(airflow_io.read_reason)(self.ref, "admission", self.plan.attempt)
                self._why_not_opened = said or ""
            # A mapped task that was never expanded is listed by its own name.
            self._states = {
                replica: states.get(place.state_key, states.get(place.task_id))
                for replica, place in self._places.items()
            }
            for replica in self._worth_reading(before, owner.decisive(self._members)):
                member = await sync_to_async(airflow_io.read_member)(self.ref, self._places[replica])
                if member and member.attempt == self.plan.attempt:
                    self._members[replica] = member
            superseded = await self._is_superseded(owner)
        except Exception as error:
            self.log.warning("Airflow does not answer now: %s: %s", type(error).__name__, error)
            return False
        if superseded:
            self.log.warning("a later attempt has the job: attempt %s says nothing more", self.plan.attempt)
            # Until the triggerer ends it. Any way out would be taken for the later one's.
            await asyncio.Event().wait()
        return True

    async def _is_superseded(self, owner: Owner) -> bool:
        """After standing still: `deferred` may be the state of a later attempt's task."""
        before, now = self._looked, time.monotonic()
        # Who hands over may have written the later plan itself, before its triggerer was lost.
        if before and now - before > THAWED and owner.cluster.again_after is None:
            plan = await sync_to_async(airflow_io.plan_in_force)(self.ref)
            if plan is not None and plan.attempt != self.plan.attempt:
                return True
        self._looked = now
        return False

    def _worth_reading(self, before: dict[ReplicaId, str | None], decisive: set[ReplicaId]) -> list[ReplicaId]:
        """Those whose state changed, those who decide on an end, then running ones in turn."""
        running = [r for r, state in self._states.items() if state == "running"]
        changed = [r for r, state in self._states.items() if state != before.get(r) and state in GONE | {"failed"}]
        if not running:
            return changed
        self._turn %= len(running)
        turn = (running[self._turn :] + running[: self._turn])[:READS_PER_TICK]
        self._turn += len(turn)
        return list(dict.fromkeys(changed + [r for r in running if r in decisive] + turn))

    async def _wind_up(self, owner: Owner) -> None:
        """Wait until the replicas have let go, say what fell with the cause, or hand over to the next attempt."""
        again = owner.cluster.again_after is not None
        released = await self._wait_until_released(owner, airflow_io.HOLDING if again else airflow_io.LIVE)
        if again and released:
            while not await self._quietly(airflow_io.replace_plan, self.ref, self.plan, owner.cluster.elapsed):
                await asyncio.sleep(TICK)
        elif again:
            owner.fail_for_good()
            await self._publish(owner.cluster)
        elif owner.cluster.cause and await self._quietly(self._read_members) and owner.conclude(self._members):
            await self._publish(owner.cluster)

    def _read_members(self) -> None:
        for replica, place in self._places.items():
            if member := airflow_io.read_member(self.ref, place):
                self._members[replica] = member

    async def _wait_until_released(self, owner: Owner, unreleased: frozenset[str]) -> bool:
        """Slots are given back only when no replica's program can still use a device. False: it took too long."""
        policy, job = self.plan.job.run_policy, self.plan.job
        patience = policy.termination_grace + policy.evaluator_grace + job.retry_delay + 60.0
        deadline = time.monotonic() + patience
        while await self._look(owner) is False or any(state in unreleased for state in self._states.values()):
            if time.monotonic() > deadline:
                late = [str(r) for r, state in self._states.items() if state in unreleased]
                self.log.warning("gave the slots back though these have not ended: %s", ", ".join(late))
                return False
            await asyncio.sleep(TICK)
        return True

    async def _quietly(self, function: Any, *args: Any) -> bool:
        try:
            await sync_to_async(function)(*args)
        except Exception as error:
            self.log.warning("%s: %s: %s", function.__name__, type(error).__name__, error)
            return False
        return True
