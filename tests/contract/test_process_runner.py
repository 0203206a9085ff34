"""What only the process runner has to prove: its keeper, its locks, and what `kill -9` leaves."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tf_operator import locks
from tf_operator.errors import IdentityHeldError, LaunchError, RunnerError
from tf_operator.runners import keeper_start, secret_files
from tf_operator.runners.base import Exit, SecretBundle, SecretFile
from tf_operator.runners.leftovers import clean, leftovers

from .process_kit import SECRETS, SEEN_BY_ALL, ProcessKit, lives, until


def kill_keeper(kit: ProcessKit) -> None:
    keeper = kit.keeper()
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not lives(keeper), "the keeper's death")


def test_the_keeper_is_nobodys_child_and_in_no_ones_group(process_kit: ProcessKit, tmp_path: Path) -> None:
    process_kit.start("--out", str(tmp_path), "--sleep", "long")
    keeper, program = psutil.Process(process_kit.keeper()), psutil.Process(process_kit.record(tmp_path)["pid"])
    assert keeper not in psutil.Process().children(recursive=True)
    sessions = {os.getsid(0), os.getsid(keeper.pid), os.getsid(program.pid)}
    assert len(sessions) == 3
    assert program.ppid() == keeper.pid
    streams = {str(Path(f"/proc/{keeper.pid}/fd/{number}").readlink()) for number in (0, 1)}
    assert streams == {os.devnull}


def test_no_secret_reaches_arguments_environment_or_files(process_kit: ProcessKit, tmp_path: Path) -> None:
    files = (SecretFile("key", b"S3cr3t-in-a-file"),)
    bundle = SecretBundle(env=SECRETS.env, files=files, mask=SECRETS.mask)
    flags = ("--out", str(tmp_path / "out"), "--print", "env:STORE_KEY", "--sleep", "long")
    handle = process_kit.start(*flags, secrets=bundle)
    process_kit.record(tmp_path / "out")
    process_kit.wait_output(handle, b"STORE_KEY=***\n")
    keeper = Path("/proc", str(process_kit.keeper()))
    seen = [(keeper / "cmdline").read_bytes(), (keeper / "environ").read_bytes()]
    seen += [file.read_bytes() for file in process_kit.state_dir.rglob("*") if file.is_file()]
    assert len(seen) > 5
    assert [data for data in seen if b"S3cr3t" in data] == []
    assert process_kit.folder().path.stat().st_mode & 0o777 == 0o700


def test_what_the_first_process_leaves_running_is_dead_before_the_end_is_told(
    process_kit: ProcessKit, tmp_path: Path
) -> None:
    handle = process_kit.start("--out", str(tmp_path), "--spawn-child", "--exit", "2")
    end = process_kit.wait(handle)
    child = json.loads((tmp_path / "none-0-1.json").read_text())["child"]
    assert not lives(child)
    assert end == Exit(code=2)


def test_a_killed_keeper_takes_the_program_along_and_poll_tells(process_kit: ProcessKit, tmp_path: Path) -> None:
    handle = process_kit.start("--out", str(tmp_path), "--spawn-child", "--sleep", "long")
    record = process_kit.record(tmp_path)
    kill_keeper(process_kit)
    end = process_kit.wait(handle)
    assert (end.code, end.signal, end.stopped) == (137, "SIGKILL", False)
    assert "keeper was killed" in str(end.reason)
    assert not lives(record["pid"])
    assert not lives(record["child"])
    assert process_kit.another().find(handle.identity) == handle


def test_a_child_that_inherited_no_lock_is_ended_too(process_kit: ProcessKit) -> None:
    """Python closes descriptors for what it starts, so most children hold no lock: their environment tells."""
    script = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    handle = process_kit.start(sys.executable, "-c", script)
    process_kit.wait_output(handle, b"\n")
    child = int(process_kit.output(handle))
    kill_keeper(process_kit)
    until(lambda: not locks.is_held(process_kit.folder().identity_lock), "the program to follow its keeper")
    assert lives(child)
    assert process_kit.wait(process_kit.start("--exit", "5")).code == 5
    assert not lives(child)


@pytest.mark.parametrize("way", ["find", "start", "remove"])
def test_a_tree_without_keeper_is_ended_by_whoever_comes_next(
    process_kit: ProcessKit, tmp_path: Path, way: str
) -> None:
    files = (SecretFile("key", b"in memory"),)
    handle = process_kit.start(
        "--out", str(tmp_path), "--spawn-child", "--sleep", "long", secrets=SecretBundle(files=files)
    )
    record = process_kit.record(tmp_path)
    secrets = Path(record["env"]["TF_OPERATOR_SECRETS_DIR"])
    kill_keeper(process_kit)
    # The child has left the program's session and ignores TERM; it still holds the identity's lock.
    until(lambda: not lives(record["pid"]), "the program to follow its keeper")
    assert lives(record["child"])
    assert secrets.exists()
    if way == "find":
        process_kit.another().find(handle.identity)
    elif way == "start":
        assert process_kit.wait(process_kit.start("--exit", "5")).code == 5
    else:
        process_kit.another().remove(handle)
    assert not lives(record["child"])
    assert not secrets.exists()


def test_the_identity_is_held_while_any_process_lives_that_inherited_it(
    process_kit: ProcessKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process no mark leads to: its environment is wiped, and it left the session. The lock still knows."""
    monkeypatch.setattr("tf_operator.runners.clearing.CLEAR_WAIT", 0.5)
    hide = "import os,time,sys; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    script = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        f"    os.execve(sys.executable, [sys.executable, '-c', {hide!r}], {{}})\n"
        "os.wait()\n"
    )
    handle = process_kit.start(sys.executable, "-c", script)
    process_kit.wait_output(handle, b"\n")
    hidden = int(process_kit.output(handle))
    kill_keeper(process_kit)
    try:
        with pytest.raises(IdentityHeldError, match=r"worker-0.*clean"):
            process_kit.start("--exit", "0")
    finally:
        os.kill(hidden, signal.SIGKILL)
    until(lambda: not lives(hidden), "the hidden process to end")
    assert process_kit.wait(process_kit.start("--exit", "5")).code == 5


