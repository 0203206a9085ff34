"""How often those who wait for each other look: eagerly while a job forms, then as seldom as the API server likes it.

A job that forms holds GPUs that do nothing yet, so each second of waiting for the next look is a second of theirs.
"""

from __future__ import annotations

EAGER = 0.3
CALM = 1.0
EAGER_FOR = 15.0
"""Seconds of eagerness: a call costs the API server 20 to 50 ms, and a replica may be missing for minutes."""


def pause(waiting_for: float | None) -> float:
    """Seconds to the next look, by the seconds waited so far; None where nothing is waited for."""
    return EAGER if waiting_for is not None and waiting_for < EAGER_FOR else CALM
