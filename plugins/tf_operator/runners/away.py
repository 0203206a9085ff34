"""An engine that is away is waited for once, not once for every replica it may have a container of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tf_operator.errors import EngineUnavailableError
from tf_operator.job_spec.rendered import ReplicaGroup

PATIENCE = 5.0
"""Seconds to wait for an engine while everything ends: what it then still has ends by itself, see `orphan_timeout`."""
T = TypeVar("T")


class Away:
    """Which engines have not answered. Not for two threads at once."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str | None]] = set()

    def ask(self, group: ReplicaGroup, question: Callable[[], T]) -> T | None:
        """Ask about one replica of the group; None, and nothing is asked, once its engine has not answered.

        The first time that is raised.
        """
        key = engine_key(group)
        if key in self._known:
            return None
        try:
            return question()
        except EngineUnavailableError:
            self._known.add(key)
            raise


def engine_key(group: ReplicaGroup) -> tuple[str, str | None]:
    """What the runners of two groups have to share to be one."""
    return group.runtime.kind, group.runtime.options.get("docker_conn_id")
