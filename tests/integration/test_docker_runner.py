"""The docker runner on a real engine: what only containers have to prove."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from contract.docker_kit import CALLER, DockerKit, inspect, start_and_die
from contract.process_kit import SECRETS, SEEN_BY_ALL, until
from docker_engine import IMAGE, DockerEngine

from tf_operator import locks
from tf_operator.errors import LaunchError, RunnerError
from tf_operator.runners.base import Exit, Handle, SecretBundle, SecretFile

pytestmark = pytest.mark.docker


# -- the container


def test_rights_limits_and_labels(kit: DockerKit, tmp_path: Path) -> None:
    options = {"shm_size": 64 << 20, "read_only": True, "ulimits": {"nofile": "500:600"}}
    launch = kit.launch("--out", str(tmp_path / "out"), "--sleep", "long", memory=256 << 20, cpus=0.5)
    runtime = {**launch.runtime, "options": {**launch.runtime["options"], **options}}
    handle = kit.runner.start(dataclasses.replace(launch, runtime=runtime), kit.runner.reserve(launch.identity, None))
    assert kit.record(tmp_path / "out")["uid"] == 10001
    found = inspect(kit, handle)
    host, labels = found["HostConfig"], found["Config"]["Labels"]
    assert (host["Init"], host["CapDrop"], host["SecurityOpt"]) == (True, ["ALL"], ["no-new-privileges"])
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (500_000_000, 256 << 20, 256 << 20)
    assert (host["ShmSize"], host["ReadonlyRootfs"]) == (64 << 20, True)
    assert host["Ulimits"] == [{"Name": "nofile", "Soft": 500, "Hard": 600}]
    assert not host["PortBindings"]
    assert not host["DeviceRequests"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["Config"]["Env"]
    named = {key.removeprefix("tf_operator."): value for key, value in labels.items()}
    assert (named["job"], named["identity"]) == (kit.identity().job_key, kit.identity().key)
    assert [named[key] for key in ("role", "index", "attempt", "incarnation", "generation")] == [
        *("worker", "0", "a1", "1", "1")
    ]


def test_code_in_the_image_is_found_and_a_folder_nobody_has_is_named(kit: DockerKit) -> None:
    handle = kit.start("pwd", working_dir="/usr/lib")
    assert kit.wait(handle) == Exit(code=0)
    assert kit.output(handle) == b"/usr/lib\n"
    with pytest.raises(LaunchError, match=r"working_dir /no/where .* none in image"):
        kit.start("pwd", working_dir="/no/where")
    assert kit.engine.containers() == []


def test_the_model_dir_belongs_to_the_program(kit: DockerKit, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir(mode=0o755)
    (model / "old").write_text("by root")
    env = {"TF_OPERATOR_MODEL_DIR": str(model), "TF_OPERATOR_RESULT": str(model / ".tf_operator/results/r.json")}
    env |= SEEN_BY_ALL
    handle = kit.start("sh", "-c", f"echo new >>{model}/old && echo 1 >$TF_OPERATOR_RESULT", env=env)
    assert kit.wait(handle) == Exit(code=0), kit.output(handle)
    assert (model / "old").read_text() == "by rootnew\n"
    assert (model / ".tf_operator/results/r.json").read_text() == "1\n"


def test_c40_devices_are_asked_for_by_id_and_held_as_long_as_the_container_lives(
    kit: DockerKit, tmp_path: Path
) -> None:
    two = kit.start("--print", "env:NVIDIA_VISIBLE_DEVICES", devices=("GPU-1", "GPU-3"), identity=kit.identity("ps"))
    (request,) = inspect(kit, two)["HostConfig"]["DeviceRequests"]
    assert (request["DeviceIDs"], request["Count"]) == (["GPU-1", "GPU-3"], 0)
    assert request["Capabilities"] == [["gpu"]]
    kit.wait(two)
    assert kit.output(two) == b"NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-3\n"
    lock = locks.acquire(tmp_path / "device")
    assert lock is not None
    handle = kit.start("--sleep", "long", device_fds=(lock,))
    os.close(lock)
    assert locks.is_held(tmp_path / "device")
    kit.runner.close()
    kit.another().remove(handle)
    until(lambda: not locks.is_held(tmp_path / "device"), "the device to be free")


def test_memory_of_a_child_is_told_too(kit: DockerKit) -> None:
    eat = "b=bytearray(200<<20)"
    handle = kit.start("sh", "-c", f"python3 -c '{eat}'; exit 5", memory=64 << 20)
    end = kit.wait(handle)
    assert (end.code, end.oom_limit) == (5, None)
    assert f"limit {64 << 20}" in str(end.reason)


# -- secrets


def texts_of(kit: DockerKit, handle: Handle) -> str:
    """Everything the engine shows of a container and its image."""
    found = inspect(kit, handle)
    api = kit.engine.api
    return json.dumps([found, api.containers(all=True), api.history(IMAGE), api.inspect_image(IMAGE), api.networks()])


def command_lines() -> list[bytes]:
    """Of all processes; one may end between two looks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


