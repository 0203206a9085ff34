"""The thin part that talks to Airflow through the Task SDK: XComs, task states, the task state store, variables.

Nothing here decides anything. All functions are synchronous calls of the SDK; triggers call them off the event loop.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowRescheduleException
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from airflow.sdk.log import redact  # type: ignore[attr-defined]

from tf_operator.membership import Cluster, Member
from tf_operator.plan import GroupRef, Place, Plan
from tf_operator.supervision import ChannelError
from tf_operator.watching import WAITING

PLAN_KEY, CLUSTER_KEY, MEMBER_KEY, REASON_KEY = "plan", "cluster", "member", "reason"

LIVE = frozenset({"running", "deferred", "queued", "scheduled", "restarting", "up_for_retry", "up_for_reschedule"})
"""States of a task that has not ended."""
HOLDING = frozenset({"running", "restarting", "deferred"})
"""States of a task that has a process or a trigger, and with it perhaps a program."""
QUEUED = frozenset({"scheduled", "queued", "up_for_reschedule"})
"""States of a cluster task that is between two attempts."""


def read_plan(ref: GroupRef) -> Plan | None:
    """The plan of the latest attempt, None while there is none."""
    data = XCom.get_one(key=PLAN_KEY, dag_id=ref.dag_id, run_id=ref.run_id, task_id=ref.task("plan"), map_index=-1)
    return Plan.model_validate(data) if data else None


def keep_plan(ref: GroupRef, plan: Plan) -> None:
    """A copy beside the cluster: Airflow deletes plan's own where plan is cleared, before it can refuse that."""
    value = plan.model_dump(mode="json")
    XCom.set(key=PLAN_KEY, value=value, dag_id=ref.dag_id, run_id=ref.run_id, task_id=ref.task("cluster"))


def kept_plan(ref: GroupRef) -> Plan | None:
    """The copy; None where there is none."""
    data = XCom.get_one(key=PLAN_KEY, dag_id=ref.dag_id, run_id=ref.run_id, task_id=ref.task("cluster"), map_index=-1)
    return Plan.model_validate(data) if data else None


def plan_in_force(ref: GroupRef) -> Plan | None:
    """What the living job goes by, also between a clear of plan alone and its answer to that."""
    return read_plan(ref) or kept_plan(ref)


def replace_plan(ref: GroupRef, plan: Plan, elapsed: float) -> None:
    """Begin the attempt after `plan`'s, once: who comes again after a broken-off call changes nothing."""
    current = read_plan(ref)
    if current is None or current.attempt == plan.attempt:
        following = plan.next_attempt(elapsed)
        # First, so that a call that is broken off in between is made again as a whole.
        keep_plan(ref, following)
        value = following.model_dump(mode="json")
        XCom.set(key=PLAN_KEY, value=value, dag_id=ref.dag_id, run_id=ref.run_id, task_id=ref.task("plan"))


def read_cluster(ref: GroupRef, attempt: str) -> Cluster | None:
    """The owner's message of this attempt; any other attempt's is dropped."""
    data = XCom.get_one(
        key=CLUSTER_KEY, dag_id=ref.dag_id, run_id=ref.run_id, task_id=ref.task("cluster"), map_index=-1
    )
    return Cluster.from_json(data) if data and data.get("attempt") == attempt else None


def write_cluster(ref: GroupRef, cluster: Cluster) -> None:
    """Publish the owner's message."""
    XCom.set(
        key=CLUSTER_KEY,
        value=cluster.to_json(),
        dag_id=ref.dag_id,
        run_id=ref.run_id,
        task_id=ref.task("cluster"),
    )


def read_member(ref: GroupRef, place: Place) -> Member | None:
    """A replica's message, of whatever attempt; None while there is none."""
    data = XCom.get_one(
        key=MEMBER_KEY, dag_id=ref.dag_id, run_id=ref.run_id, task_id=place.task_id, map_index=place.map_index
    )
    return Member.from_json(data) if data else None


def write_member(ref: GroupRef, place: Place, member: Member) -> None:
    """Publish a replica's message."""
    XCom.set(
        key=MEMBER_KEY,
        value=member.to_json(),
        dag_id=ref.dag_id,
        run_id=ref.run_id,
        task_id=place.task_id,
        map_index=place.map_index,
    )


def leave_reason(ref: GroupRef, task: str, of: str, text: str) -> None:
    """Why the task is about to fail, masked as in its log.

    `of` is what it belongs to, the attempt mostly: Airflow keeps the XComs of an earlier try until a new process of the
    task has begun, and those of admission for ever.
    """
    masked = str(redact(text)).replace("\0", "")
    value = {"of": of, "text": masked}
    XCom.set(key=REASON_KEY, value=value, dag_id=ref.dag_id, run_id=ref.run_id, task_id=ref.task(task))


def read_reason(ref: GroupRef, task: str, of: str) -> str | None:
    """What the task left; None where that was nothing, or belongs to something else."""
    data = XCom.get_one(key=REASON_KEY, dag_id=ref.dag_id, run_id=ref.run_id, task_id=ref.task(task), map_index=-1)
    return str(data["text"]) if data and data.get("of") == of else None


