"""The keeper's parts that can be tried alone: output file, secret files, process tree, run folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tf_operator.runners import process_tree, renewal, secret_files
from tf_operator.runners.keeper import describe, signal_name
from tf_operator.runners.output_log import OutputLog
from tf_operator.runners.run_folder import RESERVED, RunFolder


def test_a_keeper_imports_little() -> None:
    """It starts with every program: nothing of Airflow's weight, and none of the larger standard modules."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import tf_operator.runners.keeper; print(*sys.modules)"
    root = str(Path(process_tree.__file__).parents[2])
    out = subprocess.run([sys.executable, "-I", "-S", "-c", script, root], capture_output=True, text=True, check=True)
    heavy = {"airflow", "pydantic", "psutil", "dataclasses", "subprocess", "asyncio", "shutil", "logging", "socket"}
    assert not heavy & set(out.stdout.split())


# -- output


def test_output_on_a_full_disk_is_counted_not_raised() -> None:
    log = OutputLog(Path("/dev/full"), [])
    log.write(b"12345")
    log.write(b"678")
    log.close()
    log.close()
    assert log.trouble == "8 bytes of output lost: no space left on device"


def test_a_gap_in_the_output_is_marked_once_there_is_space_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = OutputLog(path, [])
    log.write(b"before\n")
    good, full = os.dup(log._descriptor), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._descriptor)
    log.write(b"lost\n")
    os.dup2(good, log._descriptor)
    log.write(b"after\n")
    log.write(b"more\n")
    log.close()
    os.close(good)
    os.close(full)
    expected = b"before\n\n[tf_operator: 5 bytes of output lost here: no space left on device]\nafter\nmore\n"
    assert path.read_bytes() == expected


# -- secret files


def test_secret_files_are_written_with_their_modes_and_removed(tmp_path: Path) -> None:
    folder = secret_files.secrets_dir(tmp_path, "job-worker-0")
    secret_files.write(folder, [("key", b"\x00value", 0o440)])
    assert (folder / "key").read_bytes() == b"\x00value"
    assert (folder / "key").stat().st_mode & 0o777 == 0o440
    (folder / "made").mkdir()
    (folder / "made" / "by-program").write_text("x")
    (folder / "link").symlink_to("made")
    secret_files.remove(folder)
    secret_files.remove(folder)
    assert not folder.exists()


def test_secret_files_go_nowhere_but_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "MEMORY", Path("/proc"))
    with pytest.raises(OSError, match="memory-backed"):
        secret_files.write(secret_files.secrets_dir(tmp_path, "k"), [])


def test_a_directory_laid_out_by_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = Path("/dev/shm") / f"trap-{os.getpid()}"
    monkeypatch.setattr(secret_files, "MEMORY", trap)
    folder = secret_files.secrets_dir(tmp_path, "k")
    folder.parent.mkdir(parents=True)
    try:
        folder.parent.chmod(0o755)
        with pytest.raises(OSError, match="only this user"):
            secret_files.write(folder, [])
    finally:
        folder.parent.rmdir()
        trap.rmdir()


@pytest.mark.parametrize("blocked", ["the base", "the directory"])
def test_what_others_put_in_the_place_of_secrets_is_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    """Everybody may write into shared memory."""
    monkeypatch.setattr(secret_files, "MEMORY", tmp_path)
    folder = secret_files.secrets_dir(tmp_path, "k")
    place = folder.parent if blocked == "the base" else folder
    place.parent.mkdir(exist_ok=True)
    place.touch()
    secret_files.remove(folder)
    renewal.carry_out(folder, lambda _: None, None)
    assert place.exists()


# -- processes


def test_memory_counts_shared_pages_once() -> None:
    script = "import os,sys; data = b'x' * (64 << 20); os.fork(); print('up', flush=True); sys.stdin.read()"
    program = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with program:
        assert program.stdin and program.stdout
        assert program.stdout.read(6) == b"up\nup\n"
        itself = process_tree.read(program.pid)
        assert itself
        tree = [itself, *process_tree.descendants(program.pid)]
        assert len(tree) == 2
        resident, proportional = process_tree.memory(tree, 1 << 40), process_tree.memory(tree, 1)
        program.stdin.close()
    assert resident > 128 << 20
    assert 64 << 20 < proportional < 96 << 20


