"""The runner contract: every runner passes these, whatever it runs programs in."""

from __future__ import annotations

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

from tf_operator.errors import IdentityHeldError, LaunchError
from tf_operator.runners.base import Exit, Launch

from .process_kit import SECRETS, SEEN_BY_ALL, ProcessKit, lives, until


def test_a_program_runs_and_its_end_and_output_can_be_read(kit: ProcessKit) -> None:
    handle = kit.start("--print", "lines:3")
    assert kit.wait(handle) == Exit(code=0)
    assert kit.output(handle) == b"line 0\nline 1\nline 2\n"
    assert json.loads(json.dumps(handle.data)) == handle.data
    assert (handle.attempt, handle.incarnation, handle.generation) == ("a1", 1, 1)


@pytest.mark.parametrize(
    ("flags", "code", "name"),
    [
        (("--exit", "1"), 1, None),
        (("--exit", "255"), 255, None),
        (("--signal", "SIGSEGV"), 139, "SIGSEGV"),
        (("--signal", "SIGTERM"), 143, "SIGTERM"),
        (("--signal", "SIGKILL"), 137, "SIGKILL"),
    ],
)
def test_exit_codes_and_signals(kit: ProcessKit, flags: tuple[str, ...], code: int, name: str | None) -> None:
    end = kit.wait(kit.start(*flags))
    assert (end.code, end.signal, end.stopped, end.oom_limit, end.reason) == (code, name, False, None, None)


def test_kill_from_outside_is_no_memory_case(kit: ProcessKit) -> None:
    handle = kit.start("--sleep", "long", memory=1 << 30)
    os.kill(handle.data["pid"], signal.SIGKILL)
    assert kit.wait(handle) == Exit(code=137, signal="SIGKILL")


