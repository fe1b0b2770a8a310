"""The interface between blindcal and a model: one asynchronous method.

Everything that answers (a real API, the embedded model, a recording) is an :class:`Endpoint`, and
all code that asks uses only this interface. ``ask`` raises only three errors: one that is worth a
retry, one that ends the run, and one that concerns a single reply.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from blindcal.errors import EndpointError, ReplyError, RetryableError
from blindcal.records import Reply, Request

NOTICEABLE_WAIT = 3.0  # seconds; a longer wait is announced


class Endpoint(Protocol):
    """A model that answers requests.

    ``ask`` raises only :class:`~blindcal.errors.RetryableError`, :class:`~blindcal.errors.FatalError`
    and :class:`~blindcal.errors.ReplyError`.
    """

    async def ask(self, request: Request) -> Reply:
        """Send one request and return its reply."""
        ...

    async def close(self) -> None:
        """Release connections; may be called more than once."""
        ...


def backoff(attempt: int, first: float = 0.5, longest: float = 20.0) -> float:
    """Seconds to wait after a failed attempt, doubled with each attempt.

    Jitter keeps requests that failed together from being retried together.
    """
    return min(longest, first * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


class Patient:
    """An endpoint that retries failed requests; for the few queries made outside a run.

    A run has its own, adaptive retries; this class has the patience of a run. It waits as long as the server
    asks for, or doubles its wait from half a second. A request is given up after ``attempts`` that failed
    before anything was answered, or while other requests were answered. Otherwise it waits for the end of the
    outage, for at most ``patience`` seconds since the last answer. ``kept`` says in the error what is not
    lost. ``tell`` is called before each noticeable wait, unless a wait that was announced is not over.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        attempts: int = 6,
        patience: float = 300.0,
        kept: str = "",
        tell: Callable[[str], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._attempts = attempts
        self._patience = patience
        self._kept = kept
        self._tell = tell
        self._sleep = sleep
        self._clock = clock
        self._heard: float | None = None  # when the last reply came
        self._announced = -float("inf")  # when the last wait that was announced is over

    async def ask(self, request: Request) -> Reply:
        """Ask until there is a reply, an error that is not retryable, or no patience left."""
        begun = since = self._clock()
        failed = alone = 0
        while True:
            try:
                reply = await self._endpoint.ask(request)
            except RetryableError as error:
                failed += not error.throttled
                outage = self._heard is not None and self._heard <= since and error.billed is None
                alone += not (outage or error.throttled)
                if alone >= self._attempts:
                    raise
                since = self._clock()
                await self._wait(error, failed, begun)
            except ReplyError:
                self._heard = self._clock()
                raise
            else:
                self._heard = self._clock()
                return reply

    async def _wait(self, error: RetryableError, failed: int, begun: float) -> None:
        asked = error.retry_after
        if asked is not None and asked > self._patience:
            raise EndpointError(
                f"{error.message}; it asks to wait {asked:,.0f} s",
                remedy=f"run the same again then, or check the quota of the account{self._also()}",
            )
        waited = self._clock() - (begun if self._heard is None else self._heard)
        if waited > self._patience:
            raise EndpointError(
                f"no answer for {waited:.0f} s; the last error: {error.message}",
                remedy=f"run the same again when the endpoint answers{self._also()}",
            )
        seconds = backoff(max(1, failed)) if asked is None else asked
        if self._tell is not None and seconds >= NOTICEABLE_WAIT and self._clock() >= self._announced:
            self._announced = self._clock() + seconds
            why = "for the endpoint" if asked is None else "as the endpoint asks"
            self._tell(f"waiting {seconds:.0f} s, {why}: {error.message}")
        await self._sleep(seconds)

    def _also(self) -> str:
        return f"; {self._kept}" if self._kept else ""

    async def close(self) -> None:
        """Close the wrapped endpoint."""
        await self._endpoint.close()
