"""Teams (`configs/teams.yaml`): whose pools, secrets, images and folders a job may use.

A team is the folder below `configs/jobs`; a job made in Python belongs to its DAG's folder below the DAGs folder. What
a team lists of a kind is all it may use of that kind, and nobody else's: jobs of other teams, and of none, may not use
it. A kind it does not list is free for it, but for what others list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tf_operator.job_spec.rendered import RenderedJob, RenderedSecret, ReplicaGroup
from tf_operator.project_file import read_project_file

FILE = Path("configs") / "teams.yaml"
_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
"""Names of the registry an engine asks where an image names none."""
_LOCAL_ID = re.compile(r"(sha256:)?[0-9a-f]+")
"""What an engine takes for an image's id where it has one that begins so; a name with a tag never is one."""


class Team(BaseModel):
    """What a team has. None: it lists nothing of the kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: list[str] | None = None
    secrets: list[str] | None = None
    """Beginnings of paths, whole parts: `secret/vision`."""
    images: list[str] | None = None
    """Names, or patterns with * : `registry.example/vision/*`."""
    folders: list[str] | None = None
    """For model_dir, working_dir and mounts; relative ones start at the project."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    teams: dict[str, Team]


@dataclass(frozen=True)
class Teams:
    """The file. Without one there are no teams and no fences."""

    project: Path
    teams: Mapping[str, Team] = field(default_factory=dict)

    def of_folder(self, file: Path, roots: Sequence[Path]) -> str | None:
        """The team whose folder below one of `roots` holds the file."""
        for root in roots:
            if file.is_relative_to(root) and (top := file.relative_to(root).parts[0]) in self.teams:
                return top
        return None

    def fence(self, team: str | None) -> dict[str, Any] | None:
        """What the cluster policy, which reads no file, has to know; plain JSON. None where there are no teams."""
        if not self.teams:
            return None
        owners: dict[str, list[str]] = {}
        for name, each in self.teams.items():
            for pool in each.pools or ():
                owners.setdefault(pool, []).append(name)
        return {"team": team, "own": self.teams[team].pools if team else None, "owners": owners}


def load(project: Path) -> Teams:
    """Read the project's file. PreflightError naming the faulty field."""
    path = project / FILE
    if not path.exists():
        return Teams(project)
    return Teams(project, read_project_file(path, _File, "teams").teams)


def pool_fault(fence: Mapping[str, Any] | None, pool: str) -> str | None:
    """Why a job behind this fence may not use the pool. Airflow's default pool is everybody's."""
    if fence is None or pool == "default_pool":
        return None
    team, own, owners = fence["team"], fence["own"], fence["owners"].get(pool, [])
    if team in owners or (own is None and not owners):
        return None
    return f"scheduling.pool = {pool}: {_whose(team, own, owners, 'pools')}"


def faults(teams: Teams, team: str | None, job: RenderedJob, pool: str) -> list[str]:
    """Everything of a rendered job that is outside of its team's fence, one line each."""
    found = [pool_fault(teams.fence(team), pool), *_secrets(teams, team, job.secrets), *_groups(teams, team, job)]
    return list(dict.fromkeys(line for line in found if line))


def _whose(team: str | None, own: Sequence[str] | None, owners: Sequence[str], kind: str) -> str:
    if owners:
        mine = f"this job is team {team}'s" if team else "this job belongs to no team"
        return f"belongs to team {', '.join(owners)}, {mine} ({FILE})"
    return f"team {team} has the {kind} {', '.join(own or ()) or '(none)'} ({FILE}); use one of them"


def _secrets(teams: Teams, team: str | None, references: Sequence[RenderedSecret]) -> Iterator[str]:
    from tf_operator.secrets.prefixes import outside_prefixes

    def within(prefixes: Sequence[str], ref: RenderedSecret) -> bool:
        return not outside_prefixes([ref], prefixes)

    for ref in references:
        own = teams.teams[team].secrets if team else None
        if own is not None and within(own, ref):
            continue
        owners = [name for name, each in teams.teams.items() if name != team and within(_readings(each.secrets), ref)]
        if own is not None or owners:
            yield f"secrets: {ref.path}#{ref.key}: {_whose(team, own, owners, 'secret prefixes')}"


def _readings(prefixes: Sequence[str] | None) -> list[str]:
    """The prefixes, and each with the `data` that KV version 2 has in its paths: a job may write it either way."""
    found = []
    for prefix in prefixes or ():
        parts = prefix.split("/")
        found += [prefix, *("/".join([*parts[:place], "data", *parts[place:]]) for place in range(1, len(parts) + 1))]
    return found


