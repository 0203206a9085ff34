"""Teams: whose pools, secrets, images and folders a job may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tf_operator import teams
from tf_operator.errors import PreflightError
from tf_operator.job_spec.rendered import RenderedJob, RenderedRuntime, RenderedSecret, ReplicaGroup

FILE = """\
teams:
  vision:
    pools: [gpu-vision]
    secrets: [secret/vision]
    images: ["registry/vision/*"]
    folders: [models/vision, /data/vision]
  speech:
    pools: [gpu-speech, gpu-shared]
  guests: {}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "configs").mkdir()
    (tmp_path / teams.FILE).write_text(FILE)
    return tmp_path


def job(project: Path, **change: Any) -> RenderedJob:
    runtime = RenderedRuntime(
        kind=change.get("kind", "docker"),
        image=change.get("image"),
        options={"mounts": [{"source": s} for s in change.get("mounts", ())]},
    )
    group = ReplicaGroup(
        task_id="worker",
        role="worker",
        count=1,
        command=["x"],
        working_dir=change.get("working_dir", str(project / "examples")),
        runtime=runtime,
    )
    return RenderedJob(
        name="j",
        strategy="none",
        groups=[group],
        model_dir=str(project / change.get("model_dir", "models/vision/m")),
        secrets=[RenderedSecret(path=path, key="k") for path in change.get("secrets", ())],
    )


def known(project: Path, text: str) -> teams.Teams:
    (project / teams.FILE).write_text(f"teams: {{{text}}}")
    return teams.load(project)


def faults(project: Path, team: str | None, pool: str = "default_pool", **change: Any) -> list[str]:
    return teams.faults(teams.load(project), team, job(project, **change), pool)


def test_a_team_s_own_is_fine(project: Path) -> None:
    assert not faults(
        project,
        "vision",
        "gpu-vision",
        secrets=["secret/vision/a"],
        image="registry/vision/train:1",
        mounts=["/data/vision/set"],
    )


@pytest.mark.parametrize("team", ["speech", "guests", None])
def test_nobody_else_has_it(project: Path, team: str | None) -> None:
    found = faults(
        project,
        team,
        "gpu-vision",
        secrets=["secret/vision/a", "secret/data/vision/b"],
        image="registry/vision/train:1",
        mounts=["/data/vision/set"],
        working_dir=str(project / "models" / "vision"),
    )
    whose = f"this job is team {team}'s" if team else "this job belongs to no team"
    assert [line.partition(": belongs")[0] for line in found] == [
        "scheduling.pool = gpu-vision",
        "secrets: secret/vision/a#k",
        "secrets: secret/data/vision/b#k",
        f"model_dir = {project}/models/vision/m",
        "worker: runtime.image = registry/vision/train:1",
        f"worker: working_dir = {project}/models/vision",
        "worker: mounts = /data/vision/set",
    ]
    assert all(f"belongs to team vision, {whose} (configs/teams.yaml)" in line and "\n" not in line for line in found)


def test_what_a_team_lists_is_all_it_has(project: Path) -> None:
    found = faults(
        project,
        "vision",
        "gpu",
        secrets=["secret/vision2/a"],
        image="registry/other:1",
        model_dir="models/else",
        mounts=["/data/vision/../speech"],
    )
    assert len(found) == 5
    assert found[0] == (
        "scheduling.pool = gpu: team vision has the pools gpu-vision (configs/teams.yaml); use one of them"
    )


@pytest.mark.parametrize("team", ["guests", None])
def test_what_nobody_lists_is_common(project: Path, team: str | None) -> None:
    assert not faults(project, team, "gpu", secrets=["secret/training/a"], image="any:1", model_dir="models/m")


def test_links_are_followed(project: Path) -> None:
    (project / "models" / "vision").mkdir(parents=True)
    (project / "sly").symlink_to(project / "models" / "vision")
    assert "belongs to team vision" in faults(project, None, model_dir="sly/m")[0]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"mounts": ["/data"]}, "worker: mounts = /data"),
        ({"mounts": ["/data/vision/../../"]}, "worker: mounts = /data/vision/../../"),
        ({"model_dir": "/data"}, "model_dir = /data"),
        ({"model_dir": "/data", "kind": "process"}, "model_dir = /data"),
        ({"working_dir": "/data"}, "worker: working_dir = /data"),
    ],
)
def test_who_has_a_folder_has_what_is_in_it(project: Path, change: dict[str, Any], where: str) -> None:
    (line,) = faults(project, "guests", **({"model_dir": "models/m"} | change))
    assert line == (
        f"{where}: a folder in it belongs to team vision, this job is team guests's (configs/teams.yaml);"
        " name a narrower one"
    )