def task_states(ref: GroupRef, task_ids: Iterable[str]) -> dict[str, str | None]:
    """States by task id (`<task id>_<map index>` where mapped), one call for all."""
    answer = RuntimeTaskInstance.get_task_states(dag_id=ref.dag_id, run_ids=[ref.run_id], task_ids=list(task_ids))
    return {key: None if value is None else str(value) for key, value in answer.get(ref.run_id, {}).items()}


def withdraw(task_id: str) -> None:
    """Skip a task of this run that has not begun, so that it waits for its pool no longer."""
    from airflow.sdk.execution_time.comms import SkipDownstreamTasks
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    SUPERVISOR_COMMS.send(SkipDownstreamTasks(tasks=[task_id]))


def away_for(seconds: float) -> AirflowRescheduleException:
    """What a task raises to leave its place and come back later; Airflow counts no try for it."""
    return AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=seconds))  # type: ignore[no-untyped-call]


def run_is_over(dag_id: str, run_id: str) -> bool:
    """True where that run has ended or is not there any more."""
    if RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id]) == 0:
        return True
    return RuntimeTaskInstance.get_dagrun_state(dag_id=dag_id, run_id=run_id) in ("success", "failed")


class AirflowStore:
    """A replica's memory in Airflow's task state store: survives retries and clears, goes with the run."""

    def __init__(self, accessor: Any) -> None:
        self._accessor = accessor

    def get(self, key: str) -> Any:
        """The value, or None. ChannelError if it cannot be asked for now."""
        try:
            return self._accessor.get(key)
        except Exception as error:
            raise ChannelError(f"{type(error).__name__}: {error}") from error

    def set(self, key: str, value: Any) -> None:
        """Write or overwrite; never expires while the run is kept."""
        try:
            self._accessor.set(key, value, retention=NEVER_EXPIRE)
        except Exception as error:
            raise ChannelError(f"{type(error).__name__}: {error}") from error


class AirflowChannel:
    """How a replica's task and the cluster trigger hear of each other."""

    def __init__(self, ref: GroupRef, place: Place, plan: Plan) -> None:
        self._ref, self._place, self._attempt = ref, place, plan.attempt
        self._waits = QUEUED if plan.again else frozenset[str]()

    def publish(self, member: Member) -> None:
        """Write this replica's XCom."""
        self._call(write_member, self._ref, self._place, member)

    def cluster(self) -> Cluster | None:
        """The owner's message of this attempt."""
        found: Cluster | None = self._call(read_cluster, self._ref, self._attempt)
        return found

    def owner_state(self) -> str:
        """`alive` while the cluster task holds the slots, `waiting` between two attempts, else what became of it."""
        task_id = self._ref.task("cluster")
        states: Mapping[str, str | None] = self._call(task_states, self._ref, [task_id])
        state = states.get(task_id)
        if state in self._waits:
            return WAITING
        return "alive" if state in ("deferred", "running") else f"the task {task_id} is {state or 'cleared'}"

    @staticmethod
    def _call(function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise ChannelError(f"{type(error).__name__}: {error}") from error


# -- who holds a pool: triggers cannot read pools, so every holder says so itself


def entry_key(prefix: str, ref: GroupRef) -> str:
    """The key of what a job says of itself below `prefix`. Ids may hold any character."""
    return f"{prefix}{hashlib.sha256(str(ref).encode()).hexdigest()[:16]}"


def whose(ref: GroupRef) -> dict[str, Any]:
    """The part of an entry that says whose it is."""
    return {"dag_id": ref.dag_id, "run_id": ref.run_id, "group_id": ref.group_id}


def is_whose(entry: Mapping[str, Any], ref: GroupRef) -> bool:
    """Whether the entry is this job's."""
    return (entry["dag_id"], entry["run_id"], entry["group_id"]) == (ref.dag_id, ref.run_id, ref.group_id)


def entries(prefix: str, task: str) -> list[dict[str, Any]]:
    """What jobs say below `prefix` whose `task` is deferred indeed; the dead are dropped."""
    found = []
    for key in list(Variable.keys(prefix=prefix)):
        value = Variable.get(key, default=None, deserialize_json=True)
        if not value:
            continue
        ref = GroupRef(value["dag_id"], value["run_id"], value["group_id"])
        if task_states(ref, [ref.task(task)]).get(ref.task(task)) == "deferred":
            found.append(value)
        else:
            Variable.delete(key)
    return found


def holder_prefix(pool: str) -> str:
    """What the keys of a pool's holders begin with."""
    return f"tf_operator/pool/{pool}/"


def register_holder(pool: str, ref: GroupRef, slots: int) -> None:
    """Say that this job holds slots of the pool."""
    value = {**whose(ref), "slots": slots, "since": time.time()}
    Variable.set(entry_key(holder_prefix(pool), ref), value, serialize_json=True)


def unregister_holder(pool: str, ref: GroupRef) -> None:
    """Say that it holds them no longer. Absence is normal."""
    Variable.delete(entry_key(holder_prefix(pool), ref))


def holders(pool: str) -> list[dict[str, Any]]:
    """Who says they hold slots of the pool and whose cluster task is deferred indeed; the dead are dropped."""
    return entries(holder_prefix(pool), "cluster")
