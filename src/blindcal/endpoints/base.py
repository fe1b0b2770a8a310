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

from blindcal.errors import EndpointError, RetryableError
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

    A run has its own, adaptive retries. This class waits as long as the server asks for, or doubles
    its wait from half a second, and raises the last error after ``attempts``. It raises an error at once if
    the server asks for more than ``patience`` seconds. ``tell`` is called before each noticeable wait.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        attempts: int = 6,
        patience: float = 300.0,
        tell: Callable[[str], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._attempts = attempts
        self._patience = patience
        self._tell = tell
        self._sleep = sleep

    async def ask(self, request: Request) -> Reply:
        """Ask until there is a reply, an error that is not retryable, or no attempt left."""
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._endpoint.ask(request)
            except RetryableError as error:
                if attempt == self._attempts:
                    raise
                await self._wait(attempt, error)
        raise AssertionError("attempts must be at least one")

    async def _wait(self, attempt: int, error: RetryableError) -> None:
        seconds = backoff(attempt) if error.retry_after is None else error.retry_after
        if seconds > self._patience:
            raise EndpointError(
                f"{error.message}; it asks to wait {seconds:,.0f} s",
                remedy="run the same again then, or check the quota of the account",
            )
        if self._tell is not None and seconds >= NOTICEABLE_WAIT:
            self._tell(f"waiting {seconds:.0f} s, as the endpoint asks: {error.message}")
        await self._sleep(seconds)

    async def close(self) -> None:
        """Close the wrapped endpoint."""
        await self._endpoint.close()