def test_a_container_gets_the_project_only_where_nobody_else_has_a_folder_in_it(project: Path) -> None:
    (line,) = faults(project, "guests", working_dir=str(project), model_dir="models/m")
    assert line.startswith(f"worker: working_dir = {project}: a folder in it belongs to team vision")
    assert not faults(project, "vision", working_dir=str(project))
    assert not faults(project, "guests", working_dir=str(project), model_dir="models/m", kind="process")
    assert not faults(project, "guests", working_dir="/", model_dir="models/m"), "never mounted"


SPELLINGS = [
    *("vision/train:1", "docker.io/vision/train:1", "index.docker.io/vision/train:1", "Docker.IO/vision/train:1"),
    *("vision/train", "docker.io/vision/train:latest", f"docker.io/vision/train@sha256:{'0' * 64}"),
]


@pytest.mark.parametrize("image", SPELLINGS)
@pytest.mark.parametrize("pattern", ["vision/*", "docker.io/vision/*", "index.docker.io/vision/*", "*"])
def test_an_image_is_the_same_however_it_is_spelled(project: Path, image: str, pattern: str) -> None:
    fenced = known(project, f'vision: {{images: ["{pattern}"]}}, guests: {{}}')
    assert not teams.faults(fenced, "vision", job(project, image=image), "default_pool")
    (line,) = teams.faults(fenced, "guests", job(project, image=image), "default_pool")
    assert line.startswith(f"worker: runtime.image = {image}: belongs to team vision")


@pytest.mark.parametrize(
    ("pattern", "image", "same"),
    [
        ("tool", "docker.io/library/tool:latest", True),
        ("docker.io/library/*", "tool:1", True),
        ("docker.io/library/*", "vision/tool:1", False),
        ("vision/tool", "docker.io/library/vision/tool", False),
        ("tool:2", "tool:1", False),
        ("Registry.example/vision/*", "registry.EXAMPLE:443/vision/a:1", True),
        ("registry.example/vision/*", "registry.example:5000/vision/a:1", False),
        ("registry.example/*", "docker.io/vision/a:1", False),
        ("vision/tool:1", f"docker.io/vision/tool@sha256:{'0' * 64}", True),
        ("vision/tool:1", f"vision/tool:2@sha256:{'0' * 64}", True),
    ],
)
def test_what_is_the_same_image(project: Path, pattern: str, image: str, same: bool) -> None:
    fenced = known(project, f'vision: {{images: ["{pattern}"]}}')
    assert bool(teams.faults(fenced, None, job(project, image=image), "default_pool")) is same


def test_a_tag_does_not_vouch_for_the_digest_beside_it(project: Path) -> None:
    fenced = known(project, 'vision: {images: ["tool:1*"]}, guests: {images: ["tool:2", "other"]}')
    for image, refused in ((f"tool:1@sha256:{'0' * 64}", True), ("tool:1.5", False)):
        assert bool(teams.faults(fenced, "vision", job(project, image=image), "default_pool")) is refused
    by_digest = f"other:1@sha256:{'0' * 64}"
    assert not teams.faults(fenced, "guests", job(project, image=by_digest), "default_pool"), "any of its own"


@pytest.mark.parametrize("image", [f"sha256:{'a' * 64}", "b" * 64, "0123456789ab", "sha256:0123", "face"])
@pytest.mark.parametrize("team", ["vision", "guests", None])
def test_an_id_tells_nothing(project: Path, image: str, team: str | None) -> None:
    fenced = known(project, 'vision: {images: ["*"]}, guests: {}')
    (line,) = teams.faults(fenced, team, job(project, image=image), "default_pool")
    assert line.startswith(f"worker: runtime.image = {image}: may be an id") and "write its name with a tag" in line
    assert not teams.faults(known(project, "vision: {}"), None, job(project, image=image), "default_pool")


def test_a_team_is_the_folder(project: Path) -> None:
    known = teams.load(project)
    roots = [project / "configs" / "jobs", project / "dags"]
    assert known.of_folder(roots[0] / "vision" / "deep" / "a.yaml", roots) == "vision"
    assert known.of_folder(roots[1] / "speech" / "a.py", roots) == "speech"
    assert known.of_folder(roots[0] / "nobody" / "a.yaml", roots) is None
    assert known.of_folder(roots[0] / "vision.yaml", roots) is None
    assert known.of_folder(project / "vision" / "a.yaml", roots) is None


def test_without_a_file_there_is_no_fence(tmp_path: Path) -> None:
    known = teams.load(tmp_path)
    assert known.fence(None) is None
    assert not teams.faults(known, None, job(tmp_path), "any")
    assert known.of_folder(tmp_path / "configs/jobs/vision/a.yaml", [tmp_path / "configs/jobs"]) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("teams: {a: {pool: [x]}}", "teams.a.pool"),
        ("team: {}", "teams"),
        ("[", "not YAML"),
        ("teams: {a: {pools: x}}", ""),
    ],
)
def test_a_faulty_file_is_one_line_with_the_field(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / teams.FILE).write_text(text)
    with pytest.raises(PreflightError) as error:
        teams.load(tmp_path)
    assert told in str(error.value) and "\n" not in str(error.value)
