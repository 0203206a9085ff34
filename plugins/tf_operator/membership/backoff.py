"""How long a job stays away after a start_timeout, before it asks for everything again."""

from __future__ import annotations

import zlib

from tf_operator.job_spec.rendered import RenderedJob

LONGEST = 600.0
"""Seconds a job stays away at most."""


def pause(job: RenderedJob, attempt: str, times: int) -> float:
    """Seconds until the next attempt, after `times` earlier ones: `retry_delay`, doubled each time.

    Up to half as much again by the attempt's id: two jobs that were in each other's way do not come back together.
    """
    spread = zlib.crc32(attempt.encode()) % 1000 / 2000
    return min(LONGEST, max(job.retry_delay, 1.0) * 2.0**times) * (1.0 + spread)