def test_no_secret_is_in_inspect_argv_image_or_on_the_disk(kit: DockerKit, tmp_path: Path) -> None:
    files = (SecretFile("key", b"S3cr3t-in-a-file"),)
    bundle = SecretBundle(env=SECRETS.env, files=files, mask=(*SECRETS.mask, "S3cr3t-in-a-file"))
    flags = ("--out", "/tmp/out", "--print", "env:STORE_KEY", "--print", "files:TF_OPERATOR_SECRETS_DIR")
    handle = kit.start(*flags, "--sleep", "long", secrets=bundle)
    kit.wait_output(handle, b"STORE_KEY=***\nkey 400 ***\n")
    running = texts_of(kit, handle)
    argv = command_lines()
    kit.runner.stop(handle, 5.0)
    kit.wait(handle)
    assert "S3cr3t" not in running + texts_of(kit, handle)
    # The probe's own record of its environment is in the container's layer, and the raw log in the engine's folder:
    # what the program itself writes down is its own doing, so look without both.
    assert not any(b"S3cr3t-" in line for line in argv if b"pytest" not in line)
    data = kit.engine.root / "data"
    hits = subprocess.run(["grep", "-rlF", "S3cr3t-", str(data), str(kit.state_dir)], capture_output=True, text=True)
    assert [hit for hit in hits.stdout.split() if "/tmp/out/" not in hit and "local-logs" not in hit] == []


def test_an_adopter_masks_what_the_starter_knew(kit: DockerKit, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    script = (
        f"import os,time\nwhile not os.path.exists('{go_on}'): time.sleep(.05)\nprint('k', os.environ['STORE_KEY'])"
    )
    handle = start_and_die(kit, "python3", "-c", script, secrets=SECRETS)
    assert kit.output(handle) == b""
    go_on.touch()
    assert kit.wait(handle) == Exit(code=0)
    assert kit.output(handle) == b"k ***\n"


def test_output_that_cannot_be_masked_is_withheld(kit: DockerKit) -> None:
    handle = start_and_die(kit, "sh", "-c", "echo $STORE_KEY", secrets=SECRETS)
    until(lambda: inspect(kit, handle)["State"]["Status"] == "exited", "the end")
    end = kit.wait(handle)
    assert end.code == 0
    assert "withheld" in str(end.reason)
    assert kit.output(handle) == b""


def test_masks_can_come_from_where_the_secrets_come_from(kit: DockerKit) -> None:
    handle = start_and_die(kit, "sh", "-c", "echo $STORE_KEY", secrets=SECRETS)
    until(lambda: inspect(kit, handle)["State"]["Status"] == "exited", "the end")
    make, arguments = kit.recipe
    runner = make(*arguments, masks=lambda: SECRETS.mask)
    assert until(lambda: runner.poll(handle), "the end") == Exit(code=0)
    assert runner.output(handle, 0) == (b"***\n", 4)
    runner.close()


# -- whose container it is (C-28)


def test_c28_a_strangers_container_with_our_name_is_left_alone(kit: DockerKit) -> None:
    name = f"tfop-{kit.identity().key}"
    stranger = kit.engine.api.create_container(IMAGE, ["sleep", "600"], name=name)["Id"]
    kit.engine.api.start(stranger)
    with pytest.raises(RunnerError, match=rf"{name} is taken by container {stranger[:12]} .*not of this job"):
        kit.start("--exit", "0")
    assert kit.runner.find(kit.identity()) is None
    assert kit.engine.api.inspect_container(stranger)["State"]["Running"]
    kit.engine.api.remove_container(stranger, force=True)
    assert kit.wait(kit.start("--exit", "6")).code == 6


def test_c28_a_stale_container_of_ours_makes_way(kit: DockerKit) -> None:
    first = kit.start("--print", "text:first", "--exit", "1")
    kit.wait(first)
    # Also one whose starter died in the middle.
    labels = inspect(kit, first)["Config"]["Labels"]
    kit.engine.api.create_container(IMAGE, ["true"], name="half-made", labels=labels)
    second = kit.start("--exit", "7")
    assert kit.wait(second).code == 7
    assert {one["Id"] for one in kit.engine.containers()} == {second.data["container"]}
    assert kit.output(first) == b"first\n"


def test_a_container_somebody_removes_is_an_end_that_is_told(kit: DockerKit) -> None:
    handle = kit.start("--sleep", "long")
    kit.engine.api.remove_container(handle.data["container"], force=True)
    end = kit.wait(handle)
    assert (end.code, end.stopped) == (137, False)
    assert "removed by somebody else" in str(end.reason)
    assert kit.wait(kit.start("--exit", "8")).code == 8


# -- at once, and very loud (C-30, C-32)


def run_once(kit: DockerKit, command: str, code: int) -> None:
    began = time.monotonic()
    handle = kit.start(*command.split())
    end = kit.wait(handle, 20)
    assert end.code == code
    assert time.monotonic() - began < 20
    if code == 127:
        assert "command not found: no-such-program" in str(end.reason)
    kit.runner.remove(handle, keep_output=False)


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1), ("no-such-program", 127)])
def test_c30_a_container_that_exits_at_once(kit: DockerKit, command: str, code: int) -> None:
    for _ in range(3):
        run_once(kit, command, code)
    for number in range(3):
        handle = kit.start("echo", f"said {number}")
        assert kit.wait(handle) == Exit(code=0)
        assert kit.output(handle) == f"said {number}\n".encode()
        kit.runner.remove(handle, keep_output=False)


