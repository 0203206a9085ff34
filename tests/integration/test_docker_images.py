"""Images and their absence, told apart (C-35); a full disk (C-38)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.docker_kit import DockerKit
from docker_engine import DockerEngine, registry

from tf_operator.errors import EngineUnavailableError, ImageError, LaunchError, RunnerError
from tf_operator.runners.base import Exit
from tf_operator.runners.docker import DockerRunner
from tf_operator.runners.docker_engine import Engine, reach
from tf_operator.runners.docker_images import ensure_image

pytestmark = pytest.mark.docker


def use(image: str, policy: str | None = None) -> dict[str, Any]:
    """A launch's runtime."""
    return {"runtime": {"image": image, "options": {"pull_policy": policy}}}


def test_c35_an_image_that_only_a_registry_has_is_pulled(kit: DockerKit) -> None:
    with registry(kit.engine) as host:
        name = kit.engine.image(f"{host}/team/digits:1", f'RUN echo "{host}/team/digits:1" >/own')
        assert not any("error" in step for step in kit.engine.api.push(name, stream=True, decode=True))
        kit.engine.api.remove_image(name)
        handle = kit.start("cat", "/own", **use(name))
        assert kit.wait(handle) == Exit(code=0)
        assert kit.output(handle) == f"{name}\n".encode()
        with pytest.raises(ImageError, match=rf"chief-0: pulling image {host}/team/digits:2: there is no such image"):
            kit.start("true", identity=kit.identity("chief"), **use(f"{host}/team/digits:2"))
    # What is here needs no registry; what must be fetched does, and may be had later.
    assert kit.wait(kit.start("true", **use(name))).code == 0
    for wanted, policy in ((f"{host}/team/digits:3", None), (name, "always")):
        with pytest.raises(RunnerError, match=rf"{wanted}: the registry cannot be reached now: .*refused") as raised:
            kit.start("true", identity=kit.identity("chief"), **use(wanted, policy))
        assert not isinstance(raised.value, ImageError)
    assert {one["Labels"]["tf_operator.role"] for one in kit.engine.containers()} == {"worker"}
    kit.engine.api.remove_image(name, force=True)


LOGIN = ("trainer", "S3cr3t-registry-login")


def test_a_registry_that_asks_who_it_is_gets_the_connections_login(
    kit: DockerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(kit.engine, login=LOGIN) as host:
        name = kit.engine.image(f"{host}/team/closed:1", "RUN echo closed >/own")
        auth = {"username": LOGIN[0], "password": LOGIN[1]}
        assert not any(
            "error" in step for step in kit.engine.api.push(name, stream=True, decode=True, auth_config=auth)
        )
        kit.engine.api.remove_image(name)
        with pytest.raises(
            ImageError, match=rf"pulling image {name}: .*may not be pulled: .*no basic auth credentials"
        ):
            kit.start("true", **use(name))
        monkeypatch.setenv("AIRFLOW_CONN_TEAM_REGISTRY", f"docker://{LOGIN[0]}:{LOGIN[1]}@{host}")
        kit.runner.close()
        kit.runner = DockerRunner(kit.state_dir, kit.engine.url, conn_id="team_registry")
        handle = kit.start("cat", "/own", **use(name))
        assert kit.wait(handle) == Exit(code=0)
        assert kit.output(handle) == b"closed\n"
        assert LOGIN[1] not in str(kit.engine.api.inspect_container(handle.data["container"]))
    kit.engine.api.remove_image(name, force=True)


@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        (None, "The conn_id `team_registry` isn't defined"),
        ("docker://trainer:secret@", "No Docker Registry URL provided."),
        ("docker://registry.example", "No Docker Registry username provided."),
    ],
)
def test_a_connection_that_is_no_login_is_final(
    docker_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, uri: str | None, fault: str
) -> None:
    if uri:
        monkeypatch.setenv("AIRFLOW_CONN_TEAM_REGISTRY", uri)
    engine = Engine(docker_engine.url, "team_registry")
    with pytest.raises(ImageError) as raised:
        ensure_image(engine, "a:1", None, "worker-0")
    assert re.fullmatch(
        rf"worker-0: looking for image a:1: runtime.docker_conn_id = team_registry: {re.escape(fault)}: it must name"
        " an Airflow connection of type docker .*; create it, or correct the name",
        str(raised.value),
    )


def test_never_is_never(kit: DockerKit) -> None:
    with pytest.raises(ImageError, match=r"worker-0: image nobody/has:1 is not on this host.*pull_policy is never"):
        kit.start("true", **use("nobody/has:1", "never"))
    assert (kit.engine.containers(), kit.engine.networks()) == ([], [])


def test_an_image_without_a_shell_is_told(kit: DockerKit) -> None:
    empty = kit.engine.api.import_image_from_data(b"\0" * 10240, repository="tf-operator-test", tag="empty")
    assert empty
    handle = kit.start("true", working_dir="/", **use("tf-operator-test:empty"))
    assert kit.wait(handle).code == 127
    assert b"exec /bin/sh failed: No such file" in kit.output(handle)
    kit.engine.api.remove_image("tf-operator-test:empty", force=True)


