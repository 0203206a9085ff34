"""The parts of a job as a person writes them; `job.TensorFlowJob` is the whole.

Values stay as written, templates included: see `rules`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetJsonSchemaHandler, Tag, model_validator
from pydantic_core import core_schema

from tf_operator.job_spec import rules
from tf_operator.job_spec.faults import folded_role
from tf_operator.job_spec.rules import (
    AtMostOne,
    Command,
    Count,
    Cpus,
    Deadline,
    Duration,
    EnvValue,
    FileMode,
    FixedWhole,
    Gpus,
    MaybeDeadline,
    MaybeFixedWhole,
    MaybeText,
    Memory,
    Pool,
    Slots,
    Whole,
    form,
    words,
)

Restart = Annotated[str, words("on_failure", "exit_code", "never")]
MaybeRestart = Annotated[str | None, words("on_failure", "exit_code", "never", none=True)]
Env = dict[Annotated[str, form(rules.ENV_NAME, "the name of an environment variable", "no")], EnvValue]


class Part(BaseModel):
    """What all parts have in common: unknown keys are refused, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Program(Part):
    """What a replica runs."""

    command: Command = None
    """Program and arguments, passed literally: no shell, no file lookup. A leading `python` is runtime.python."""
    working_dir: MaybeText = None
    """Where the program starts; relative to the project. Default: the project."""
    env: Env = Field(default_factory=dict)
    """Environment variables, beside those the product sets."""
    on_renewal: Annotated[str | None, words("SIGHUP", "SIGUSR1", "SIGUSR2", none=True)] = None
    """Sent to the program's first process when a secret file was replaced, because its lease could not be renewed."""


class Mount(Part):
    """A directory of the host in the container."""

    source: Annotated[str, rules.Rule(rules.text, {"type": "string"})]
    target: Annotated[str, rules.Rule(rules.text, {"type": "string"})]
    read_only: Annotated[bool, rules.Rule(rules.boolean, {"type": "boolean"})] = False


class Runtime(Part):
    """How programs are run: as processes of the Airflow worker, or in containers."""

    kind: Annotated[str, words("process", "docker", "swarm")] = "process"
    python: MaybeText = None
    """process: the interpreter that stands for a leading `python`. Default: the one on PATH."""
    image: MaybeText = None
    """docker, swarm: the image; required."""
    user: Annotated[str | None, form(rules.USER, "uid or uid:gid, as text", none=True)] = None
    """docker, swarm: uid or uid:gid the program runs as. Default: the worker's; 10001 where the worker is root."""
    shm_size: Memory = None
    """docker, swarm: size of /dev/shm."""
    pull_policy: Annotated[str | None, words("missing", "always", "never", none=True)] = None
    """docker, swarm: when the image is pulled."""
    mounts: list[Mount] | None = None
    """docker, swarm: directories of the host to mount. working_dir and model_dir are there without being named."""
    read_only: Annotated[bool | None, rules.Rule(rules.boolean, {"type": "boolean"}, none=True)] = None
    """docker: the image's own files cannot be changed; /tmp is in memory."""
    outbound: Annotated[bool | None, rules.Rule(rules.boolean, {"type": "boolean"}, none=True)] = None
    """docker: the program may open connections to the outside. Default: the run's own network only."""
    ulimits: dict[str, Annotated[str | int, rules.Rule(rules.ulimit, rules.ULIMIT)]] | None = None
    """docker: limits by name (nofile: 65536), or "soft:hard"."""
    docker_conn_id: MaybeText = None
    """docker: the Airflow connection of the registry to log in to."""
    constraints: list[Annotated[str, rules.Rule(rules.text, {"type": "string"})]] | None = None
    """swarm: placement constraints."""


class Replica(Part):
    """Replicas of one type that are alike. What is left out is the job's."""

    replicas: Count = 1
    """How many."""
    cpus: Cpus = None
    """Cores. process: number of threads, no reservation."""
    memory: Memory = None
    """Most memory a replica may use, as 2GiB."""
    gpus: Gpus = 0
    """GPUs per replica; 0.5 is a share of one."""
    command: Command = None
    """Short for program.command."""
    env: Env = Field(default_factory=dict)
    """Added to program.env."""
    program: Program | None = None
    """Replaces parts of the job's program."""
    runtime: Runtime | None = None
    """Replaces parts of the job's runtime; another kind replaces all of it."""
    restart_policy: MaybeRestart = None
    """Default: the job's."""
    retries: MaybeFixedWhole = None
    """Default: the job's."""


class SingleReplica(Replica):
    """A replica type of which a job has at most one."""

    replicas: AtMostOne = 1
    """0 or 1."""


class WorkerGroup(Replica):
    """Some of the workers: one task `worker_<name>`, indexes running on in file order."""

    name: Annotated[str, form(rules.GROUP_NAME, "a group's name", "no")]
    """Names the group's task."""


