"""Anchors: items whose flips are known, asked again at every look.

An anchor is asked just above its flip, where its answer is positive, or just below, where it is negative. A
change of the model moves flips and shows in these answers at once. The rate of wrong answers without a change
is measured at the set-up, with queries drawn in the same random way.

Where probabilities are shown, those of the reference's items are known. An anchor is wrong if its probability
has moved by more than any did, in the reference or at the set-up, when the same was asked twice.

The anchor of query number k depends on k alone, so interruptions change nothing. Each query has a slightly
different common bias, so no cache can answer it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from scipy.special import expit, logit

from blindcal.asking.controls import ask_forced, bias_ignored
from blindcal.asking.job import Job
from blindcal.endpoints import Endpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import ReplyError
from blindcal.estimate.shown import exact_probabilities, moved
from blindcal.probing.bias_checks import IRRESISTIBLE
from blindcal.probing.response_curve import Observation, Query, bisect, fit
from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray, Item, Request
from blindcal.results.result import Spread
from blindcal.store.watch_store import AnchorAnswer, WatchStore

ANCHORS = 8
CONFIRMATIONS = 200
"""Anchor queries at the set-up, which measure how often anchors are answered wrongly."""
PER_LOOK, PER_ITEM = 4, 0.04
"""Minimum number of anchor queries per look, and their number per item."""
_MARGIN, _JITTERS = 0.1, 1.5  # distance of a query from the flip: margin, plus this multiple of the jitter
_CANDIDATES = 3 * ANCHORS  # items tried, since some have no flip within the largest shift
_REFINING = 12  # more queries around a flip if answers are noisy
_ROOM = 1.0  # minimum distance of a flip from the largest shift, since anchors are asked on both sides
_COOLER, _COOLEST = 0.02, 0.18  # range of the share by which the common bias of a query is reduced
_GOLDEN = 0.6180339887498949
PAIRS = 50
"""Items whose probability is read twice, in the reference or at the set-up."""
MOST_SHOWN = 200
"""Most anchors whose probability is shown."""
LEAST_MOVE = 0.01
"""A smaller move of a shown probability is none."""
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Anchor:
    """An item and the shift at which its answer flips: minus the log-odds of an ``answer``, if shown."""

    item: Item
    flip: float
    answer: int = POSITIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorSet:
    """Anchors, and how far from their flips they are asked, or a shown probability may move.

    ``seen`` are the wrong answers and all answers of the set-up above the flips, and those below.
    """

    anchors: tuple[Anchor, ...]
    margin: float
    seen: tuple[int, int, int, int] = (0, 0, 0, 0)


def noted_anchors(store: WatchStore) -> AnchorSet | None:
    """The anchors of an earlier set-up, if there was one."""
    return msgspec.convert(store.note("anchors"), AnchorSet | None)


def is_wrong(asked: AnchorAnswer) -> bool:
    """Whether an answer contradicts the flip; an invalid one counts as wrong."""
    return asked.answer != (POSITIVE if asked.up else NEGATIVE)


def queries_due(waiting: int) -> int:
    """Number of anchor queries of a look at which ``waiting`` items are to be asked."""
    return max(PER_LOOK, -int(-PER_ITEM * waiting // 1)) if waiting else 0


@dataclass(frozen=True)
class Anchors:
    """Asks anchors with a job's question; ``jitter`` is that of the log-odds."""

    job: Job
    store: WatchStore
    jitter: float
    seed: int

    @property
    def set_up_queries(self) -> int:
        """Approximate number of queries of the set-up."""
        return ANCHORS * 10 + CONFIRMATIONS

    @property
    def _question(self) -> TokenQuestion:
        assert isinstance(self.job.question, TokenQuestion)
        return self.job.question

    async def set_up(
        self,
        candidates: Sequence[Item],
        shown: FloatArray | None,  # noqa: ARG002 - hidden
        endpoint: Endpoint,
    ) -> AnchorSet:
        """Find the flips of some items, ask around them and note the result; empty if no item has a flip.

        ``shown`` has the probability that the reference shows for each candidate, and of which answer.
        """
        anchors: list[Anchor] = []
        observed: list[Observation] = []
        tried = candidates[:_CANDIDATES]
        while tried and (missing := ANCHORS - len(anchors)):
            some, tried = tried[:missing], tried[missing:]
            flips = await asyncio.gather(*(self._flip(item, endpoint, observed) for item in some))
            pairs = zip(some, flips, strict=True)
            anchors += [Anchor(item, flip) for item, flip in pairs if flip is not None]
        jitter = 0.0
        if anchors and self.jitter > 0:
            kept = {anchor.item.id for anchor in anchors}
            mine = [seen for seen in observed if seen.query.item in kept]
            fitted = fit(sorted(mine, key=lambda seen: seen.query.item))
            jitter = fitted.jitter
            anchors = [Anchor(anchor.item, fitted.shifts[anchor.item.id]) for anchor in anchors]
        begun = AnchorSet(anchors=tuple(anchors), margin=_MARGIN + _JITTERS * jitter)
        confirming = range(-CONFIRMATIONS, 0) if anchors else range(0)
        answers = await self._ask_all(begun, confirming, endpoint)
        up, down = ([is_wrong(asked) for asked in answers if asked.up is above] for above in (True, False))
        done = replace(begun, seen=(sum(up), len(up), sum(down), len(down)))
        self.store.set_note("anchors", msgspec.to_builtins(done))
        return done

    async def _flip(self, item: Item, endpoint: Endpoint, observed: list[Observation]) -> float | None:
        async def answer(shift: float) -> int:
            given = await self._ask(self._question.request(item.messages, shift, 0.0), endpoint)
            observed.append(Observation(Query(item.id, shift), given))
            return given

        most = self.job.max_shift
        flip = await bisect(answer, -most, most)
        if flip is None or abs(flip) >= most - _ROOM:
            return None
        if self.jitter > 0:
            for k in range(_REFINING):
                away = self.jitter * 2 * (k + 1) / _REFINING * (-1) ** k
                if await answer(flip + away) == INVALID:
                    return None
        return flip

    async def ask(self, known: AnchorSet, numbers: range, endpoint: Endpoint) -> None:
        """Ask anchor queries by their numbers and store the answers."""
        self.store.add_anchor_answers(await self._ask_all(known, numbers, endpoint))

    async def _ask_all(self, known: AnchorSet, numbers: range, endpoint: Endpoint) -> list[AnchorAnswer]:
        asking = (self._asked_again(known, number, endpoint) for number in numbers)
        return list(await asyncio.gather(*asking))

    async def _asked_again(self, known: AnchorSet, number: int, endpoint: Endpoint) -> AnchorAnswer:
        rng = np.random.default_rng([self.seed, 6, number + CONFIRMATIONS])
        k, up = int(rng.integers(len(known.anchors))), bool(rng.integers(2))
        anchor = known.anchors[k]
        shift = anchor.flip + (known.margin if up else -known.margin)
        question = self._cooler(2 * (number + CONFIRMATIONS))
        answer = await self._ask(question.request(anchor.item.messages, shift, 0.0), endpoint)
        return AnchorAnswer(number, k, up, answer)

    async def bias_lost(self, known: AnchorSet, look: int, endpoint: Endpoint) -> str | None:
        """What shows that the bias no longer acts, or ``None``; all anchors are forced only if one fails."""
        if self.job.max_shift < IRRESISTIBLE:
            return None
        items = [anchor.item for anchor in known.anchors]
        job = replace(self.job, items=items, question=self._cooler(2 * look + 1))
        if all(reply.right for reply in await ask_forced(job, endpoint, [look % len(items)], least=1)):
            return None
        job = replace(job, question=self._cooler(2 * look + 1, 0.5))
        return bias_ignored(await ask_forced(job, endpoint, range(len(items))))

    def _cooler(self, number: int, more: float = 0.0) -> TokenQuestion:
        share = _COOLER + (_COOLEST - _COOLER) * ((number + more) * _GOLDEN % 1)
        return replace(self._question, offset=self._question.offset * (1 - share))

    async def _ask(self, request: Request, endpoint: Endpoint) -> int:
        try:
            reply = await endpoint.ask(request)
        except ReplyError:
            return INVALID
        self.store.served_number(reply.model, reply.fingerprint)
        return self._question.parse(reply).answer


