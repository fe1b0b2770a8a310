"""The looks of a watch: ask about what has arrived, then evaluate the alarms.

A look first checks the endpoint: it forces an answer to both sides and asks a few anchors. If the bias no
longer acts, answers would measure nothing, and the items wait. Otherwise each item is asked once. An
interrupted look is resumed and asks nothing twice.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path

import numpy as np
from scipy.special import logit

from blindcal.asking.ask_design import ask_design
from blindcal.asking.controls import NAMELESS, unknown_names
from blindcal.asking.governor import GovernedEndpoint, Governor, LimitTooLowError
from blindcal.asking.job import Job
from blindcal.asking.opened_run import answers_kept
from blindcal.asking.run_context import INTERRUPTED, RunContext, Stopped
from blindcal.auditing.prepared import AskedSettings
from blindcal.design import make_round
from blindcal.errors import EndpointError, FatalError, NotIdentifiedError
from blindcal.query_seeds import draw_of_name
from blindcal.records import INVALID, AnswerTable, Item, Round
from blindcal.results.result import Spend
from blindcal.results.run import Run
from blindcal.results.watch_result import WatchResult
from blindcal.store.run_file import StoredReply
from blindcal.store.run_store import UNASKED
from blindcal.store.watch_store import Look, WatchStore
from blindcal.text import listed, printable
from blindcal.watching.anchors import ANCHORS, SET_UP, Anchors, AnchorSet, noted_anchors, queries_due
from blindcal.watching.budget import DayBudget
from blindcal.watching.feed import WatchFeed, thresholds
from blindcal.watching.intake import Gathered, Intake

_MOST_ASKED = 10_000  # items per round, whose prompts are kept in memory
BIAS_LOST = "the logit_bias no longer acts"


@dataclass(frozen=True)
class WatchDesign:
    """Asks each item before number ``end`` that is not in a round yet, at its own threshold."""

    store: WatchStore
    end: int
    seed: int

    def next_round(self, answered: AnswerTable) -> Round | None:  # noqa: ARG002 - a design's signature
        first = self.store.asked_items()
        if first >= self.end:
            return None
        ids = [name for name, _ in self.store.names_between(first, self.end)]
        return make_round(np.arange(first, self.end), -logit(thresholds(self.seed, ids)))


@dataclass(frozen=True)
class WaitingItems:
    """The items to ask now, numbered from ``first``."""

    first: int
    items: list[Item]

    def __getitem__(self, number: int) -> Item:
        return self.items[number - self.first]

    def __len__(self) -> int:
        return self.first + len(self.items)


@dataclass(kw_only=True)
class Watch:
    """A watch under way."""

    store: WatchStore
    reference: Run
    asked: AskedSettings
    governor: Governor
    context: RunContext
    feed: WatchFeed
    budget: DayBudget
    rate: float
    folder: Path
    stream: str
    follow: bool
    force: bool
    interval: float
    on_look: Callable[[WatchResult], None] | None
    on_alarm: Callable[[WatchResult], Awaitable[bool]] | None
    _out_of_money: str = ""  # day whose budget is used up
    _halted: float = -math.inf  # when asking last ended for another reason (time.monotonic)

    async def run(self, intake: Intake) -> WatchResult:
        """Look until the stream ends or the watch is stopped, which stores the rest of a pipe."""
        result = await self._run(intake)
        if self.context.stop.is_set() and not (rest := intake.rest()).empty:
            await asyncio.to_thread(self._begin_look, rest)
        return result

    async def _run(self, intake: Intake) -> WatchResult:
        pending = await asyncio.to_thread(self._replay)
        result: WatchResult | None = None
        more = False
        while True:
            if pending is None:
                gathered = await intake.gather(self._can_ask)
                idle = gathered.empty and not self._can_ask()
                if idle and (last := self.store.last_look()) is not None:
                    if result is None or more:
                        result = await asyncio.to_thread(self._result, last, None, window=True)
                        await self._show(result)
                    more = False
                    if not intake.waits or gathered.closed or self.context.stop.is_set():
                        return result
                    continue
                pending, more = await asyncio.to_thread(self._begin_look, gathered), gathered.more
            stopped = await self._ask_waiting(pending)
            result = await asyncio.to_thread(self._conclude, pending, stopped, more)
            await self._show(result)
            pending = None
            if self.context.stop.is_set() or (stopped is not None and not self.follow):
                return result

    async def _show(self, result: WatchResult) -> None:
        if self.on_look is not None:
            self.on_look(result)
        reported = set(self.store.note("reported") or [])
        if self.on_alarm is None or reported.issuperset(result.raised_names):
            return
        if await self.on_alarm(result):
            self.store.set_note("reported", sorted({*reported, *result.raised_names}))

    def _replay(self) -> Look | None:
        for look in self.store.looks():
            if look.answered is None:
                return look
            self.feed.add(look)
        return None

    def _begin_look(self, gathered: Gathered) -> Look:
        last = self.store.last_look()
        at = self.budget.clock().astimezone(UTC).isoformat(timespec="seconds")
        return self.store.begin_look(
            at if last is None else max(at, last.at),  # clocks may go back
            gathered.arrivals,
            chosen=lambda name: draw_of_name(self._seed, name, "rate") < self.rate,
            positions=gathered.positions,
            unreadable=gathered.unreadable,
        )

    @property
    def _seed(self) -> int:
        return self.asked.settings.design.seed

    def _can_ask(self) -> bool:
        last = self.store.last_look()
        if last is None or last.items <= self.feed.answered:
            return False
        # after a halt, not again at once
        rested = time.monotonic() - self._halted >= self.interval
        return rested and self.budget.date() > self._out_of_money

    async def _ask_waiting(self, look: Look) -> Stopped | None:
        first = self.feed.answered
        end, stopped = min(look.items, first + _MOST_ASKED), None
        if end > first and not self.context.stop.is_set():
            limits = self.budget.limits(self.context.limits)
            self.governor.run = replace(self.context, limits=limits)
            try:
                stopped = await self._ask(look, first, end)
            except LimitTooLowError as error:
                stopped = error.stopped
            except NotIdentifiedError:
                pass  # stopped during the check of the endpoint
            except EndpointError as error:
                if not self.follow or isinstance(error, FatalError):
                    raise
                stopped = Stopped(error.message)
            daily = limits.max_cost != self.context.limits.max_cost
            # the end of the day's money does not stop the watch
            if daily and stopped is not None and stopped.limit == "max_cost":
                self._out_of_money, stopped = self.budget.day(), None
        if end > first and self.context.stop.is_set():
            stopped = stopped or INTERRUPTED
        self._halted = -math.inf if stopped is None else time.monotonic()
        return stopped

    async def _ask(self, look: Look, first: int, end: int) -> Stopped | None:
        job = Job(
            items=WaitingItems(first, self.store.items_between(first, end)),
            question=self.asked.question,
            store=self.store,
            max_shift=self.asked.prepared.max_shift,
        )
        anchors = Anchors(job, self.store, self.reference.noise.best.jitter, self._seed)
        known = await self._set_up(anchors, look)
        if known is not None and known.anchors:
            due = queries_due(end - first)
            asked = self._governed(2 + due, "the check of the endpoint", quiet=True)
            lost = await anchors.bias_lost(known, look.number, asked)
            if lost is not None:
                self._note_fact(f"{BIAS_LOST}: {lost}")
                if not self.force:
                    return Stopped(BIAS_LOST)
            await anchors.ask(known, range(self.feed.anchors, self.feed.anchors + due), asked)
        self.context.tell("asking")
        design, begin = WatchDesign(self.store, end, self._seed), self.store.rounds_within(first)
        outcome = await ask_design(design, job, self.governor, planned=end, begin=begin)
        if outcome.stopped is not None and len(outcome.answered) > outcome.failed > 0:
            await self._leave_out(first, end, outcome.stopped.reason)
            return None
        return outcome.stopped

    async def _set_up(self, anchors: Anchors, look: Look) -> AnchorSet | None:
        known = noted_anchors(self.store)
        if known is not None:
            return known
        candidates = self.asked.items
        if candidates is None:
            candidates = self.store.items_between(0, min(look.items, _MOST_ASKED))
            if len(candidates) < ANCHORS:
                return None
        else:
            order = np.random.default_rng([self._seed, 7]).permutation(len(candidates))
            candidates = [candidates[k] for k in order.tolist()]
        self.context.tell("setting up the anchors")
        return await anchors.set_up(candidates, self._governed(SET_UP, "setting up the anchors"))

    def _governed(self, expected: int, for_what: str, *, quiet: bool = False) -> GovernedEndpoint:
        return GovernedEndpoint(self.governor, self.store, expected=expected, for_what=for_what, quiet=quiet)

    async def _leave_out(self, first: int, end: int, why: str) -> None:
        # these items fail again and again while others are answered
        unasked = first + np.flatnonzero(self.store.answers(first, end - first) == UNASKED)
        failed = StoredReply(answer=INVALID, text=printable(f"({why})"), unusable=True, attempts=0)
        await self.store.save(*(replace(failed, query=query) for query in unasked.tolist()))

    def _conclude(self, look: Look, stopped: Stopped | None, more: bool) -> WatchResult:
        store = self.store
        answered = store.answered_rounds(self.feed.answered)
        look = store.end_look(look, answered, store.count_anchors())
        known = self.asked.served or (NAMELESS,)
        before = listed([name.words for name in known])
        for name in unknown_names(store.served_names(), known):
            self._note_fact(f"replies come from {name}; those of the reference audit came from {before}")
        # prompts are deleted once they were asked; the anchors may be among them
        if not self.asked.settings.prompt.keep_prompts and noted_anchors(store) is not None:
            store.forget_prompts(answered)
        self.feed.add(look)
        return self._result(look, stopped, window=not more)  # the curve of the window takes a moment

    def _note_fact(self, words: str) -> None:
        noted = self.store.note("facts") or []
        lost_before = words.startswith(BIAS_LOST) and any(fact.startswith(BIAS_LOST) for fact in noted)
        if words not in noted and not lost_before:
            self.store.set_note("facts", [*noted, words])

    def _result(self, look: Look, stopped: Stopped | None, *, window: bool) -> WatchResult:
        store, feed = self.store, self.feed
        counts, state, looks = store.counts(), feed.monitor.state(), store.looks()
        spend = Spend.of(store, self.context.prices)
        result = WatchResult(
            folder=str(self.folder),
            model=self.asked.settings.endpoint.model,
            reference=str(self.reference.folder),
            stream=self.stream,
            started=looks[0].at,
            looked=look.at,
            look=look.number,
            records=counts.records,
            chosen=look.items,
            answered=feed.answered - feed.invalid,
            invalid=feed.invalid,
            waiting=look.items - feed.answered,
            labelled=state.labelled,
            duplicates=counts.duplicates,
            conflicts=counts.conflicts,
            unreadable=counts.unreadable,
            labels_without_item=counts.early,
            state=state,
            facts=tuple(store.note("facts") or ()),
            first_seen={
                alarm.name: _date_of(looks, alarm.since, anchors=alarm.name == "endpoint")
                for alarm in state.alarms
                if alarm.since is not None
            },
            window=feed.window(self.reference) if window else None,
            spend=replace(spend, probe_queries=0, control_queries=spend.probe_queries),
            cost_today=self.budget.spent_today(),
            max_cost_per_day=self.budget.max_cost_per_day,
            stopped=None if stopped is None else printable(stopped.reason),
        )
        with answers_kept():
            result.save()
        return result


def _date_of(looks: Sequence[Look], place: int, *, anchors: bool) -> str:
    counts = [(look.anchors or 0) if anchors else look.items for look in looks]
    return looks[min(int(np.searchsorted(counts, place, side="right")), len(looks) - 1)].at
