"""What every command that asks shares: limits, prices, callbacks and the event that stops it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from blindcal.asking.limits import Limits, check_cost_known
from blindcal.prices import Prices
from blindcal.records import Progress

T = TypeVar("T")
P = ParamSpec("P")


def ignore(_: str) -> None:
    """Discard a message."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Limits, prices and callbacks of a run; setting ``stop`` ends it early and keeps what is under way."""

    limits: Limits = field(default_factory=Limits)
    prices: Prices | None = None
    progress: Callable[[Progress], None] | None = None
    tell: Callable[[str], None] = ignore
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(
        cls,
        limits: Limits | None,
        prices: Prices | None,
        progress: Callable[[Progress], None] | None,
        stage: Callable[[str], None] | None,
        stop: asyncio.Event | None,
    ) -> RunContext:
        """Make the context of a command from its arguments, and check the limits."""
        check_cost_known(limits, prices)
        return cls(
            limits=(limits or Limits()).within_open_files(),
            prices=prices,
            progress=progress,
            tell=stage or ignore,
            stop=stop or asyncio.Event(),
        )


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
