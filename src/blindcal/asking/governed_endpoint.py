"""What asks outside a design (a probe, a check, anchors, scores) asks a governed endpoint."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Coroutine
from typing import Any

import msgspec

from blindcal.asking.governor import Governor, LastWord
from blindcal.asking.limits import Stopped
from blindcal.errors import InputError, NotIdentifiedError, ReplyError
from blindcal.records import Reply, Request
from blindcal.store.run_store import Store, StoredReply
from blindcal.text import printable

_GRACE = 5.0  # seconds to wait for a reply that is under way when the run is stopped


class LimitTooLowError(InputError):
    """A limit ends queries that a command cannot do without; ``stopped`` says which."""

    def __init__(self, message: str, stopped: Stopped, **more: Any) -> None:
        super().__init__(message, **more)
        self.stopped = stopped


class GovernedEndpoint:
    """An endpoint whose requests go through a governor; each is needed, and raises an error if it fails.

    With a store, nothing is asked twice: replies from before an interruption are read back, refusals of an
    item too. About ``expected`` queries will be asked ``for_what``, for errors and the progress.
    """

    def __init__(
        self,
        governor: Governor,
        store: Store | None = None,
        *,
        expected: int = 0,
        for_what: str = "the probe",
        quiet: bool = False,
    ) -> None:
        self._governor, self._store = governor, store
        self._expected, self._for_what, self._quiet = expected, for_what, quiet
        self._room = asyncio.Semaphore(
            governor.run.limits.concurrency
        )  # so a crash loses no more than in a run
        self._times: Counter[int] = Counter()
        self._unused: defaultdict[int, list[int]] = defaultdict(list)
        self._done = 0

    async def ask(self, request: Request) -> Reply:
        """The reply to a request; an error if there is none that can be used."""
        key = int.from_bytes(hashlib.blake2b(msgspec.json.encode(request), digest_size=7).digest(), "big")
        nth = self._unused[key].pop() if self._unused[key] else self._times[key]
        self._times[key] = max(self._times[key], nth + 1)
        body = None if self._store is None else self._store.reply_body("probe", key, nth)
        if body is None:
            async with self._room:
                try:
                    outcome = await self._asked(request, key, nth)
                except BaseException:
                    self._unused[key].append(nth)  # the next attempt is the nth time
                    raise
        else:
            outcome = _decoded(body)
            if isinstance(outcome, Reply):
                outcome = self._governor.tokens.count(outcome, request)
        self._done += 1
        if not self._quiet:
            self._governor.report(self._done, max(self._done, self._expected), probing=True)
        if isinstance(outcome, ReplyError):
            raise outcome
        return outcome

    async def _asked(self, request: Request, key: int, nth: int) -> Reply | ReplyError:
        governor = self._governor
        while (reserved := governor.reserve(request)) is None:
            await governor.until_settled()
        if isinstance(reserved, Stopped):
            raise self._too_low(reserved, request)
        replies: tuple[StoredReply, ...] = ()
        try:
            word = await self._unless_stopped(governor.hear(request, "probe", needed=True))
            if word is None:
                if (reached := governor.limit_reached()) is not None:
                    raise self._too_low(reached, request)
                raise NotIdentifiedError(
                    f"stopped during {self._for_what}", remedy="nothing is lost, the same again goes on"
                )
            outcome = word.outcome
            assert isinstance(outcome, Reply | ReplyError)
            replies = (_encoded(word, key, nth),)
        finally:
            governor.settle(reserved[0], *replies)
        if self._store is not None:
            await self._store.save(*replies)
        return outcome

    async def _unless_stopped(self, hearing: Coroutine[Any, Any, LastWord | None]) -> LastWord | None:
        """Wait for the last word on a request; if the run is stopped meanwhile, not for long."""
        stop = self._governor.run.stop
        tasks = hearing_task, _ = asyncio.ensure_future(hearing), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({hearing_task}, timeout=_GRACE)
            return hearing_task.result() if hearing_task.done() else None
        finally:
            for task in tasks:
                task.cancel()

    def _too_low(self, stopped: Stopped, request: Request) -> LimitTooLowError:
        governor, cost = self._governor, ""
        if stopped.limit == "max_cost" and governor.run.prices is not None:
            prices, asked = governor.run.prices, governor.paid.served
            each = prices.cost(governor.paid) / asked if asked else governor.tokens.dearest(request, prices)
            cost = f", ${each * self._expected:.2g}"
        takes = f"which takes about {self._expected} queries{cost}"
        return LimitTooLowError(
            f"{{{stopped.limit}}} does not pay for {self._for_what}, {takes}",
            stopped,
            remedy="raise it and run the same again; what was asked is kept",
            options={stopped.limit: getattr(governor.run.limits, stopped.limit or "")},
        )

    async def close(self) -> None:
        """Close the endpoint."""
        await self._governor.endpoint.close()


def _encoded(word: LastWord, key: int, nth: int) -> StoredReply:
    """A reply to keep, or the error of one: a refusal counts as a query only if it was billed."""
    outcome = word.outcome
    if isinstance(outcome, Reply):
        queries, text, body = outcome.usage.queries, outcome.text, msgspec.json.encode(outcome)
    else:
        queries, text = int(outcome.billed is not None), outcome.message
        about = {"remedy": outcome.remedy, "options": outcome.options, "status": outcome.status}
        body = msgspec.json.encode({"error": outcome.message, "billed": outcome.billed, **about})
    about_query: dict[str, Any] = {"kind": "probe", "query": key, "nth": nth, "queries": queries}
    return StoredReply(
        text=printable(text), body=body.decode(), **about_query, **(word.cost | {"attempts": 1})
    )


def _decoded(body: str) -> Reply | ReplyError:
    kept = msgspec.json.decode(body)
    if "error" not in kept:
        return msgspec.convert(kept, Reply)
    billed = None if kept["billed"] is None else tuple(kept["billed"])
    return ReplyError(
        kept["error"], billed=billed, remedy=kept["remedy"], options=kept["options"], status=kept["status"]
    )
