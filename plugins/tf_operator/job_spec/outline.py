"""What a job tells before any run exists: its tasks, and the formula of its slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tf_operator.identity import ROLES
from tf_operator.job_spec.document import Path
from tf_operator.job_spec.models import Replica
from tf_operator.job_spec.params import NO_DEFAULT, ParamSpec
from tf_operator.job_spec.rules import MOST_REPLICAS
from tf_operator.job_spec.templates import is_template, param_ref

if TYPE_CHECKING:
    from tf_operator.job_spec.job import TensorFlowJob

WATCHER_RETRIES = 10
"""Tries of a replica's watcher beyond the job's `retries`: one that was killed uses one, its program does not."""


@dataclass(frozen=True)
class GroupOutline:
    """One replica task. `count` is None where `count_param` gives it in each run."""

    task_id: str
    role: str
    count: int | None
    count_param: str | None
    retries: int
    path: Path
    replica: Replica


def groups(job: TensorFlowJob) -> list[GroupOutline]:
    """All replica tasks in role order, worker groups in file order, those of count 0 included."""
    found = []
    for role in ROLES:
        entry = getattr(job.replicas, role)
        if isinstance(entry, list):
            for index, group in enumerate(entry):
                found.append(_outline(job, f"{role}_{group.name}", role, ("replicas", role, index), group))
        elif entry is not None:
            found.append(_outline(job, role, role, ("replicas", role), entry))
    return found


def _outline(job: TensorFlowJob, task_id: str, role: str, path: Path, replica: Replica) -> GroupOutline:
    count_param = param_ref(replica.replicas)
    return GroupOutline(
        task_id=task_id,
        role=role,
        count=None if count_param else int(replica.replicas),
        count_param=count_param,
        retries=job.retries if replica.retries is None else replica.retries,
        path=path,
        replica=replica,
    )


GANG_EXTRA_TASKS = 6


def most_tasks(job: TensorFlowJob) -> int:
    """The `max_active_tasks` of the job's DAG, which must never hold back a part of a gang."""
    most = 0
    for group in groups(job):
        most += group.count if group.count is not None else _most(job.param_specs[group.count_param or ""])
    return max(16, most + GANG_EXTRA_TASKS)


def _most(spec: ParamSpec) -> int:
    """The most a count may be in a run. Where there is no maximum, a default beyond what is usual tells."""
    usual = max(64, spec.default) if isinstance(spec.default, int) else 64
    return int(min(spec.schema.get("maximum", usual), MOST_REPLICAS))


def strategy(job: TensorFlowJob) -> str:
    """The strategy in force: where none is given, parameter_server for a job with a ps, else none."""
    if job.strategy is not None:
        return job.strategy
    ps = job.replicas.ps
    return "parameter_server" if ps is not None and known(ps.replicas, job.param_specs) != 0 else "none"


def known(value: Any, specs: Mapping[str, ParamSpec]) -> Any:
    """A literal, or the default of the param it names; None where only a run can tell."""
    if not is_template(value):
        return value
    spec = specs.get(param_ref(value) or "")
    return None if spec is None or spec.default is NO_DEFAULT else spec.default


def gang(job: TensorFlowJob, prefix: str = "") -> dict[str, Any]:
    """The formula of the job's pool and slots, with the defaults of its params; `prefix` goes before their names."""
    defaults: dict[str, Any] = {}

    def source(value: Any) -> Any:
        name = param_ref(value)
        if name is None:
            return value
        default = job.param_specs[name].default
        defaults[prefix + name] = None if default is NO_DEFAULT else default
        return {"param": prefix + name}

    terms = [{"count": source(g.replica.replicas), "gpus": source(g.replica.gpus)} for g in groups(job)]
    pool, slots = source(job.scheduling.pool), source(job.scheduling.slots)
    return {"job": job.name, "pool": pool, "slots": slots, "terms": terms, "defaults": defaults}