def test_too_much_memory_is_said_with_the_limit(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--eat-memory", "200", "--sleep", "long", memory=64 << 20)
    end = kit.wait(handle)
    assert (end.code, end.signal, end.oom_limit, end.stopped) == (137, "SIGKILL", 64 << 20, False)


def test_a_missing_command_ends_with_127_and_its_name(kit: ProcessKit) -> None:
    end = kit.wait(kit.start("no-such-program", "--flag"))
    assert end.code == 127
    assert "command not found: no-such-program" in str(end.reason)


def test_a_file_that_cannot_be_executed_ends_with_126(kit: ProcessKit) -> None:
    (kit.work / "data.txt").write_text("no program")
    end = kit.wait(kit.start("./data.txt"))
    assert end.code == 126
    assert "./data.txt" in str(end.reason)


def test_a_missing_working_dir_is_named(kit: ProcessKit) -> None:
    with pytest.raises(LaunchError, match=r"worker-0: working_dir .*/nowhere"):
        kit.start("--exit", "0", working_dir=str(kit.work / "nowhere"))
    assert kit.runner.find(kit.identity()) is None


def test_environment_is_as_given_and_nothing_else(
    kit: ProcessKit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AIRFLOW__CORE__FERNET_KEY", "VAULT_TOKEN", "BAO_ADDR", "PYTHONPATH", "SOMETHING"):
        monkeypatch.setenv(name, "must not arrive")
    env = SEEN_BY_ALL | {"EMPTY": "", kit.odd_env: "é=1 $HOME", "CUDA_VISIBLE_DEVICES": "-1"}
    kit.wait(kit.start("--out", str(tmp_path / "out"), env=env, secrets=SECRETS))
    seen = kit.record(tmp_path / "out")["env"]
    assert all(seen.pop(name) for name in kit.own)
    assert seen == env | {"STORE_KEY": "S3cr3t-abcdefghij"}


def test_arguments_are_literal(kit: ProcessKit, tmp_path: Path) -> None:
    odd = ["conf.json", "run.sh", '{"a":{"b":1}}', "{{ not jinja", "a;b && c | d", "$HOME", "*", "", "é\n", "-"]
    kit.wait(kit.start("--out", str(tmp_path / "out"), *odd))
    assert kit.record(tmp_path / "out")["argv"][2:] == odd


def test_the_chosen_interpreter_stands_for_python(kit: ProcessKit) -> None:
    handle = kit.start("python", "-c", "import sys; print(sys.executable)", runtime={"python": kit.python})
    assert kit.wait(handle).code == 0
    assert kit.output(handle).decode().strip() == kit.python


def test_the_program_can_bind_its_address_as_its_first_action(kit: ProcessKit, tmp_path: Path) -> None:
    identity = kit.identity("ps")
    lease = kit.runner.reserve(identity, None)
    config = {"cluster": {"ps": [lease.address]}, "task": {"type": "ps", "index": 0}}
    env = SEEN_BY_ALL | {"TF_CONFIG": json.dumps(config)}
    handle = kit.runner.start(kit.launch("--bind", "--print", "text:bound", env=env, identity=identity), lease)
    lease.release()
    assert kit.wait(handle) == Exit(code=0)
    assert handle.address == lease.address


def test_progress_bars_and_broken_utf8_arrive_as_printed(kit: ProcessKit) -> None:
    handle = kit.start("--print", "tqdm", "--print", "badutf8", secrets=SECRETS)
    assert kit.wait(handle).code == 0
    data = kit.output(handle)
    assert data.count(b"\r") == 200
    assert b"200/200\nprobe: training done\n" in data
    assert data.endswith(b"good \xc3\xa9 bad \xff\xfe\xc3( end\n")


def test_loud_output_is_complete_before_the_end_is_told(kit: ProcessKit) -> None:
    handle = kit.start("--print", "loud")
    assert kit.wait(handle, 60).code == 0
    data, offset = kit.runner.output(handle, 0, 20_000_000)
    assert len(data) == offset == 100_000 * 100
    assert kit.runner.output(handle, offset) == (b"", offset)
    assert kit.runner.output(handle, offset - 5)[0] == b"xxxx\n"


# -- stopping


@pytest.mark.parametrize(("how", "code"), [("exit0", 0), ("exit143", 143), ("", 143)])
def test_stop_is_a_term_that_the_program_may_answer(kit: ProcessKit, how: str, code: int, tmp_path: Path) -> None:
    flags = ("--on-term", how) if how else ()
    handle = kit.start("--out", str(tmp_path), "--sleep", "long", *flags)
    kit.record(tmp_path)
    kit.runner.stop(handle, 5.0)
    end = kit.wait(handle)
    assert (end.code, end.stopped, end.reason) == (code, True, None)


def test_stop_kills_after_the_grace_and_says_so(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--out", str(tmp_path), "--on-term", "ignore", "--sleep", "long")
    kit.record(tmp_path)
    began = time.monotonic()
    kit.runner.stop(handle, 0.5)
    end = kit.wait(handle)
    assert 0.5 <= time.monotonic() - began < 9
    assert (end.code, end.signal, end.stopped) == (137, "SIGKILL", True)
    assert "0.5 s" in str(end.reason)


def test_a_second_stop_can_only_shorten_the_grace(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--out", str(tmp_path), "--on-term", "ignore", "--sleep", "long")
    kit.record(tmp_path)
    found = [kit.runner.find(handle.identity)]
    kit.runner.stop(handle, 60.0)
    found.append(kit.runner.find(handle.identity))
    assert [each and each.stopping for each in found] == [False, True], "who comes next does not go on with it"
    kit.runner.stop(handle, 0.2)
    end = kit.wait(handle, 15)
    assert end.signal == "SIGKILL"
    assert "0.2 s" in str(end.reason), "and it is the shorter one that is told"


def test_the_grace_can_be_used_to_save(kit: ProcessKit, tmp_path: Path) -> None:
    # Behind a shell, which dies of the TERM at once: what it started still has its grace.
    probe = " ".join(kit.launch("--out", str(tmp_path), "--on-term", "slow:0.5", "--sleep", "long").argv)
    handle = kit.start("sh", "-c", f"{probe}; true")
    kit.record(tmp_path)
    kit.runner.stop(handle, 10.0)
    assert kit.wait(handle).stopped
    assert kit.output(handle).endswith(b"probe: saved\n")


def test_a_frozen_program_can_be_stopped(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--out", str(tmp_path), "--on-term", "exit0", "--sleep", "long")
    os.kill(kit.record(tmp_path)["pid"], signal.SIGSTOP)
    kit.runner.stop(handle, 10.0)
    assert kit.wait(handle) == Exit(code=0, stopped=True)


def test_stopping_what_has_ended_changes_nothing(kit: ProcessKit) -> None:
    handle = kit.start("--exit", "3")
    kit.wait(handle)
    kit.runner.stop(handle, 5.0)
    assert kit.wait(handle) == Exit(code=3)


def test_no_watcher_for_too_long_ends_the_program(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--out", str(tmp_path), "--sleep", "long", orphan_timeout=3.0)
    pid = kit.record(tmp_path)["pid"]
    until(lambda: not lives(pid), "the deadline")
    end = kit.wait(handle)
    assert end.stopped
    assert "no watcher for 3 s" in str(end.reason)


def test_polling_holds_the_deadline_off(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--out", str(tmp_path), "--sleep", "long", orphan_timeout=3.0)
    deadline = time.monotonic() + 9.0
    while time.monotonic() < deadline:
        assert kit.runner.poll(handle) is None
        time.sleep(0.1)


# -- one identity, one program


def test_a_second_start_is_refused_and_names_the_first(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--out", str(tmp_path), "--sleep", "long")
    other = kit.another()
    lease = other.reserve(kit.identity(index=1), None)
    launch = dataclasses.replace(kit.launch("--exit", "0"), incarnation=2)
    with pytest.raises(IdentityHeldError, match=rf"train/worker-0.*{handle.data['pid']}"):
        other.start(launch, lease)
    lease.release()
    assert kit.runner.poll(handle) is None
    kit.record(tmp_path)
    assert len(list(tmp_path.glob("none-0-*.json"))) == 1


def test_six_starters_at_once_give_one_program(kit: ProcessKit, tmp_path: Path) -> None:
    script = """
import sys, pickle
from tf_operator.errors import IdentityHeldError
(make, arguments), launch = pickle.load(sys.stdin.buffer)
runner = make(*arguments)
lease = runner.reserve(launch.identity, None)
try:
    runner.start(launch, lease)
except IdentityHeldError:
    sys.exit(7)
"""
    launch = kit.launch("--out", str(tmp_path / "out"), "--sleep", "long")
    starters = [subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) for _ in range(6)]
    for starter in starters:
        assert starter.stdin
        starter.stdin.write(pickle.dumps((kit.recipe, launch)))
        starter.stdin.close()
    assert sorted(starter.wait(60) for starter in starters) == [0, 7, 7, 7, 7, 7]
    kit.record(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*.json")] == ["none-0-1.json"]
    handle = kit.runner.find(launch.identity)
    assert handle
    kit.runner.remove(handle)


def test_started_again_after_its_end_it_keeps_its_address_and_all_output(kit: ProcessKit) -> None:
    first = kit.start("--print", "text:first")
    kit.wait(first)
    lease = kit.another().reserve(kit.identity(), first.address)
    second = kit.runner.start(dataclasses.replace(kit.launch("--print", "text:second"), generation=2), lease)
    lease.release()
    kit.wait(second)
    assert second.address == first.address
    assert (kit.output(first), kit.output(second)) == (b"first\n", b"second\n")
    assert kit.runner.poll(first) == Exit(code=0)
    found = kit.another().find(kit.identity())
    assert found == second


# -- outliving the watcher

CALLER = """
import os, pickle, sys, time
(make, arguments), launch = pickle.load(sys.stdin.buffer)
runner = make(*arguments)
handle = runner.start(launch, runner.reserve(launch.identity, None))
print(handle.data["pid"], flush=True)
time.sleep(600)
"""


def start_elsewhere(kit: ProcessKit, launch: Launch) -> subprocess.Popen[bytes]:
    """A watcher in another process group that has just started the program."""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert caller.stdin and caller.stdout
    caller.stdin.write(pickle.dumps((kit.recipe, launch)))
    caller.stdin.close()
    assert int(caller.stdout.readline()) > 0
    caller.stdout.close()
    return caller


def test_the_program_outlives_its_watchers_whole_group_and_is_adopted(kit: ProcessKit, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    launch = kit.launch("--print", "text:before", "--wait-file", str(go_on), "--result", "{}", "--exit", "4")
    launch = dataclasses.replace(launch, env=SEEN_BY_ALL | {"TF_OPERATOR_RESULT": str(tmp_path / "result")})
    caller = start_elsewhere(kit, launch)
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait()
    handle = kit.runner.find(launch.identity)
    assert handle
    assert kit.runner.poll(handle) is None
    kit.wait_output(handle, b"before\n")
    go_on.touch()
    assert kit.wait(handle) == Exit(code=4)
    assert (tmp_path / "result").read_text() == "{}"
    assert kit.another().find(launch.identity) == handle


def test_an_adopted_program_can_be_stopped(kit: ProcessKit, tmp_path: Path) -> None:
    launch = kit.launch("--out", str(tmp_path), "--on-term", "exit0", "--sleep", "long")
    caller = start_elsewhere(kit, launch)
    caller.kill()
    caller.wait()
    kit.record(tmp_path)
    handle = kit.runner.find(launch.identity)
    assert handle
    kit.runner.stop(handle, 5.0)
    assert kit.wait(handle) == Exit(code=0, stopped=True)


def test_an_identity_nobody_started_is_not_found(kit: ProcessKit) -> None:
    assert kit.runner.find(kit.identity("evaluator")) is None


# -- removing


def test_removing_a_living_program_ends_it_and_leaves_only_output(kit: ProcessKit, tmp_path: Path) -> None:
    handle = kit.start("--out", str(tmp_path), "--print", "text:kept", "--on-term", "ignore", "--sleep", "long")
    pid = kit.record(tmp_path)["pid"]
    kit.runner.remove(handle)
    assert not lives(pid)
    assert kit.runner.find(handle.identity) is None
    assert kit.output(handle) == b"kept\n"
    kit.runner.remove(handle)
    assert kit.runner.poll(handle) is not None


def test_removing_with_output_leaves_nothing(kit: ProcessKit) -> None:
    handle = kit.start("--print", "text:gone")
    kit.wait(handle)
    kit.runner.remove(handle, keep_output=False)
    assert kit.output(handle) == b""
    assert kit.runner.find(handle.identity) is None


def test_what_is_kept_of_a_failed_start_is_in_nobodys_way(kit: ProcessKit) -> None:
    """`clean_policy: keep_failed`: the next start is neither blocked by it nor takes it away."""
    failed = kit.start("--print", "text:why it failed", "--exit", "3")
    kit.wait(failed)
    kit.runner.remove(failed, keep_output=True)
    assert kit.runner.find(failed.identity) is None
    well = kit.start("--print", "text:it went well", incarnation=2)
    assert kit.wait(well) == Exit(code=0)
    kit.runner.remove(well, keep_output=False)
    assert (kit.output(failed), kit.output(well)) == (b"why it failed\n", b"")
    (kept,) = kit.state_dir.rglob("kept.*.json")
    assert json.loads(kept.read_text())["code"] == 3


def test_a_superseded_watcher_removes_nothing_of_the_newer_start(kit: ProcessKit, tmp_path: Path) -> None:
    old = kit.start("--exit", "1")
    kit.wait(old)
    new = kit.start("--out", str(tmp_path), "--sleep", "long")
    kit.runner.stop(old, 0.0)
    kit.another().remove(old)
    assert kit.runner.poll(new) is None
    assert lives(kit.record(tmp_path)["pid"])
