"""The job after params and templates: no template left, every default filled in, everything checked.

This is what plan hands to the other tasks (as JSON), what `local` runs, and what cluster_spec, membership and the
runners read. It is data only: nothing here reads a file or a clock.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tf_operator.errors import JobError
from tf_operator.identity import ReplicaId

Strategy = Literal["parameter_server", "multi_worker_mirrored", "between_graph", "in_graph", "none"]
RestartPolicy = Literal["on_failure", "exit_code", "never"]
WHOLE_SECRET = "*"
"""In place of a secret's key: all of it, as a JSON object."""
SERVERS_OWN = ("auth", "sys", "identity")
"""How paths begin that are no secrets of a job, but may give the login's token (`auth/token/lookup-self`)."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RenderedRuntime(_Data):
    """How the program is run. Options a kind does not know are refused when the job is read."""

    kind: Literal["process", "docker", "swarm"] = "process"
    python: str | None = None
    """process: absolute path of the interpreter that stands for a leading `python` in the command."""
    image: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    """docker, swarm: further options (mounts, shm_size, user, pull_policy ...)."""


class RenderedSecret(_Data):
    """A reference, never a value. `path` is as the user wrote it, without the key."""

    path: str
    key: str
    connection: str = "vault_default"
    mount: str | None = None
    kv: Literal[1, 2] | None = None
    version: int | None = None
    env: str | None = None
    file: str | None = None
    decode: Literal["base64", "json"] | None = None
    mode: int = 0o400


class ReplicaGroup(_Data):
    """Replicas of one role that are alike: one (mapped) Airflow task. `offset` is the index of the first."""

    task_id: str
    """`chief`, `worker`, `ps`, `evaluator`, or `worker_<name>` for a named worker group."""
    role: str
    offset: int = 0
    count: int
    command: list[str]
    working_dir: str
    env: dict[str, str] = Field(default_factory=dict)
    on_renewal: Literal["SIGHUP", "SIGUSR1", "SIGUSR2"] | None = None
    runtime: RenderedRuntime = RenderedRuntime()
    cpus: float | None = None
    memory: int | None = None
    """Bytes."""
    gpus: float = 0
    retries: int = 3
    restart_policy: RestartPolicy = "on_failure"

    @property
    def replicas(self) -> list[ReplicaId]:
        """The replicas of the group, in index order."""
        return [ReplicaId(self.role, self.offset + i) for i in range(self.count)]


class RenderedRunPolicy(_Data):
    """Deadlines in seconds; None = no deadline."""

    schedule_timeout: float | None = 12 * 3600
    start_timeout: float = 600
    active_deadline: float | None = None
    stall_timeout: float | None = None
    backoff_limit: int = 3
    termination_grace: float = 30
    evaluator_grace: float = 0
    orphan_timeout: float = 900
    clean_policy: Literal["all", "keep_failed"] = "all"

    def silence(self, unserved: bool) -> tuple[float | None, str]:
        """How long the deciding replica may show no sign of life, and the field that says so.

        `unserved`: a server it may be waiting for has ended.
        """
        if self.stall_timeout is None and unserved:
            return self.start_timeout, "start_timeout"
        return self.stall_timeout, "stall_timeout"


class RenderedScheduling(_Data):
    """`slots` is set where the user said it; otherwise the sum of gpus x the pool's slots_per_gpu."""

    pool: str | None = None
    slots: int | None = None
    priority: int = 1


class RenderedJob(_Data):
    """One job, ready to run."""

    name: str
    strategy: Strategy
    groups: list[ReplicaGroup]
    """In role order (chief, worker, ps, evaluator), worker groups in file order. Groups of count 0 are kept."""
    model_dir: str
    """Absolute path."""
    secrets: list[RenderedSecret] = Field(default_factory=list)
    retry_delay: float = 5.0
    success_policy: Literal["chief", "all_workers"] = "chief"
    run_policy: RenderedRunPolicy = RenderedRunPolicy()
    scheduling: RenderedScheduling = RenderedScheduling()
    tf_config: bool = True
    params: dict[str, Any] = Field(default_factory=dict)
    """The effective params, for the record."""

    @property
    def replicas(self) -> list[ReplicaId]:
        """All replicas in role order, then index order."""
        return [replica for group in self.groups for replica in group.replicas]

    def group_of(self, replica: ReplicaId) -> ReplicaGroup:
        """The group that holds `replica`; JobError if there is none."""
        for group in self.groups:
            if group.role == replica.role and 0 <= replica.index - group.offset < group.count:
                return group
        raise JobError(f"job {self.name}: there is no replica {replica}")

    @property
    def decider(self) -> ReplicaId:
        """Whose end decides the job under success_policy `chief`: the chief, else worker 0, else the first replica."""
        by_role = {replica.role: replica for replica in reversed(self.replicas)}
        return by_role.get("chief") or by_role.get("worker") or self.replicas[0]
