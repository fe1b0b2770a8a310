"""The seam between blindcal and a model: one asynchronous method.

Everything that answers (a real API, the embedded model, a recording) is an :class:`Endpoint`, and
everything that asks knows only this. ``ask`` raises nothing but the three endpoint errors: one that
is worth asking again, one that ends the run, and one that concerns a single reply.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from blindcal.errors import RetryableError
from blindcal.records import Reply, Request

_LONGEST_WAIT = 60.0  # seconds, whatever the server asks for


class Endpoint(Protocol):
    """A model that can be asked.

    ``ask`` raises only :class:`~blindcal.errors.RetryableError`, :class:`~blindcal.errors.FatalError`
    and :class:`~blindcal.errors.ReplyError`.
    """

    async def ask(self, request: Request) -> Reply:
        """Send one request and return its reply."""
        ...

    async def close(self) -> None:
        """Release connections; harmless when repeated."""
        ...


def backoff(attempt: int, first: float = 0.5, longest: float = 20.0) -> float:
    """Seconds to wait after a failed attempt: twice as long each time.

    Jitter keeps those that failed together from coming back together.
    """
    return min(longest, first * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


class Patient:
    """An endpoint that asks again what may succeed; for the few queries made outside a run.

    A run has its own, adaptive patience. This one waits what the server asks for, or doubles its
    wait from half a second, and gives up with the last error after ``attempts``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        attempts: int = 6,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._attempts = attempts
        self._sleep = sleep

    async def ask(self, request: Request) -> Reply:
        """Ask until a reply, a lasting error, or the last attempt."""
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._endpoint.ask(request)
            except RetryableError as error:
                if attempt == self._attempts:
                    raise
                wait = backoff(attempt) if error.retry_after is None else error.retry_after
                await self._sleep(min(wait, _LONGEST_WAIT))
        raise AssertionError("attempts must be at least one")

    async def close(self) -> None:
        """Close the endpoint inside."""
        await self._endpoint.close()
