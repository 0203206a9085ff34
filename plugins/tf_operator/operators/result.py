"""result says how the job ended and is the only thing that can make a run green; cleanup removes what is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tf_operator import airflow_io, settings
from tf_operator.errors import JobError, RunnerError, TfOperatorError
from tf_operator.host import runner_for
from tf_operator.identity import ReplicaId
from tf_operator.membership import Cluster, Phase
from tf_operator.operators.reasons import clearing
from tf_operator.plan import GroupRef, Plan, places
from tf_operator.program import read_result, result_path
from tf_operator.runners.away import PATIENCE, Away, engine_key
from tf_operator.runners.base import Handle, Runner

MARGIN = 15.0
"""Seconds beyond the grace for a program to be gone."""
CLUSTER_WAIT = 120.0
"""Seconds for the cluster task to notice that every replica has ended, and to give its slots back."""


def marked_success(plan: str | None, admission: str | None, cluster: str | None, *, led: bool, cut: bool) -> bool:
    """Whether a person marked the whole run success, by the states of the three tasks.

    Airflow makes success of what was active then, and skips what had not begun. `led`: the cluster has spoken in this
    attempt. `cut`: a replica's task is a success though its program had not ended well, which one task marked alone
    does not bring about. Where nothing had begun nobody can tell; that counts as marked failed.
    """
    if cluster == "skipped":
        return not led and "success" in (admission, plan) and admission in ("success", "skipped")
    return cluster == "success" and cut


class ResultOperator(BaseOperator):
    """The group's leaf. Returns `{model_dir, generation, metrics, reason, attempt}`, raises unless it succeeded.

    `mapped` holds the names of the replica tasks that are mapped.
    """

    def __init__(self, *, group_id: str, mapped: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id
        self.mapped = list(mapped)

    def execute(self, context: Context) -> dict[str, Any]:
        """One line: how the job ended, and why."""
        ti = context["ti"]
        ref = GroupRef(ti.dag_id, str(ti.run_id), self.group_id)
        states = self._final_states(ref)
        of_plan, of_admission, of_cluster = (states.get(ref.task(name)) for name in ("plan", "admission", "cluster"))
        plan = airflow_io.plan_in_force(ref)
        cluster = airflow_io.read_cluster(ref, plan.attempt) if plan else None
        cut = plan is not None and cluster is not None and not cluster.phase.terminal and self._was_cut(ref, plan)
        if marked_success(of_plan, of_admission, of_cluster, led=cluster is not None, cut=cut):
            text = "a person marked the run success before the job had ended: it has no result"
            self.log.info(text)
            raise AirflowSkipException(text)
        # XComs of an earlier attempt stay until a task's new process has begun: what ended without one left them.
        # A plan that has not ended was cleared alone: the job went on without it.
        if of_plan == "skipped":
            raise AirflowFailException("the run was ended from outside before its job began")
        if plan is None or of_plan in ("failed", "upstream_failed", "removed"):
            raise AirflowFailException(f"the job did not start: {self._why_no_plan(ref, of_plan, context)}")
        if cluster is None:
            raise AirflowFailException(self._why_no_cluster(ref, plan, of_admission, of_cluster))
        if cluster.phase is not Phase.SUCCEEDED:
            raise AirflowFailException(self._why(cluster))
        if of_cluster in airflow_io.LIVE:
            raise AirflowException(
                f"the job succeeded ({cluster.reason}), but {ref.task('cluster')} is still {of_cluster} and holds its"
                " slots: is a triggerer running?"
            )
        if of_cluster != "success":
            raise AirflowFailException(f"{ref.task('cluster')} is {of_cluster}: it was ended from outside")
        self.log.info("succeeded: %s; model_dir %s", cluster.reason, plan.job.model_dir)
        return {
            "model_dir": plan.job.model_dir,
            "generation": cluster.generation,
            "metrics": read_metrics(plan),
            "reason": cluster.reason,
            "attempt": plan.attempt,
        }

    def _was_cut(self, ref: GroupRef, plan: Plan) -> bool:
        """Whether some replica's task is a success though its program did not end well."""
        found = list(places(ref, plan.job, set(self.mapped)))
        states: Mapping[str, str | None] = airflow_io.task_states(ref, {place.task_id for _, place in found})
        members = (airflow_io.read_member(ref, place) for _, place in found if states.get(place.state_key) == "success")
        return any(member is None or not member.ended_well for member in members)

    def _final_states(self, ref: GroupRef) -> dict[str, str | None]:
        """States of plan, admission and cluster. The replicas have ended, so the cluster is about to."""
        deadline = time.monotonic() + CLUSTER_WAIT
        while True:
            states = airflow_io.task_states(ref, [ref.task(name) for name in ("plan", "admission", "cluster")])
            if states.get(ref.task("cluster")) not in airflow_io.LIVE or time.monotonic() > deadline:
                return states
            time.sleep(0.5)

    def _why_no_plan(self, ref: GroupRef, of_plan: str | None, context: Context) -> str:
        task_id = ref.task("plan")
        if of_plan == "failed":
            return airflow_io.read_reason(ref, "plan", clearing(context)) or f"{task_id} failed, its log says why"
        if of_plan == "success":
            return f"{task_id} has left no plan; clear the whole group to try again"
        return f"{task_id} is {of_plan or 'not run'}, as a task before it failed, or a person ended it"

    def _why_no_cluster(self, ref: GroupRef, plan: Plan, of_admission: str | None, of_cluster: str | None) -> str:
        """Admission fails with the cluster: that one's own word comes first."""
        for name, state in (("cluster", of_cluster), ("admission", of_admission)):
            if state == "failed" and (said := airflow_io.read_reason(ref, name, plan.attempt)):
                return f"the job did not start: {ref.task(name)} failed: {said}"
        if of_cluster == "skipped":
            return (
                f"the job never had its slots: {ref.task('admission')} is {of_admission}, its log says why, or a person"
                " ended the run while it waited"
            )
        return (
            f"nobody leads the job: {ref.task('cluster')} or {ref.task('admission')} failed, their logs say why;"
            " clear the whole group to try again"
        )

    def _why(self, cluster: Cluster) -> str:
        if not cluster.phase.terminal:
            return (
                f"the job was ended from outside while it was {cluster.phase}: {cluster.reason or 'no fault is known'}"
            )
        text = cluster.reason
        cause = cluster.cause or {}
        if cause.get("end") and str(cause.get("replica")) not in text:
            text += f"; first failure: {cause['replica']}: {cause['end']}"
        if cluster.consequences:
            text += f"; drawn down by it: {', '.join(cluster.consequences)}"
        return text


