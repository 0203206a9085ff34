"""cluster holds the job's slots; admission opens the gate. Both hand over to the triggerer at once."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import StartTriggerArgs

from tf_operator import airflow_io
from tf_operator.operators import checks
from tf_operator.operators.reasons import quotable
from tf_operator.plan import GroupRef, Plan
from tf_operator.triggers import ClusterTrigger


class ClusterOperator(BaseOperator):
    """The only task of the group in the GPU pool. `gang` (JSON) is the formula of its slots, for the cluster policy."""

    def __init__(self, *, gang: str, group_id: str, mapped: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gang = gang
        self.group_id = group_id
        self.mapped = mapped

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """The scheduler's copy of the task carries the formula."""
        fields: frozenset[str] = BaseOperator.get_serialized_fields()  # type: ignore[no-untyped-call]
        return fields | {"gang"}

    def execute(self, context: Context) -> None:
        """Refuse what the policy refused; else defer, and hold the slots from the triggerer."""
        ti = context["ti"]
        ref = GroupRef(ti.dag_id, str(ti.run_id), self.group_id)
        plan = airflow_io.read_plan(ref)
        with quotable(ref, "cluster", attempt_of(plan)):
            self._take_up(ref, plan, airflow_io.AirflowStore(context["task_state_store"]))

    def _take_up(self, ref: GroupRef, plan: Plan | None, store: airflow_io.AirflowStore) -> None:
        if plan is None:
            raise AirflowFailException(f"{ref.task('plan')} has left no plan: clear the whole group")
        self._check_policy(store.get(checks.POLICY_KEY), plan.slots, plan.pool)
        if store.get("attempt") == plan.attempt:
            raise AirflowFailException(
                f"attempt {plan.attempt} has had its cluster: clear the whole group, so that plan begins a new attempt"
            )
        store.set("attempt", plan.attempt)
        trigger = ClusterTrigger(ref.dag_id, ref.run_id, ref.group_id, self.mapped, plan.model_dump(mode="json"))
        self.defer(trigger=trigger, method_name="resumed")

    def _check_policy(self, mark: dict[str, Any] | None, slots: int, pool: str) -> None:
        if mark is None:
            raise AirflowFailException(checks.UNSEEN)
        if refused := mark.get("refused"):
            raise AirflowFailException(refused)
        if (mark["slots"], mark["pool"]) != (slots, pool):
            raise AirflowFailException(
                f"the task holds {mark['slots']} slots of pool {mark['pool']}, the job needs {slots} of {pool}: the"
                " run's params changed after it was made, or configs/pools.yaml was not applied"
                " (`tf-operator pools --check` tells); then clear the whole group"
            )

    def resumed(self, context: Context, event: Any = None) -> None:
        """After a start_timeout: stay away for a while, then ask for the slots again, as `execute`.

        Else only a way out Airflow took by itself leads here; the slots are gone with it.
        """
        if isinstance(event, dict) and "again_after" in event:
            self.log.info("everything was let go; the next attempt begins in %.0f s", event["again_after"])
            raise airflow_io.away_for(event["again_after"])
        ref = GroupRef(context["ti"].dag_id, str(context["ti"].run_id), self.group_id)
        with quotable(ref, "cluster", attempt_of(airflow_io.plan_in_force(ref))):
            raise AirflowFailException(
                f"the cluster trigger was ended by Airflow ({event}): clear the whole group to try again"
            )


class AdmissionOperator(BaseOperator):
    """Starts in the triggerer and ends there: while a job waits for GPUs, this is the task to look at."""

    def __init__(self, *, group_id: str, replica_tasks: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id
        self.replica_tasks = replica_tasks
        self.start_from_trigger = True
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls="tf_operator.admission.AdmissionTrigger",
            trigger_kwargs={"group_id": group_id, "replica_tasks": replica_tasks},
            next_method="resumed",
            next_kwargs=None,
            timeout=None,
        )

    def execute(self, context: Context) -> None:
        """Never the way this task starts."""
        raise AirflowFailException("admission starts in the triggerer; this Airflow ran it on a worker")

    def resumed(self, context: Context, event: Any = None) -> None:
        """It gave up waiting: take the cluster task out of the pool's queue, and fail. Nothing else leads here."""
        ref = GroupRef(context["ti"].dag_id, str(context["ti"].run_id), self.group_id)
        with quotable(ref, "admission", attempt_of(airflow_io.plan_in_force(ref))):
            if isinstance(event, dict) and event.get("too_late"):
                airflow_io.withdraw(ref.task("cluster"))
                raise AirflowFailException(event["too_late"])
            raise AirflowFailException(
                f"the admission trigger was ended by Airflow ({event}): clear the whole group to try again"
            )


def attempt_of(plan: Plan | None) -> str:
    """What the reasons of cluster and admission belong to."""
    return plan.attempt if plan else ""