def _groups(teams: Teams, team: str | None, job: RenderedJob) -> Iterator[str | None]:
    yield _path_fault(teams, team, "model_dir", job.model_dir)
    for group in job.groups:
        if not group.count:
            continue
        if group.runtime.image:
            yield _image_fault(teams, team, group.task_id, group.runtime.image)
        yield _working_dir_fault(teams, team, group)
        for mount in group.runtime.options.get("mounts") or ():
            yield _path_fault(teams, team, f"{group.task_id}: mounts", str(mount["source"]))


# -- images


def _image_fault(teams: Teams, team: str | None, where: str, image: str) -> str | None:
    if not any(each.images is not None for each in teams.teams.values()):
        return None
    if _LOCAL_ID.fullmatch(image):
        return (
            f"{where}: runtime.image = {image}: may be an id on the engine's host, which does not tell whose image it"
            f" is, and teams list images ({FILE}); write its name with a tag"
        )
    names = _spellings(image)
    own = teams.teams[team].images if team else None
    # By digest it may be an image of any tag: the engine takes no notice of one beside it.
    told = [name for name in names if "@" not in name or not _TAG_BESIDE_DIGEST.search(name)]
    if own is not None and _matches(told, own):
        return None
    owners = [
        name
        for name, each in teams.teams.items()
        if name != team and _matches(names, [*(each.images or ()), *(_tagless(each.images) if "@" in image else ())])
    ]
    if own is None and not owners:
        return None
    return f"{where}: runtime.image = {image}: {_whose(team, own, owners, 'images')}"


_TAG_BESIDE_DIGEST = re.compile(r":[^/@]*@")


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, _lower_host(pattern)) for name in names for pattern in patterns)


def _spellings(image: str) -> list[str]:
    """Every way to write the same image: what a pattern says of one of them, it says of all."""
    name, at, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    is_host = slash and (first == "localhost" or "." in first or ":" in first or first != first.lower())
    host, path = (first.lower().removesuffix(":443"), rest) if is_host else (_HUB[0], name)
    path, colon, tag = path.partition(":")
    if host in _HUB:
        path = path.removeprefix("library/") if path.count("/") == 1 else path
        places = ["", *(f"{hub}/" for hub in _HUB)]
        paths = [path] if "/" in path else [path, f"library/{path}"]
    else:
        places, paths = [f"{host}/", f"{host}:443/"], [path]
    if at:
        ends = ["", f"@{digest}", f"{colon}{tag}@{digest}"]
    else:
        ends = ["", ":latest"] if tag in ("", "latest") else [f":{tag}"]
    return [f"{place}{path}{end}" for place in places for path in paths for end in ends]


def _tagless(patterns: Sequence[str] | None) -> Iterator[str]:
    for pattern in patterns or ():
        path, slash, last = pattern.rpartition("/")
        yield f"{path}{slash}{last.partition('@')[0].partition(':')[0]}"


def _lower_host(pattern: str) -> str:
    host, slash, path = pattern.partition("/")
    return f"{host.lower()}{slash}{path}" if slash else pattern


# -- folders


def _working_dir_fault(teams: Teams, team: str | None, group: ReplicaGroup) -> str | None:
    path = group.working_dir
    # A container gets the folder with all that is in it, but never the host's root. A process only starts there.
    whole = group.runtime.kind != "process" and len(Path(os.path.normpath(path)).parts) > 1
    # Code may come from the project, where everybody's is.
    if _inside(path, [str(teams.project)]) and not any(_owners(teams, team, path, whole)):
        return None
    return _path_fault(teams, team, f"{group.task_id}: working_dir", path, whole)


def _path_fault(teams: Teams, team: str | None, where: str, path: str, whole: bool = True) -> str | None:
    """`whole`: who has the path has all that is in it."""
    own = teams.teams[team].folders if team else None
    if own is not None and _inside(path, own, teams.project):
        return None
    owners, within = _owners(teams, team, path, whole)
    if within and not owners:
        return f"{where} = {path}: a folder in it {_whose(team, own, within, 'folders')}; name a narrower one"
    if own is None and not owners:
        return None
    return f"{where} = {path}: {_whose(team, own, owners, 'folders')}"


def _owners(teams: Teams, team: str | None, path: str, whole: bool) -> tuple[list[str], list[str]]:
    """Other teams in whose folders the path is, and those that have a folder in it."""
    others = {name: each.folders for name, each in teams.teams.items() if name != team and each.folders is not None}
    owners = [name for name, folders in others.items() if _inside(path, folders, teams.project)]
    within = [name for name, folders in others.items() if whole and _holds(path, folders, teams.project)]
    return owners, within


def _holds(path: str, folders: Sequence[str], project: Path) -> bool:
    place = Path(path).resolve()
    return any((project / folder).resolve().is_relative_to(place) for folder in folders)


def _inside(path: str, folders: Sequence[str], project: Path = Path("/")) -> bool:
    """Whether the path is in one of the folders, wherever links lead."""
    place = Path(path).resolve()
    return any(place.is_relative_to((project / folder).resolve()) for folder in folders)
