"""When to renew what ends, when to fetch it anew, when to give up. Pure: no clock is read, no server asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

SHARE = 2 / 3
"""The part of a duration after which it is renewed: what is left is for a server that is away."""
SHORTEST = 1.0
"""Seconds: nothing is renewed more often."""
ROUNDING = 1.0
"""Seconds, and a tenth of the duration at most: servers tell durations in whole ones."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds to the next try while the server is away: doubled from the first to the longest."""


@dataclass(frozen=True)
class Term:
    """How long one thing is good for: a lease, or the token it hangs on. Times are the caller's clock's."""

    until: float
    due: float
    wanted: float
    """Seconds it was first good for, and is asked for again."""
    renewable: bool

    @classmethod
    def granted(cls, duration: float, now: float, renewable: bool, wanted: float | None = None) -> Term:
        """A term that begins now. Less than `wanted` means that it nears its max TTL: renewing it adds nothing more."""
        wanted = duration if wanted is None else wanted
        due = now + max(duration * SHARE, SHORTEST)
        full = duration + min(ROUNDING, wanted / 10) >= wanted
        return cls(now + duration, due, wanted, renewable and full)


class Act(StrEnum):
    """What is to be done now."""

    WAIT = "wait"
    RENEW = "renew"
    """Ask for a longer time for each of `names`."""
    FETCH = "fetch"
    """Renewing helps no more for `names`: what lives by them is fetched anew."""


@dataclass(frozen=True)
class Step:
    """One decision."""

    act: Act
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tenure:
    """The terms of one login by name, and what came of the last tries."""

    terms: Mapping[str, Term] = field(default_factory=dict)
    retry_at: float = 0.0
    failures: int = 0

    def next(self, now: float) -> Step:
        """What is to be done at `now`."""
        due = {name: term for name, term in self.terms.items() if term.due <= now}
        if now < self.retry_at or not due:
            return Step(Act.WAIT)
        if ending := tuple(name for name, term in due.items() if not term.renewable):
            return Step(Act.FETCH, ending)
        return Step(Act.RENEW, tuple(due))

    def renewed(self, name: str, duration: float, renewable: bool, now: float) -> Tenure:
        """It was granted `duration` seconds more, from now on."""
        term = Term.granted(duration, now, renewable, self.terms[name].wanted)
        return replace(self, terms={**self.terms, name: term}, failures=0, retry_at=0.0)

    def refused(self, name: str) -> Tenure:
        """It is not renewed: ended, revoked, or not allowed."""
        return replace(self, terms={**self.terms, name: replace(self.terms[name], renewable=False)})

    def unavailable(self, now: float) -> Tenure:
        """The server was away: the same again, after a pause that grows."""
        pause = min(FIRST_PAUSE * 2**self.failures, LONGEST_PAUSE)
        return replace(self, failures=self.failures + 1, retry_at=now + pause)

    def without(self, names: Collection[str]) -> Tenure:
        """Nothing more is done for these: they were fetched anew, or cannot be, and run out."""
        return replace(self, terms={name: term for name, term in self.terms.items() if name not in names})
