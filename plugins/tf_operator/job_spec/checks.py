"""Rules that join several values of a job. They run on the job as written, with the defaults of its params, and again
on the job as rendered for one run."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tf_operator.job_spec import outline, rules, templates
from tf_operator.job_spec.document import Path, unfit_texts
from tf_operator.job_spec.faults import ABSENT, Fault, folded_path
from tf_operator.job_spec.params import NO_DEFAULT
from tf_operator.job_spec.rendered import SERVERS_OWN, WHOLE_SECRET

if TYPE_CHECKING:
    from collections.abc import Callable

    from tf_operator.job_spec.job import TensorFlowJob
    from tf_operator.job_spec.models import Program

RENDERED_FIELDS = (
    "program",
    "runtime",
    "replicas",
    "model_dir",
    "secrets",
    "success_policy",
    "restart_policy",
    "run_policy",
    "scheduling",
)
"""The parts of a job in which a template may stand."""

RUNTIME_KEYS = {
    "process": {"kind", "python"},
    "docker": {
        *("kind", "image", "user", "shm_size", "pull_policy", "mounts", "read_only", "ulimits", "docker_conn_id"),
        "outbound",
    },
    "swarm": {"kind", "image", "user", "shm_size", "pull_policy", "mounts", "constraints"},
}

_NEEDS: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "parameter_server": ((("chief", "worker"), "a chief or a worker"), (("ps",), "a ps")),
    "multi_worker_mirrored": ((("worker",), "a worker"),),
    "between_graph": ((("chief", "worker"), "a chief or a worker"), (("ps",), "a ps")),
    "in_graph": ((("chief",), "a chief"), (("worker",), "a worker")),
}

PATHS = ("model_dir", "working_dir", "python", "source")

LONGEST_TAG = 100
"""Characters; as much as Airflow's database keeps."""


def template_faults(data: Any) -> list[Fault]:
    """What is wrong with the templates of a job as written: broken ones, and params nobody declared."""
    if not isinstance(data, Mapping):
        return []
    declared = data.get("params")
    declared = declared if isinstance(declared, Mapping) else {}
    faults = []
    for part in RENDERED_FIELDS:
        for path, text in strings(data.get(part), (part,)):
            try:
                templates.check(text, declared)
            except ValueError as error:
                faults.append(Fault(folded_path(path), str(error), text))
    return faults


def text_faults(data: Any) -> list[Fault]:
    """Texts that fail wherever they get to."""
    if isinstance(data, Mapping):
        data = {key: part.model_dump() if isinstance(part, BaseModel) else part for key, part in data.items()}
    return [Fault(folded_path(path), rule, text) for path, text, rule in unfit_texts(data)]


