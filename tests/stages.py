"""The order of the tests, quick ones first, and what a machine cannot run: said, not silently missing.

With CI=true nothing is left out but `gpu`. In two processes (`-n 2 --dist loadscope`) one has the tests of Airflow,
which share one and wait for it; the other has the rest, those of Docker through an Airflow of its own last.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import Any

import pytest

STAGES = ("local", "vault", "tensorflow", "airflow", "docker", "swarm", "gpu")
OF_THE_REST = ("tests/system/test_docker", "tests/system/test_tensorflow_versions")
"""Airflow's, too, but with an engine beside it."""
LEFT_OUT = pytest.StashKey[dict[str, tuple[int, str]]]()


def _stage(item: pytest.Item) -> int:
    return max((STAGES.index(mark.name) + 1 for mark in item.iter_markers() if mark.name in STAGES), default=0)


def missing() -> dict[str, str]:
    """Marks this machine cannot serve → why."""
    found = {}
    if not os.environ.get("CI"):
        reason = _no_engine()
        found = dict.fromkeys(("docker", "swarm"), reason) if reason else {}
    if shutil.which("nvidia-smi") is None:
        found["gpu"] = "there is no GPU here (no nvidia-smi)"
    return found


def _no_engine() -> str | None:
    """The tests start engines of their own: what that takes."""
    if os.geteuid() != 0:
        return "starting a Docker engine needs root"
    lacking = [
        name for name in ("dockerd", "debootstrap", "docker-registry", "ip", "nsenter") if not shutil.which(name)
    ]
    return f"no {', '.join(lacking)} here: install docker.io, debootstrap, docker-registry" if lacking else None


def _is_long_half(nodeid: str) -> bool:
    return nodeid.startswith("tests/system/") and not nodeid.startswith(OF_THE_REST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whoever begins the long half gets all of it: its tests share what is slow to start."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Halves(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "airflow" if _is_long_half(nodeid) else nodeid

    return Halves(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by stage, keeping the order within; drop what cannot run here, and `long` unless asked for.

    Of two processes the first takes what is first: the longer part, Airflow's.
    """
    reasons = missing() if any(_stage(item) > STAGES.index("airflow") + 1 for item in items) else {}
    if "long" not in config.option.markexpr:
        reasons["long"] = "run by `make test-long`"
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    counts: Counter[str] = Counter()
    for item in items:
        mark = next((mark.name for mark in item.iter_markers() if mark.name in reasons), None)
        (kept if mark is None else dropped).append(item)
        if mark is not None:
            counts[mark] += 1
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    beside = hasattr(config, "workerinput")
    items[:] = sorted(kept, key=lambda item: (beside and not _is_long_half(item.nodeid), _stage(item)))
    config.stash[LEFT_OUT] = {mark: (count, reasons[mark]) for mark, count in counts.items()}
    if beside:
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Both processes leave out the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out."""
    for mark, (count, reason) in config.stash.get(LEFT_OUT, {}).items():
        terminalreporter.write_line(f"left out: {count} tests marked {mark}: {reason}")