def test_a_dead_engine_and_a_forbidden_one_are_told_apart(tmp_path: Path, docker_engine: DockerEngine) -> None:
    with pytest.raises(EngineUnavailableError, match=r"worker-0: .*does not answer: No such file or directory"):
        ensure_image(Engine(f"unix://{tmp_path}/none.sock", patience=0), "a:1", None, "worker-0")
    docker_engine.root.chmod(0o711)
    text = as_somebody_else(lambda: reach(docker_engine.url, "worker-0: starting"))
    assert text.startswith(f"RunnerError: worker-0: starting: permission denied on {docker_engine.url}: ")
    assert "group that owns" in text


def as_somebody_else(act: Callable[[], object]) -> str:
    """What error an act gives another user."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
            act()
        except Exception as error:
            os.write(send, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


# -- a full disk


@pytest.fixture(scope="module")
def small_engine() -> Iterator[DockerEngine]:
    """An engine whose data root has little room."""
    with DockerEngine(data_size="600m") as engine:
        yield engine.with_base_image()


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Not a byte left."""
    file = folder / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={file}", "bs=64k"], capture_output=True, check=False)
    try:
        yield
    finally:
        file.unlink()


def test_a_host_without_gpu_support_is_told(tmp_path: Path, small_engine: DockerEngine) -> None:
    kit = DockerKit(tmp_path, small_engine)
    with pytest.raises(RunnerError, match="device driver"):
        kit.start("true", devices=("GPU-1",))
    assert kit.engine.left() == []
    kit.close()


def test_c38_a_pull_into_a_full_data_root_is_told(tmp_path: Path, small_engine: DockerEngine) -> None:
    kit = DockerKit(tmp_path, small_engine)
    with registry(small_engine, port=5001) as host:
        name = small_engine.image(f"{host}/team/large:1", "RUN head -c 20000000 /dev/urandom >/own")
        assert not any("error" in step for step in small_engine.api.push(name, stream=True, decode=True))
        small_engine.api.remove_image(name)
        said = rf"worker-0: pulling image {name}: .*no space left on device"
        with filled(small_engine.root / "data"), pytest.raises(RunnerError, match=said) as raised:
            kit.start("true", **use(name))
        assert not isinstance(raised.value, ImageError), "it may be had once there is room"
        assert kit.wait(kit.start("true", **use(name))) == Exit(code=0)
    kit.close()
    small_engine.api.remove_image(name, force=True)


def test_c38_a_full_data_root_is_told_with_its_place_and_nothing_stays(
    tmp_path: Path, small_engine: DockerEngine
) -> None:
    kit = DockerKit(tmp_path, small_engine)
    with filled(small_engine.root / "data"):
        with pytest.raises(
            RunnerError, match=r"worker-0: (creating|making|starting).*no space left on device"
        ) as raised:
            kit.start("true")
        assert "data root" in str(raised.value)
        assert kit.engine.containers() == []
    assert kit.wait(kit.start("true")) == Exit(code=0)
    kit.close()


def test_c38_a_full_data_root_while_it_runs_does_not_decide_its_end(tmp_path: Path, small_engine: DockerEngine) -> None:
    kit = DockerKit(tmp_path, small_engine)
    go_on = tmp_path / "go-on"
    handle = kit.start("--print", "text:before", "--wait-file", str(go_on), "--exit", "3")
    kit.wait_output(handle, b"before\n")
    with filled(small_engine.root / "data"):
        go_on.touch()
        assert kit.wait(handle, 30).code == 3
    kit.runner.remove(handle)
    assert (kit.engine.containers(), kit.engine.networks()) == ([], [])
    kit.close()


def test_c38_a_work_dir_that_fills_up_while_it_runs_is_told_with_the_end(
    tmp_path: Path, docker_engine: DockerEngine
) -> None:
    disk, go_on = tmp_path / "disk", tmp_path / "go-on"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    kit = DockerKit(tmp_path, docker_engine)
    try:
        make, (_, url) = kit.recipe
        kit.runner = make(disk, url)
        script = f"echo before; while [ ! -e {go_on} ]; do sleep .05; done; seq 100000; exit 3"
        handle = kit.start("sh", "-c", script)
        kit.wait_output(handle, b"before\n")
        with filled(disk):
            go_on.touch()
            end = kit.wait(handle, 60)
            assert end.code == 3
            assert re.search(rf"output incomplete: no space left on device: {disk}/\S*/output.1.log", str(end.reason))
            assert kit.output(handle).startswith(b"before\n")
            kit.runner.remove(handle, keep_output=False)
        assert kit.engine.left() == []
    finally:
        kit.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_c38_a_full_work_dir_is_told_and_the_retry_runs(tmp_path: Path, docker_engine: DockerEngine) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    kit = DockerKit(tmp_path, docker_engine)
    try:
        make, (_, url) = kit.recipe
        runner = make(disk, url)
        launch = kit.launch("true")
        with filled(disk), pytest.raises(LaunchError, match="no space left on device"):
            runner.start(launch, runner.reserve(launch.identity, None))
        assert kit.engine.containers() == []
        handle = runner.start(launch, runner.reserve(launch.identity, None))
        kit.runner = runner
        assert kit.wait(handle) == Exit(code=0)
    finally:
        kit.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)