def _worker_kind(value: object) -> str:
    return "<groups>" if isinstance(value, list | tuple) else "<one>"


Worker = Annotated[
    Annotated[Replica, Tag("<one>")] | Annotated[list[WorkerGroup], Field(min_length=1), Tag("<groups>")],
    Discriminator(_worker_kind),
]


class Replicas(Part):
    """Replica types, in any case; `master` is read as chief."""

    chief: SingleReplica | None = None
    worker: Worker | None = None
    """One entry, or a list of named groups that share one index space."""
    ps: Replica | None = None
    evaluator: SingleReplica | None = None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        roles = schema["properties"]
        roles["master"] = {**roles["chief"], "description": "chief"}
        schema["patternProperties"] = {
            "^" + "".join(f"[{letter}{letter.upper()}]" for letter in role) + "$": kind for role, kind in roles.items()
        }
        return schema

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        folded: dict[Any, Any] = {}
        for key, value in data.items():
            role = folded_role(key) if isinstance(key, str) else key
            if role in folded:
                twins = [key for key in data if isinstance(key, str) and folded_role(key) == role]
                raise ValueError(f"{role} is given twice, as {' and '.join(twins)}; keep one")
            if value is None:
                raise ValueError(f"{role} is empty; write {role}: {{replicas: 1}}, or leave it out")
            folded[role] = value
        return folded


class Secret(Part):
    """A reference to a secret in Vault or OpenBao; its value is read when a replica starts."""

    vault: Annotated[str, form(r"^[^#]*[^#/][^#]*#[^#]+$", "path#key")]
    """path#key."""
    env: Annotated[str | None, form(rules.ENV_NAME, "the name of an environment variable", none=True)] = None
    """The variable that gets the value; either this or file."""
    file: Annotated[str | None, form(r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", "a file name without folders", none=True)] = None
    """The file below TF_OPERATOR_SECRETS_DIR that gets the value; either this or env."""
    decode: Annotated[str | None, words("base64", "json", none=True)] = None
    """How the stored value is decoded."""
    mode: FileMode = "0400"
    """Of the file, octal, in quotes."""
    connection: Annotated[str, rules.Rule(rules.text, {"type": "string"})] = "vault_default"
    """The Airflow connection of type vault."""
    mount: MaybeText = None
    """The secrets engine's mount. Default: asked from the server."""
    kv: Annotated[int | str | None, rules.Rule(rules.whole(1, 2), {"enum": [1, 2]}, none=True)] = None
    """Version of the KV engine. Default: asked from the server."""
    version: Annotated[int | str | None, rules.Rule(rules.whole(1), {"type": "integer", "minimum": 1}, none=True)] = (
        None
    )
    """KV version 2: which version of the secret. Default: the newest."""


class RunPolicy(Part):
    """Deadlines and limits of one run; null where a deadline may be none."""

    schedule_timeout: MaybeDeadline = "12h"
    """How long to wait for the pool's slots."""
    start_timeout: Deadline = "10m"
    """From admission until all replicas are ready; past it everything is let go, and the job tries again."""
    active_deadline: MaybeDeadline = None
    """How long the job may hold its slots, in all attempts together."""
    stall_timeout: MaybeDeadline = None
    """How long the deciding replica may show no sign of life before all start again."""
    backoff_limit: Whole = 3
    """How often peers are started again because of a loss; how often the job tries again after a start_timeout."""
    termination_grace: Duration = "30s"
    """From TERM to KILL."""
    evaluator_grace: Duration = "0s"
    """How long an evaluator may go on after the job succeeded."""
    orphan_timeout: Deadline = "15m"
    """How long a program lives without a watcher."""
    clean_policy: Annotated[str, words("all", "keep_failed")] = "all"
    """What is removed of ended programs: everything, or not those that failed."""


class Scheduling(Part):
    """Where the job's slots come from."""

    pool: Pool = None
    """Airflow pool. Default: gpu where GPUs or slots are asked for, else Airflow's default pool."""
    slots: Slots = None
    """Slots held there. Default: the sum of gpus x the pool's slots_per_gpu, at least 1."""
    priority: FixedWhole = 1
    """Airflow's priority_weight: higher goes first."""


class Notifier(BaseModel):
    """An Airflow notifier and its arguments; its templates are Airflow's, and left to it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    notifier: Annotated[str, form(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", "the import path of a notifier class", "no")]

    @property
    def kwargs(self) -> dict[str, Any]:
        """What the notifier is made with."""
        return dict(self.model_extra or {})


class _OneOrMore:
    def __get_pydantic_json_schema__(
        self, core: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        listed = handler(core)
        return {"anyOf": [listed["items"], listed]}


Notifiers = Annotated[list[Notifier], _OneOrMore()]


class Notify(Part):
    """Who is told how the job ended, once per job."""

    on_failure: Notifiers = Field(default_factory=list)
    on_success: Notifiers = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: [value] if isinstance(value, dict) else value for key, value in data.items()}
