"""What the demo's OpenBao is given before a job runs: what goes wrong with it is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tf_operator.errors import PreflightError
from tf_operator.services import openbao


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "examples" / "digits").mkdir(parents=True)
    return tmp_path


def test_a_data_set_that_takes_too_long(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "examples" / "digits" / "prepare.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(openbao, "PREPARE_TIMEOUT", 0.5)
    with pytest.raises(PreflightError, match=r"digits\.npz\.enc within 0\.5 s; start again"):
        openbao.DevOpenBao(project / "bao", project=project).seed()


def test_an_openbao_that_is_gone(project: Path) -> None:
    (project / "examples" / "digits" / "prepare.py").touch()
    bao = openbao.DevOpenBao(project / "bao", project=project)
    bao.addr = "http://127.0.0.1:9"
    with pytest.raises(PreflightError, match=r"OpenBao at http://127.0.0.1:9: refused .*\(ConnectionError\): see "):
        bao.seed()
