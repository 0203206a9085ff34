"""The job as a person writes it, in a file or in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, ValidationError, ValidationInfo, model_validator

from tf_operator import settings
from tf_operator.job_spec import checks, outline, rules
from tf_operator.job_spec.explain import faults_of, levels_of
from tf_operator.job_spec.faults import Source, explained
from tf_operator.job_spec.load import read_job_file
from tf_operator.job_spec.models import (
    Notify,
    Part,
    Program,
    Replicas,
    Restart,
    RunPolicy,
    Runtime,
    Scheduling,
    Secret,
)
from tf_operator.job_spec.params import ParamSpec, for_editors
from tf_operator.job_spec.rules import MaybeFixedText, MaybeText, form, words

if TYPE_CHECKING:
    from tf_operator.job_spec.rendered import RenderedJob

STRATEGIES = ("parameter_server", "multi_worker_mirrored", "between_graph", "in_graph", "none")


def _placed(path: str | os.PathLike[str]) -> Path:
    """Airflow's components are started in whatever folder: their DAG files name job files from the project's."""
    here = Path(path)
    if here.is_absolute() or here.exists():
        return here
    in_project = settings.project_dir() / here
    return in_project if in_project.exists() else here


class TensorFlowJob(Part):
    """A training job. All faults come as one JobError (JobFileError from a file), one line each."""

    name: Annotated[str, form(rules.NAME, "lower case letters, digits, . _ - beginning with a letter or digit", "no")]
    """Names the job and its DAG."""
    description: MaybeFixedText = None
    """The DAG's."""
    schedule: Annotated[str | None, rules.Rule(rules.schedule, {"type": "string"}, "no", none=True)] = None
    """The DAG's: a cron expression or a preset such as @daily. Default: only on demand."""
    start_date: Annotated[
        str | date | datetime | None,
        rules.Rule(rules.iso_date, {"type": "string", "description": "ISO 8601; UTC if no zone"}, "no", none=True),
    ] = None
    """The DAG's: ISO 8601, UTC if no zone is given."""
    catchup: rules.FixedFlag = False
    """The DAG's."""
    tags: list[rules.FixedText] = Field(default_factory=list)
    """The DAG's."""
    max_active_runs: rules.MaybePositive = None
    """The DAG's. Default: Airflow's."""
    strategy: Annotated[str | None, words(*STRATEGIES, templates="no", none=True)] = None
    """Decides who starts again when a replica is lost. Default: parameter_server with a ps, none without."""
    params: dict[str, Any] = Field(default_factory=dict)
    """JSON Schemas as for Airflow's Param, or bare defaults."""
    program: Program = Program()
    """What replicas run."""
    runtime: Runtime = Runtime()
    """How they are run."""
    replicas: Replicas
    """Who there is."""
    model_dir: MaybeText = None
    """Where checkpoints go; relative to the project. Default: models/<dag>/<group>/<run>."""
    secrets: list[Secret] = Field(default_factory=list)
    """References to secrets, for every replica."""
    retries: rules.FixedWhole = 3
    """Starts of a replica after its own faults."""
    retry_delay: rules.FixedDuration = "5s"
    """Between a replica's fault and its next start."""
    success_policy: Annotated[str, words("chief", "all_workers")] = "chief"
    """Whose success ends the job: the chief's (worker 0's where there is none), or the chief's and all workers'."""
    restart_policy: Restart = "on_failure"
    """on_failure: any non-zero exit; exit_code: not 1 to 127; never."""
    run_policy: RunPolicy = RunPolicy()
    """Deadlines and limits."""
    scheduling: Scheduling = Scheduling()
    """Pool and slots."""
    notify: Notify = Notify()
    """Airflow notifiers."""
    tf_config: rules.FixedFlag = True
    """false leaves TF_CONFIG out; for a single replica only."""

    _source: Source = PrivateAttr(default_factory=Source)

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        source = info.context if isinstance(info.context, Source) else Source()
        name = data.get("name") if isinstance(data, Mapping) else None
        if unfit := checks.text_faults(data):
            raise explained(unfit, name, source)
        found = [] if source.rendered else checks.template_faults(data)
        try:
            job = handler(data)
        except ValidationError as error:
            raise explained([*faults_of(error, levels_of(cls)), *found], name, source) from None
        found += checks.combination_faults(job, rendered=source.rendered)
        if found:
            raise explained(found, name, source)
        job._source = source
        return job

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TensorFlowJob:
        """Read a YAML or JSON file; a relative path that is not here starts at the project's folder.

        JobFileError tells every fault with its line.
        """
        data, source = read_job_file(_placed(path))
        return cls.model_validate(data, context=source)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of a job file, for editors."""
        schema = cls.model_json_schema()
        schema["$defs"]["ParamSchema"] = for_editors()
        is_schema = {"if": {"type": "object"}, "then": {"$ref": "#/$defs/ParamSchema"}}
        schema["properties"]["params"]["additionalProperties"] = is_schema
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

    @property
    def source_file(self) -> str | None:
        """The file it was read from; None where it was made in Python."""
        return self._source.file

    @cached_property
    def param_specs(self) -> dict[str, ParamSpec]:
        """The declared params, in file order."""
        return {name: ParamSpec.read(name, declared) for name, declared in self.params.items()}

    @property
    def groups(self) -> list[outline.GroupOutline]:
        """What can be said of the replica tasks before any run: ids, counts or the param they come from, retries."""
        return outline.groups(self)

    @property
    def start_at(self) -> datetime | None:
        """`start_date` with its zone."""
        value = self.start_date
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def gang(self, param_prefix: str = "") -> dict[str, Any]:
        """What `tf_operator.gang.evaluate` works a run's pool and slots out from; plain JSON."""
        return outline.gang(self, param_prefix)

    def as_task_group(self, group_id: str, *, param_prefix: str = "") -> Any:
        """The job as a task group of the DAG being defined; see `tf_operator.task_group.as_task_group`."""
        # By name: this package stays free of Airflow, for everybody who only reads jobs.
        return import_module("tf_operator.task_group").as_task_group(self, group_id, param_prefix=param_prefix)

    def render(self, context: Mapping[str, Any], *, project_dir: Path, params: Mapping[str, Any]) -> RenderedJob:
        """Fill in one run's values. `params` are the run's own; JobError tells every value that does not fit."""
        from tf_operator.job_spec.render import render

        return render(self, context, project_dir, params)
