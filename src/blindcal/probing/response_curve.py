"""Does an endpoint treat bias and temperature as it should? Answers off the flip tell (METHOD 2).

At a distance d from its flip, an item's answer at temperature T must be positive with probability
``sigmoid(d / T)``. At the flip itself, every endpoint whose answers vary looks the same. Off the flip,
each kind of endpoint that misleads has a curve of its own:

- A temperature that is ignored leaves one answer, whatever the jitter near the flip.
- A temperature that is always the same gives second answers at T = 0 too, and too few at T = 2.
- A sampler that cuts rare answers (``min_p``, ``top_p``) never gives the second answer far out.
- A bias that is multiplied by a constant stretches the curve.

`CurveEvidence` keeps the likelihood of every such curve, and names the queries that would tell the two
likeliest ones apart. Where no bias acts, the flips are unknown and shifts are zero, but
temperatures still tell an honoured temperature from one that is ignored or fixed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import expit, logsumexp, ndtr

from blindcal.probing.flip_search import DROP, Reading
from blindcal.records import INVALID, POSITIVE, FloatArray

Cause: TypeAlias = Literal["honoured", "scaled", "ignored", "fixed", "cut"]

WIDTHS = (0.01, 0.05, 0.15, 0.4, 0.8, 1.4, 2.2)  # of the jitter, in units of the shift
SCALES = tuple(2.0 ** (k / 4) for k in range(-8, 7))
FIXED = (0.3, 0.5, 0.7, 1.0, 1.4)  # temperatures that a server may use whatever it is asked for
CUT = 2.5  # log-odds beyond which no second answer comes: between min_p or 1 - top_p of .1 and .05
SURE, SURE_UNBIASED = 3.0, 5.0  # lead in log-likelihood over every other cause that proves the right curve
REFUTED = 9.0  # lead of another curve that refutes it: a false alarm costs the better method
LEAST_REFUTING = 64  # answers that are needed to refute it: a few may be bad luck
CLEAR = 3.0  # lead of that curve over those with other causes
TOLD_APART = 4  # queries that are asked at a time, each twice
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)


@dataclass(frozen=True, slots=True)
class Response:
    """One way to answer; ``fixed`` is the temperature of every answer, ``None`` if the request decides."""

    cause: Cause
    width: float
    scale: float = 1.0
    fixed: float | None = None
    cut_before: float = math.inf  # in log-odds, before and after they are divided by the temperature
    cut_after: float = math.inf

    @property
    def fault(self) -> str:
        """What is wrong with it, in words."""
        faults: dict[Cause, str] = {
            "honoured": "nothing",
            "scaled": "answers off the flip vary by the wrong amount",
            "ignored": "answers vary no more at a high temperature than at T = 0",
            "fixed": f"answers vary as at T = {self.fixed}, whatever is asked",
            "cut": "rare answers never come, as if min_p or top_p cut them off",
        }
        return faults[self.cause]

    @property
    def contends(self) -> bool:
        """Whether it has to be told from the others; scales near one only serve to measure the scale."""
        return self.cause != "scaled" or not 0.5 < self.scale < 2


@dataclass(frozen=True, slots=True)
class Query:
    """A query that could be asked of an item."""

    item: str
    shift: float
    temperature: float


class CurveEvidence:
    """What answers say about the response curve.

    ``places`` has candidates for each item's flip, equally many for each item, and ``priors`` has their
    prior weights, a row for each prior to choose from. ``stray`` is the share of answers that are replaced by
    the other one. ``biased`` is false if all shifts are zero: scales and cuts then leave no trace.
    """

    def __init__(
        self,
        places: Mapping[str, FloatArray],
        priors: FloatArray,
        *,
        stray: float = 0.0002,
        biased: bool = True,
    ) -> None:
        self._places = places
        self._priors = np.log(priors / priors.sum(axis=1, keepdims=True))
        self._stray = stray
        self._sure = SURE if biased else SURE_UNBIASED
        self._responses = _responses(biased=biased)
        self._width = _column(one.width for one in self._responses)
        self._scale = _column(one.scale for one in self._responses)
        self._fixed = _column(math.nan if one.fixed is None else one.fixed for one in self._responses)
        self._before = _column(one.cut_before for one in self._responses)
        self._after = _column(one.cut_after for one in self._responses)
        self._right = np.array([one.cause == "honoured" for one in self._responses])
        self._contends = np.array([one.contends for one in self._responses])
        self._causes = np.array([one.cause for one in self._responses])
        self._logs = {item: np.zeros((len(self._responses), at.size)) for item, at in places.items()}
        self._scores = np.zeros(len(self._responses))  # log-likelihoods
        self._known: dict[Reading, FloatArray] = {}  # log-likelihoods of readings seen before

    def add(self, readings: Iterable[Reading]) -> None:
        """Take answers into account; those to unknown items are left out."""
        for reading in readings:
            if reading.item in self._logs:
                self._logs[reading.item] += self._log_likelihood(reading)
        by_prior = [
            np.sum([logsumexp(logs + prior, axis=1) for logs in self._logs.values()], axis=0)
            for prior in self._priors
        ]
        self._scores = np.max(by_prior, axis=0)

    @property
    def refuted(self) -> bool:
        """Whether another curve is clearly likelier than the right one."""
        return bool(self._scores[self._right].max() <= self._scores.max() - REFUTED)

    @property
    def proved(self) -> bool:
        """Whether the right curve is clearly likelier than all that contend with it."""
        leader, other = self._first_two()
        lead = self._scores[leader] - self._scores[other]
        return bool(self._right[leader] and lead >= self._sure) and not self.refuted

    @property
    def may_be_fixed(self) -> bool:
        """Whether every answer may be drawn at one temperature: jitter at T = 0 that is none."""
        fixed = self._scores[self._causes == "fixed"].max()
        return bool(fixed > self._scores[self._right].max() - self._sure)

    @property
    def settled(self) -> bool:
        """Whether it is clear how the endpoint answers."""
        leader, other = self._first_two()
        return self.proved or (self.refuted and self._scores[leader] - self._scores[other] >= CLEAR)

    @property
    def likeliest(self) -> Response:
        """The likeliest curve of all."""
        return self._responses[int(self._scores.argmax())]

    @property
    def scale(self) -> tuple[float, float]:
        """A 95% interval of the factor by which the bias acts, if the temperature is honoured."""
        on = np.flatnonzero(np.isin(self._causes, ("honoured", "scaled")))
        plausible = on[self._scores[on] > self._scores[on].max() - DROP]
        scales = [self._responses[k].scale for k in plausible]
        return min(scales), max(scales)

    def most_telling(self, queries: Sequence[Query], count: int) -> list[Query]:
        """The queries whose answers would differ most between the two likeliest kinds of curve."""
        first_two = self._first_two()

        def divergence(query: Query) -> float:  # Jeffreys'
            p, q = (self._predicted(query, one) for one in first_two)
            return (p - q) * (math.log(p / (1 - p)) - math.log(q / (1 - q)))

        return sorted(queries, key=divergence, reverse=True)[:count]

    def _first_two(self) -> tuple[int, int]:
        """The likeliest response of those that contend, and the likeliest one with another cause."""
        leader = int(np.where(self._contends, self._scores, -np.inf).argmax())
        others = self._contends & (self._causes != self._causes[leader])
        return leader, int(np.where(others, self._scores, -np.inf).argmax())

    def _predicted(self, query: Query, response: int) -> float:
        logs = self._logs[query.item][response] + self._priors.max(axis=0)
        weights = np.exp(logs - logs.max())
        alone = slice(response, response + 1)
        p = self._positive(query.item, query.shift, query.temperature, alone)[0]
        return float(p @ weights / weights.sum())

    def _log_likelihood(self, reading: Reading) -> FloatArray:
        if reading not in self._known:
            p = self._positive(reading.item, reading.shift, reading.temperature)
            self._known[reading] = np.log(p if reading.answer == POSITIVE else 1 - p)
        return self._known[reading]

    def _positive(self, item: str, shift: float, temperature: float, rows: slice = slice(None)) -> FloatArray:
        """P(positive) under each response (rows) with the flip at each candidate (columns)."""
        distance = shift - self._places[item][None, :, None]
        fixed, width = self._fixed[rows], self._width[rows]
        heat = np.where(np.isnan(fixed), temperature, fixed)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            hidden = self._scale[rows] * (distance + width * _NODES)
            tempered = hidden / heat
            seen = (np.abs(hidden) <= self._before[rows]) & (np.abs(tempered) <= self._after[rows])
            drawn = np.where(seen, expit(tempered), hidden > 0) @ (_WEIGHTS / _WEIGHTS.sum())
            greedy = ndtr(distance / width)[..., 0]
        p = np.where(heat[..., 0] == 0, greedy, drawn)
        return np.asarray((1 - self._stray) * p + self._stray * (1 - p))


def _column(values: Iterable[float]) -> FloatArray:
    return np.array(list(values))[:, None, None]


def _responses(*, biased: bool) -> list[Response]:
    found = [Response("honoured", width) for width in WIDTHS]
    found += [Response("ignored", width, fixed=0.0) for width in WIDTHS]
    found += [Response("fixed", WIDTHS[0], fixed=heat) for heat in FIXED]
    if biased:
        found += [Response("scaled", width, scale) for width in WIDTHS for scale in SCALES if scale != 1]
        found += [Response("cut", width, cut_before=CUT) for width in WIDTHS]
        found += [Response("cut", width, cut_after=CUT) for width in WIDTHS]
    return found


async def ask_until_settled(
    evidence: CurveEvidence, queries: Sequence[Query], ask: Callable[[Query], Awaitable[int]], *, most: int
) -> int:
    """Ask what would tell most until it is clear how the endpoint answers; returns how many were asked."""
    asked = 0
    while asked < most and (not evidence.settled or (evidence.refuted and asked < LEAST_REFUTING)):
        telling = evidence.most_telling(queries, TOLD_APART) * 2
        evidence.add(await ask_all(telling, ask))
        asked += len(telling)
    return asked


async def ask_all(queries: Sequence[Query], ask: Callable[[Query], Awaitable[int]]) -> list[Reading]:
    """The answers to queries that are asked at once, without the invalid ones."""
    answers = await asyncio.gather(*(ask(query) for query in queries))
    return [
        Reading(query.item, query.shift, answer, query.temperature)
        for query, answer in zip(queries, answers, strict=True)
        if answer != INVALID
    ]
