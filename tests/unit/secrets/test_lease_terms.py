"""When leases are renewed, fetched anew, given up: numbers only."""

from __future__ import annotations

import pytest

from tf_operator.secrets.leases import FIRST_PAUSE, LONGEST_PAUSE, Act, Step, Tenure, Term

WAIT, FETCH = Step(Act.WAIT), Step(Act.FETCH, ("lease",))


def tenure(**durations: float) -> Tenure:
    return Tenure({name: Term.granted(duration, 100.0, renewable=True) for name, duration in durations.items()})


@pytest.mark.parametrize(("now", "step"), [(119.9, WAIT), (120.0, Step(Act.RENEW, ("lease",)))])
def test_renewed_at_two_thirds(now: float, step: Step) -> None:
    assert tenure(lease=30.0, token=60.0).next(now) == step


def test_what_is_due_together_is_renewed_together() -> None:
    assert tenure(token=30.0, lease=30.0).next(121.0) == Step(Act.RENEW, ("token", "lease"))


def test_a_renewal_counts_from_its_own_moment() -> None:
    renewed = tenure(lease=30.0).renewed("lease", 30.0, True, now=125.0)
    assert renewed.next(144.9) == WAIT
    assert renewed.next(145.1) == Step(Act.RENEW, ("lease",))
    assert renewed.terms["lease"].until == 155.0


@pytest.mark.parametrize(("duration", "step"), [(29.0, Step(Act.RENEW, ("lease",))), (28.0, FETCH), (0.0, FETCH)])
def test_less_than_asked_for_means_max_ttl_is_near(duration: float, step: Step) -> None:
    """Fetched anew at two thirds of what is left; a second less is the server's rounding."""
    renewed = tenure(lease=30.0).renewed("lease", duration, True, now=120.0)
    assert renewed.next(120.0) == WAIT
    assert renewed.next(120.0 + max(duration * 2 / 3, 1.0) + 0.01) == step


def test_a_second_of_a_few_is_no_rounding() -> None:
    assert not tenure(lease=4.0).renewed("lease", 3.0, True, now=103.0).terms["lease"].renewable


def test_the_max_ttl_of_a_lease_of_40_s_with_20_s_a_time() -> None:
    """The whole course: two renewals, then a new lease, before the old one ends."""
    course, now, acts = tenure(lease=20.0), 100.0, []
    while not acts or acts[-1] is not Act.FETCH:
        step = course.next(now)
        if step.act is not Act.WAIT:
            acts.append(step.act)
        if step.act is Act.RENEW:
            course = course.renewed("lease", min(20.0, 140.0 - now), True, now)
        now += 0.25
    assert acts == [Act.RENEW, Act.RENEW, Act.FETCH]
    assert 130.0 < now < 139.0


def test_what_cannot_be_renewed_is_fetched_anew() -> None:
    terms = {"token": Term.granted(60.0, 100.0, True), "lease": Term.granted(30.0, 100.0, renewable=False)}
    assert Tenure(terms).next(121.0) == FETCH
    assert tenure(lease=30.0).refused("lease").next(121.0) == FETCH


def test_a_server_that_is_away_is_asked_at_growing_intervals_and_never_given_up() -> None:
    course, now, pauses = tenure(lease=30.0), 121.0, []
    for _ in range(8):
        course = course.unavailable(["lease"], now)
        until = course.pauses["lease"].until
        assert course.next(until - 0.01) == WAIT
        assert course.next(until).act is Act.RENEW
        pauses.append(until - now)
        now = until
    assert pauses[:3] == [FIRST_PAUSE, 2.0, 4.0]
    assert pauses[-1] == LONGEST_PAUSE
    back = course.renewed("lease", 30.0, True, now)
    assert back.unavailable(["lease"], now).pauses["lease"].until == now + FIRST_PAUSE


def test_renewals_go_before_what_must_be_fetched_anew() -> None:
    course = tenure(lease=30.0, token=30.0, other=30.0).refused("lease")
    assert course.next(121.0) == Step(Act.RENEW, ("token", "other"))
    for name in ("token", "other"):
        course = course.renewed(name, 30.0, True, now=121.0)
    assert course.next(121.0) == FETCH


def test_one_whose_database_is_down_stops_no_other() -> None:
    """Neither where it cannot be fetched anew, nor where it cannot be renewed."""
    for course in (tenure(lease=30.0, token=40.0).refused("lease"), tenure(lease=30.0, token=40.0)):
        now = 121.0
        while now < 127.0:
            course = course.unavailable(["lease"], now)
            now = course.pauses["lease"].until
        assert course.pauses["lease"].failures == 3
        assert course.next(127.5) == Step(Act.RENEW, ("token",))


def test_what_failed_together_is_fetched_alone() -> None:
    terms = {name: Term.granted(30.0, 100.0, renewable=False) for name in ("one", "two")}
    course = Tenure(terms).unavailable(["one", "two"], 121.0)
    assert Tenure(terms).next(121.0) == Step(Act.FETCH, ("one", "two"))
    assert course.next(122.0) == Step(Act.FETCH, ("one",))
    assert course.unavailable(["one"], 122.0).next(122.0) == Step(Act.FETCH, ("two",))


def test_what_hung_on_a_token_is_fetched_one_by_one_where_one_fetch_of_all_failed() -> None:
    terms = {name: Term.granted(90.0, 100.0, renewable=False) for name in ("token", "one", "two")}
    assert Tenure(terms).next(161.0) == Step(Act.FETCH, ("token", "one", "two"))
    course = Tenure(terms).singly(["one", "two"], "token", 161.0)
    assert course.next(162.0) == Step(Act.FETCH, ("one",))
    assert course.unavailable(["one"], 162.0).next(162.0) == Step(Act.FETCH, ("two",))
    assert "token" not in course.terms


def test_what_is_given_up_runs_out_and_the_others_go_on() -> None:
    course = tenure(lease=30.0, token=30.0).refused("lease").without(["lease"])
    assert course.next(121.0) == Step(Act.RENEW, ("token",))


def test_a_lease_of_a_moment_does_not_make_a_storm() -> None:
    assert tenure(lease=0.1).next(100.9) == WAIT


def test_nothing_that_ends_needs_nothing() -> None:
    assert Tenure().next(10_000.0) == WAIT
