"""Send the queries of a design to an endpoint and store the replies.

At most ``concurrency`` queries (or those of one request) wait for an answer on disk: a crash loses no more,
and the run can be continued. Workers take queries only when there is room, so a million queries are never a
million tasks. Stopping cancels nothing: queries under way are awaited and kept.

Content filters refuse single prompts, so an unusable reply is normal and final. Outcomes are judged in the
order of asking, which is random and the same whenever a run is continued. After `HOPELESS` unusable ones in a
row, an item that had a usable reply is asked again. If it has one now, the run goes on. If not, or if there
is no such item, the run ends and discards the streak, whose queries are asked again later.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from blindcal.asking.controls import Controls
from blindcal.asking.governor import Governor, Reservation
from blindcal.asking.job import Job, OpenRound, clipped, request_numbers
from blindcal.asking.run_context import INTERRUPTED, Stopped
from blindcal.design import Design
from blindcal.endpoints.query_format import NoAnswerWordError
from blindcal.errors import EndpointError
from blindcal.records import INVALID, AnswerTable, BoolArray, IntArray, Reply, Request, Usage
from blindcal.store.run_file import StoredReply, usage_of

HOPELESS = 20
"""Unusable replies in a row that put the endpoint in doubt."""
_OPEN, _USABLE, _UNUSABLE, _SKIPPED = range(4)  # what has become of a query


class Usability:
    """What has become of a round's queries, in the order of asking."""

    def __init__(self, order: IntArray, answered: BoolArray, unusable: IntArray) -> None:
        self._order, self._first = order, int(order.min()) if order.size else 0
        self._places = np.argsort(order)
        become = np.where(answered, _USABLE, _OPEN)
        become[np.isin(order, unusable)] = _UNUSABLE
        self._become = bytearray(become.astype(np.uint8))
        self._judged = 0  # everything before this place has an outcome
        self._streak = 0  # unusable outcomes in a row before it
        self._advance()

    def note(self, query: int, usable: bool | None) -> bool:
        """Note an outcome (``None``: left open); returns whether the endpoint is in doubt now."""
        become = _SKIPPED if usable is None else _USABLE if usable else _UNUSABLE
        self._become[self._places[query - self._first]] = become
        self._advance()
        return usable is False and self._streak >= HOPELESS

    def clear(self) -> None:
        self._streak = 0

    @property
    def usable(self) -> int | None:
        """A query that had a usable reply, on disk or not; ``None`` if there is none."""
        place = self._become.find(_USABLE)
        return None if place < 0 else int(self._order[place])

    @property
    def streak_begins(self) -> int:
        """The place at which the last streak of unusable outcomes begins."""
        place = self._judged
        for _ in range(self._streak):
            place = self._become.rindex(_UNUSABLE, 0, place)
        return place

    def unusable_from(self, place: int) -> list[int]:
        """The queries without a usable reply, from a place on."""
        become = np.frombuffer(self._become, np.uint8)[place:]
        return [int(query) for query in self._order[place:][become == _UNUSABLE]]

    def _advance(self) -> None:
        while self._judged < len(self._become) and (become := self._become[self._judged]) != _OPEN:
            self._judged += 1
            if become != _SKIPPED:
                self._streak = self._streak + 1 if become == _UNUSABLE else 0


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Answers and cost of a run; ``stopped`` is ``None`` if it finished, ``failed`` counts skipped ones."""

    answered: AnswerTable
    usage: Usage
    stopped: Stopped | None = None
    failed: int = 0


async def ask_design(
    design: Design,
    job: Job,
    governor: Governor,
    *,
    planned: int = 0,
    controls: Controls | None = None,
    begin: int = 0,
) -> RunOutcome:
    """Ask all open queries and their ``controls``; raises `EndpointError` if asking on is useless.

    ``planned`` is the expected number of queries; rounds before ``begin`` are known to be answered.
    """
    try:
        return await _Sender(job, governor, planned, controls or Controls(job, every=None)).ask(design, begin)
    finally:
        governor.resume()


@dataclass(slots=True)
class _Taken:
    queries: tuple[int, ...]
    request: Request
    own: Reservation
    for_controls: list[Reservation]


class _Sender:
    def __init__(self, job: Job, governor: Governor, planned: int, controls: Controls) -> None:
        self._job, self._governor, self._controls, self._total = job, governor, controls, planned
        self._store, self._limits = job.store, governor.run.limits
        self._round: OpenRound
        self._before = AnswerTable.empty()  # the answers of earlier rounds
        self._usage = job.store.usage("design")  # of the replies on disk
        self._stopped: Stopped | None = None  # why a round was left unfinished
        self._failed = 0
        self._again: deque[tuple[int, ...]] = deque()  # queries that a reply left unanswered
        self._on_the_wire = 0  # requests that no worker has finished
        self._under_way = 0  # queries whose answers are not on disk
        self._checking = False  # an item that had a usable reply is asked again
        self._hopeless: int | None = None  # unusable outcomes from this place on are forgotten
        self._unusable: EndpointError | None = None
        self._error: Exception | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._handed_over: dict[asyncio.Future[None], list[StoredReply]] = {}
        self._drained = asyncio.Event()
        self._reported = float("-inf")

    async def ask(self, design: Design, begin: int = 0) -> RunOutcome:
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
                nonsense = Stopped(error.message)
            have = self._round.answered
            self._before = self._before.with_round(
                asked.rows(have), self._round.answers[have].astype(np.int64)
            )
            first += len(asked)
            if nonsense or not have.all():
                break
        self._report()
        usage = self._store.usage("design")
        return RunOutcome(self._before, usage, nonsense or self._stopped, self._failed)

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
            self._store.forget("design", self._usability.unusable_from(self._hopeless))
        if self._error is not None:
            raise self._error
        left = int((~current.answered).sum())
        if left and self._governor.run.stop.is_set():
            self._stopped = self._stopped or INTERRUPTED
        elif left and not self._stopped:
            self._failed, last = left, self._governor.last_failure
            self._stopped = Stopped(f"{left} queries failed {self._limits.attempts} times each: {last}")

    # Queries under way

    def _fill(self) -> None:
        while (taken := self._take()) is not None:
            worker = asyncio.create_task(self._work(taken))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if not self._under_way:
            self._drained.set()

    def _take(self) -> _Taken | None:
        if self._on_the_wire >= self._governor.concurrency.limit:
            return None
        if self._governor.halting or self._stopped or self._checking:
            return None
        queries = self._next()
        crowded = self._under_way and self._under_way + len(queries) > self._limits.concurrency
        if not queries or crowded:
            return None
        try:
            request = self._round.request(queries[0])
        except Exception as error:  # an item that can no longer be read
            self._fail(error)
            return None
        controls = [request] * sum(self._controls.due(query) for query in queries)
        request = request if len(queries) == 1 else replace(request, n=len(queries))
        reserved = self._governor.reserve(request, *controls)
        if reserved is None or isinstance(reserved, Stopped):
            self._stopped = reserved
            return None
        if self._again:
            self._again.popleft()
        else:
            self._taken += len(queries)
        self._under_way += len(queries)
        self._on_the_wire += 1
        own, *for_controls = reserved
        return _Taken(queries, request, own, for_controls)

    def _next(self) -> tuple[int, ...]:
        if self._again:
            return self._again[0]
        begin = end = self._taken
        if self._job.at_once == 1:
            return (int(self._queries[begin]),) if begin < self._queries.size else ()
        while end < self._queries.size and self._numbers[end] == self._numbers[begin]:
            end += 1
        return tuple(map(int, self._queries[begin:end]))

    async def _work(self, taken: _Taken | None) -> None:
        while taken is not None:
            kept = 0
            try:
                replies = await self._ask(taken)
                kept = len(replies)
                doubtful = self._note(taken.queries, replies)
                if doubtful and not self._checking and not self._governor.halting:
                    await self._doubt(taken.queries[0], replies[0])
            except Exception as error:
                self._fail(error)
            for reserved in (taken.own, *taken.for_controls):  # no effect if already settled
                self._governor.settle(reserved)
            self._on_the_wire -= 1
            left = taken.queries[kept:]
            self._under_way -= len(left)
            if kept and left:
                self._again.append(left)
            taken = self._take()
        self._fill()

    async def _ask(self, taken: _Taken) -> list[StoredReply]:
        for query in taken.queries:
            await self._ask_controls(query, taken.for_controls)
        final = await self._governor.ask_until_final(taken.request)
        if final is None:
            self._stopped = self._stopped or self._governor.limit_reached()
            return []
        if isinstance(final.outcome, EndpointError):
            error = final.outcome  # the endpoint's fault if all replies fail alike
            self._unusable = EndpointError(error.message, remedy=error.remedy, options=error.options)
        replies = self._job.outcomes(taken.queries, final, self._round.choices(taken.queries[0]))
        self._governor.settle(taken.own, *replies)
        self._hand_over(self._store.save(*replies), replies)
        return replies

    async def _ask_controls(self, query: int, reserved: list[Reservation]) -> None:
        place, governor = (self._round.asked, self._round.first), self._governor
        while (control := self._controls.next(query, *place)) is not None and not governor.halting:
            request = self._controls.request(control, *place)
            own = (reserved.pop(),) if reserved and not control.nth else governor.reserve(request)
            if own is None or isinstance(own, Stopped):
                break
            try:
                final = await governor.ask_until_final(request, "control")
                if final is None:
                    break
                if not isinstance(final.outcome, Reply):
                    await governor.keep_wasted(final, "control")
                    break
                reply = self._controls.stored(control, final, self._usage.queries)
                governor.settle(own[0], reply)
                await self._store.save(reply)
                self._controls.record(reply)
            finally:
                governor.settle(own[0])

    def _note(self, queries: Sequence[int], replies: Sequence[StoredReply]) -> bool:
        doubts = [self._usability.note(reply.query, not reply.unusable) for reply in replies]
        if not replies:
            doubts = [self._usability.note(query, None) for query in queries]
        return any(doubts)

    def _hand_over(self, kept: asyncio.Future[None], replies: list[StoredReply]) -> None:
        if kept not in self._handed_over:
            self._handed_over[kept] = []
            kept.add_done_callback(self._on_disk)
        self._handed_over[kept] += replies

    def _on_disk(self, kept: asyncio.Future[None]) -> None:
        group = self._handed_over.pop(kept)
        self._under_way -= len(group)
        try:
            kept.result()
            for reply in group:
                assert reply.answer is not None
                self._round.answers[reply.query - self._round.first] = reply.answer
            self._usage += usage_of(group)
            if time.monotonic() - self._reported > 0.1:
                self._report()
            self._job.check(self._usage, group)
        except Exception as error:
            self._fail(error)
        self._fill()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._governor.halt()

    async def _doubt(self, query: int, unusable: StoredReply) -> None:
        """Ask an item that had a usable reply once more; its answer is paid for but not kept."""
        begins, item, governor = self._usability.streak_begins, self._usable_item(), self._governor
        if item is None:
            self._give_up(begins, unusable.text)
            return
        request = self._round.request(query, item)
        reserved = governor.reserve(request)
        if reserved is None or isinstance(reserved, Stopped):
            self._stopped = self._stopped or reserved
            return
        self._checking = True
        self._under_way += 1
        try:
            final = await governor.ask_until_final(request)
            if final is not None:
                await governor.keep_wasted(final, "design")
        finally:
            governor.settle(reserved[0])
            self._checking = False
            self._under_way -= 1
        if final is not None and isinstance(final.outcome, Reply):
            self._usability.clear()
            self._fill()
        elif final is not None:
            self._give_up(begins, unusable.text)

    def _usable_item(self) -> int | None:
        if (query := self._usability.usable) is not None:
            return self._round.item(query)
        valid = np.flatnonzero(self._before.answers != INVALID)
        return int(self._before.items[valid[0]]) if valid.size else None

    def _give_up(self, begins: int, reason: str) -> None:
        self._hopeless = begins
        self._fail(self._unusable or EndpointError(reason.removeprefix("(").removesuffix(")")))

    def _report(self) -> None:
        self._reported = time.monotonic()
        self._governor.report(self._usage.queries, self._total)