def test_the_port_stays_leased_as_long_as_the_program_lives(process_kit: ProcessKit, tmp_path: Path) -> None:
    handle = process_kit.start("--out", str(tmp_path), "--sleep", "long")
    other = process_kit.another().reserve(process_kit.identity(index=1), handle.address)
    assert other.address != handle.address
    other.release()


def test_term_to_the_keeper_stops_the_program_gracefully(process_kit: ProcessKit, tmp_path: Path) -> None:
    handle = process_kit.start("--out", str(tmp_path), "--on-term", "exit0", "--sleep", "long")
    process_kit.record(tmp_path)
    os.kill(process_kit.keeper(), signal.SIGTERM)
    end = process_kit.wait(handle)
    assert (end.code, end.stopped) == (0, True)
    assert "keeper" in str(end.reason)


def test_the_orphan_deadline_does_not_read_the_wall_clock(process_kit: ProcessKit, tmp_path: Path) -> None:
    handle = process_kit.start("--out", str(tmp_path), "--sleep", "long", orphan_timeout=10.0)
    pid = process_kit.record(tmp_path)["pid"]
    day = 86400
    # A clock that is set back and forth by days while the program is watched, less often than the keeper looks.
    for jump in (-day, day, -day, 10 * day):
        moment = time.time() + jump
        os.utime(process_kit.folder().watched, (moment, moment))
        if jump < 10 * day:
            time.sleep(4)
    assert lives(pid)
    until(lambda: not lives(pid), "the deadline", 30)
    assert "no watcher" in str(process_kit.wait(handle).reason)


def test_a_start_that_died_before_its_program_is_as_if_it_never_was(process_kit: ProcessKit) -> None:
    handle = process_kit.start("--exit", "0")
    process_kit.wait(handle)
    folder = process_kit.folder()
    record = folder.record()
    assert record
    intent = {key: value for key, value in record.items() if key not in ("pid", "program", "keeper")}
    until(lambda: not locks.is_held(folder.keeper_lock), "the keeper to end")
    folder.write_record(intent | {"start": 2})
    assert process_kit.another().find(handle.identity) is None
    assert process_kit.wait(process_kit.start("--exit", "6")).code == 6


def test_a_full_disk_does_not_end_the_program_and_is_told(process_kit: ProcessKit, tmp_path: Path) -> None:
    folder = process_kit.folder()
    folder.create()
    # The next start's output goes to a device that is always full.
    folder.output(1).symlink_to("/dev/full")
    go_on = tmp_path / "go-on"
    launch = process_kit.launch("--print", "lines:1000", "--wait-file", str(go_on), "--exit", "0")
    lease = process_kit.runner.reserve(launch.identity, None)
    folder.last_start = lambda: 0  # type: ignore[method-assign]
    process_kit.runner._folder = lambda identity: folder  # type: ignore[method-assign]
    handle = process_kit.runner.start(launch, lease)
    lease.release()
    go_on.touch()
    end = process_kit.wait(handle)
    assert end.code == 0
    assert "bytes of output lost: no space left on device" in str(end.reason)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: the test mounts a small disk of its own")