def read_metrics(plan: Plan) -> Any:
    """What the deciding replica's program wrote to TF_OPERATOR_RESULT; None if it wrote nothing."""
    try:
        return read_result(result_path(plan.job.model_dir, plan.attempt, plan.job.decider))
    except JobError as error:
        raise AirflowFailException(str(error)) from None


class CleanupOperator(BaseOperator):
    """A teardown: runs also when a person ended the run. Stops and removes what this host still has of the job."""

    def __init__(self, *, group_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id

    def execute(self, context: Context) -> None:
        """Never fails a run: what it cannot remove, the keeper's deadline and `tf-operator clean` will."""
        ti = context["ti"]
        ref = GroupRef(ti.dag_id, str(ti.run_id), self.group_id)
        plan = airflow_io.plan_in_force(ref)
        if plan is None:
            return
        grace = plan.job.run_policy.termination_grace
        keep, away = plan.job.run_policy.clean_policy == "keep_failed", Away()
        left = list(self._left(plan, ref, grace, away))
        deadline = time.monotonic() + grace + MARGIN

        def end(runner: Runner, handle: Handle) -> None:
            while (ended := runner.poll(handle)) is None and time.monotonic() < deadline:
                time.sleep(0.2)
            runner.remove(handle, keep_output=keep and ended is not None and ended.failed)

        for replica, runner, handle in left:
            try:
                away.ask(plan.job.group_of(replica), partial(end, runner, handle))
            except (RunnerError, OSError) as error:
                self.log.warning("%s: %s", replica, error)
        for replica in plan.job.replicas if plan.job.secrets else ():
            self._revoke(ref, replica)
        with contextlib.suppress(Exception):
            airflow_io.unregister_holder(plan.pool, ref)

    def _revoke(self, ref: GroupRef, replica: ReplicaId) -> None:
        """What a program that was ended from outside has been given; its watcher had no time to wait for its end."""
        from tf_operator.secrets.airflow_login import login_airflow
        from tf_operator.secrets.custody import end_left
        from tf_operator.secrets.ledger import Ledger

        ledger = Ledger(settings.state_dir(), ref.identity(replica).key)
        end_left(ledger, login_airflow, lambda text: self.log.warning("%s: %s", replica, text))

    def _left(self, plan: Plan, ref: GroupRef, grace: float, away: Away) -> Iterator[tuple[ReplicaId, Runner, Handle]]:
        runners: dict[tuple[str, str | None], Runner] = {}
        for replica in plan.job.replicas:
            group = plan.job.group_of(replica)
            try:
                if (key := engine_key(group)) not in runners:
                    runners[key] = runner_for(group)
                    runners[key].hurry(PATIENCE)
                runner = runners[key]
                if handle := away.ask(group, partial(runner.find, ref.identity(replica))):
                    self.log.info("stopping what is left of %s", replica)
                    away.ask(group, partial(runner.stop, handle, grace))
                    yield replica, runner, handle
            except (TfOperatorError, OSError) as error:
                self.log.warning("%s: %s", replica, error)
