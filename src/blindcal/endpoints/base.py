"""The interface between blindcal and a model: one asynchronous method.

Everything that answers (a real API, the embedded model, a recording) is an :class:`Endpoint`, and
all code that asks uses only this interface. ``ask`` raises only three errors: one that is worth a
retry, one that ends the run, and one that concerns a single reply.
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

    A run has its own, adaptive retries. This class waits as long as the server asks for, or doubles
    its wait from half a second, and raises the last error after ``attempts``.
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
        """Ask until there is a reply, an error that is not retryable, or no attempt left."""
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
        """Close the wrapped endpoint."""
        await self._endpoint.close()
