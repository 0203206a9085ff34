"""The runner contract, of secrets: every runner passes these, whatever it runs programs in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tf_operator.errors import LaunchError
from tf_operator.program import read_result, result_path
from tf_operator.runners import secret_files
from tf_operator.runners.base import SecretBundle, SecretFile

from .process_kit import SECRETS, SEEN_BY_ALL, ProcessKit


def test_secret_files_are_private_and_gone_with_the_program(kit: ProcessKit, tmp_path: Path) -> None:
    files = (SecretFile("krb5.keytab", b"\x00\x01keytab", 0o400), SecretFile("ca.pem", b"pem-pem", 0o440))
    bundle = SecretBundle(files=files)
    flags = ("--print", "files:TF_OPERATOR_SECRETS_DIR", "--out", str(tmp_path), "--sleep", "long")
    handle = kit.start(*flags, secrets=bundle)
    folder = kit.inside(handle, kit.record(tmp_path)["env"]["TF_OPERATOR_SECRETS_DIR"])
    assert folder.stat().st_mode & 0o777 == 0o700
    kit.wait_output(handle, b"keytab\n")
    assert kit.output(handle) == b"ca.pem 440 pem-pem\nkrb5.keytab 400 \x00\x01keytab\n"
    kit.runner.stop(handle, 5.0)
    kit.wait(handle)
    assert not folder.exists()


READER = """
trap 'cat "$TF_OPERATOR_SECRETS_DIR/key"; echo; told=1' HUP
cat "$TF_OPERATOR_SECRETS_DIR/key"; echo " ready"
while [ -z "$told" ]; do sleep 0.05; done
while :; do sleep 0.05; done
"""


def test_secret_files_of_a_living_program_are_renewed(kit: ProcessKit) -> None:
    old = SecretBundle(files=(SecretFile("key", b"first-S3cr3t", 0o440),), mask=("first-S3cr3t",))
    handle = kit.start("sh", "-c", READER, secrets=old)
    kit.wait_output(handle, b"*** ready\n")
    new = SecretBundle(files=(SecretFile("key", b"second-S3cr3t-\x00", 0o400),), mask=("second-S3cr3t-",))
    kit.another().renew(handle, new, None)
    kit.runner.renew(handle, new, "SIGHUP")
    kit.wait_output(handle, b"ready\n***\x00\n")
    assert kit.output(handle) == b"*** ready\n***\x00\n"
    assert kit.runner.poll(handle) is None
    if kit.kind == "process":
        folder = secret_files.secrets_dir(kit.state_dir.resolve(), handle.identity.key)
        assert [(path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()] == [("key", 0o400)]
    kit.runner.stop(handle, 0.0)
    kit.wait(handle)
    kit.runner.renew(handle, new, "SIGHUP")


def test_a_secret_file_cannot_leave_its_directory(kit: ProcessKit) -> None:
    with pytest.raises(LaunchError, match=r"secret file '\.\./x'"):
        kit.start("--exit", "0", secrets=SecretBundle(files=(SecretFile("../x", b"1"),)))


def test_a_secret_is_masked_in_the_output_wherever_a_chunk_ends(kit: ProcessKit) -> None:
    parts = "printf 'a S3cr3t-'; sleep .05; printf 'abcde'; sleep .05; printf 'fghij b\\n'"
    handle = kit.start("sh", "-c", parts, secrets=SECRETS)
    kit.wait(handle)
    assert kit.output(handle) == b"a *** b\n"


@pytest.mark.parametrize("adopted", [False, True])
def test_a_secret_is_masked_in_the_result(kit: ProcessKit, tmp_path: Path, adopted: bool) -> None:
    path = result_path(tmp_path / "model", "a1", kit.identity().replica)
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    env = {**SEEN_BY_ALL, "TF_OPERATOR_RESULT": str(path)}
    script = """printf '{"key": "S3cr3t-abcdefghij", "best": 0.9}' > "$TF_OPERATOR_RESULT"; echo written"""
    script += f"; until [ -e {tmp_path}/go-on ]; do sleep .05; done"
    handle = kit.start("sh", "-c", script, env=env, secrets=SECRETS)
    kit.wait_output(handle, b"written")
    if adopted:
        kit.runner.close()
        kit.runner = kit.another()
        # As a watcher does: what is masked is asked for while the program lives.
        kit.wait_output(handle, b"written")
        kit.output(handle)
    (tmp_path / "go-on").touch()
    kit.wait(handle)
    assert read_result(path) == {"key": "***", "best": 0.9}
    assert [file.name for file in path.parent.iterdir()] == [path.name]
