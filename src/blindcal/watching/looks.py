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
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy.special import logit

from blindcal.asking.ask_design import ask_design
from blindcal.asking.controls import NAMELESS, unknown_names
from blindcal.asking.given_answers import answer_from_file
from blindcal.asking.governor import GovernedEndpoint, Governor, LimitTooLowError
from blindcal.asking.job import Job, answers_kept
from blindcal.asking.run_context import INTERRUPTED, RunContext, Stopped
from blindcal.auditing.prepared import AskedSettings
from blindcal.choice_design import choice_round
from blindcal.design import make_round
from blindcal.errors import EndpointError, FatalError, NotIdentifiedError
from blindcal.estimate.problem import Problem
from blindcal.estimate.shown import exact_probabilities, exact_readings, fit_answers
from blindcal.query_seeds import draw_of_name
from blindcal.records import INVALID, POSITIVE, AnswerTable, FloatArray, IntArray, Round
from blindcal.results.result import Spend
from blindcal.results.run import Run
from blindcal.results.watch_result import WatchResult, WindowCurve
from blindcal.store.run_file import StoredReply
from blindcal.store.run_store import UNASKED
from blindcal.store.watch_store import Look, WatchStore
from blindcal.text import listed, printable
from blindcal.watching.anchors import (
    ANCHORS,
    Anchors,
    AnchorSet,
    ShownAnchors,
    is_wrong,
    noted_anchors,
    queries_due,
)
from blindcal.watching.intake import Gathered, Intake
from blindcal.watching.monitor import Monitor

_MOST_ASKED = 10_000  # items per round, whose prompts are kept in memory
BIAS_LOST = "the logit_bias no longer acts"
_WINDOW, _LEAST_WINDOW = 500, 100
_RESAMPLES = 200


def thresholds(seed: int, ids: list[str]) -> FloatArray:
    """Thresholds of items, uniform on (0, 1), each determined by the id."""
    return np.array([draw_of_name(seed, name, "threshold") for name in ids])


class WatchFeed:
    """Passes finished looks to a monitor, one after the other, from the run file alone.

    New answers, and pairs of a label and an answer that have just become complete, come in the order in which
    their items were first seen. So the order of the labels within a look does not matter, and a restart gives
    the same numbers again.
    """

    def __init__(self, monitor: Monitor, store: WatchStore, seed: int, *, several: bool = False) -> None:
        self.monitor = monitor
        self._store, self._seed, self._several = store, seed, several
        self._values, self._answers = np.empty(0), np.empty(0, np.int64)
        self._labelled: list[tuple[int, int]] = []  # item and label, in order
        self._expected = False
        self.anchors = 0  # number of anchor answers passed on

    @property
    def answered(self) -> int:
        """Number of items passed on, invalid answers included."""
        return self._answers.size

    @property
    def invalid(self) -> int:
        """Number of invalid answers among them."""
        return int((self._answers == INVALID).sum())

    def add(self, look: Look) -> None:
        """Pass on what a finished look brought."""
        assert look.answered is not None
        assert look.anchors is not None
        first, end = self.answered, look.answered
        answers = self._store.answers(first, end - first).astype(np.int64)
        if self.monitor.shown:
            bounds = self._store.shown_bounds(end - first, first)
            values = np.full(end - first, np.nan) if bounds is None else exact_probabilities(bounds)
            answers[np.isnan(values)] = INVALID
        else:
            values = thresholds(self._seed, self._store.ids_between(first, end))
        self._values = np.concatenate([self._values, values])
        self._answers = np.concatenate([self._answers, answers])
        valid = first + np.flatnonzero(answers != INVALID)
        if valid.size:
            self.monitor.add_answers(self._values[valid], self._answers[valid], valid)
        self._add_labelled(self._store.completed_labels(look, first, end))
        known = None if self._expected else noted_anchors(self._store)
        if known is not None and known.anchors:
            self._expected = True
            self.monitor.expect_anchors(*known.seen)
        answered = self._store.anchor_answers(self.anchors, look.anchors)
        if self.monitor.shown:  # what shows no probability has not moved
            answered = [asked for asked in answered if asked.answer != INVALID]
        if answered:
            up, wrong = np.array([[asked.up, is_wrong(asked)] for asked in answered]).T
            self.monitor.add_anchors(up, wrong)
        self.anchors = look.anchors

    def _add_labelled(self, labels: dict[int, int]) -> None:
        items = np.array(sorted(labels), np.int64)
        items = items[self._answers[items] != INVALID]
        if not items.size:
            return
        known = np.array([labels[int(item)] for item in items], np.int64)
        if self._several:  # is the given answer right?
            known = (known == self._answers[items]).astype(np.int64)
        self.monitor.add_labelled(known, self._values[items], self._answers[items], items)
        self._labelled += zip(items.tolist(), known.tolist(), strict=True)

    def window(self, reference: Run) -> WindowCurve | None:
        """Reliability curve of the latest labelled items; ``None`` if they do not suffice for one."""
        last = np.array(self._labelled[-_WINDOW:], np.int64).reshape(-1, 2)
        if len(last) < _LEAST_WINDOW:
            return None
        (items, labels), most = last.T, reference.max_shift
        odds, places, none = logit(self._values[items]), np.arange(items.size), np.zeros(items.size)
        table = AnswerTable(places, np.clip(-odds, -most, most), none, self._answers[items])
        if self.monitor.shown:
            read = (odds >= 0).astype(np.int64)
            table = replace(table, shifts=none, answers=read, bounds=np.column_stack([odds, odds]))
        problem = Problem.of_answers(labels, table, noise=reference.noise)
        known = reference.result
        try:
            fit = fit_answers(problem, resamples=_RESAMPLES)
            return WindowCurve(
                items=items.size, curve=fit.curve, ece=fit.ece, reference=known.curve, reference_ece=known.ece
            )
        except NotIdentifiedError:  # for example, all labels are the same
            return None


