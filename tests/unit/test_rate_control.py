"""How fast to ask: the climb finds what a server can take, the meter keeps to limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blindcal.asking.rate_control import (
    COOLING,
    HARMLESS,
    LONGEST_PAUSE,
    START,
    ConcurrencyControl,
    RateLimiter,
    SharedPause,
)


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
    climb.refused(now, now)
    serve(climb, 100, lambda limit: limit / 0.1, now)
    assert climb.limit == 5


def test_refusals_halve_and_answers_add_one() -> None:
    """A burst counts once, however late its last refusal comes; then it grows by one a window."""
    climb = ConcurrencyControl(256)
    now = serve(climb, 2, lambda limit: limit / 0.2)
    for k in range(50):
        climb.refused(now + k / 10, sent=now - k / 1000)
    climb.refused(now + COOLING / 2, sent=now + 0.1)
    assert climb.limit == 128
    climb.refused(now + COOLING + 0.1, sent=now + COOLING)
    assert climb.limit == 64
    now = serve(climb, 1.0, lambda limit: limit / 0.2, now + 1.2)
    assert 65 <= climb.limit <= 70
    for k in range(1, 100):  # one question at a time always goes out
        climb.refused(now + 2 * k + 1, sent=now + 2 * k)
    assert climb.limit == 1


def test_the_meter_spreads_requests_and_tokens() -> None:
    """60 requests a minute are one a second; tokens delay the next one, and true counts replace guesses."""
    meter = RateLimiter(rpm=60)
    assert [meter.book(0.0, 1) for _ in range(4)] == [0, 1, 2, 3]
    assert meter.book(100.0, 1) == 100
    meter = RateLimiter(tpm=600)
    assert [meter.book(0.0, 100) for _ in range(2)] == [0, 10]
    meter.correct(-50)
    assert meter.book(0.0, 100) == 15


def test_fewer_tokens_than_booked_do_not_loosen_the_limit_on_requests() -> None:
    """With both limits, 60 requests a minute stay 60, however few tokens each of them took."""
    meter, starts = RateLimiter(rpm=60, tpm=6000), []
    for _ in range(20):
        starts.append(meter.book(0.0, 1000))
        meter.correct(-990)
    assert starts == list(range(20))


def test_a_wait_that_the_server_asks_for_is_kept() -> None:
    """Nothing goes before it is over; a shorter one does not shorten it, nor does an answer."""
    pause = SharedPause(0.5)
    pause.refused(0.0, sent=-1.0, asked=5)
    pause.refused(1.0, sent=0.5, asked=1)
    pause.answered()
    assert pause.until == 5


def test_refusals_without_an_answer_pause_everyone_longer_each_time() -> None:
    """The pause doubles with each burst up to its most; a burst of any size counts once."""
    pause, now, waits = SharedPause(0.5), 0.0, []
    for _ in range(8):
        for _ in range(32):
            pause.refused(now + 0.1, sent=now)
        waits.append(pause.until - now - 0.1)
        now = pause.until + 1
    assert waits == pytest.approx([0.5, 1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE])


def test_few_failures_in_a_row_pause_nobody() -> None:
    """A service that refuses some requests at random is asked on."""
    pause = SharedPause(0.5)
    for k in range(1, HARMLESS):
        pause.refused(k + 0.5, sent=k)
        assert not pause.trying
    assert pause.until == float("-inf")
    pause.refused(100.5, sent=100)
    assert pause.trying
    assert pause.until == 101
    between = SharedPause(0.5)
    for k in range(20):  # however often it refuses, if it answers in between
        between.refused(k + 0.5, sent=k)
        between.answered()
        assert not between.trying
    assert between.until == float("-inf")


def test_a_server_that_refuses_everything_gets_few_requests() -> None:
    """32 queries under way, refused for five minutes, send fewer than a hundred requests between them."""
    control, pause = ConcurrencyControl(32), SharedPause(0.5)
    now, requests = 0.0, 0
    while now < 300:
        burst, sent = 1 if pause.trying else control.limit, now
        for k in range(burst):
            control.refused(now + 0.05 + k / 1000, sent)
            pause.refused(now + 0.05 + k / 1000, sent)
        requests += burst
        now = max(now + 0.3, pause.until)
    assert requests < 100
