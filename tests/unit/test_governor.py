"""The governor: what it asks again, how long it waits for an endpoint, and what it says meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from blindcal.asking.governor import GovernedEndpoint
from blindcal.errors import EndpointError, FatalError, NotIdentifiedError, ReplyError, RetryableError
from blindcal.records import Message, Reply, Request
from blindcal.store.run_store import Store
from engine import HurriedGovernor, hurried

DEAD = RetryableError("the connection failed: h: refused")


def asking(seed: int | None = None) -> Request:
    return Request((Message("user", "q"),), seed=seed)


class Scripted:
    """An endpoint that answers, or raises what ``fails`` returns for the number of a call."""

    def __init__(self, fails: Callable[[int, Request], Exception | None]) -> None:
        self.fails, self.calls = fails, 0

    async def ask(self, request: Request) -> Reply:
        self.calls += 1
        if (error := self.fails(self.calls, request)) is not None:
            raise error
        return Reply("Yes", prompt_tokens=1)

    async def close(self) -> None:
        """Nothing to release."""


def after(answers: int, error: Exception = DEAD) -> Scripted:
    """An endpoint that answers this often and then only fails."""
    return Scripted(lambda call, _: error if call > answers else None)


def asked(governor: HurriedGovernor, times: int = 1) -> None:
    async def ask_all() -> None:
        endpoint = GovernedEndpoint(governor)
        for _ in range(times):
            await endpoint.ask(asking())

    asyncio.run(ask_all())


def test_the_wait_that_the_server_asks_for_is_kept_and_announced() -> None:
    """Nothing is sent before it is over; a wait of years is an error at once."""
    told: list[str] = []
    slow = RetryableError("too many requests (429)", retry_after=9, throttled=True)
    governor = hurried(Scripted(lambda call, _: slow if call <= 2 else None), tell=told.append)
    asked(governor)
    assert governor.now == pytest.approx(18, abs=1.1)
    assert told == ["waiting 9 s, as the endpoint asks: too many requests (429)"] * 2
    slow = RetryableError("too many requests (429)", retry_after=1e9, throttled=True)
    governor = hurried(after(0, slow))
    with pytest.raises(EndpointError, match=r"it asks to wait 1,000,000,000 s: run the same again then, or"):
        asked(governor)
    assert governor.waits == []


@pytest.mark.parametrize(
    ("error", "message", "calls"),
    [
        (FatalError("no such model", status=404), "no such model", 1),
        (ReplyError("a web page"), "a web page", 1),
        (RetryableError("failed (500)"), r"nothing but failures so far; .*failed \(500\)", 4),
    ],
)
def test_what_never_succeeds_is_given_up(error: Exception, message: str, calls: int) -> None:
    """A fatal error and a reply that is none end a request at once, four failures before any answer too."""
    endpoint = after(0, error)
    with pytest.raises(EndpointError, match=message):
        asked(hurried(endpoint))
    assert endpoint.calls == calls


def test_an_outage_is_waited_out_for_as_long_as_patience_lasts(tmp_path: Path) -> None:
    """Once it has answered, an outage is waited out for five minutes, and the error says how to go on."""
    told: list[str] = []
    why = "the last error: the connection failed: h: refused: run the same again when the endpoint answers"
    with Store.open(tmp_path / "run.sqlite") as store:
        governor = hurried(after(3), tell=told.append, store=store)
        with pytest.raises(EndpointError, match=rf"no answer for 3\d\d s; {why}; every answer .* is kept"):
            asked(governor, 4)
    assert 300 < governor.now < 330
    assert re.fullmatch(r"waiting \d+ s, for the endpoint: the connection failed: h: refused", told[-1])


def test_a_server_that_comes_back_is_asked_on() -> None:
    """After an outage of three minutes the request that failed is answered."""
    governor = hurried(Scripted(lambda call, _: DEAD if call > 1 and governor.now < 200 else None))
    asked(governor, 2)
    assert 200 < governor.now < 230


def test_a_request_that_alone_fails_is_given_up() -> None:
    """A request that fails while others are answered is no outage: it has as many attempts as any other."""
    endpoint = Scripted(lambda _, request: DEAD if request.seed == 1 else None)
    governor = hurried(endpoint, attempts=5)

    async def both() -> None:
        asks, others = GovernedEndpoint(governor), GovernedEndpoint(governor)
        failing = asyncio.ensure_future(asks.ask(asking(1)))
        while not failing.done():
            await others.ask(asking())
        await failing

    with pytest.raises(RetryableError, match="refused"):
        asyncio.run(both())
    assert governor.now < 60


def test_a_stopped_run_asks_nothing_more_and_keeps_what_is_under_way() -> None:
    """The reply to a request under way is returned; the next request is refused."""
    governor = hurried(Scripted(lambda *_: governor.run.stop.set()))
    endpoint = GovernedEndpoint(governor, for_what="the check of the endpoint")

    async def twice() -> None:
        assert (await endpoint.ask(asking())).text == "Yes"
        with pytest.raises(NotIdentifiedError, match=r"stopped during the check of the endpoint: nothing is"):
            await endpoint.ask(asking())

    asyncio.run(twice())
    assert governor.paid.served == 1
