"""How fast to ask: the climb finds what a server can take, the meter keeps to limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blindcal.auditing.rate_control import COOLING, START, ConcurrencyControl, RateLimiter


def serve(climb: ConcurrencyControl, seconds: float, rate: Callable[[int], float], now: float = 0.0) -> float:
    """Feed a climb the answers of a server that gives ``rate(limit)`` a second."""
    end = now + seconds
    while now < end:
        now += 1 / rate(climb.limit)
        climb.answered(now)
    return now


def test_it_climbs_to_the_most_while_that_pays() -> None:
    """A server whose delay does not grow is asked as much at once as is allowed, within seconds."""
    climb = ConcurrencyControl(256)
    serve(climb, 1.5, lambda limit: limit / 0.2)
    assert climb.limit == 256


@pytest.mark.parametrize("slots", [1, 8, 40, 100])
def test_it_stops_where_more_does_not_pay(slots: int) -> None:
    """A server with so many slots is not sent many times as much."""
    climb = ConcurrencyControl(1024)
    serve(climb, 60, lambda limit: min(limit, slots) / 0.2)
    assert min(slots, START) <= climb.limit <= max(START, 2 * slots)


def test_it_never_exceeds_the_most() -> None:
    """The user's limit is never passed."""
    climb = ConcurrencyControl(5)
    assert climb.limit == 5
    now = serve(climb, 30, lambda limit: limit / 0.1)
    climb.refused(now)
    serve(climb, 100, lambda limit: limit / 0.1, now)
    assert climb.limit == 5


def test_refusals_halve_and_answers_add_one() -> None:
    """A burst of refusals counts once; then it grows by one a window."""
    climb = ConcurrencyControl(256)
    now = serve(climb, 2, lambda limit: limit / 0.2)
    for k in range(50):
        climb.refused(now + k / 1000)
    assert climb.limit == 128
    climb.refused(now + COOLING + 0.1)
    assert climb.limit == 64
    serve(climb, 1.0, lambda limit: limit / 0.2, now + 1.2)
    assert 65 <= climb.limit <= 70


def test_it_never_falls_below_one() -> None:
    """However often it is refused, one question at a time goes out."""
    climb = ConcurrencyControl(16)
    for k in range(100):
        climb.refused(2.0 * k)
    assert climb.limit == 1


def test_the_meter_spreads_requests() -> None:
    """60 a minute is one a second, from the first on."""
    meter = RateLimiter(rpm=60)
    assert [meter.book(0.0, 1) for _ in range(4)] == [0, 1, 2, 3]
    assert meter.book(100.0, 1) == 0


def test_the_meter_counts_tokens_and_corrections() -> None:
    """Tokens a minute delay the next question, and the true count replaces the guess."""
    meter = RateLimiter(tpm=600)
    assert meter.book(0.0, 100) == 0
    assert meter.book(0.0, 100) == 10
    meter.correct(-50)
    assert meter.book(0.0, 100) == 15


def test_the_stricter_limit_rules() -> None:
    """With both limits the slower one decides."""
    meter = RateLimiter(rpm=60, tpm=600)
    meter.book(0.0, 100)
    assert meter.book(0.0, 1) == 10


def test_a_pause_holds_everything() -> None:
    """Nothing goes before the server's pause is over; a shorter pause does not shorten it."""
    meter = RateLimiter()
    meter.pause(0.0, 5)
    meter.pause(1.0, 1)
    assert meter.book(2.0, 1) == 3
    assert meter.book(6.0, 1) == 0
