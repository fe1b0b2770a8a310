"""What every command that asks shares: limits, prices, callbacks and the event that stops it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ParamSpec, Self, TypedDict, TypeVar, Unpack

from blindcal.endpoints import Endpoint
from blindcal.errors import InputError
from blindcal.field_rules import FromOne, Positive, Rate, check_fields
from blindcal.prices import Prices
from blindcal.records import Progress

OTHER_FILES = 24
"""Open files besides connections: streams, the run file, items, libraries."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a run ended early, in words, and the name of the limit if one ended it."""

    reason: str
    limit: str | None = None

    def __str__(self) -> str:
        return self.reason


INTERRUPTED = Stopped("interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How fast to ask, and when to stop.

    Every reply that was served counts, usable or not. The run also stops if the server asks to wait longer
    than ``patience``. Rate-limit responses (429) do not count as ``attempts``.
    """

    concurrency: Annotated[FromOne, "Maximum number of concurrent requests."] = 32
    rpm: Annotated[Rate | None, "Maximum number of requests per minute."] = None
    tpm: Annotated[Rate | None, "Maximum number of tokens per minute."] = None
    max_queries: Annotated[
        FromOne | None, "Maximum number of queries, those of a probe or a check included."
    ] = None
    max_cost: Annotated[Positive | None, "Maximum cost in dollars; requires prices."] = None
    attempts: Annotated[FromOne, "Maximum number of tries per query."] = 8
    patience: Annotated[Positive, "Seconds without any answer after which the run stops."] = 300.0
    backoff: Annotated[Positive, "Seconds of the first wait between tries; it doubles each time."] = 0.5

    def __post_init__(self) -> None:
        check_fields(self)

    def within_open_files(self) -> Self:
        """Lower the concurrency to the connections this process may open; raises `InputError` if none."""
        most = _most_open_files()
        room = most - OTHER_FILES
        if room < 1:
            raise InputError(
                f"this process may have only {most} open files, and an audit needs {OTHER_FILES + 1:.0f}",
                remedy="raise the limit (ulimit -n 256)",
            )
        if self.concurrency <= room:
            return self
        warnings.warn(
            f"the concurrency is {room} instead of {self.concurrency}, because this process may have only "
            f"{most} open files; ulimit -n raises that limit",
            stacklevel=2,
        )
        return replace(self, concurrency=int(room))


def _most_open_files() -> float:
    if sys.platform == "win32":
        return math.inf
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if most == resource.RLIM_INFINITY else most


T = TypeVar("T")
P = ParamSpec("P")


def ignore(_: str) -> None:
    """Discard a message."""


class RunOptions(TypedDict, total=False):
    """Options of every function that asks an endpoint: `audit`, `certify`, `decide` and `watch`.

    - ``limits``, ``prices``: how fast to ask and when to stop; dollars per million tokens
    - ``api_key_env``, ``timeout``: environment variable of the API key; seconds to wait for a reply
    - ``endpoint``: an endpoint to ask instead of the address in the settings; it is closed at the end
    - ``progress``, ``stage``: called with the progress, and with a description of each step
    - ``stop``: an event to set to stop asking, for coroutines; what was asked is kept and counts
    """

    limits: Limits | None
    prices: Prices | None
    api_key_env: str
    timeout: float
    endpoint: Endpoint | None
    progress: Callable[[Progress], None] | None
    stage: Callable[[str], None] | None
    stop: asyncio.Event | None


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The options of a run, checked; setting ``stop`` ends it early and keeps what is under way."""

    limits: Limits = field(default_factory=Limits)
    prices: Prices | None = None
    endpoint: Endpoint | None = None
    progress: Callable[[Progress], None] | None = None
    tell: Callable[[str], None] = ignore
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    address: Mapping[str, Any] = field(default_factory=dict)  # settings of the address that are overridden

    @classmethod
    def of(cls, **options: Unpack[RunOptions]) -> RunContext:
        """Make the context of a command; raises `InputError` if the cost is limited but not known."""
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        address: dict[str, Any] = {
            name: given.pop(name) for name in ("api_key_env", "timeout") if name in given
        }
        run = cls(tell=given.pop("stage", ignore), address=address, **given)
        if run.limits.max_cost is not None and run.prices is None:
            raise InputError(
                "{max_cost} limits nothing if it is not known what a query costs",
                remedy="give {prices} too",
                options={"max_cost": run.limits.max_cost, "prices": ...},
            )
        return replace(run, limits=run.limits.within_open_files())


def _await(finished: Future[Any]) -> None:
    """Poll, because a signal that another thread receives does not wake a blocking wait."""
    while not finished.done():
        wait((finished,), timeout=0.2)


def blocking(asynchronous: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a blocking function of a coroutine function; it also works in notebooks.

    Ctrl-C sets ``stop``, waits for the coroutine and then raises; a second Ctrl-C raises at once.
    """

    @functools.wraps(asynchronous)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> T:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        finished: Future[T] = Future()

        async def main() -> T:
            stop = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), stop))
            return await asynchronous(*args, **{**kwargs, "stop": stop})  # type: ignore[arg-type]  # adds stop

        def work() -> None:
            try:
                finished.set_result(asyncio.run(main()))
            except BaseException as error:
                finished.set_exception(error)

        threading.Thread(target=work, name="blindcal", daemon=True).start()
        try:
            _await(finished)
        except KeyboardInterrupt:
            loop, stop = started.result()
            with contextlib.suppress(RuntimeError):  # it may just have ended
                loop.call_soon_threadsafe(stop.set)
            stage: Any = kwargs.get("stage")
            if stage is not None and not finished.done():
                stage("stopping, and keeping what is under way; Ctrl-C again does not wait")
            _await(finished)  # a second Ctrl-C is raised here
            raise
        return finished.result()

    signature = inspect.signature(asynchronous)
    parameters = [each for name, each in signature.parameters.items() if name != "stop"]
    waiting.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # of inspect
    waiting.__name__ = waiting.__qualname__ = asynchronous.__name__.removesuffix("_async").lstrip("_")
    return waiting
