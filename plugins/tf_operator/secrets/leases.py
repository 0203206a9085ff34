"""When to renew what ends, when to fetch it anew, when to give up. Pure: no clock is read, no server asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

SHARE = 2 / 3
"""The part of a duration after which it is renewed: what is left is for a server that is away."""
SHORTEST = 1.0
"""Seconds: nothing is renewed more often."""
ROUNDING = 1.0
"""Seconds, and a tenth of the duration at most: servers tell durations in whole ones."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds to the next try while the server is away: doubled from the first to the longest."""
T = TypeVar("T")


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
class Pause:
    """What one thing waits after tries that failed because the server, or what is behind it, was away."""

    until: float
    failures: int


@dataclass(frozen=True)
class Tenure:
    """The terms of one login by name, and what came of the last tries.

    Each has a pause of its own: a database that is down must not keep the token, or another lease, from renewal.
    """

    terms: Mapping[str, Term] = field(default_factory=dict)
    pauses: Mapping[str, Pause] = field(default_factory=dict)

    def next(self, now: float) -> Step:
        """What is to be done at `now`. Renewals first: they keep what the rest hangs on."""
        due = {name: term for name, term in self.terms.items() if term.due <= now and not self._pauses(name, now)}
        if renewable := tuple(name for name, term in due.items() if term.renewable):
            return Step(Act.RENEW, renewable)
        if not due:
            return Step(Act.WAIT)
        # One that fails takes along what is fetched with it: what has failed is tried alone.
        untried = tuple(name for name in due if name not in self.pauses)
        return Step(Act.FETCH, untried or tuple(due)[:1])

    def renewed(self, name: str, duration: float, renewable: bool, now: float) -> Tenure:
        """It was granted `duration` seconds more, from now on."""
        term = Term.granted(duration, now, renewable, self.terms[name].wanted)
        return Tenure({**self.terms, name: term}, _but(self.pauses, [name]))

    def refused(self, name: str) -> Tenure:
        """It is not renewed: ended, revoked, or not allowed."""
        term = replace(self.terms[name], renewable=False)
        return Tenure({**self.terms, name: term}, _but(self.pauses, [name]))

    def unavailable(self, names: Collection[str], now: float) -> Tenure:
        """The server was away for these: the same again, after a pause that grows."""
        before = {name: self.pauses[name].failures if name in self.pauses else 0 for name in names}
        pauses = {
            name: Pause(now + min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE), failures + 1)
            for name, failures in before.items()
        }
        return replace(self, pauses={**self.pauses, **pauses})

    def singly(self, names: Collection[str], token: str, now: float) -> Tenure:
        """One fetch of all that hangs on `token` failed: each of `names` is tried alone, and the token runs out."""
        terms = {
            name: replace(term, renewable=False, due=min(term.due, now)) if name in names else term
            for name, term in self.terms.items()
        }
        return Tenure(terms, self.pauses).unavailable(names, now).without([token])

    def without(self, names: Collection[str]) -> Tenure:
        """Nothing more is done for these: they were fetched anew, or cannot be, and run out."""
        return Tenure(_but(self.terms, names), _but(self.pauses, names))

    def _pauses(self, name: str, now: float) -> bool:
        return name in self.pauses and now < self.pauses[name].until


def _but(values: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name not in names}