def test_a_session_taken_over_by_a_later_process_is_not_the_programs() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as program:
        leader = process_tree.read(program.pid)
        assert leader
        assert [process.pid for process in process_tree.members("/no/run", leader)] == [program.pid]
        earlier = leader._replace(started=leader.started - 1)
        assert process_tree.members("/no/run", earlier) == []
        assert not process_tree.send(earlier, signal.SIGKILL)
        assert process_tree.kill_members("/no/run", leader, 5) == []


def test_members_are_known_by_their_environment_to_the_letter() -> None:
    env = {process_tree.MARKER: "/state/runs/job-worker-1"}
    with subprocess.Popen(["/bin/sleep", "600"], env=env) as program:
        try:
            assert process_tree.members("/state/runs/job-worker-", None) == []
            assert process_tree.members("/state/runs/job-worker-11", None) == []
            assert [found.pid for found in process_tree.members("/state/runs/job-worker-1", None)] == [program.pid]
        finally:
            program.kill()


def test_names_of_signals() -> None:
    assert (signal_name(9), signal_name(40)) == ("SIGKILL", "SIG40")


def test_a_fault_is_described_without_values() -> None:
    assert describe(ValueError("S3cr3t")) == "ValueError"
    assert describe(FileNotFoundError(2, "No such file", "/x")) == "no such file: /x"


# -- run folder


def test_starts_are_numbered_on_past_what_is_left(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job-worker-0")
    folder.create()
    assert folder.last_start() == 0
    folder.output(7).touch()
    folder.write_record({"start": 3})
    assert folder.last_start() == 7
    folder.forget(keep=7)
    assert (folder.record(), folder.last_start()) == (None, 7)
    folder.forget_all(keep_output=False)
    assert not folder.path.exists()


def test_what_was_kept_of_a_start_outlasts_the_next_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job-worker-0")
    for start in (1, 2, 3):
        folder.create()
        folder.output(start).write_text(f"start {start}\n")
        folder.write_exit(start, {"code": start})
        folder.write_record({"start": start})
        folder.forget(start if start == 2 else None)
    assert sorted(path.name for path in folder.path.iterdir()) == ["kept.2.json", "output.2.log"]
    assert json.loads((folder.path / "kept.2.json").read_text()) == {"code": 2}
    assert folder.last_start() == 2


@pytest.mark.parametrize("reserved", [True, False])
def test_an_end_is_recorded_whole_however_long_its_reason(tmp_path: Path, reserved: bool) -> None:
    folder = RunFolder(tmp_path, "job-worker-0")
    folder.create()
    if reserved:
        folder.reserve(1)
    assert folder.exit(1) is None
    folder.write_exit(1, {"code": 1, "reason": "x" * 2 * RESERVED})
    end = folder.exit(1)
    assert end
    assert (end["code"], end["reason"]) == (1, "x" * 500)


def test_a_file_cut_short_by_a_crash_counts_as_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job-worker-0")
    folder.create()
    (folder.path / "handle.json").write_text('{"start": ')
    assert folder.record() is None


def test_requests_to_stop_that_come_at_once_are_all_taken(tmp_path: Path) -> None:
    """A person, the cleanup task and the owner may ask in the same moment."""
    folder = RunFolder(tmp_path, "job-worker-0")
    folder.create()
    with ThreadPoolExecutor(4) as pool:
        for start in range(1, 100):
            folder.reserve(start)
            list(pool.map(lambda grace, start=start: folder.request_stop(start, grace), (1.0, 2.0, 3.0, 4.0)))
            request = folder.stop_request(start)
            assert request and request["grace"] in (1.0, 2.0, 3.0, 4.0)
