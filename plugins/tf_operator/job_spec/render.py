"""From the job as written and one run's values to the job that is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_operator.job_spec import checks, document, outline, rendered, templates, units
from tf_operator.job_spec.faults import Fault, Source, explained
from tf_operator.job_spec.params import effective

if TYPE_CHECKING:
    from tf_operator.job_spec.job import TensorFlowJob
    from tf_operator.job_spec.models import Program, Replica, Secret


def plain_context(name: str, run_id: str, moment: datetime) -> dict[str, Any]:
    """What a template finds in a run without Airflow: the names Airflow has, for a run at `moment`."""
    run = {"run_id": run_id, "logical_date": moment, "run_after": moment, "conf": {}, "run_type": "manual"}
    return {
        "dag": {"dag_id": name},
        "dag_run": run,
        "run_id": run_id,
        "task_group_id": "",
        **dates(moment),
    }


def dates(moment: datetime) -> dict[str, Any]:
    """The names that tell a run's date. Airflow leaves them out where a run has none: one that was triggered."""
    return {
        "logical_date": moment,
        "data_interval_start": moment,
        "data_interval_end": moment,
        "ds": moment.strftime("%Y-%m-%d"),
        "ds_nodash": moment.strftime("%Y%m%d"),
        "ts": moment.isoformat(),
        "ts_nodash": moment.strftime("%Y%m%dT%H%M%S"),
        "ts_nodash_with_tz": moment.isoformat().replace("-", "").replace(":", ""),
    }


def render(
    job: TensorFlowJob, context: Mapping[str, Any], project_dir: Path, given: Mapping[str, Any]
) -> rendered.RenderedJob:
    """Fill in params and templates, check the result by the rules of the file, and convert it."""
    source = Source(job._source.file, job._source.lines, rendered=True)
    params, wrong = effective(job.param_specs, given)
    if wrong:
        raise explained([Fault(("params", name), rule, value) for name, value, rule in wrong], job.name, source)
    filling = _Filling({**context, "params": templates.ParamValues(params)})
    tree = {
        key: filling.fill(value, (key,)) if key in checks.RENDERED_FIELDS else value
        for key, value in job.model_dump(exclude_unset=True).items()
    }
    if filling.faults:
        raise explained(filling.faults, job.name, source)
    filled = type(job).model_validate(tree, context=source)
    return _convert(filled, context, Path(project_dir), params)


