"""Job files written by the tests of this folder, and the refusals they get."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tf_operator.errors import JobFileError
from tf_operator.job_spec import TensorFlowJob

BASE = """\
name: base
program: {command: [probe]}
replicas:
  chief: {replicas: 1}
  ps: {replicas: 1}
  worker: {replicas: 2}
"""


@pytest.fixture
def base() -> str:
    """The baseline of the cases: chief, one ps, two workers. Line 4 is the chief's, 5 the ps', 6 the workers'."""
    return BASE


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a job file and returns its path."""

    def write(text: str, name: str = "job.yaml") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def read(job_file: Callable[..., Path]) -> Callable[..., TensorFlowJob]:
    """Reads a job from the text of a file."""
    return lambda text, name="job.yaml": TensorFlowJob.from_file(job_file(text, name))


@pytest.fixture
def refusal(job_file: Callable[..., Path]) -> Callable[..., list[str]]:
    """The lines a faulty file is refused with, without the folder before the file's name."""

    def refuse(text: str, name: str = "job.yaml") -> list[str]:
        path = job_file(text, name)
        with pytest.raises(JobFileError) as refused:
            TensorFlowJob.from_file(path)
        return str(refused.value).replace(f"{path.parent}/", "").splitlines()

    return refuse
