"""A run: sends the queries of a design to an endpoint and keeps the answers in a store.

A run can be continued. The rule that makes this safe: a query is under way until its answer is on disk, and
at most ``concurrency`` queries are under way, or those of a single request. This is the most that a crash can
lose and that must be paid for again.

A worker takes the queries of a request only when there is room, so a million queries are never a million
tasks. Stopping a run cancels nothing: no new query is sent, and the queries under way are awaited and kept.
Where a request asks several queries at once, its answers reach the disk together; what a reply leaves
unanswered is asked again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from blindcal.asking.controls import Controls
from blindcal.asking.job import (
    Job,
    OpenRound,
    RunOutcome,
    as_endpoint_error,
    clipped,
    reason_in,
    request_numbers,
)
from blindcal.asking.rate_control import ConcurrencyControl, RateLimiter, SharedPause
from blindcal.asking.token_estimate import TokenEstimator, bytes_of
from blindcal.asking.usability import Usability
from blindcal.design import Design
from blindcal.endpoints.base import Endpoint, backoff
from blindcal.endpoints.http_errors import ITEM_STATUSES
from blindcal.endpoints.query_format import NoAnswerWordError
from blindcal.errors import EndpointError, FatalError, ReplyError, RetryableError
from blindcal.records import INVALID, AnswerTable, Progress, Reply, Request, Usage
from blindcal.store.run_store import SavedAnswer, usage_of

REPLY_TRIES = 3
_CHECK = -1  # in place of a query's number: the check whether an item is still answered


async def ask_live(
    design: Design,
    job: Job,
    endpoint: Endpoint,
    *,
    planned: int = 0,
    controls: Controls | None = None,
    begin: int = 0,
) -> RunOutcome:
    """Ask all queries of the design that the store does not answer yet, and the ``controls`` among them.

    ``planned`` is the expected number of queries, for the progress. The rounds before number ``begin`` are
    known to be answered. A stopped run waits for the queries under way. Raises `EndpointError` if asking on
    is useless; every answer is kept.
    """
    controls = controls or Controls(job, every=None)
    return await _Sender(job, endpoint, planned, controls).ask(design, begin)


@dataclass(frozen=True, slots=True)
class _LastWord:
    """The last word on a request: a reply, or why there is none that can be used."""

    said: Reply | EndpointError
    attempts: int
    seconds: float


class _Sender:
    """The state of one run: its workers, its cost, and why it stopped."""

    def __init__(self, job: Job, endpoint: Endpoint, planned: int, controls: Controls) -> None:
        self._job, self._total = job, planned
        self._store, self._limits, self._stop = job.store, job.limits, job.stop
        self._prices, self._spent = job.prices, job.spent
        self._endpoint, self._controls = endpoint, controls
        self._tokens = TokenEstimator()  # prompts answered by this sender, on disk or not
        self._round: OpenRound
        self._before = AnswerTable.empty()  # the answers of earlier rounds
        self._usage = job.store.usage()  # what all answers on disk have cost
        self._stopped: str | None = None  # why a round was left unfinished
        self._failed = 0
        self._concurrency = ConcurrencyControl(job.limits.concurrency)
        self._rate = RateLimiter(job.limits.rpm, job.limits.tpm)
        self._pause = SharedPause(job.limits.backoff)
        self._again: deque[tuple[int, ...]] = deque()  # queries that a reply left unanswered
        self._on_the_wire = 0  # requests that no worker has finished
        self._sending = 0  # requests that have no response yet
        self._responded = asyncio.Event()
        self._under_way = 0
        self._due: set[int] = set()  # queries under way whose control is still to be asked
        self._expected: dict[int, float] = {}  # by first query: highest cost of a request, if cost is limited
        self._checking = False  # whether the endpoint still answers what it answered before
        self._hopeless: int | None = None  # the place from which on unusable outcomes are forgotten
        self._unusable: EndpointError | None = None
        self._last: Exception | None = None
        self._error: Exception | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._handed_over: dict[asyncio.Future[None], list[SavedAnswer]] = {}
        self._drained = asyncio.Event()
        self._reported = float("-inf")

    async def ask(self, design: Design, begin: int = 0) -> RunOutcome:
        """Get the rounds of a design answered, one after the other, until it ends or the run stops.

        Those before number ``begin`` are known to be answered, and left out of the outcome.
        """
        first, nonsense = self._store.first_query(begin), None
        stored = self._store.rounds(begin)
        for number in itertools.count():
            asked = stored[number] if number < len(stored) else design.next_round(self._before)
            if asked is None:
                break
            if number >= len(stored):
                asked = clipped(asked, self._job.max_shift)
                self._store.add_round(asked)
            self._round = OpenRound(self._job, asked, first, self._store.answers(first, len(asked)))
            self._total = max(self._total, first + len(asked))
            try:
                await self._ask_round()
            except NoAnswerWordError as error:  # stop asking; the result says what came back
                self._round = replace(self._round, answers=self._store.answers(first, len(asked)))
                nonsense = error.message
            have = self._round.answered
            self._before = self._before.with_round(
                asked.rows(have), self._round.answers[have].astype(np.int64)
            )
            first += len(asked)
            if nonsense or not have.all():
                break
        self._report()
        stopped = nonsense or self._stopped
        return RunOutcome(self._before, self._usage, stopped, self._controls.usage, self._failed)

    async def _ask_round(self) -> None:
        self._controls.check()
        current = self._round
        self._queries, self._taken = current.unanswered, 0
        self._numbers = request_numbers(current.asked, self._job.at_once)[self._queries - current.first]
        self._usability = Usability(
            current.order,
            current.answered[current.order - current.first],
            self._store.unusable(current.first, current.order.size),
        )
        self._heard = time.monotonic()
        self._drained.clear()
        self._fill()
        try:
            await self._drained.wait()
            if self._handed_over:
                await asyncio.wait(self._handed_over)
        finally:  # workers are left only if the run itself is cancelled
            for worker in self._workers:
                worker.cancel()
        if current.answered.all() and self._usage.queries == self._usage.unusable > 0:
            self._give_up(0, next(iter(self._store.unusable_reasons())))
        if self._hopeless is not None:
            self._store.forget(self._usability.unusable_from(self._hopeless))
        if self._error is not None:
            raise self._error
        left = int((~current.answered).sum())
        if left and self._stop.is_set():
            self._stopped = self._stopped or "interrupted"
        elif left and not self._stopped:
            self._failed = left
            self._stopped = f"{left} queries failed {self._limits.attempts} times each: {self._last}"

    # Queries under way

    def _fill(self) -> None:
        """Start requests while there is room; sets ``_drained`` when none is under way any more."""
        while (queries := self._take()) is not None:
            worker = asyncio.create_task(self._work(queries))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if not self._under_way:
            self._drained.set()

    def _take(self) -> tuple[int, ...] | None:
        """The queries of the next request, if concurrency control, the limits and ``stop`` allow one now."""
        if self._on_the_wire >= self._concurrency.limit:
            return None
        if self._under_way and self._limits.max_cost is not None and not self._tokens.answered:
            return None  # ask one query first, to learn what it costs
        if self._stop.is_set() or self._stopped or self._checking:
            return None
        queries = self._next()
        crowded = self._under_way and self._under_way + len(queries) > self._limits.concurrency
        if not queries or crowded:
            return None
        try:
            why = self._reserve(queries)
        except Exception as error:  # an item that can no longer be read
            self._fail(error)
            return None
        if why is not None:
            if not self._under_way:  # else queries under way may turn out cheaper and leave room
                self._stopped = why
            return None
        if self._again:
            self._again.popleft()
        else:
            self._taken += len(queries)
        self._under_way += len(queries)
        self._on_the_wire += 1
        return queries

    def _next(self) -> tuple[int, ...]:
        """The queries to ask next in one request; empty if there are none."""
        if self._again:
            return self._again[0]
        begin = end = self._taken
        if self._job.at_once == 1:
            return (int(self._queries[begin]),) if begin < self._queries.size else ()
        while end < self._queries.size and self._numbers[end] == self._numbers[begin]:
            end += 1
        return tuple(map(int, self._queries[begin:end]))

    async def _work(self, queries: tuple[int, ...] | None) -> None:
        while queries is not None:
            kept = 0
            try:
                saved = await self._ask(queries)
                if saved:
                    self._hand_over(self._store.save(*saved), saved)
                    kept = len(saved)
                if self._note(queries, saved) and not self._checking and not self._stop.is_set():
                    await self._doubt(queries[0], saved[0])
            except Exception as error:
                self._fail(error)
            self._on_the_wire -= 1
            left = queries[kept:]
            self._under_way -= len(left)
            for query in left:
                self._release(query)
            if kept and left:
                self._again.append(left)
            queries = self._take()
        self._fill()

    def _note(self, queries: tuple[int, ...], saved: Sequence[SavedAnswer]) -> bool:
        """Note what has become of queries, skipped if nothing; returns whether the endpoint is in doubt."""
        doubts = [self._usability.note(one.query, not one.unusable) for one in saved]
        if not saved:
            doubts = [self._usability.note(query, None) for query in queries]
        return any(doubts)

    def _hand_over(self, kept: asyncio.Future[None], answers: list[SavedAnswer]) -> None:
        """Leave answers to the store without waiting; they stay under way until ``kept`` is done."""
        if kept not in self._handed_over:
            self._handed_over[kept] = []
            kept.add_done_callback(self._on_disk)
        self._handed_over[kept] += answers

    def _on_disk(self, kept: asyncio.Future[None]) -> None:
        group = self._handed_over.pop(kept)
        self._under_way -= len(group)
        try:
            kept.result()
            self._count(group)
        except Exception as error:
            self._fail(error)
        self._fill()

    def _fail(self, error: Exception) -> None:
        """Stop the run; answers under way are still kept, and then the error is raised."""
        self._error = self._error or error
        self._stop.set()

    async def _ask(self, queries: tuple[int, ...]) -> list[SavedAnswer]:
        """The outcomes of the queries of a request; none if they are skipped or the run is stopped."""
        for query in queries:
            await self._ask_controls(query)
        heard = await self._hear(self._request_all(queries))
        if heard is None:
            return []
        if isinstance(heard.said, Reply):
            choices = self._round.choices(queries[0])
            return self._job.read_all(queries, heard.said, heard.attempts, heard.seconds, choices)
        self._unusable = as_endpoint_error(heard.said)
        return self._job.all_unusable(queries, heard.said, heard.attempts)

    def _request_all(self, queries: tuple[int, ...]) -> Request:
        """The request that asks these queries, which are equal, at once."""
        one = self._round.request(queries[0])
        return one if len(queries) == 1 else replace(one, n=len(queries))

    async def _hear(self, request: Request) -> _LastWord | None:
        """Send a request until there is a last word on it; ``None`` if it is skipped or the run is stopped.

        A refusal of the item is final. A reply that was served and cannot be used may be bad luck: another
        one is paid for, `REPLY_TRIES` at most.
        """
        tokens = self._tokens.expected(bytes_of(request)) + request.n * request.max_tokens
        attempt, failed, useless, wasted = 1, 0, 0, 0
        while await self._turn(tokens):
            sent = time.monotonic()
            try:
                reply = await self._endpoint.ask(request)
            except RetryableError as error:
                self._tokens.bill(error, request, self._store)
                wasted += self._waste(error)
                self._refusal(error, sent, attempt)
                attempt, failed = attempt + (not error.throttled), failed + 1
                if attempt > self._limits.attempts:
                    return None
                told = error.retry_after is not None
                first = self._limits.backoff
                delay = random.uniform(0, first) if told else backoff(min(failed, 20), first)
            except (ReplyError, FatalError) as error:
                if isinstance(error, FatalError) and error.status not in ITEM_STATUSES:
                    raise
                self._tokens.bill(error, request, self._store)
                self._heard = time.monotonic()
                useless += 1
                if error.billed is None or useless == REPLY_TRIES:
                    return _LastWord(error, attempt - wasted, 0.0)
                wasted += self._waste(error)
                attempt += 1
                delay = backoff(useless, self._limits.backoff)
            else:
                self._heard = time.monotonic()
                self._pause.answered()
                self._concurrency.answered(self._heard)
                reply = self._tokens.count(reply, request, self._store)
                self._rate.correct(reply.prompt_tokens + reply.completion_tokens - tokens)
                return _LastWord(reply, attempt - wasted, self._heard - sent)
            finally:
                self._sending -= 1
                self._responded.set()
            if wasted and (why := self._limit_reached()) is not None:
                self._stopped = self._stopped or why
                break
            await self._wait(delay)
        return None

    async def _turn(self, tokens: float) -> bool:
        """Wait until a request may be sent; returns whether it may, or the run is stopped."""
        slot = self._rate.book(time.monotonic(), tokens)
        while not self._stop.is_set():
            delay = max(slot, self._pause.until) - time.monotonic()
            if delay > 0:
                await self._wait(delay)
            elif self._sending >= (1 if self._pause.trying else self._concurrency.limit):
                self._responded.clear()
                await self._responded.wait()
            else:
                self._sending += 1
                return True
        return False

    async def _ask_controls(self, query: int) -> None:
        """Ask the control queries that a query carries; one without a usable reply is left out."""
        place = self._round.asked, self._round.first
        while (control := self._controls.next(query, *place)) is not None and not self._stop.is_set():
            if control.nth and self._limit_reached(1) is not None:
                break
            heard = await self._hear(self._controls.request(control, *place))
            self._due.discard(query)
            if heard is None:
                break
            if not isinstance(heard.said, Reply):
                self._waste(heard.said)
                break
            self._controls.listen(control, heard.said, self._usage.queries)

    # What came back

    def _add(self, saved: list[SavedAnswer]) -> None:
        """Add answers that are on disk to those of the round."""
        for one in saved:
            self._round.answers[one.query - self._round.first] = one.answer
        self._usage += usage_of(saved)

    def _count(self, saved: list[SavedAnswer]) -> None:
        self._add(saved)
        for one in saved:
            self._release(one.query)
        if time.monotonic() - self._reported > 0.1:
            self._report()
        self._job.check(self._usage, saved)

    def _waste(self, said: Reply | EndpointError) -> bool:
        """Count and keep what a reply cost that is no outcome; returns whether one was served at all."""
        tokens = said.usage.tokens if isinstance(said, Reply) else said.billed
        if tokens is None:
            return False
        usage = Usage.of(0, 1, *tokens) + Usage(wasted=1)
        self._usage += usage
        self._hand_over(self._store.waste(usage), [])
        return True

    def _release(self, query: int) -> None:
        """Free what was reserved for a query."""
        self._due.discard(query)
        self._expected.pop(query, None)

    def _refusal(self, error: RetryableError, sent: float, attempt: int) -> None:
        """Slow down after a failure; raises if waiting on is useless."""
        now = time.monotonic()
        self._last = error
        if error.retry_after is not None and error.retry_after > self._limits.patience:
            raise EndpointError(f"{error}; it asks to wait {error.retry_after:.0f} s: run again then")
        self._concurrency.refused(now, sent)
        self._pause.refused(now, sent, error.retry_after)
        waited = now - self._heard
        if waited > self._limits.patience:
            raise EndpointError(f"no answer for {waited:.0f} s; the last error: {error}")
        often = max(attempt, self._pause.bursts) >= 4
        if often and not self._tokens.answered and not error.throttled:
            raise EndpointError(f"nothing but failures so far; the last error: {error}")

    async def _doubt(self, query: int, saved: SavedAnswer) -> None:
        """Ask an item that had a usable reply once more, in place of this query's; give up if it has none.

        The answer is not part of the design, so it is paid for and not kept.
        """
        begins, item = self._usability.row_begins, self._usable_item()
        if item is None:
            self._give_up(begins, saved.text)
            return
        request = self._round.request(query, item)
        self._stopped = self._stopped or self._reserve((_CHECK,), request)
        if self._stopped:
            return
        self._checking = True
        self._under_way += 1
        try:
            heard = await self._hear(request)
        finally:
            self._checking = False
            self._under_way -= 1
            self._expected.pop(_CHECK, None)
        if heard is None:
            return
        self._waste(heard.said)
        if isinstance(heard.said, Reply):
            self._usability.clear()
            self._fill()
        else:
            self._give_up(begins, saved.text)

    def _usable_item(self) -> int | None:
        """An item that had a usable reply, in this round or an earlier one."""
        if (query := self._usability.usable) is not None:
            return self._round.item(query)
        valid = np.flatnonzero(self._before.answers != INVALID)
        return int(self._before.items[valid[0]]) if valid.size else None

    def _give_up(self, begins: int, reason: str) -> None:
        """End the run as hopeless; its unusable outcomes from this place on will be forgotten."""
        self._hopeless = begins
        self._fail(self._unusable or EndpointError(reason_in(reason)))

    # Limits

    def _reserve(self, queries: tuple[int, ...], request: Request | None = None) -> str | None:
        """The limit that a request and its controls would exceed, or ``None``; then they are reserved."""
        due, own = [query for query in queries if self._controls.due(query)], 0.0
        if self._limits.max_cost is not None and self._prices is not None:
            asked = request or self._request_all(queries)
            own = (1 + len(due)) * self._tokens.dearest(asked, self._prices)
        why = self._limit_reached(len(queries) + len(due), own)
        if why is None:
            self._due.update(due)
        if why is None and own:
            self._expected[queries[0]] = own
        return why

    def _limit_reached(self, queries: int = 0, cost: float = 0.0) -> str | None:
        """The limit that so much besides everything paid and under way would exceed, or ``None``."""
        limits = self._limits
        if limits.max_queries is None and limits.max_cost is None:
            return None
        paid, under_way = self._paid, self._under_way + len(self._due)
        if limits.max_queries is not None and paid.served + under_way + queries > limits.max_queries:
            return f"max_queries = {limits.max_queries} reached"
        if limits.max_cost is not None and self._prices is not None:
            expected = self._prices.cost(paid) + sum(self._expected.values())
            if expected + cost > limits.max_cost:
                return f"max_cost = {limits.max_cost:g} reached"
        return None

    @property
    def _paid(self) -> Usage:
        """What everything has cost so far, which the limits are about."""
        return self._spent + self._usage + self._controls.usage

    async def _wait(self, seconds: float) -> None:
        """Wait for this many seconds, or until the run is stopped."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()

    def _report(self) -> None:
        """Report the progress of the run."""
        self._reported = time.monotonic()
        if self._job.progress is not None:
            paid = self._paid
            cost = self._prices.cost(paid) if self._prices else None
            self._job.progress(
                Progress(
                    done=self._usage.queries,
                    total=self._total,
                    usage=paid,
                    cost=cost,
                    concurrency=self._concurrency.limit,
                )
            )
