"""What happened in a run of a job: who ran where and how long, with which cluster, to what result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from tf_operator.identity import ROLES
from tf_operator.services.api import AirflowApi
from tf_operator.services.api_data import Run, TaskState
from tf_operator.services.follow import lasted


@dataclass(frozen=True)
class Summary:
    """One run, collected. `members` are the replicas' messages by name, `result` the group's XCom."""

    run: Run
    tasks: list[TaskState]
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def replicas(self) -> list[TaskState]:
        """The replicas' tasks."""
        return [task for task in self.tasks if is_replica(task)]

    @property
    def overlap_seconds(self) -> float:
        """How long all replicas ran at the same time; negative where they did not."""
        starts = [task.start.timestamp() for task in self.replicas if task.start]
        ends = [task.end.timestamp() for task in self.replicas if task.end]
        return min(ends) - max(starts) if starts and ends else 0.0

    @property
    def accuracy(self) -> float | None:
        """What the program reported."""
        metrics = self.result.get("metrics") or {}
        value = metrics.get("accuracy", self.result.get("accuracy"))
        return float(value) if value is not None else None


def is_replica(task: TaskState) -> bool:
    """Whether the task runs a program."""
    return task.task_id.rpartition(".")[2].partition("_")[0] in ROLES and not task.task_id.endswith("_index")


def collect(api: AirflowApi, dag_id: str, run_id: str) -> Summary:
    """Read everything a summary needs."""
    run, tasks = api.run(dag_id, run_id), api.tasks(dag_id, run_id)
    summary = Summary(run, tasks)
    for task in tasks:
        short = task.task_id.rpartition(".")[2]
        if is_replica(task):
            summary.members[task.name] = api.xcom(dag_id, run_id, task.task_id, "member", task.map_index) or {}
        elif short == "cluster":
            summary.cluster.update(api.xcom(dag_id, run_id, task.task_id, "cluster") or {})
        elif short == "result":
            value = api.xcom(dag_id, run_id, task.task_id)
            summary.result.update(value if isinstance(value, dict) else {})
    return summary


def show(summary: Summary, console: Console) -> None:
    """Print it."""
    table = Table(title=f"{summary.run.dag_id} / {summary.run.run_id}: {summary.run.state}", title_justify="left")
    for name in ("task", "state", "started", "lasted", "try", "host", "pid", "address"):
        table.add_column(name)
    spec = summary.cluster.get("spec") or {}
    for task in summary.tasks:
        member = summary.members.get(task.name, {})
        table.add_row(
            task.name,
            task.state or "-",
            f"{task.start.astimezone():%H:%M:%S}" if task.start else "-",
            lasted(task),
            str(task.try_number),
            member.get("host") or task.hostname or "-",
            str(member.get("pid") or "-"),
            member.get("address", "-"),
        )
    console.print(table)
    console.print(
        "cluster    " + ("; ".join(f"{role}: {', '.join(spec[role])}" for role in spec) or "-"), soft_wrap=True
    )
    console.print(
        f"overlap    all {len(summary.replicas)} replicas ran side by side for {summary.overlap_seconds:.1f} s"
    )
    for holder in (task for task in summary.tasks if task.task_id.rpartition(".")[2] == "cluster"):
        console.print(f"slots      {holder.pool_slots} of pool {holder.pool}, held for {lasted(holder)}")
    console.print(f"generation {summary.result.get('generation', '-')}")
    console.print(f"model_dir  {summary.result.get('model_dir', '-')}", soft_wrap=True)
    if summary.accuracy is not None:
        console.print(f"accuracy   {summary.accuracy:.4f}")
