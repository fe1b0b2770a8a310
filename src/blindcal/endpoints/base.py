"""The interface between blindcal and a model: one asynchronous method.

Everything that answers (a real API, the embedded model, a recording) is an :class:`Endpoint`, and
all code that asks uses only this interface. ``ask`` raises only three errors: one that may
succeed if asked again, one that ends the run, and one that concerns a single reply.
"""

from __future__ import annotations

from typing import Protocol

from blindcal.records import Reply, Request


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
