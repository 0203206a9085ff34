"""A launch as a container, without an engine."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from tf_operator.errors import ImageError, LaunchError
from tf_operator.gpus import device_env
from tf_operator.identity import Identity, ReplicaId
from tf_operator.runners import docker_entry, docker_images, docker_spec
from tf_operator.runners.base import Exit, Launch, SecretBundle, SecretFile
from tf_operator.runners.docker_end import end_of

WHO = Identity("fraud détection", "manual__2026-01-01T00:00:00+00:00", "train", ReplicaId("worker", 1))


def launch(**more: Any) -> Launch:
    fields: dict[str, Any] = {"attempt": "a", "incarnation": 2, "generation": 3, "argv": ["python", "x"], "env": {}}
    fields |= {"working_dir": "/app", "runtime": {"image": "i:1"}}
    return Launch(identity=WHO, **(fields | more))


def test_labels_come_back_as_the_identity() -> None:
    labels = docker_spec.Labels(docker_spec.labels_of(launch(orphan_timeout=5.0), 4, "here"))
    assert (labels.identity, labels.start, labels.orphan_timeout) == (WHO, 4, 5.0)
    assert docker_spec.address_of(WHO) == "worker-1:2222"


def test_each_state_dir_has_a_mark_of_its_own(tmp_path: Any) -> None:
    marks = [docker_spec.place_mark(tmp_path / name) for name in ("a", "b", "a")]
    assert marks[0] == marks[2] != marks[1]


def test_two_runs_differ_in_every_name() -> None:
    other = Identity(WHO.dag_id, "manual__2026-01-02T00:00:00+00:00", WHO.group_id, WHO.replica)
    assert docker_spec.container_name(WHO) != docker_spec.container_name(other)
    assert docker_spec.network_name(WHO) != docker_spec.network_name(other)


def test_devices_are_requested_by_id_and_none_means_none() -> None:
    host = docker_spec.host_config_of(launch(devices=("GPU-1", "GPU-3")))
    (request,) = host["device_requests"]
    assert (request["DeviceIDs"], request["Count"], request["Capabilities"]) == (["GPU-1", "GPU-3"], 0, [["gpu"]])
    assert "device_requests" not in docker_spec.host_config_of(launch())
    assert docker_spec.environment_of(launch())["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(("given", "seen"), [(("2", "3"), "0,1"), (("GPU-9", "GPU-4"), "GPU-9,GPU-4"), ((), "-1")])
def test_cuda_counts_from_0_again_in_a_container(given: tuple[str, ...], seen: str) -> None:
    made = launch(devices=given, env=device_env(given))
    assert docker_spec.environment_of(made)["CUDA_VISIBLE_DEVICES"] == seen
    assert docker_spec.environment_of(made)["NVIDIA_VISIBLE_DEVICES"] == (",".join(given) or "void")


@pytest.mark.parametrize(("user", "expected"), [("7", (7, 7)), ("7:8", (7, 8)), (None, None)])
def test_user(user: str | None, expected: tuple[int, int] | None) -> None:
    default = (os.geteuid(), os.getegid()) if os.geteuid() else (10001, 10001)
    assert docker_spec.user_of({"user": user}) == (expected or default)


def test_a_user_by_name_is_refused() -> None:
    with pytest.raises(LaunchError, match="runtime.user = 'root': must be numbers"):
        docker_spec.user_of({"user": "root"})


def test_a_variable_the_shell_would_drop_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"env 'a\.b'"):
        docker_spec.environment_of(launch(env={"a.b": "1"}))


@pytest.mark.parametrize("path", ["/", "/usr", "/usr/lib/", "/etc/../usr", "/no/such"])
def test_what_is_never_mounted_as_working_dir(path: str) -> None:
    assert not docker_spec.is_mounted(path)


def test_inner_mounts_come_after_outer_ones(tmp_path: Any) -> None:
    (tmp_path / "inner").mkdir()
    mounts = [{"source": str(tmp_path), "target": "/data/inner"}, {"source": str(tmp_path), "target": "/data/"}]
    made = docker_spec.mounts_of(launch(runtime={"image": "i", "options": {"mounts": mounts}}))
    assert [mount["target"] for mount in made] == ["/data", "/data/inner"]
    with pytest.raises(LaunchError, match=r"mount /no/such: there is no such path"):
        docker_spec.mounts_of(launch(runtime={"image": "i", "mounts": [{"source": "/no/such", "target": "/x"}]}))


def test_secrets_survive_the_shell(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_entry, "HOME", str(tmp_path))
    monkeypatch.setattr(docker_entry, "SECRETS_DIR", f"{tmp_path}/secrets")
    odd = 'it\'s "$HOME" `x` \\n %s\n two'
    content = bytes(range(256)) + b"'%d\\"
    bundle = SecretBundle(env={"A": odd}, files=(SecretFile("f", content, 0o440),))
    script = docker_entry.hand_over(launch(secrets=bundle), "mark", 10)
    assert script.endswith(b"\n#tf_operator:complete\n")
    shown = subprocess.run(["sh", "-c", 'eval "$(cat)"; printf %s "$A"'], input=script, capture_output=True, check=True)
    assert shown.stdout.decode() == odd
    file = tmp_path / "secrets" / "f"
    assert file.read_bytes() == content
    assert file.stat().st_mode & 0o777 == 0o440


@pytest.mark.parametrize(
    ("state", "more", "expected"),
    [
        ({"ExitCode": 0}, {}, Exit(0)),
        ({"ExitCode": 137}, {}, Exit(137, "SIGKILL")),
        ({"ExitCode": 137, "OOMKilled": True}, {}, Exit(137, "SIGKILL", oom_limit=64)),
        ({"ExitCode": 255}, {}, Exit(255)),
        ({"ExitCode": 0}, {"stop": {"grace": 5, "killed": True}}, Exit(0, stopped=True)),
        (
            {"ExitCode": 137},
            {"stop": {"grace": 5, "killed": True}},
            Exit(137, "SIGKILL", stopped=True, reason="killed: it did not end within 5 s of SIGTERM"),
        ),
        (
            {"ExitCode": 143},
            {"told": ["orphan"], "orphan_timeout": 9.0},
            Exit(143, "SIGTERM", stopped=True, reason="no watcher for 9 s"),
        ),
        ({"ExitCode": 125}, {"told": ["final given 1"]}, Exit(125, reason="given 1", final=True)),
        ({"ExitCode": 127}, {"told": ["fault command not found: x"]}, Exit(127, reason="command not found: x")),
        (
            {"ExitCode": 5, "OOMKilled": True},
            {},
            Exit(5, reason="a process of it was killed for its memory use, limit 64 bytes"),
        ),
    ],
)
def test_ends(state: dict[str, Any], more: dict[str, Any], expected: Exit) -> None:
    assert end_of(state, limit=64, **more) == expected


@pytest.mark.parametrize(
    ("fault", "final"),
    [
        ("manifest for r:5020/team/tls-eof:503 not found: manifest unknown: manifest unknown", True),
        ("pull access denied for refused/reset, repository does not exist or may require 'docker login'", True),
        ("Get http://r:5020/v2/team/closed/manifests/1: no basic auth credentials", True),
        ("Error response from daemon: unauthorized: authentication required", True),
        ("Get https://r/v2/: dial tcp 10.0.0.1:443: connect: connection refused", False),
        ("Get https://r/v2/: dial tcp: lookup r: no such host", False),
        ("Get https://r/v2/: net/http: TLS handshake timeout", False),
        ("Get https://r/v2/: net/http: request canceled (Client.Timeout exceeded while awaiting headers)", False),
        ("received unexpected HTTP status: 503 Service Unavailable", False),
        ("toomanyrequests: You have reached your pull rate limit", False),
        ("unexpected EOF of another kind", False),
    ],
)
def test_c35_what_cannot_be_pulled_ever_is_told_apart_from_what_cannot_be_pulled_now(fault: str, final: bool) -> None:
    error = docker_images.explain(fault, "worker-0: pulling image i:1")
    assert isinstance(error, ImageError) is final
    assert str(error).startswith("worker-0: pulling image i:1: ") and fault in str(error)
