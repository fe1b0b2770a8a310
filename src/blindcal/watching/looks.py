"""The looks of a watch: what has arrived is asked about, and the alarms are looked at.

A look asks first whether the endpoint still does what it did: it forces an answer to both sides, and asks a
few anchors. If the bias no longer acts, answers would measure nothing, and items wait. Otherwise each item is
asked its query. A look that was interrupted is gone on with, and asks nothing again that was answered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import overload

import numpy as np
from scipy.special import logit

from blindcal.asking.endpoint_identity import NAMELESS, unknown_names
from blindcal.asking.governor import GovernedEndpoint, Governor, LimitTooLowError
from blindcal.asking.job import Job
from blindcal.asking.opened_run import answers_kept
from blindcal.asking.run_context import RunContext
from blindcal.asking.sender import ask_design
from blindcal.design import make_round
from blindcal.errors import EndpointError, FatalError, NotIdentifiedError
from blindcal.query_seeds import draw_of_name
from blindcal.records import INVALID, AnswerTable, Arrival, Item, Position, Round
from blindcal.results.result import Spend
from blindcal.results.watch_result import WatchResult
from blindcal.store.run_store import UNASKED, StoredReply
from blindcal.store.watch_store import Look, WatchStore
from blindcal.text import listed, printable
from blindcal.watching.anchors import ANCHORS, SET_UP, Anchors, AnchorSet, noted_anchors, queries_due
from blindcal.watching.budget import DayBudget
from blindcal.watching.feed import WatchFeed, thresholds
from blindcal.watching.intake import Intake
from blindcal.watching.reference import WatchReference

_MOST_ASKED = 10_000  # items in one round: their prompts are kept in memory
BIAS_LOST = "the logit_bias no longer acts"


def is_chosen(seed: int, name: str, rate: float) -> bool:
    """Whether an item is among the share ``rate`` of all items that are asked; it follows from its id."""
    return draw_of_name(seed, name, "rate") < rate


@dataclass(frozen=True)
class WatchDesign:
    """Asks the items before number ``end`` that are not in a round yet, each at its own threshold."""

    store: WatchStore
    end: int
    seed: int

    def next_round(self, answered: AnswerTable) -> Round | None:  # noqa: ARG002 - a design's signature
        """The items that wait, in their order."""
        first = self.store.asked_items()
        if first >= self.end:
            return None
        ids = [name for name, _ in self.store.names_between(first, self.end)]
        return make_round(np.arange(first, self.end), -logit(thresholds(self.seed, ids)))


class WaitingItems(Sequence[Item]):
    """The items of a watch that are asked now, by their numbers, which begin with ``first``."""

    def __init__(self, first: int, items: list[Item]) -> None:
        self._first, self._items = first, items

    @overload
    def __getitem__(self, number: int) -> Item: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Item]: ...

    def __getitem__(self, number: int | slice) -> Item | Sequence[Item]:
        assert isinstance(number, int)
        return self._items[number - self._first]

    def __len__(self) -> int:
        return self._first + len(self._items)


@dataclass(kw_only=True)
class Watch:
    """A watch under way: takes what arrives, asks, and looks at the alarms."""

    store: WatchStore
    reference: WatchReference
    governor: Governor
    context: RunContext
    feed: WatchFeed
    budget: DayBudget
    rate: float
    seed: int
    folder: str
    stream: str
    follow: bool
    force: bool
    interval: float
    on_look: Callable[[WatchResult], None] | None
    on_alarm: Callable[[WatchResult], Awaitable[bool]] | None
    _out_of_money: str = ""  # the day whose budget is used up
    _halted: float = -math.inf  # when asking last ended for another reason, in seconds of the clock below

    async def run(self, intake: Intake) -> WatchResult:
        """Look again and again until nothing more is there, or the watch is stopped.

        If it is stopped, the rest of a pipe is kept for the next time.
        """
        result = await self._run(intake)
        if self.context.stop.is_set() and not (rest := intake.rest()).empty:
            arrived = rest.arrivals, rest.positions, rest.unreadable
            await asyncio.to_thread(self.begin_look, *arrived)
        return result

    async def _run(self, intake: Intake) -> WatchResult:
        pending = await asyncio.to_thread(self.replay)
        result: WatchResult | None = None
        more = False
        while True:
            if pending is None:
                found = await intake.gather(self._can_ask)
                idle = found.empty and not self._can_ask()
                if idle and (last := self.store.last_look()) is not None:
                    if result is None or more:
                        result = await asyncio.to_thread(self.result, last, None, window=True)
                        await self._show(result)
                    more = False
                    if not intake.waits or found.closed or self.context.stop.is_set():
                        return result
                    continue
                arrived = found.arrivals, found.positions, found.unreadable
                pending, more = await asyncio.to_thread(self.begin_look, *arrived), found.more
            result = await self._look(pending, more)
            await self._show(result)
            pending = None
            if self.context.stop.is_set() or (result.stopped is not None and not self.follow):
                return result

    async def _show(self, result: WatchResult) -> None:
        """Show what a look has found, and report the alarms that no look has reported."""
        if self.on_look is not None:
            self.on_look(result)
        reported = set(self.store.note("reported") or [])
        if self.on_alarm is None or reported.issuperset(result.raised_names):
            return
        if await self.on_alarm(result):
            self.store.set_note("reported", sorted({*reported, *result.raised_names}))

    def replay(self) -> Look | None:
        """Go through the looks so far again; returns the last one if it is not over."""
        anchors = noted_anchors(self.store)
        if anchors is not None and anchors.anchors:
            self.feed.expect(anchors)
        for one in self.store.looks():
            if one.answered is None:
                return one
            self.feed.add(one)
        return None

    def begin_look(
        self,
        arrivals: Sequence[Arrival],
        positions: Mapping[str, Mapping[str, Position]],
        unreadable: int = 0,
    ) -> Look:
        """Begin a look with what has arrived; no look is before an earlier one, whatever the clock says."""
        last = self.store.last_look()
        at = self.budget.clock().astimezone(UTC).isoformat(timespec="seconds")
        return self.store.begin_look(
            at if last is None else max(at, last.at),
            arrivals,
            chosen=lambda name: is_chosen(self.seed, name, self.rate),
            positions=positions,
            unreadable=unreadable,
        )

    def _can_ask(self) -> bool:
        """Whether items wait that may be asked now: after a halt, not at once again."""
        last = self.store.last_look()
        if last is None or last.items <= self.feed.answered:
            return False
        rested = time.monotonic() - self._halted >= self.interval
        return rested and self.budget.date() > self._out_of_money

    async def _look(self, look: Look, more: bool) -> WatchResult:
        """Ask what is to be asked at a look, and look at the alarms."""
        first = self.feed.answered
        end = min(look.items, first + _MOST_ASKED)
        stopped = None
        if end > first and not self.context.stop.is_set():
            stopped = await self._stopped_by(look, first, end)
        if end > first and self.context.stop.is_set():
            stopped = stopped or "interrupted"
        self._halted = -math.inf if stopped is None else time.monotonic()
        return await asyncio.to_thread(self.conclude, look, stopped, more)

    async def _stopped_by(self, look: Look, first: int, end: int) -> str | None:
        """Ask, and return why not all was asked; the end of the day's money is no reason to stop."""
        limits = self.budget.limits(self.context.limits)
        daily = limits.max_cost != self.context.limits.max_cost
        self.governor.run = replace(self.context, limits=limits)
        try:
            stopped, costly = await self._ask(look, first, end)
        except LimitTooLowError as error:
            stopped, costly = error.stopped.reason, error.stopped.limit == "max_cost"
        except NotIdentifiedError:  # stopped
            return None
        except EndpointError as error:
            if not self.follow or isinstance(error, FatalError):
                raise
            stopped, costly = error.message, False
        if costly and daily:
            self._out_of_money = self.budget.day()
            return None
        return stopped

    async def _ask(self, look: Look, first: int, end: int) -> tuple[str | None, bool]:
        """Check the endpoint and ask items; why not all were asked, and whether it is the cost."""
        job = Job(
            items=WaitingItems(first, self.store.items_between(first, end)),
            question=self.reference.question,
            store=self.store,
            max_shift=self.reference.prepared.max_shift,
        )
        anchors = Anchors(job, self.store, self.reference.run.noise.best.jitter, self.seed)
        found = await self._set_up(anchors, look)
        if found is not None and found.anchors:
            due = queries_due(end - first)
            if await self._check(anchors, found, look, due):
                return BIAS_LOST, False
        self.context.tell("asking")
        design, begin = WatchDesign(self.store, end, self.seed), self.store.rounds_within(first)
        outcome = await ask_design(design, job, self.governor, planned=end, begin=begin)
        stopped = outcome.stopped
        if stopped is None:
            return None, False
        if outcome.failed and len(outcome.answered) > outcome.failed:
            await self._leave_out(first, end, stopped.reason)
            return None, False
        return stopped.reason, stopped.limit == "max_cost"

    async def _leave_out(self, first: int, end: int, why: str) -> None:
        """Store that there is no reply about items that fail again and again while others are answered."""
        open_queries = first + np.flatnonzero(self.store.answers(first, end - first) == UNASKED)
        text = printable(f"({why})")
        await self.store.save(
            *(
                StoredReply(query=int(query), answer=INVALID, text=text, unusable=True, attempts=0)
                for query in open_queries
            )
        )

    async def _set_up(self, anchors: Anchors, look: Look) -> AnchorSet | None:
        """The anchors, set up if they are not; ``None`` if there are not enough items for them yet."""
        found = noted_anchors(self.store)
        if found is not None:
            return found
        candidates = self.reference.items
        if candidates is None:
            candidates = self.store.items_between(0, min(look.items, _MOST_ASKED))
            if len(candidates) < ANCHORS:
                return None
        else:
            order = np.random.default_rng([self.seed, 7]).permutation(len(candidates))
            candidates = [candidates[int(k)] for k in order]
        self.context.tell("setting up the anchors")
        asked = self._governed(SET_UP, "setting up the anchors")
        found = await anchors.set_up(candidates, asked)
        if found.anchors:
            self.feed.expect(found)
        return found

    async def _check(self, anchors: Anchors, found: AnchorSet, look: Look, due: int) -> bool:
        """Check that the bias acts, and ask anchors; returns whether it no longer acts."""
        asked = self._governed(2 + due, "the check of the endpoint", quiet=True)
        lost = await anchors.bias_lost(found, look.number, asked)
        if lost is not None:
            self._note_fact(f"{BIAS_LOST}: {lost}")
            if not self.force:
                return True
        numbers = range(self.feed.anchors, self.feed.anchors + due)
        await anchors.ask(found, numbers, asked)
        return False

    def _governed(self, expected: int, for_what: str, *, quiet: bool = False) -> GovernedEndpoint:
        """An endpoint for a few queries beside the items, within the limits."""
        return GovernedEndpoint(self.governor, self.store, expected=expected, for_what=for_what, quiet=quiet)

    # What is known

    def conclude(self, look: Look, stopped: str | None, more: bool) -> WatchResult:
        """End a look, and write down what it shows."""
        answered = self.store.answered_rounds(self.feed.answered)
        look = self.store.end_look(look, answered, self.store.count_anchors())
        self._note_other_names()
        if self._forgets:
            self.store.forget_prompts(answered)
        self.feed.add(look)
        return self.result(look, stopped, window=not more)

    @property
    def _forgets(self) -> bool:
        """Whether prompts are deleted once they were asked; the anchors may be among them."""
        return not self.reference.settings.prompt.keep_prompts and noted_anchors(self.store) is not None

    def _note_other_names(self) -> None:
        known = self.reference.served or (NAMELESS,)
        before = listed([one.words for one in known])
        heard = self.store.served_names()
        for name in unknown_names(heard, known):
            self._note_fact(f"replies come from {name}; those of the reference audit came from {before}")

    def _note_fact(self, words: str) -> None:
        """Note that something has changed at the endpoint; it stays noted."""
        noted = self.store.note("facts") or []
        lost_before = words.startswith(BIAS_LOST) and any(one.startswith(BIAS_LOST) for one in noted)
        if words not in noted and not lost_before:
            self.store.set_note("facts", [*noted, words])

    def result(self, look: Look, stopped: str | None, *, window: bool) -> WatchResult:
        """Everything that is known after a look; the curve of the last ``window`` takes a moment."""
        store, feed = self.store, self.feed
        counts, state, looks = store.counts(), feed.monitor.state(), store.looks()
        spend = Spend.of(store, self.context.prices)
        found = WatchResult(
            folder=self.folder,
            model=self.reference.settings.endpoint.model,
            reference=str(self.reference.run.folder),
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
                one.name: _date_of(looks, one.since, anchors=one.name == "endpoint")
                for one in state.alarms
                if one.since is not None
            },
            window=feed.window(self.reference.run) if window else None,
            spend=replace(spend, probe_queries=0, control_queries=spend.probe_queries),
            cost_today=self.budget.spent_today(),
            max_cost_per_day=self.budget.max_cost_per_day,
            stopped=None if stopped is None else printable(stopped),
        )
        with answers_kept():
            found.save()
        return found


def _date_of(looks: Sequence[Look], place: int, *, anchors: bool) -> str:
    """When an item, or an anchor query, was first seen."""
    counts = [(one.anchors or 0) if anchors else one.items for one in looks]
    return looks[min(int(np.searchsorted(counts, place, side="right")), len(looks) - 1)].at
