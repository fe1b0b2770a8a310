"""Models: requests in, replies out. `Endpoint` is the one interface; callers use nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:  # numpy, which records need, would be loaded before the command line sets its threads
    from blindcal.records import Reply, Request


class Endpoint(Protocol):
    """A model; ``ask`` raises only `RetryableError`, `FatalError` (ends a run) or `ReplyError`."""

    async def ask(self, request: Request) -> Reply:
        """Send one request and return its reply."""
        ...

    async def close(self) -> None:
        """Release connections; may be called more than once."""
        ...


Answered = TypeVar("Answered")


async def together(*asking: Awaitable[Answered]) -> list[Answered]:
    """The results of queries under way at once; an error is raised once none of them is left."""
    results = await asyncio.gather(*asking, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]  # none is an exception