@dataclass(frozen=True)
class WatchDesign:
    """Asks each item before number ``end`` that is not in a round yet.

    Each is asked at its own threshold, unless probabilities are ``shown``. ``choices`` are the numbers of
    answers, ``None`` if all have two.
    """

    store: WatchStore
    end: int
    seed: int
    shown: bool
    choices: IntArray | None = None

    def next_round(self, answered: AnswerTable) -> Round | None:  # noqa: ARG002 - a design's signature
        first = self.store.asked_items()
        if first >= self.end:
            return None
        items = np.arange(first, self.end)
        if self.shown:
            return choice_round(items, self.choices)
        return make_round(items, -logit(thresholds(self.seed, self.store.ids_between(first, self.end))))


@dataclass(kw_only=True)
class Watch:
    """A watch under way."""

    store: WatchStore
    reference: Run
    asked: AskedSettings
    governor: Governor
    context: RunContext
    feed: WatchFeed
    rate: float
    folder: Path
    intake: Intake
    follow: bool
    force: bool
    on_look: Callable[[WatchResult], None] | None
    on_alarm: Callable[[WatchResult], Awaitable[bool]] | None
    _halted: float = -math.inf  # when asking last ended early (time.monotonic)

    async def run(self) -> WatchResult:
        """Look until the stream ends or the watch is stopped, which stores the rest of a pipe."""
        result = await self._run()
        if self.context.stop.is_set() and not (rest := self.intake.rest()).empty:
            await asyncio.to_thread(self._begin_look, rest)
        return result

    async def _run(self) -> WatchResult:
        pending = await asyncio.to_thread(self._replay)
        result: WatchResult | None = None
        more = False
        while True:
            if pending is None:
                gathered = await self.intake.gather(self._can_ask)
                idle = gathered.empty and not self._can_ask()
                if idle and (last := self.store.last_look()) is not None:
                    if result is None or more:
                        result = await asyncio.to_thread(self._result, last, None, window=True)
                        await self._show(result)
                    more = False
                    if not self.intake.waits or gathered.closed or self.context.stop.is_set():
                        return result
                    continue
                pending, more = await asyncio.to_thread(self._begin_look, gathered), gathered.more
            stopped = await self._ask_waiting(pending)
            result = await asyncio.to_thread(self._conclude, pending, stopped, more)
            await self._show(result)
            pending = None
            ended = stopped is not None and (stopped.limit is not None or not self.follow)
            if ended or self.context.stop.is_set():
                return result

    async def _show(self, result: WatchResult) -> None:
        if self.on_look is not None:
            await asyncio.to_thread(self.on_look, result)  # it may draw a page
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
        at = datetime.now(UTC).isoformat(timespec="seconds")
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
        return time.monotonic() - self._halted >= self.intake.interval  # after a halt, not again at once

    async def _ask_waiting(self, look: Look) -> Stopped | None:
        first = self.feed.answered
        end, stopped = min(look.items, first + _MOST_ASKED), None
        if end > first and not self.context.stop.is_set():
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
        if end > first and self.context.stop.is_set():
            stopped = stopped or INTERRUPTED
        self._halted = -math.inf if stopped is None else time.monotonic()
        return stopped

    async def _ask(self, look: Look, first: int, end: int) -> Stopped | None:
        items, choices = self.store.items_between(first, end), None
        if self.reference.choices is not None:
            choices = np.full(end, len(self.asked.settings.answer_words))
            choices[first:] = [item.choices for item in items]
        numbered = dict(enumerate(items, first))
        design = WatchDesign(self.store, end, self._seed, self.feed.monitor.shown, choices)
        begin = self.store.rounds_within(first)
        if self.asked.settings.given:
            return answer_from_file(design, numbered, self.store, begin=begin).stopped
        job = Job(
            items=numbered,
            question=self.asked.question,
            store=self.store,
            max_shift=self.asked.prepared.max_shift,
            answers=len(self.asked.settings.answer_words),
        )
        anchors: Anchors = Anchors(job, self.store, self.reference.noise.best.jitter, self._seed)
        if self.feed.monitor.shown:
            steady = self.reference.result.steadiness
            spread = None if steady is None else steady.spread
            anchors = ShownAnchors(job, self.store, 0.0, self._seed, spread)
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
        outcome = await ask_design(design, job, self.governor, planned=end, begin=begin)
        if outcome.stopped is not None and len(outcome.answered) > outcome.failed > 0:
            await self._leave_out(first, end, outcome.stopped.reason)
            return None
        return outcome.stopped

    async def _set_up(self, anchors: Anchors, look: Look) -> AnchorSet | None:
        known, candidates, shown = noted_anchors(self.store), self.asked.items, None
        if known is not None:
            return known
        if candidates is None:
            candidates = self.store.items_between(0, min(look.items, _MOST_ASKED))
            if len(candidates) < ANCHORS:
                return None
        else:
            order = np.random.default_rng([self._seed, 7]).permutation(len(candidates))
            problem = self.reference.problem
            candidates, p = [candidates[k] for k in order.tolist()], exact_readings(problem)
            if p is not None:
                given = np.full(p.size, POSITIVE) if problem.given is None else problem.given
                shown = np.column_stack([p, given])[order]
        about = anchors.set_up_queries
        once = f", once, with about {about} queries" if about else ""
        self.context.tell(f"setting up the anchors{once}")
        endpoint = self._governed(about, "setting up the anchors")
        return await anchors.set_up(candidates, shown, endpoint)

    def _governed(self, expected: int, for_what: str, *, quiet: bool = False) -> GovernedEndpoint:
        return GovernedEndpoint(self.governor, expected=expected, for_what=for_what, quiet=quiet)

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
            stream=self.intake.stream.name,
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
            stopped=None if stopped is None else printable(stopped.reason),
        )
        with answers_kept():
            result.save()
        return result


def _date_of(looks: Sequence[Look], place: int, *, anchors: bool) -> str:
    counts = [(look.anchors or 0) if anchors else look.items for look in looks]
    return looks[min(int(np.searchsorted(counts, place, side="right")), len(looks) - 1)].at
