"""From a job to Airflow: the task group, and the DAG of a job file. The last step, the only one that makes tasks."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup
from airflow.sdk.bases.operator import OPERATOR_DEFAULTS
from airflow.sdk.definitions._internal.contextmanager import DagContext, TaskGroupContext

from tf_operator import settings, teams
from tf_operator.errors import JobError
from tf_operator.gang import evaluate
from tf_operator.job_spec import TensorFlowJob
from tf_operator.job_spec.outline import WATCHER_RETRIES, GroupOutline, most_tasks
from tf_operator.job_spec.params import NO_DEFAULT, ParamSpec
from tf_operator.job_spec.units import seconds
from tf_operator.operators import (
    AdmissionOperator,
    CleanupOperator,
    ClusterOperator,
    IndexOperator,
    PlanOperator,
    ReplicaOperator,
    ResultOperator,
)
from tf_operator.operators.retry import ReplicaRetryPolicy
from tf_operator.plan import is_mapped

INHERITED = frozenset({"owner", "queue", "executor"})
"""What our tasks take from a DAG's default_args; everything else they set themselves."""
EVENTS = ("failure", "success", "retry", "skipped")
"""What `result` takes callbacks for from default_args. Its own beginning is the job's end: nothing of `execute`."""
SHORT = timedelta(seconds=5)


@cache
def _defaults() -> dict[str, Any]:
    """Airflow's own default of every argument a DAG's default_args could change."""
    return {key: value for key, value in OPERATOR_DEFAULTS.items() if key not in INHERITED} | {
        "pool": "default_pool",
        "email": None,
        "run_as_user": None,
        "resources": None,
        "max_retry_delay": None,
        "max_active_tis_per_dag": None,
        "max_active_tis_per_dagrun": None,
        "start_date": None,
        "end_date": None,
        "do_xcom_push": True,
        "execution_timeout": None,
        "multiple_outputs": False,
        "render_template_as_native_obj": None,
        "pre_execute": None,
        "post_execute": None,
        "params": None,
    }


class TensorFlowTaskGroup(TaskGroup):
    """A job's tasks. `output` is the result: `{model_dir, generation, metrics, ...}`, for a task downstream."""

    output: Any = None


@dataclass(frozen=True)
class _Build:
    """What every task of one group is made with."""

    job: TensorFlowJob
    group_id: str
    project_dir: str
    prefix: str
    own_dag: bool
    team: str | None = None
    fence: Mapping[str, Any] | None = None
    around: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gang(self) -> dict[str, Any]:
        """The formula of pool and slots; with a fence where there are teams."""
        return self.job.gang(self.prefix) | ({} if self.fence is None else {"fence": dict(self.fence)})

    @property
    def shared(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "group_id": self.group_id,
            "project_dir": self.project_dir,
            "prefix": self.prefix,
        }


def as_task_group(
    job: TensorFlowJob,
    group_id: str,
    *,
    param_prefix: str = "",
    project_dir: Path | None = None,
    own_dag: bool = False,
    file: Path | None = None,
) -> TensorFlowTaskGroup:
    """The job as a task group of the DAG being defined. JobError if the DAG cannot hold it.

    The job's params join the DAG's; `param_prefix` goes before their names there. `own_dag`: the DAG has nothing else,
    so that runs with values for params it does not have are refused. `file` is what the job's team is told by: default
    the DAG's own.
    """
    dag = DagContext.get_current()
    if dag is None:
        raise JobError(f"job {job.name}: as_task_group is called outside of a DAG; use `with DAG(...):`")
    if dag.fail_fast:
        raise JobError(
            f"job {job.name}: DAG {dag.dag_id} has fail_fast = True: it ends replicas behind the job's back; remove it"
        )
    _merge_params(dag, job, param_prefix)
    folder = project_dir or settings.project_dir(Path(dag.fileloc).parent)
    known = teams.load(folder)
    team = known.of_folder(file or Path(dag.fileloc), _roots(folder))
    given = _given_defaults(dag)
    neutral = {key: value for key, value in _defaults().items() if key in given}
    group = TensorFlowTaskGroup(group_id=group_id, tooltip=job.description or job.name, default_args=neutral)  # type: ignore[arg-type]
    with group:
        build = _Build(
            job,
            group.group_id or "",
            str(folder),
            param_prefix,
            own_dag,
            team=team,
            fence=known.fence(team),
            around=given,
        )
        group.output = _wire(build)
    return group


