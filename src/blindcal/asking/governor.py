"""The governor of an endpoint: every request of every command goes through it.

It sets the rate, retries failures, keeps to the limits on queries and cost, and counts what was paid. The
highest cost of a request is reserved before it is sent, so no limit is exceeded, however many are under way.
API keys never get this far: the endpoint's client removes them from what the server says.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from blindcal.asking.rate_control import (
    ConcurrencyControl,
    RateLimiter,
    SharedPause,
    TokenEstimator,
    bytes_of,
)
from blindcal.asking.run_context import RunContext, Stopped
from blindcal.endpoints import Endpoint
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.refusals import ITEM_STATUSES, Accepted
from blindcal.errors import (
    EndpointError,
    FatalError,
    InputError,
    NotIdentifiedError,
    ReplyError,
    RetryableError,
)
from blindcal.records import Progress, Reply, Request, Usage
from blindcal.store.run_file import ReplyKind, StoredReply, usage_of
from blindcal.store.run_store import Store
from blindcal.text import printable

REPLY_TRIES = 3
_KEPT = "every answer so far is kept; run the same again to continue"
_LONGEST = 20.0  # seconds between two tries of a request
_GRACE = 5.0  # seconds to wait for a reply that is under way when the run is stopped
_NOTICEABLE = 3.0  # seconds; a longer wait is announced


def backoff(attempt: int, first: float) -> float:
    """Seconds to wait after a failed attempt, doubling; jitter separates requests that failed together."""
    return min(_LONGEST, first * 2.0 ** (min(attempt, 20) - 1)) * random.uniform(0.5, 1.0)


@dataclass(frozen=True, eq=False)
class Reservation:
    """Queries and highest cost reserved for a request under way; 0 if the cost is not limited."""

    queries: int
    cost: float


@dataclass(frozen=True, slots=True)
class FinalOutcome:
    """The final outcome of a request: a reply, or why none can be used."""

    outcome: Reply | EndpointError
    attempts: int
    seconds: float

    @property
    def cost(self) -> dict[str, Any]:
        """Attempts and tokens, as fields of `StoredReply`."""
        outcome = self.outcome
        tokens = outcome.usage.tokens if isinstance(outcome, Reply) else outcome.billed or (0, 0, 0)
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        return {"attempts": self.attempts, **dict(zip(names, tokens, strict=True))}


class Governor:
    """Sends requests within the limits of ``run``; ``paid`` includes what the store already holds."""

    def __init__(self, endpoint: Endpoint, run: RunContext, store: Store | None = None) -> None:
        self.endpoint, self.run, self.store = endpoint, run, store
        self.paid = Usage() if store is None else store.usage()
        self.tokens = TokenEstimator(store)
        self.concurrency = ConcurrencyControl(run.limits.concurrency)
        self._rate = RateLimiter(run.limits.rpm, run.limits.tpm)
        self._pause = SharedPause(run.limits.backoff)
        self._accepted: Accepted | None = None
        self._reserved: set[Reservation] = set()
        self._settled = asyncio.Event()
        self._asking = 0  # requests without a final outcome
        self._sending = 0  # requests without a response
        self._responded = asyncio.Event()
        self._halted = asyncio.Event()
        self._answered_at = float("-inf")
        self._active_since = float("-inf")
        self._announced = float("-inf")  # when the last wait that was announced is over
        self.last_failure: EndpointError | None = None

    # Limits

    def reserve(self, *requests: Request) -> tuple[Reservation, ...] | Stopped | None:
        """Reserve what requests may cost; returns the limit that ends the run, or ``None`` to wait."""
        limits, prices = self.run.limits, self.run.prices
        costs = [0.0] * len(requests)
        if limits.max_cost is not None and prices is not None:
            if self._reserved and not self.tokens.answered:
                return None  # one request first, to learn what it costs
            costs = [self.tokens.highest_cost(request, prices) for request in requests]
        if limits.max_queries is not None or limits.max_cost is not None:
            reached = self.limit_reached(sum(request.n for request in requests), sum(costs))
            if reached is not None:
                return None if self._reserved else reached
        made = tuple(Reservation(request.n, cost) for request, cost in zip(requests, costs, strict=True))
        self._reserved.update(made)
        return made

    def limit_reached(self, queries: int = 0, cost: float = 0.0) -> Stopped | None:
        """The limit that this would exceed, besides everything paid and reserved."""
        limits, prices = self.run.limits, self.run.prices
        if limits.max_queries is not None:
            under_way = sum(reserved.queries for reserved in self._reserved)
            if self.paid.served + under_way + queries > limits.max_queries:
                return Stopped(f"max_queries = {limits.max_queries} reached", "max_queries")
        if limits.max_cost is not None and prices is not None:
            expected = prices.cost(self.paid) + sum(reserved.cost for reserved in self._reserved)
            if expected + cost > limits.max_cost:
                return Stopped(f"max_cost = {limits.max_cost:g} reached", "max_cost")
        return None

    def settle(self, reserved: Reservation, *replies: StoredReply) -> None:
        """Replace a reservation by what the request has cost."""
        self._reserved.discard(reserved)
        if replies:
            self.paid += usage_of(replies)
        self._settled.set()

    async def until_settled(self) -> None:
        self._settled.clear()
        await self._settled.wait()

    def report(self, done: int, total: int, *, probing: bool = False) -> None:
        run, cost = self.run, None if self.run.prices is None else self.run.prices.cost(self.paid)
        if run.progress is not None:
            run.progress(
                Progress(
                    done=done,
                    total=total,
                    usage=self.paid,
                    cost=cost,
                    concurrency=self.concurrency.limit,
                    probing=probing,
                )
            )

    # Requests

    def _now(self) -> float:
        return time.monotonic()

    def halt(self) -> None:
        """Send nothing more until `resume`; requests under way are still awaited."""
        self._halted.set()

    def resume(self) -> None:
        self._halted.clear()

    @property
    def halting(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._halted.is_set() or self.run.stop.is_set()

    async def ask_until_final(
        self, request: Request, kind: ReplyKind = "design", *, needed: bool = False
    ) -> FinalOutcome | None:
        """Send a request until its outcome is final; ``None`` if it is skipped, or the run ends first.

        A refusal of the item is final; other unusable replies are tried `REPLY_TRIES` times. A request that
        fails too often is skipped. A ``needed`` one raises instead, but outlasts an outage that begins after
        an answer.
        """
        if not self._asking:
            self._active_since = self._now()
        self._asking += 1
        try:
            return await self._ask_until_final(request, kind, needed)
        finally:
            self._asking -= 1

    async def _ask_until_final(self, request: Request, kind: ReplyKind, needed: bool) -> FinalOutcome | None:
        limits = self.run.limits
        tokens = self.tokens.expected(bytes_of(request)) + request.n * request.max_tokens
        attempts, tries, failed, useless = 1, 0, 0, 0
        failed_at = self._now()
        while await self._turn(tokens):
            sent = self._now()
            try:
                reply = await self.endpoint.ask(request)
            except RetryableError as error:
                billed = await self._waste(error, request, kind)
                outage = needed and not billed and failed_at >= self._answered_at > float("-inf")
                failed, failed_at = failed + 1, self._now()
                tries += not (error.throttled or outage)
                attempts += not (error.throttled or billed)
                delay = self._slow_down(error, sent, tries, failed)
                if tries == limits.attempts and needed:
                    raise
                if tries == limits.attempts:
                    return None
            except (ReplyError, FatalError) as error:
                if isinstance(error, FatalError) and (needed or error.status not in ITEM_STATUSES):
                    raise
                self.tokens.bill(error, request)
                self._answered_at = self._now()
                useless += 1
                if needed or error.billed is None or useless == REPLY_TRIES:
                    return FinalOutcome(error, attempts, 0.0)
                billed = await self._waste(error, request, kind)
                delay = backoff(useless, limits.backoff)
            else:
                self._answered_at = self._now()
                self._pause.answered()
                self.concurrency.answered(self._answered_at)
                self._note_accepted()
                reply = self.tokens.count(reply, request)
                self._rate.correct(reply.prompt_tokens + reply.completion_tokens - tokens)
                return FinalOutcome(reply, attempts, self._answered_at - sent)
            finally:
                self._sending -= 1
                self._responded.set()
            if billed and self.limit_reached() is not None:
                break
            await self._wait(delay)
        return None

    async def _turn(self, tokens: float) -> bool:
        slot = self._rate.book(self._now(), tokens)
        while not self.halting:
            delay = max(slot, self._pause.until) - self._now()
            if delay > 0:
                await self._wait(delay)
            elif self._sending >= (1 if self._pause.trying else self.concurrency.limit):
                self._responded.clear()
                await self._responded.wait()
            else:
                self._sending += 1
                return True
        return False

    async def _wait(self, seconds: float) -> None:
        if seconds > 0 and not self.halting:
            ends = [asyncio.ensure_future(event.wait()) for event in (self.run.stop, self._halted)]
            try:
                await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()

    def _slow_down(self, error: RetryableError, sent: float, tries: int, failed: int) -> float:
        limits, now = self.run.limits, self._now()
        self.last_failure = error
        if error.retry_after is not None and error.retry_after > limits.patience:
            raise EndpointError(
                f"{error.message}; it asks to wait {error.retry_after:,.0f} s",
                remedy=self._with_kept("run the same again then, or check the quota of the account"),
            )
        self.concurrency.refused(now, sent)
        self._pause.refused(now, sent, error.retry_after)
        waited = now - max(self._answered_at, self._active_since)
        if waited > limits.patience:
            raise EndpointError(
                f"no answer for {waited:.0f} s; the last error: {error.message}",
                remedy=self._with_kept("run the same again when the endpoint answers"),
            )
        often = max(tries, self._pause.bursts) >= 4
        if often and not self.tokens.answered and not error.throttled:
            raise EndpointError(f"nothing but failures so far; the last error: {error}")
        asked = error.retry_after
        delay = backoff(failed, limits.backoff) if asked is None else random.uniform(0, limits.backoff)
        pause = max(delay, self._pause.until - now)
        if pause >= _NOTICEABLE and now >= self._announced:
            self._announced = now + pause
            why = "for the endpoint" if asked is None else "as the endpoint asks"
            self.run.tell(f"waiting {pause:.0f} s, {why}: {error.message}")
        return delay

    def _with_kept(self, remedy: str) -> str:
        return f"{remedy}; {_KEPT}" if self.store is not None else remedy

    async def _waste(self, error: EndpointError, request: Request, kind: ReplyKind) -> bool:
        self.tokens.bill(error, request)
        if error.billed is not None:
            await self.keep_wasted(FinalOutcome(error, 1, 0.0), kind)
        return error.billed is not None

    async def keep_wasted(self, final: FinalOutcome, kind: ReplyKind) -> None:
        """Count and store what a reply cost that leads to no outcome."""
        if isinstance(final.outcome, EndpointError) and final.outcome.billed is None:
            return
        wasted = StoredReply(kind=kind, outcome=False, **(final.cost | {"attempts": 1}))
        self.paid += usage_of([wasted])
        if self.store is not None:
            await self.store.save(wasted)

    def _note_accepted(self) -> None:
        store, endpoint = self.store, self.endpoint
        if store is not None and isinstance(endpoint, HttpEndpoint) and endpoint.accepted != self._accepted:
            self._accepted = endpoint.accepted
            store.set_note("accepted", msgspec.to_builtins(self._accepted))


class LimitTooLowError(InputError):
    """A limit ends queries that a command cannot do without; ``stopped`` says which."""

    def __init__(self, message: str, stopped: Stopped, **more: Any) -> None:
        super().__init__(message, **more)
        self.stopped = stopped


class GovernedEndpoint:
    """An endpoint behind a governor; every request is needed, and raises if it fails.

    If the governor has a store, nothing is asked twice. ``expected`` and ``for_what`` appear in errors and
    the progress.
    """

    def __init__(
        self,
        governor: Governor,
        *,
        expected: int = 0,
        for_what: str = "the probe",
        quiet: bool = False,
    ) -> None:
        self._governor, self._store = governor, governor.store
        self._expected, self._for_what, self._quiet = expected, for_what, quiet
        # so that a crash loses no more than in a run
        self._room = asyncio.Semaphore(governor.run.limits.concurrency)
        self._times: Counter[int] = Counter()
        self._unused: defaultdict[int, list[int]] = defaultdict(list)
        self._done = 0

    async def ask(self, request: Request) -> Reply:
        """The reply to a request, stored or new; raises if none can be used."""
        key = int.from_bytes(hashlib.blake2b(msgspec.json.encode(request), digest_size=7).digest(), "big")
        nth = self._unused[key].pop() if self._unused[key] else self._times[key]
        self._times[key] = max(self._times[key], nth + 1)
        body = None if self._store is None else self._store.reply_body("probe", key, nth)
        if body is None:
            async with self._room:
                try:
                    outcome = await self._asked(request, key, nth)
                except BaseException:
                    self._unused[key].append(nth)  # free for the next attempt
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
            final = await self._unless_stopped(governor.ask_until_final(request, "probe", needed=True))
            if final is None:
                if (reached := governor.limit_reached()) is not None:
                    raise self._too_low(reached, request)
                raise NotIdentifiedError(
                    f"stopped during {self._for_what}",
                    remedy="nothing is lost; run the same again to continue",
                )
            outcome = final.outcome
            assert isinstance(outcome, Reply | ReplyError)
            replies = (_encoded(final, key, nth),)
        finally:
            governor.settle(reserved[0], *replies)
        if self._store is not None:
            await self._store.save(*replies)
        return outcome

    async def _unless_stopped(self, asking: Coroutine[Any, Any, FinalOutcome | None]) -> FinalOutcome | None:
        stop = self._governor.run.stop
        tasks = asking_task, _ = asyncio.ensure_future(asking), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({asking_task}, timeout=_GRACE)
            return asking_task.result() if asking_task.done() else None
        finally:
            for task in tasks:
                task.cancel()

    def _too_low(self, stopped: Stopped, request: Request) -> LimitTooLowError:
        governor, cost = self._governor, ""
        if stopped.limit == "max_cost" and governor.run.prices is not None:
            prices, asked = governor.run.prices, governor.paid.served
            each = (
                prices.cost(governor.paid) / asked if asked else governor.tokens.highest_cost(request, prices)
            )
            cost = f", ${each * self._expected:.2g}"
        takes = f"which takes about {self._expected} queries{cost}"
        return LimitTooLowError(
            f"{{{stopped.limit}}} does not pay for {self._for_what}, {takes}",
            stopped,
            remedy="raise it and run the same again; what was asked is kept",
            options={stopped.limit: getattr(governor.run.limits, stopped.limit or "")},
        )

    async def close(self) -> None:
        await self._governor.endpoint.close()


def _encoded(final: FinalOutcome, key: int, nth: int) -> StoredReply:
    outcome = final.outcome
    if isinstance(outcome, Reply):
        queries, text, body = outcome.usage.queries, outcome.text, msgspec.json.encode(outcome)
    else:
        queries, text = int(outcome.billed is not None), outcome.message
        about = {"remedy": outcome.remedy, "options": outcome.options, "status": outcome.status}
        body = msgspec.json.encode({"error": outcome.message, "billed": outcome.billed, **about})
    about_query: dict[str, Any] = {"kind": "probe", "query": key, "nth": nth, "queries": queries}
    return StoredReply(
        text=printable(text), body=body.decode(), **about_query, **(final.cost | {"attempts": 1})
    )


def _decoded(body: str) -> Reply | ReplyError:
    kept = msgspec.json.decode(body)
    if "error" not in kept:
        return msgspec.convert(kept, Reply)
    billed = None if kept["billed"] is None else tuple(kept["billed"])
    return ReplyError(
        kept["error"], billed=billed, remedy=kept["remedy"], options=kept["options"], status=kept["status"]
    )