def test_a_program_on_a_full_disk_is_stopped_sooner_too_and_removed(process_kit: ProcessKit, tmp_path: Path) -> None:
    process_kit.state_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(process_kit.state_dir)], check=True)
    try:
        handle = process_kit.start("--out", str(tmp_path), "--on-term", "ignore", "--sleep", "long")
        process_kit.record(tmp_path)
        with pytest.raises(OSError, match="No space left"), (process_kit.state_dir / "full").open("wb", 0) as full:
            while True:
                full.write(bytes(4096))
        process_kit.runner.stop(handle, 600.0)
        process_kit.runner.stop(handle, 0.5)
        end = process_kit.wait(handle)
        assert (end.code, end.stopped) == (137, True)
        process_kit.runner.remove(handle)
        assert process_kit.another().find(handle.identity) is None
    finally:
        process_kit.close()
        subprocess.run(["umount", "-l", str(process_kit.state_dir)], check=True)


def test_a_lease_that_was_given_up_is_refused(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("--exit", "0")
    lease = process_kit.runner.reserve(launch.identity, None)
    lease.release()
    with pytest.raises(RunnerError, match="lease"):
        process_kit.runner.start(launch, lease)


def test_nothing_is_left_after_remove(process_kit: ProcessKit) -> None:
    handle = process_kit.start("--exit", "0")
    process_kit.wait(handle)
    process_kit.runner.remove(handle, keep_output=False)
    left = [path for path in process_kit.state_dir.rglob("*") if path.is_file()]
    assert [path.parent.name for path in left] == ["ports"]


# -- what is not the program's fault


def test_a_file_in_the_place_of_secrets_does_not_end_a_program_without_any(
    process_kit: ProcessKit, tmp_path: Path
) -> None:
    handle = process_kit.start("--out", str(tmp_path), "--wait-file", str(tmp_path / "go-on"), "--exit", "0")
    place = secret_files.secrets_dir(process_kit.state_dir, handle.identity.key)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.touch()
    try:
        time.sleep(1.5)  # the keeper looks each second
        (tmp_path / "go-on").touch()
        assert process_kit.wait(handle) == Exit(code=0)
    finally:
        place.unlink()


def test_a_result_behind_a_circle_of_links_costs_no_end(process_kit: ProcessKit, tmp_path: Path) -> None:
    (tmp_path / ".tf_operator").mkdir()
    (tmp_path / ".tf_operator" / "results").symlink_to("results")
    result = tmp_path / ".tf_operator" / "results" / "a1-worker-0.json"
    handle = process_kit.start("--exit", "0", env=SEEN_BY_ALL | {"TF_OPERATOR_RESULT": str(result)})
    assert process_kit.wait(handle) == Exit(code=0)


def test_a_program_that_ended_before_it_was_told_to_was_not_stopped(process_kit: ProcessKit, tmp_path: Path) -> None:
    handle = process_kit.start("--out", str(tmp_path), "--wait-file", str(tmp_path / "go-on"), "--exit", "0")
    pid, keeper = handle.data["pid"], process_kit.keeper()
    os.kill(keeper, signal.SIGSTOP)
    (tmp_path / "go-on").touch()
    until(lambda: not lives(pid), "the program to end")
    process_kit.runner.stop(handle, 5.0)
    os.kill(keeper, signal.SIGCONT)
    assert process_kit.wait(handle) == Exit(code=0)


@pytest.mark.parametrize("stuck", ["before it reads its orders", "before it starts the program"])
def test_a_keeper_that_never_answers_is_given_up_and_ended(
    process_kit: ProcessKit, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    code = "import time; time.sleep(60)"
    if stuck != "before it reads its orders":
        code = keeper_start._BOOTSTRAP.replace("; main()", "; import time, tf_operator.runners.visible as visible")
        code += "; visible.check = lambda *_: time.sleep(60); main()"
    monkeypatch.setattr(keeper_start, "_BOOTSTRAP", code)
    monkeypatch.setattr(keeper_start, "ANSWER_WAIT", 1.0)
    began = time.monotonic()
    with pytest.raises(LaunchError, match="no answer from its keeper"):
        process_kit.start("--exit", "0", env=SEEN_BY_ALL | {"LONG": "x" * 100_000})
    assert time.monotonic() - began < 10
    until(lambda: not locks.is_held(process_kit.folder().keeper_lock), "the keeper's death", 5)
    monkeypatch.undo()
    assert process_kit.wait(process_kit.start("--exit", "5")).code == 5


# -- leftovers and clean


def test_clean_finds_and_removes_what_no_living_watcher_has(process_kit: ProcessKit, tmp_path: Path) -> None:
    script = (
        "import pickle, sys\n"
        "from pathlib import Path\n"
        "from tf_operator.runners.process import ProcessRunner\n"
        "launch = pickle.load(sys.stdin.buffer)\n"
        "runner = ProcessRunner(Path(sys.argv[1]), (21000, 21999))\n"
        "runner.start(launch, runner.reserve(launch.identity, None))\n"
    )
    unwatched = process_kit.launch("--out", str(tmp_path), "--sleep", "long", identity=process_kit.identity("ps"))
    subprocess.run(
        [sys.executable, "-c", script, str(process_kit.state_dir)], input=pickle.dumps(unwatched), check=True
    )
    watched = process_kit.start("--sleep", "long")
    found = leftovers(process_kit.state_dir)
    assert [(leftover.identity, leftover.state) for leftover in found] == [(unwatched.identity, "running")]
    assert f"ps-0: running, pid {found[0].pid}" in str(found[0])
    lines = clean(process_kit.state_dir, found)
    assert [line.split(":")[0] for line in lines] == ["removed"]
    assert found[0].pid
    assert not lives(found[0].pid)
    assert leftovers(process_kit.state_dir) == []
    assert process_kit.runner.poll(watched) is None


def test_clean_leaves_alone_what_is_watched_again(process_kit: ProcessKit) -> None:
    handle = process_kit.start("--sleep", "long")
    process_kit.runner.close()
    found = leftovers(process_kit.state_dir)
    assert process_kit.runner.poll(handle) is None
    assert "left alone" in clean(process_kit.state_dir, found)[0]
    assert process_kit.runner.poll(handle) is None


@pytest.mark.parametrize("listed", ["ended", "lost", "output"])
def test_clean_leaves_alone_what_has_just_started(process_kit: ProcessKit, listed: str) -> None:
    """A list is older than what is done with it, and a watcher looks only once its program has started."""
    handle = process_kit.start("--sleep", "long")
    process_kit.runner.close()
    stale = [replace(leftover, state=listed) for leftover in leftovers(process_kit.state_dir)]
    assert "left alone, it runs now" in clean(process_kit.state_dir, stale)[0]
    assert process_kit.runner.poll(handle) is None


def test_what_clean_cannot_remove_is_a_line(process_kit: ProcessKit) -> None:
    process_kit.wait(process_kit.start("--exit", "0"))
    process_kit.runner.close()
    found = leftovers(process_kit.state_dir)
    record = process_kit.folder().path / "handle.json"
    record.unlink()
    record.mkdir()
    assert clean(process_kit.state_dir, found) == [f"not removed: [Errno 21] Is a directory: '{record}'"]


def test_clean_knows_ended_lost_and_output(process_kit: ProcessKit, tmp_path: Path) -> None:
    ended = process_kit.start("--exit", "1", identity=process_kit.identity("chief"))
    process_kit.wait(ended)
    only_output = process_kit.start("--print", "text:kept", identity=process_kit.identity("ps"))
    process_kit.wait(only_output)
    process_kit.runner.remove(only_output)
    process_kit.start("--out", str(tmp_path), "--sleep", "long")
    kill_keeper(process_kit)
    process_kit.runner.close()
    states = {leftover.key.split("-", 1)[1]: leftover.state for leftover in leftovers(process_kit.state_dir)}
    assert states == {"chief-0": "ended", "ps-0": "output", "worker-0": "lost"}
    clean(process_kit.state_dir, leftovers(process_kit.state_dir))
    assert leftovers(process_kit.state_dir) == []


def test_clean_shows_and_removes_what_was_kept_of_a_failed_start(process_kit: ProcessKit) -> None:
    failed = process_kit.start("--print", "text:kept", "--exit", "1")
    process_kit.wait(failed)
    process_kit.runner.remove(failed, keep_output=True)
    process_kit.runner.close()
    (found,) = leftovers(process_kit.state_dir)
    assert found.state == "output"
    clean(process_kit.state_dir, [found], keep_output=True)
    assert process_kit.output(failed) == b"kept\n"
    clean(process_kit.state_dir, [found])
    left = [path for path in process_kit.state_dir.rglob("*") if path.is_file()]
    assert [path.parent.name for path in left] == ["ports"]


def test_clean_removes_what_was_kept_with_a_start_that_was_not_removed(process_kit: ProcessKit) -> None:
    for code in (1, 2):
        handle = process_kit.start("--exit", str(code), incarnation=code)
        process_kit.wait(handle)
        if code == 1:
            process_kit.runner.remove(handle, keep_output=True)
    process_kit.runner.close()
    clean(process_kit.state_dir, leftovers(process_kit.state_dir))
    assert leftovers(process_kit.state_dir) == []


def test_clean_removes_forgotten_secret_files(process_kit: ProcessKit) -> None:
    folder = secret_files.secrets_dir(process_kit.state_dir, "gone-worker-0")
    secret_files.write(folder, [("key", b"secret", 0o400)])
    assert "secret files" in clean(process_kit.state_dir, [])[0]
    assert not folder.exists()