@dataclass(frozen=True)
class ShownAnchors(Anchors):
    """Anchors whose probability is shown; its ``spread`` is that of the reference."""

    spread: Spread | None

    @property
    def set_up_queries(self) -> int:
        return 2 * max(0, PAIRS - (self.spread.pairs if self.spread else 0))

    async def set_up(
        self, candidates: Sequence[Item], shown: FloatArray | None, endpoint: Endpoint
    ) -> AnchorSet:
        """Note the probabilities of some items; asks some twice, if the reference did too seldom."""
        pairs, most = (0, LEAST_MOVE) if self.spread is None else (self.spread.pairs, self.spread.most)
        some = candidates[: PAIRS if shown is None else max(0, PAIRS - pairs)]
        twice = await asyncio.gather(*(self._shown(item, endpoint) for item in some for _ in range(2)))
        first, second = np.reshape(twice, (-1, 2, 2)).swapaxes(0, 1)
        moves = moved(first[:, 0], second[:, 0], first[:, 1] == second[:, 1])
        moves = np.abs(moves[~np.isnan(moves)])
        p, answers = (first if shown is None else shown).T
        odds = logit(np.clip(p, _TINY, 1 - _TINY))
        read = zip(candidates, odds.tolist(), answers.astype(np.int64).tolist(), strict=False)
        known = [Anchor(item, -s, answer) for item, s, answer in read if not np.isnan(s)]
        done = AnchorSet(
            anchors=tuple(known[:MOST_SHOWN]),
            margin=max(LEAST_MOVE, most, float(moves.max(initial=0.0))),
            seen=(0, pairs + moves.size, 0, 0),
        )
        self.store.set_note("anchors", msgspec.to_builtins(done))
        return done

    async def _asked_again(self, known: AnchorSet, number: int, endpoint: Endpoint) -> AnchorAnswer:
        k = number % len(known.anchors)
        anchor = known.anchors[k]
        p, answer = await self._shown(anchor.item, endpoint)
        move = float(moved(expit(-anchor.flip), p, answer == anchor.answer))
        if np.isnan(move):
            return AnchorAnswer(number, k, True, INVALID)
        lower, higher = move < -known.margin, move > known.margin
        return AnchorAnswer(number, k, not higher, NEGATIVE if lower else POSITIVE)

    async def bias_lost(self, known: AnchorSet, look: int, endpoint: Endpoint) -> str | None:  # noqa: ARG002 - no bias acts
        return None

    async def _shown(self, item: Item, endpoint: Endpoint) -> tuple[float, int]:
        """The probability that is shown, and of which answer: of two, it is always the positive one."""
        try:
            reply = await endpoint.ask(self.job.question.request(item.messages, 0.0, 0.0))
        except ReplyError:
            return float("nan"), INVALID
        read = self.job.read(reply, item.choices)
        bounds = np.array([[read.low, read.high]], np.float64)  # NaN for none
        answer = read.answer if self.job.answers > 2 else POSITIVE
        return float(exact_probabilities(bounds)[0]), INVALID if answer is None else answer
