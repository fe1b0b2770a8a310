"""A live run: sends the queries of a design to an endpoint and keeps the answers in a store.

A run can be continued. The rule that makes this safe: a query is under way until its answer is on disk, and
at most ``concurrency`` queries are under way. This is the most that a crash can lose and that must be paid
for again.

A worker takes a query only when there is room, so a million queries are never a million tasks. Stopping a
run cancels nothing: no new query is sent, and the queries under way are awaited and kept.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time

from blindcal.auditing.controls import Controls
from blindcal.auditing.job import HOPELESS, Job, RunOutcome, Sender, as_endpoint_error
from blindcal.auditing.rate_control import ConcurrencyControl, RateLimiter
from blindcal.auditing.token_estimate import bytes_of
from blindcal.design import Design
from blindcal.endpoints.base import Endpoint, Patient, backoff
from blindcal.errors import EndpointError, ReplyError, RetryableError
from blindcal.records import Progress, Reply, Request, Usage
from blindcal.store.run_store import UNASKED, SavedAnswer

REPLY_TRIES = 3
HOPELESS_AT_FIRST = 5


async def ask_live(
    design: Design, job: Job, endpoint: Endpoint, *, planned: int = 0, controls: Controls | None = None
) -> RunOutcome:
    """Ask all queries of the design that the store does not answer yet, and the ``controls`` among them.

    ``planned`` is the expected number of queries, for the progress. A stopped run waits for the queries
    under way. Raises `EndpointError` if asking on is useless; every answer is kept.
    """
    gc.freeze()  # otherwise the collector scans all existing objects again and again
    try:
        controls = controls or Controls(job, wanted=False)
        return await _LiveSender(job, endpoint, planned, controls).ask(design)
    finally:
        gc.unfreeze()


class _LiveSender(Sender):
    """The state of one run: its workers, its cost, and why it stopped."""

    def __init__(self, job: Job, endpoint: Endpoint, planned: int, controls: Controls) -> None:
        super().__init__(job, planned)
        self._endpoint, self._controls = endpoint, controls
        self._concurrency = ConcurrencyControl(job.limits.concurrency)
        self._rate = RateLimiter(job.limits.rpm, job.limits.tpm)
        self._on_the_wire = 0
        self._under_way = 0
        self._reserved: dict[int, int] = {}  # number of requests of each query under way, its controls too
        self._expected: dict[int, float] = {}  # highest cost of each query under way, if cost is limited
        self._useless: list[tuple[int, ReplyError]] = []
        self._useless_in_a_row = 0
        self._skipped = 0
        self._last: Exception | None = None
        self._error: Exception | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._handed_over: dict[asyncio.Future[None], list[SavedAnswer]] = {}
        self._drained = asyncio.Event()
        self._reported = float("-inf")

    @property
    def beside(self) -> Usage:
        """What the control queries cost."""
        return self._controls.usage

    async def _ask_round(self) -> None:
        self._controls.check()
        self._queries, self._taken = self._open(), 0
        self._heard = time.monotonic()
        self._drained.clear()
        self._fill()
        try:
            await self._drained.wait()
        finally:  # workers are left only if the run itself is cancelled
            for worker in self._workers:
                worker.cancel()
        if self._error is not None:
            raise self._error
        if UNASKED in self._answers and (self.stopped or self._stop.is_set()):
            self.stopped = self.stopped or "interrupted"
            return
        if self._useless and not self.usage.queries:
            raise as_endpoint_error(self._useless[0][1])
        for query, error in self._useless:
            saved = self._job.read(query, Reply(f"({error.message})"), REPLY_TRIES)
            await self._store.save(saved)
            self._count([saved])
        self._useless.clear()
        if self._skipped:
            self.stopped = f"{self._skipped} queries failed {self._limits.attempts} times each: {self._last}"

    # Queries under way

    def _fill(self) -> None:
        """Start queries while there is room; sets ``_drained`` when none is under way any more."""
        while (query := self._take()) is not None:
            worker = asyncio.create_task(self._work(query))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if not self._under_way:
            self._drained.set()

    def _take(self) -> int | None:
        """The next query, if concurrency control, the limits and ``stop`` allow one now."""
        if self._on_the_wire >= self._concurrency.limit or self._under_way >= self._limits.concurrency:
            return None
        if self._under_way and self._limits.max_cost is not None and not self._tokens.answered:
            return None  # ask one query first, to learn what it costs
        if self._stop.is_set() or self.stopped or self._taken == self._queries.size:
            return None
        query = int(self._queries[self._taken])
        try:
            why = self._spent_up(query)
        except Exception as error:  # an item that can no longer be read
            self._fail(error)
            return None
        if why is not None:
            if not self._under_way:  # else queries under way may turn out cheaper and leave room
                self.stopped = why
            return None
        self._taken += 1
        self._under_way += 1
        self._on_the_wire += 1
        return query

    async def _work(self, query: int | None) -> None:
        while query is not None:
            handed_over = False
            try:
                saved = await self._ask(query)
                if saved is not None:
                    self._hand_over(saved)
                    handed_over = True
            except Exception as error:
                self._fail(error)
            self._on_the_wire -= 1
            if not handed_over:
                self._under_way -= 1
                self._release(query)
            query = self._take()
        self._fill()

    def _hand_over(self, saved: SavedAnswer) -> None:
        """Pass an answer to the store without waiting; it stays under way until it is on disk."""
        kept = self._store.save(saved)
        if kept not in self._handed_over:
            self._handed_over[kept] = []
            kept.add_done_callback(self._on_disk)
        self._handed_over[kept].append(saved)

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

    async def _ask(self, query: int) -> SavedAnswer | None:
        """Ask until there is an answer, the query is given up, or the run is stopped."""
        await self._ask_controls(query)
        request = self._request(query)
        tokens = self._tokens.expected(bytes_of(request)) + request.max_tokens
        attempt, useless = 1, 0
        while True:
            await self._wait(self._rate.book(time.monotonic(), tokens))
            if self._stop.is_set():
                return None
            started = time.monotonic()
            try:
                reply = await self._endpoint.ask(request)
            except RetryableError as error:
                delay = self._refusal(error, attempt)
                attempt += not error.throttled
                if attempt > self._limits.attempts:
                    self._skipped += 1
                    return None
                await self._wait(delay)
            except ReplyError as error:
                attempt, useless = attempt + 1, useless + 1
                if useless == REPLY_TRIES:
                    self._give_up(query, error)
                    return None
                await self._wait(backoff(useless, self._limits.backoff))
            else:
                self._heard = time.monotonic()
                self._useless_in_a_row = 0
                self._concurrency.answered(self._heard)
                self._rate.correct(reply.prompt_tokens + reply.completion_tokens - tokens)
                self._tokens.learn(bytes_of(request), reply.prompt_tokens)
                return self._job.read(query, reply, attempt, self._heard - started)

    async def _ask_controls(self, query: int) -> None:
        """Ask the control queries that a query carries; one that fails is left out."""
        place = self._asked, self._first
        while (control := self._controls.next(query, *place)) is not None and not self._stop.is_set():
            if control.nth and self._over_limits(1, self._controls.request(control, *place)) is not None:
                return
            request = self._controls.request(control, *place)
            await self._wait(self._rate.book(time.monotonic(), self._tokens.expected(bytes_of(request))))
            try:
                reply = await Patient(self._endpoint, attempts=self._limits.attempts, sleep=self._wait).ask(
                    request
                )
            except (RetryableError, ReplyError):
                return
            self._controls.listen(control, reply, self.usage.queries)

    # What came back

    def _count(self, saved: list[SavedAnswer]) -> None:
        super()._count(saved)
        for one in saved:
            self._release(one.query)
        if time.monotonic() - self._reported > 0.1:
            self.report()
        self._job.check(self.usage, saved[-1].text)

    def _release(self, query: int) -> None:
        self._reserved.pop(query, None)
        self._expected.pop(query, None)

    def _refusal(self, error: RetryableError, attempt: int) -> float:
        now = time.monotonic()
        self._last = error
        self._concurrency.refused(now)
        if error.retry_after is not None:
            if error.retry_after > self._limits.patience:
                raise EndpointError(f"{error}; it asks to wait {error.retry_after:.0f} s: run again then")
            self._rate.pause(now, error.retry_after)
        waited = now - self._heard
        if waited > self._limits.patience:
            raise EndpointError(f"no answer for {waited:.0f} s; the last error: {error}")
        if not self._tokens.answered and attempt >= 4 and not error.throttled:
            raise EndpointError(f"nothing but failures so far; the last error: {error}")
        return (
            backoff(attempt, self._limits.backoff)
            if error.retry_after is None
            else random.uniform(0, self._limits.backoff)
        )

    def _give_up(self, query: int, error: ReplyError) -> None:
        # Set aside: it becomes an invalid answer only if the rest of the round goes well.
        self._useless.append((query, error))
        self._useless_in_a_row += 1
        if self._useless_in_a_row >= (HOPELESS if self._tokens.answered else HOPELESS_AT_FIRST):
            raise as_endpoint_error(error)

    # Limits

    def _spent_up(self, query: int) -> str | None:
        """The limit that this query would exceed, or ``None``; then its cost is reserved."""
        if self._limits.max_queries is None and self._limits.max_cost is None:
            return None
        requests = 1 + self._controls.due(query)
        reached = self._over_limits(requests, self._request(query))
        if reached is None:
            self._reserved[query] = requests
            if self._limits.max_cost is not None and self._prices is not None:
                self._expected[query] = requests * self._tokens.dearest(self._request(query), self._prices)
        return reached

    def _over_limits(self, requests: int, request: Request) -> str | None:
        """The limit that so many requests like this one would exceed, or ``None``."""
        paid = self._spent + self.usage + self.beside
        if self._limits.max_queries is not None:
            under_way = sum(self._reserved.values())
            if paid.queries + under_way + requests > self._limits.max_queries:
                return f"max_queries = {self._limits.max_queries} reached"
        if self._limits.max_cost is not None and self._prices is not None:
            own = requests * self._tokens.dearest(request, self._prices)
            if self._prices.cost(paid) + sum(self._expected.values()) + own > self._limits.max_cost:
                return f"max_cost = {self._limits.max_cost:g} reached"
        return None

    def report(self) -> None:
        """Report the progress of the run."""
        self._reported = time.monotonic()
        if self._job.progress is not None:
            paid = self._spent + self.usage + self.beside
            cost = self._prices.cost(paid) if self._prices else None
            self._job.progress(Progress(self.usage.queries, self._total, paid, cost, self._concurrency.limit))