def strings(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Every text below `value` in which Jinja would see something."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from strings(item, (*path, index))
    elif templates.is_template(value):
        yield path, value


def combination_faults(job: TensorFlowJob, *, rendered: bool) -> list[Fault]:
    """Everything that only several values together show."""
    if not rendered:
        faults = [*_params(job), *_param_defaults(job), *_varying_groups(job), *_dag(job)]
        if faults:
            return faults
    return [
        *_counts(job),
        *_strategy(job),
        *_programs(job),
        *_runtimes(job),
        *_env(job),
        *_secrets(job),
        *_secret_paths(job),
        *_paths(job),
        *(_homes(job.model_dump(exclude_unset=True), ()) if rendered else ()),
    ]


def _params(job: TensorFlowJob) -> Iterator[Fault]:
    for name, spec in job.param_specs.items():
        path = ("params", name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Fault(path, "a param's name must be letters, digits and _; rename it")
            continue
        try:
            spec.check()
        except ValueError as error:
            yield Fault(path, str(error), spec.default if spec.default is not NO_DEFAULT else ABSENT)
        if spec.default is NO_DEFAULT and job.schedule is not None:
            yield Fault(path, "has no default, which a scheduled run needs; add default: or remove schedule:")


def _dag(job: TensorFlowJob) -> Iterator[Fault]:
    """What Airflow would refuse of the job's DAG."""
    if job.catchup and job.schedule is not None and job.start_date is None:
        yield Fault(("catchup",), "needs to know where to begin; add start_date: or remove catchup:", job.catchup)
    if job.schedule == "@continuous" and job.max_active_runs != 1:
        yield Fault(("schedule",), "runs one after the other; add max_active_runs: 1", job.schedule)
    for number, tag in enumerate(job.tags):
        if len(tag) > LONGEST_TAG:
            yield Fault(("tags", number), f"must be at most {LONGEST_TAG} characters; shorten it", tag)


def _varying_groups(job: TensorFlowJob) -> Iterator[Fault]:
    workers = [group for group in outline.groups(job) if group.role == "worker"]
    for group, after in itertools.pairwise(workers):
        if group.count is None:
            rule = f"only the last worker group's count can be a param, as the indexes of {after.task_id} begin where"
            yield Fault((*group.path, "replicas"), f"{rule} {group.task_id}'s end; put it last", group.replica.replicas)


def _param_defaults(job: TensorFlowJob) -> Iterator[Fault]:
    uses: list[tuple[Path, Any, Callable[[Any], object]]] = [
        (("scheduling", "slots"), job.scheduling.slots, rules.whole(1)),
        (("scheduling", "pool"), job.scheduling.pool, rules.text),
    ]
    for group in outline.groups(job):
        count = rules.whole(0, 1) if group.role in ("chief", "evaluator") else rules.replica_count
        uses.append(((*group.path, "replicas"), group.replica.replicas, count))
        uses.append(((*group.path, "gpus"), group.replica.gpus, rules.gpu_count))
    for path, value, rule in uses:
        name = templates.param_ref(value)
        if name is None or name not in job.param_specs or (default := job.param_specs[name].default) is NO_DEFAULT:
            continue
        try:
            rule(int(default) if isinstance(default, float) and default == default // 1 else default)
        except ValueError as error:
            yield Fault(path, f"with the default {default!r} of params.{name}, {error}", value)


def _counts(job: TensorFlowJob) -> Iterator[Fault]:
    counts = role_counts(job)
    if None not in counts.values():
        total = sum(count or 0 for count in counts.values())
        if total == 0:
            yield Fault(("replicas",), "no replica requested; set the replicas of at least one type to 1 or more")
        if total > rules.MOST_REPLICAS:
            yield Fault(("replicas",), f"{total} replicas in all; must be at most {rules.MOST_REPLICAS}; lower them")
        if total > 1 and not job.tf_config:
            yield Fault(
                ("tf_config",), f"TF_CONFIG may be left out only for a single replica, not {total}; remove it", False
            )
    if job.success_policy == "all_workers" and counts.get("chief", 0) == 0 and counts.get("worker", 0) == 0:
        yield Fault(("success_policy",), "needs a chief or a worker; add one, or choose chief", job.success_policy)
    if isinstance(job.replicas.worker, list):
        names = Counter(group.name for group in job.replicas.worker)
        for index, group in enumerate(job.replicas.worker):
            if names[group.name] > 1:
                yield Fault(
                    ("replicas", "worker", index, "name"), "another group has this name; rename one", group.name
                )


def role_counts(job: TensorFlowJob) -> dict[str, int | None]:
    """Replicas by role, with the defaults of params; None where only a run can tell."""
    counts: dict[str, int | None] = {}
    for group in outline.groups(job):
        here = outline.known(group.replica.replicas, job.param_specs)
        before = counts.get(group.role, 0)
        counts[group.role] = None if here is None or before is None else before + int(here)
    return counts


def _strategy(job: TensorFlowJob) -> Iterator[Fault]:
    counts, strategy = role_counts(job), outline.strategy(job)
    if not any(count is None or count > 0 for count in counts.values()):
        return
    for roles, what in _NEEDS.get(strategy, ()):
        if all(counts.get(role, 0) == 0 for role in roles):
            way_out = f"set replicas.{roles[-1]}.replicas to 1 or more, or choose another strategy"
            yield Fault(("strategy",), f"needs {what}; {way_out}", strategy)
    if strategy == "multi_worker_mirrored" and counts.get("ps", 0) != 0:
        yield Fault(("replicas", "ps"), "multi_worker_mirrored has no ps; remove it, or choose parameter_server")


def _programs(job: TensorFlowJob) -> Iterator[Fault]:
    for group in outline.groups(job):
        own = group.replica.program
        if group.replica.command is not None and own is not None and own.command is not None:
            yield Fault((*group.path, "command"), "is given beside program.command; keep one", group.replica.command)
        if group.count != 0 and command_of(job.program, own, group.replica.command) is None:
            yield Fault(group.path, "has no command; add program.command to the job or command here")


def command_of(job: Program, own: Program | None, short: Any) -> Any:
    """The command in force: the replica type's, else the job's."""
    if short is not None:
        return short
    return own.command if own is not None and own.command is not None else job.command


def _runtimes(job: TensorFlowJob) -> Iterator[Fault]:
    base = job.runtime.model_dump(exclude_unset=True)
    places: list[tuple[Path, dict[str, Any], dict[str, Any]]] = [(("runtime",), base, {})]
    for group in outline.groups(job):
        if group.replica.runtime is not None:
            own = group.replica.runtime.model_dump(exclude_unset=True)
            inherited = {} if "kind" in own and own["kind"] != base.get("kind", "process") else base
            places.append(((*group.path, "runtime"), own, inherited))
    overridden = all(group.replica.runtime for group in outline.groups(job))
    for path, own, inherited in places:
        together = {**inherited, **own}
        kind = together.get("kind", "process")
        if kind not in RUNTIME_KEYS:
            continue
        for key, value in own.items():
            if key not in RUNTIME_KEYS[kind] and value is not None:
                yield Fault((*path, key), f"kind {kind} has no {key}; remove it, or choose another kind", value)
        if kind != "process" and together.get("image") is None and not (path == ("runtime",) and overridden):
            yield Fault(path, f"kind {kind} needs an image; add image: name:tag")


def _env(job: TensorFlowJob) -> Iterator[Fault]:
    places: list[tuple[Path, Mapping[str, Any]]] = [(("program", "env"), job.program.env)]
    for group in outline.groups(job):
        places.append(((*group.path, "env"), group.replica.env))
        if group.replica.program is not None:
            places.append(((*group.path, "program", "env"), group.replica.program.env))
    secret_names = {secret.env for secret in job.secrets}
    for path, env in places:
        for name in env:
            if reason := _reserved(name, job.tf_config):
                yield Fault((*path, name), reason)
            if name in secret_names:
                yield Fault((*path, name), "a secret has the same env name; keep one")


def _reserved(name: str, tf_config: bool) -> str | None:
    if name == "TF_CONFIG" and tf_config:
        return "is written from the ClusterSpec; remove it, or set tf_config: false for a single replica"
    if name.startswith("TF_OPERATOR_"):
        return "names of this form are the product's; rename it"
    if name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        return "follows from the devices the replica gets; remove it, and set gpus: on the replica type"
    return None


def _secrets(job: TensorFlowJob) -> Iterator[Fault]:
    seen: set[tuple[str, str]] = set()
    for index, secret in enumerate(job.secrets):
        path: Path = ("secrets", index)
        if (secret.env is None) == (secret.file is None):
            yield Fault(path, "must say exactly one of env and file; keep one")
            continue
        kind, name = ("env", secret.env or "") if secret.env is not None else ("file", secret.file or "")
        if (kind, name) in seen:
            yield Fault((*path, kind), "another secret has the same name; rename one", name)
        seen.add((kind, name))
        if kind == "env" and (reason := _reserved(name, job.tf_config)):
            yield Fault((*path, kind), reason, name)
        if kind == "env" and "mode" in secret.model_fields_set:
            yield Fault((*path, "mode"), "a mode belongs to a file; remove it, or give the secret as file", secret.mode)
        if secret.version is not None and secret.kv == 1:
            yield Fault((*path, "version"), "KV version 1 keeps no versions; remove it", secret.version)


def _secret_paths(job: TensorFlowJob) -> Iterator[Fault]:
    for index, secret in enumerate(job.secrets):
        if templates.is_template(secret.vault):  # read again once it is filled in
            continue
        place: Path = ("secrets", index, "vault")
        path, _, key = secret.vault.partition("#")
        full = "/".join(part.strip("/") for part in (secret.mount, path) if part)
        parts = full.split("/")
        if any(part in ("", ".", "..") for part in parts):
            yield Fault(place, "must be names with a single / between them, without . and ..; correct it", secret.vault)
        elif parts[0] in SERVERS_OWN:
            rule = f"{parts[0]}/ is the server's own and holds no secret of a job; name a path of a secrets engine"
            yield Fault(place, rule, secret.vault)
        if key == WHOLE_SECRET and secret.decode == "base64":
            yield Fault(
                ("secrets", index, "decode"), "the whole secret (#*) is a JSON object; name a key, or remove it"
            )


def _paths(job: TensorFlowJob) -> Iterator[Fault]:
    if job.model_dir is not None and re.match(r"^[a-z][a-z0-9+.-]*://", job.model_dir):
        yield Fault(
            ("model_dir",), "must be a directory that all replicas share, not a URL; mount the store", job.model_dir
        )


def _homes(value: Any, path: Path) -> Iterator[Fault]:
    """Paths below the home of a user whom this host, where the job is rendered, does not know."""
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _homes(item, (*path, key))
    elif isinstance(value, str) and path[-1] in PATHS and path[-2:-1] != ("env",) and value.startswith("~"):
        try:
            FilePath(value).expanduser()
        except RuntimeError:
            yield Fault(path, "this host knows no such user's home; write the path out", value)