class _Filling:
    """Fills templates in, and collects what is wrong with them."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._context = context
        self.faults: list[Fault] = []

    def fill(self, value: Any, path: document.Path) -> Any:
        if isinstance(value, Mapping):
            return {key: self.fill(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            filled = [self.fill(item, (*path, index)) for index, item in enumerate(value)]
            return [_as_text(item) for item in filled] if path[-1] == "command" else filled
        if not templates.is_template(value):
            return value
        try:
            filled = templates.render(value, self._context)
        except ValueError as error:
            self.faults.append(Fault(path, str(error), value))
            return value
        if path[-1] == "command" and isinstance(filled, list):
            return [_as_text(item) for item in filled]
        is_text = path[-1] in _TEXTS or (len(path) > 1 and path[-2] == "env")
        return _as_text(filled) if is_text else _whole(filled)


_TEXTS = frozenset({"model_dir", "working_dir"})


def _as_text(value: Any) -> Any:
    return value if value is None or isinstance(value, list | Mapping) else str(value)


def _whole(value: Any) -> Any:
    # Arithmetic in a template, and JSON from a form, give 3.0 where 3 is meant.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _convert(
    job: TensorFlowJob, context: Mapping[str, Any], project_dir: Path, params: dict[str, Any]
) -> rendered.RenderedJob:
    policy = job.run_policy
    return rendered.RenderedJob(
        name=job.name,
        strategy=outline.strategy(job),  # type: ignore[arg-type]
        groups=_groups(job, project_dir),
        model_dir=_absolute(job.model_dir or _default_model_dir(job, context), project_dir),
        secrets=[_secret(secret) for secret in job.secrets],
        retry_delay=units.seconds(job.retry_delay),
        success_policy=job.success_policy,  # type: ignore[arg-type]
        run_policy=rendered.RenderedRunPolicy(
            schedule_timeout=_maybe_seconds(policy.schedule_timeout),
            start_timeout=units.seconds(policy.start_timeout),
            active_deadline=_maybe_seconds(policy.active_deadline),
            stall_timeout=_maybe_seconds(policy.stall_timeout),
            backoff_limit=int(policy.backoff_limit),
            termination_grace=units.seconds(policy.termination_grace),
            evaluator_grace=units.seconds(policy.evaluator_grace),
            orphan_timeout=units.seconds(policy.orphan_timeout),
            clean_policy=policy.clean_policy,  # type: ignore[arg-type]
        ),
        scheduling=_scheduling(job),
        tf_config=job.tf_config,
        params=params,
    )


def _maybe_seconds(text: str | None) -> float | None:
    return None if text is None else units.seconds(text)


def _scheduling(job: TensorFlowJob) -> rendered.RenderedScheduling:
    from tf_operator.gang import DEFAULT_POOL

    slots = None if job.scheduling.slots is None else int(job.scheduling.slots)
    asks = slots is not None or any(group.count and float(group.replica.gpus) > 0 for group in outline.groups(job))
    pool = job.scheduling.pool or (DEFAULT_POOL if asks else None)
    return rendered.RenderedScheduling(pool=pool, slots=slots, priority=job.scheduling.priority)


def _groups(job: TensorFlowJob, project_dir: Path) -> list[rendered.ReplicaGroup]:
    groups: list[rendered.ReplicaGroup] = []
    offsets: dict[str, int] = {}
    for group in outline.groups(job):
        count = group.count or 0
        replica = group.replica
        runtime = _runtime(job, replica, project_dir)
        groups.append(
            rendered.ReplicaGroup(
                task_id=group.task_id,
                role=group.role,
                offset=offsets.get(group.role, 0),
                count=count,
                command=_command(job, replica, runtime),
                working_dir=_absolute(_working_dir(job.program, replica.program), project_dir),
                env=_env(job.program, replica),
                on_renewal=_on_renewal(job.program, replica.program),  # type: ignore[arg-type]
                runtime=runtime,
                cpus=None if replica.cpus is None else float(replica.cpus),
                memory=None if replica.memory is None else units.memory_bytes(replica.memory),
                gpus=float(replica.gpus),
                retries=group.retries,
                restart_policy=replica.restart_policy or job.restart_policy,  # type: ignore[arg-type]
            )
        )
        offsets[group.role] = offsets.get(group.role, 0) + count
    return groups


def _command(job: TensorFlowJob, replica: Replica, runtime: rendered.RenderedRuntime) -> list[str]:
    command = [str(argument) for argument in checks.command_of(job.program, replica.program, replica.command) or ()]
    if command and command[0] == "python" and runtime.python:
        command[0] = runtime.python
    return command


def _working_dir(job: Program, own: Program | None) -> str:
    return (own.working_dir if own is not None else None) or job.working_dir or "."


def _on_renewal(job: Program, own: Program | None) -> str | None:
    return (own.on_renewal if own is not None else None) or job.on_renewal


def _env(job: Program, replica: Replica) -> dict[str, str]:
    own = replica.program.env if replica.program is not None else {}
    return {name: str(value) for name, value in {**job.env, **own, **replica.env}.items()}


def _runtime(job: TensorFlowJob, replica: Replica, project_dir: Path) -> rendered.RenderedRuntime:
    base = job.runtime.model_dump(exclude_unset=True)
    own = replica.runtime.model_dump(exclude_unset=True) if replica.runtime is not None else {}
    kind = base.get("kind", "process")
    together = own if own.get("kind", kind) != kind else {**base, **own}
    options = {key: value for key, value in together.items() if value is not None}
    kind, python, image = options.pop("kind", "process"), options.pop("python", None), options.pop("image", None)
    if python is not None and "/" in python:
        python = _absolute(python, project_dir)
    if "shm_size" in options:
        options["shm_size"] = units.memory_bytes(options["shm_size"])
    if "mounts" in options:
        options["mounts"] = [
            {**mount, "source": _absolute(mount["source"], project_dir)} for mount in options["mounts"]
        ]
    return rendered.RenderedRuntime(kind=kind, python=python, image=image, options=options)


def _secret(secret: Secret) -> rendered.RenderedSecret:
    path, _, key = secret.vault.partition("#")
    return rendered.RenderedSecret(
        path=path,
        key=key,
        connection=secret.connection,
        mount=secret.mount,
        kv=secret.kv,  # type: ignore[arg-type]
        version=None if secret.version is None else int(secret.version),
        env=secret.env,
        file=secret.file,
        decode=secret.decode,  # type: ignore[arg-type]
        mode=int(secret.mode, 8),
    )


def _absolute(path: str, project_dir: Path) -> str:
    # Without following links: a virtual environment's bin/python is one, and leads out of the environment.
    parts = (project_dir / Path(path).expanduser()).parts
    kept: list[str] = []
    for part in parts:
        if part == ".." and len(kept) > 1:
            kept.pop()
        elif part != "..":
            kept.append(part)
    return str(Path(*kept))


def _default_model_dir(job: TensorFlowJob, context: Mapping[str, Any]) -> str:
    dag = context.get("dag")
    dag_id = dag.get("dag_id") if isinstance(dag, Mapping) else getattr(dag, "dag_id", None)
    names = (dag_id or job.name, context.get("task_group_id"), context.get("run_id"))
    return "/".join(["models", *(_path_part(str(name)) for name in names if name)])


def _path_part(name: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._=-]", "-", name)
    return "-" + readable[1:] if readable.startswith(".") else readable
