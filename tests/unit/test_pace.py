"""Eager while somebody waits, calm after that: a call costs the API server."""

from __future__ import annotations

import pytest

from tf_operator.pace import CALM, EAGER, EAGER_FOR, pause


@pytest.mark.parametrize(
    ("waiting_for", "expected"), [(None, CALM), (0.0, EAGER), (EAGER_FOR - 0.1, EAGER), (EAGER_FOR, CALM), (600, CALM)]
)
def test_eager_only_at_first(waiting_for: float | None, expected: float) -> None:
    assert pause(waiting_for) == expected