def _roots(project: Path) -> list[Path]:
    """Where the folders of teams are."""
    from airflow.sdk.configuration import conf

    dags = Path(conf.get("core", "dags_folder", fallback="dags"))
    return [project / "configs" / "jobs", project / "dags", dags]


def _given_defaults(dag: DAG) -> dict[str, Any]:
    """What default_args of the DAG, and of the groups ours stands in, would make of our tasks: the innermost count."""
    given: dict[str, Any] = {}
    around = TaskGroupContext.get_current(dag)
    while around is not None:
        given = {**around.default_args, **given}
        around = around.parent_group
    return {**dag.default_args, **given}


def _merge_params(dag: DAG, job: TensorFlowJob, prefix: str) -> None:
    for name, spec in job.param_specs.items():
        param, key = _param(spec), prefix + name
        known = dag.params.get_param(key) if key in dag.params else None
        if known is not None and (known.schema, known.value) != (param.schema, param.value):
            raise JobError(
                f"job {job.name}: params.{name} = {dict(spec.schema)}: DAG {dag.dag_id} has another param of that name,"
                f" {known.schema}; rename one, or give as_task_group a param_prefix"
            )
        dag.params[key] = param


def _param(spec: ParamSpec) -> Param:
    schema = dict(spec.schema)
    description = schema.pop("description", None)
    if spec.default is NO_DEFAULT:
        return Param(description=description, **schema)
    return Param(spec.default, description=description, **schema)


def _wire(build: _Build) -> Any:
    outlines = [outline for outline in build.job.groups if outline.count != 0]
    by_param = [outline for outline in outlines if outline.count_param]
    first = by_param[0].task_id if by_param else None
    mapped = [outline.task_id for outline in outlines if is_mapped(outline.role, outline.count)]
    plan = PlanOperator(
        task_id="plan",
        of=first,
        policy=build.gang,
        team=build.team,
        strict_conf=build.own_dag,
        retries=2,
        retry_delay=SHORT,
        doc_md="Gives the attempt its id, renders params, checks what can be checked before a GPU is taken.",
        **build.shared,
    )
    cluster = _cluster(build, mapped)
    names = [outline.task_id for outline in outlines]
    admission = AdmissionOperator(
        task_id="admission",
        group_id=build.group_id,
        replica_tasks=names,
        retries=0,
        pool="default_pool",
        doc_md="Opens when the job holds all its slots. While it waits, its log says for what, and who is in the way.",
    )
    result = ResultOperator(
        task_id="result",
        group_id=build.group_id,
        mapped=mapped,
        retries=2,
        retry_delay=SHORT,
        trigger_rule="all_done",
        **_callbacks(build.job, build.around),
    )
    cleanup = CleanupOperator(task_id="cleanup", group_id=build.group_id, retries=0, trigger_rule="all_done")
    plan >> [cluster, admission]
    cluster >> result
    for outline in outlines:
        replica = _replica(build, outline, plan, first)
        admission >> replica >> result
    admission >> result >> cleanup
    cleanup.as_teardown()
    # A run that a person marks failed goes on until its teardowns have run, and is then judged by its leaves. `result`
    # would be skipped and make it green, so it is a teardown too. In a DAG with more than the job, what follows it
    # decides.
    if build.own_dag:
        result.as_teardown(on_failure_fail_dagrun=True)
    return result.output


def _cluster(build: _Build, mapped: list[str]) -> ClusterOperator:
    gang = build.gang
    return ClusterOperator(
        task_id="cluster",
        gang=json.dumps(gang),
        **_usual_demand(gang),
        group_id=build.group_id,
        mapped=mapped,
        retries=0,
        priority_weight=int(build.job.scheduling.priority),
        weight_rule="absolute",
        doc_md="Holds the job's pool slots, all or none, and leads its replicas. Lives in the triggerer.",
    )


def _usual_demand(gang: Mapping[str, Any]) -> dict[str, Any]:
    """Pool and slots with the params' defaults: what a person sees in the DAG. The policy sets each run's own."""
    try:
        demand = evaluate(gang, None)
    except JobError:
        return {}
    return {"pool": demand.pool or "default_pool", "pool_slots": demand.slots}


