"""What asking for a run takes: its file and endpoint, limits, whom to tell, and when to stop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import msgspec

from blindcal.asking.limits import Limits
from blindcal.endpoints.address import Address
from blindcal.endpoints.base import Endpoint, Patient
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import FileError, NotIdentifiedError
from blindcal.prices import Prices
from blindcal.records import Progress
from blindcal.store.run_store import Store

T = TypeVar("T")


def ignore(_: str) -> None:
    """Discard a message."""


class Asking(Protocol):
    """What it takes to ask a few queries: a run file, limits, and whom to tell."""

    @property
    def store(self) -> Store:
        """The run file."""
        ...

    @property
    def limits(self) -> Limits:
        """How fast to ask, and when to stop."""
        ...

    @property
    def prices(self) -> Prices | None:
        """What tokens cost."""
        ...

    @property
    def progress(self) -> Callable[[Progress], None] | None:
        """Called with the progress."""
        ...

    @property
    def tell(self) -> Callable[[str], None]:
        """Called with a description of each step."""
        ...


@contextlib.asynccontextmanager
async def opened_endpoint(endpoint: Endpoint | None, address: Address) -> AsyncIterator[Endpoint]:
    """The endpoint that is given, or the one at the address; it is closed at the end."""
    asked = HttpEndpoint(address) if endpoint is None else endpoint
    try:
        yield asked
    finally:
        await asked.close()


@contextlib.contextmanager
def answers_kept() -> Iterator[None]:
    """Add to an error about files that no answer is lost with them."""
    try:
        yield
    except FileError as error:
        kept = "every answer is kept, and the same again writes the files and asks nothing"
        raise FileError(error.message, remedy=f"{error.remedy}; {kept}") from error


async def unless_stopped(stop: asyncio.Event, preparing: Coroutine[Any, Any, T]) -> T:
    """Await the probe or the preparation; raises `NotIdentifiedError` if ``stop`` is set first.

    An audit keeps the replies that have arrived by then.
    """
    task = asyncio.ensure_future(preparing)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise NotIdentifiedError("stopped while probing; nothing is lost, the same again goes on")
    return await task


def wait_for(
    begin: Callable[[asyncio.Event], Coroutine[Any, Any, T]], stage: Callable[[str], None] | None
) -> T:
    """Run a coroutine in a thread with its own event loop; Ctrl-C stops it first and is then raised."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    finished: Future[T] = Future()

    async def main() -> T:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        return await begin(stop)

    def work() -> None:
        try:
            finished.set_result(asyncio.run(main()))
        except BaseException as error:
            finished.set_exception(error)

    threading.Thread(target=work, name="blindcal-audit", daemon=True).start()
    try:
        return finished.result()
    except KeyboardInterrupt:
        loop, stop = started.result()
        with contextlib.suppress(RuntimeError):  # it may just have ended
            loop.call_soon_threadsafe(stop.set)
        if stage is not None and not finished.done():
            stage("stopping, and keeping what is under way; Ctrl-C again does not wait")
        finished.exception()  # wait; a second Ctrl-C is raised here
        raise


def patient_of(session: Asking, endpoint: Endpoint) -> Patient:
    """An endpoint that waits and asks again, for the few queries before a run."""
    kept = "every answer so far is kept, and the same again goes on from there"
    return Patient(endpoint, patience=session.limits.patience, kept=kept, tell=session.tell)


def accepted_fields(store: Store) -> Accepted:
    """What was learnt about the endpoint's fields when the run was begun."""
    noted = store.note("accepted")
    return Accepted() if noted is None else msgspec.convert(noted, Accepted)