def usage(engine: DockerEngine) -> int:
    done = subprocess.run(["du", "-s", "--block-size=1k", f"{engine.root}/data"], capture_output=True, check=True)
    return int(done.stdout.split()[0])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1), ("no-such-program", 127)])
def test_c30_c38_fifty_times_at_once_and_nothing_is_left(kit: DockerKit, command: str, code: int) -> None:
    run_once(kit, command, code)
    before = usage(kit.engine)
    for _ in range(50):
        run_once(kit, command, code)
    assert (kit.engine.containers(), kit.engine.networks()) == ([], [])
    assert kit.engine.api.volumes()["Volumes"] in ([], None)
    assert usage(kit.engine) - before < 1024
    assert [path for path in kit.state_dir.rglob("*") if path.is_file()] == []


def test_c32_a_progress_bar_ends_in_the_log_and_so_does_the_line_after_it(kit: DockerKit) -> None:
    handle = kit.start("--print", "tqdm")
    assert kit.wait(handle) == Exit(code=0)
    assert kit.output(handle).endswith(b"200/200\nprobe: training done\n")


def test_output_is_there_while_the_program_runs_and_after_the_follower_is_lost(kit: DockerKit, tmp_path: Path) -> None:
    script = f"i=0; while [ ! -e {tmp_path}/go-on ]; do echo line $i; i=$((i+1)); sleep .02; done"
    handle = kit.start("sh", "-c", script)
    kit.wait_output(handle, b"line 20\n")
    kit.runner.close()
    other = kit.another()
    until(lambda: b"line 60\n" in other.output(handle, 0)[0], "the next follower")
    (tmp_path / "go-on").touch()
    kit.runner = other
    assert kit.wait(handle).code == 0
    lines = kit.output(handle).splitlines()
    assert lines == [f"line {number}".encode() for number in range(len(lines))]


def test_a_process_that_was_killed_while_it_followed_loses_and_doubles_nothing(kit: DockerKit, tmp_path: Path) -> None:
    # In bursts: a program that does nothing but print is minutes ahead of its follower on a busy machine.
    burst = "while echo line $i; i=$((i+1)); [ $((i%100)) != 0 ]; do :; done"
    script = f"i=0; while [ ! -e {tmp_path}/go-on ]; do {burst}; sleep .01; done"
    follow = CALLER + (
        "import time\nhandle = runner.find(launch.identity)\n"
        "while True: runner.poll(handle), runner.output(handle, 0); time.sleep(.01)\n"
    )
    launch = kit.launch("sh", "-c", script)
    child = subprocess.Popen([sys.executable, "-c", follow], stdin=subprocess.PIPE)
    assert child.stdin
    child.stdin.write(pickle.dumps((kit.recipe, launch)))
    child.stdin.close()
    spool = kit.state_dir / "docker" / "runs" / launch.identity.key / "output.1.log"
    until(lambda: spool.exists() and spool.stat().st_size > 100_000, "some output", 60)
    child.send_signal(signal.SIGKILL)
    child.wait()
    handle = kit.runner.find(launch.identity)
    assert handle
    (tmp_path / "go-on").touch()
    assert kit.wait(handle, 60).code == 0
    lines = kit.output(handle).splitlines()
    assert lines == [f"line {number}".encode() for number in range(len(lines))]