def _replica(build: _Build, outline: GroupOutline, plan: PlanOperator, first: str | None) -> Any:
    offset = _offset(build.job, outline)
    common: dict[str, Any] = {
        "task_id": outline.task_id,
        "role": outline.role,
        "offset": offset,
        "group_id": build.group_id,
        "retries": outline.retries + WATCHER_RETRIES,
        "retry_delay": timedelta(seconds=seconds(build.job.retry_delay)),
        "retry_policy": ReplicaRetryPolicy(),
        "pool": "default_pool",
    }
    if not is_mapped(outline.role, outline.count):
        return ReplicaOperator(**common)
    common["map_index_template"] = f"{outline.role}-{{{{ ti.map_index + {offset} }}}}"
    if outline.count is not None:
        index: Any = list(range(outline.count))
    elif outline.task_id == first:
        index = plan.output
    else:
        index = IndexOperator(
            task_id=f"{outline.task_id}_index", of=outline.task_id, retries=2, retry_delay=SHORT, **build.shared
        ).output
    return ReplicaOperator.partial(**common).expand(index=index)


def _offset(job: TensorFlowJob, outline: GroupOutline) -> int:
    """Replica index of the first of a worker group. Only the last group's count varies from run to run."""
    before = itertools.takewhile(lambda other: other.task_id != outline.task_id, job.groups)
    return sum(other.count or 0 for other in before if other.role == outline.role)


def _callbacks(job: TensorFlowJob, around: Mapping[str, Any]) -> dict[str, Any]:
    """Those of default_args (`around`), and the job's notifiers: they belong to `result`, to be called once per job."""
    notifiers = {"failure": job.notify.on_failure, "success": job.notify.on_success}
    own = {event: [_notifier(job, each.notifier, each.kwargs) for each in found] for event, found in notifiers.items()}
    found = {event: [*_several(around.get(f"on_{event}_callback")), *own.get(event, [])] for event in EVENTS}
    return {f"on_{event}_callback": callbacks for event, callbacks in found.items() if callbacks}


def _several(callbacks: Any) -> list[Any]:
    """As Airflow reads them: none, one, or some."""
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Collection) else [callbacks]


def _notifier(job: TensorFlowJob, path: str, kwargs: Mapping[str, Any]) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)(**kwargs)
    except (ImportError, AttributeError, TypeError) as error:
        raise JobError(f"job {job.name}: notify: notifier = {path}: cannot be made: {error}") from None


def as_dag(job: TensorFlowJob, *, project_dir: Path, fileloc: str | None = None) -> DAG:
    """The DAG of a job file: one group, named `train`."""
    kwargs: dict[str, Any] = {} if job.max_active_runs is None else {"max_active_runs": int(job.max_active_runs)}
    with DAG(
        dag_id=job.name,
        description=job.description or f"TensorFlow job {job.name}",
        schedule=job.schedule,
        start_date=job.start_at,
        catchup=job.catchup,
        tags=sorted({"tensorflow", *job.tags}),
        max_active_tasks=most_tasks(job),
        # Else Airflow would also find a DAG that was left half-built by a fault, or dropped for a name used twice.
        auto_register=False,
        **kwargs,
    ) as dag:
        file = Path(job.source_file) if job.source_file else None
        as_task_group(job, "train", project_dir=project_dir, own_dag=True, file=file)
    if fileloc:
        dag.fileloc = fileloc
    return dag


def broken_dag(name: str, text: str) -> DAG:
    """Stands for a job file that cannot be read: visible in the UI, and fails with the reason when it is run."""
    with DAG(
        dag_id=re.sub(r"[^\w.-]", "-", name),
        description=text[:900],
        schedule=None,
        tags=["tensorflow", "invalid"],
        doc_md=f"```\n{text}\n```",
        auto_register=False,
    ) as dag:
        InvalidJobOperator(task_id="invalid_job_file", text=text, retries=0)
    return dag


class InvalidJobOperator(BaseOperator):
    """Fails with the fault of a job file."""

    def __init__(self, *, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    def execute(self, context: Any) -> None:
        """Say it, once more, where people look."""
        from airflow.sdk.exceptions import AirflowFailException

        raise AirflowFailException(self.text)
