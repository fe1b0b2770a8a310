"""Models: requests in, replies out. `Endpoint` is the one interface; callers use nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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


class NoEndpoint:
    """In place of an endpoint where a file gives every confidence, so that nothing is asked."""

    async def ask(self, request: Request) -> Reply:
        raise AssertionError(f"asked about {request.messages!r}")

    async def close(self) -> None:
        pass
