"""Where an item's answer flips, and whether it follows bias and temperature off the flip (METHOD 2).

An item's answer turns positive at one shift, its flip (``b = -s``). With jitter on the hidden log-odds, the
probability of a positive greedy answer is a normal distribution function around the flip: `fit` estimates
flips and jitter from a handful of answers, some of which may be strays.

At a distance d from the flip, an answer drawn at temperature T is positive with probability ``sigmoid(d/T)``.
Endpoints that mislead differ only off the flip:

- A temperature that is ignored leaves one answer, whatever the jitter near the flip.
- A temperature that is always the same gives second answers at T = 0 too, and too few at T = 2.
- A sampler that cuts rare answers (``min_p``, ``top_p``) never gives the second answer far out.
- A bias that is multiplied by a constant stretches the curve.
- Draws that are not independent, as out of a cache or with one seed, repeat an earlier answer to the query.

If no bias acts, flips are unknown and shifts zero, but temperatures still reveal one ignored or fixed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from scipy.special import expit, logsumexp, ndtr

from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray

Cause: TypeAlias = Literal["honoured", "scaled", "ignored", "fixed", "cut", "repeated"]

DROP = 1.92  # of the log-likelihood, from its maximum to the end of a 95% interval
FARTHEST_JITTER = 3.0  # distance from a flip beyond which a wrong answer is a stray, not jitter
STRAY = 0.001  # share of stray answers in a fit; with more, they would explain what jitter does
JITTERS = np.geomspace(0.01, 10.0, 73)  # the jitter of a fit is one of these

WIDTHS = (0.01, 0.05, 0.15, 0.4, 0.8, 1.4, 2.2)  # of the jitter, in units of the shift
SCALES = tuple(2.0 ** (k / 4) for k in range(-8, 7))
FIXED = (0.3, 0.5, 0.7, 1.0, 1.4)  # temperatures that a server may use whatever it is asked for
CUT = 2.5  # log-odds beyond which no second answer comes: between min_p or 1 - top_p of .1 and .05
SURE, SURE_UNBIASED = 3.0, 5.0  # lead in log-likelihood over every other cause that proves the right curve
REFUTED = 9.0  # lead of another curve that refutes it: a false alarm costs the better method
LEAST_REFUTING = 64  # answers that are needed to refute it: a few may be bad luck
CLEAR = 3.0  # lead of that curve over those with other causes
AT_A_TIME = 4  # queries that are asked at a time, each twice
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)


@dataclass(frozen=True, slots=True)
class Query:
    item: str
    shift: float
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    query: Query
    answer: int


@dataclass(frozen=True, slots=True)
class FlipFit:
    """The flip of each item, and the jitter of the log-odds with its limits.

    ``jitter`` is 0 if every answer is on the right side of its flip; ``most`` is an upper limit even then.
    """

    shifts: Mapping[str, float]
    jitter: float
    least: float
    most: float

    @property
    def margin(self) -> float:
        """The distance from a flip beyond which answers are reliable."""
        return 0.05 + 3 * self.most

    def far(self, query: Query) -> bool:
        """Whether a greedy query is too far from its flip for jitter to change the answer."""
        distance = abs(query.shift - self.shifts[query.item])
        return query.temperature == 0 and distance > max(FARTHEST_JITTER, 4 * self.jitter)

    def astray(self, seen: Observation) -> bool:
        """Whether an answer is far from its flip and on the wrong side of it."""
        query = seen.query
        expected = POSITIVE if query.shift > self.shifts[query.item] else NEGATIVE
        return self.far(query) and seen.answer != expected


async def bisect(
    answer: Callable[[float], Awaitable[int]], low: float, high: float, width: float = 0.05
) -> float | None:
    """The place where ``answer`` turns positive; ``None`` if an answer is invalid.

    Bisects on a scale that is linear near zero and logarithmic far out, where flips are rare.
    """
    while high - low > width:
        middle = math.sinh((math.asinh(low) + math.asinh(high)) / 2)
        given = await answer(middle)
        if given == INVALID:
            return None
        low, high = (low, middle) if given == POSITIVE else (middle, high)
    return (low + high) / 2


def fit(observations: Sequence[Observation], known: Mapping[str, float] | None = None) -> FlipFit:
    """The likeliest flip of each item (or the ``known`` one) and the likeliest common jitter, at T = 0."""
    profile = np.zeros(JITTERS.size)
    places: dict[str, FloatArray] = {}
    clean = True
    greedy = [seen for seen in observations if seen.query.temperature == 0]
    for item in dict.fromkeys(seen.query.item for seen in greedy):
        own = [seen for seen in greedy if seen.query.item == item]
        shifts = np.array([seen.query.shift for seen in own], float)
        signs = np.array([1.0 if seen.answer == POSITIVE else -1.0 for seen in own])
        candidates = _between(shifts, signs) if known is None else np.array([known[item]])
        away = signs * (shifts - candidates[:, None])
        clean &= bool(((away > 0) | (away < -FARTHEST_JITTER)).all(axis=1).any())
        right = STRAY + (1 - 2 * STRAY) * ndtr(away[:, None, :] / JITTERS[:, None])
        likelihood = np.log(right).sum(axis=2)
        places[item] = candidates[likelihood.argmax(axis=0)]
        profile += likelihood.max(axis=0)
    best = int(profile.argmax())
    plausible = JITTERS[profile > profile[best] - DROP]
    flips = {item: float(place[best]) for item, place in places.items()}
    least, jitter = (0.0, 0.0) if clean else (float(plausible.min()), float(JITTERS[best]))
    return FlipFit(flips, jitter, least, float(plausible.max()))


def _between(shifts: FloatArray, signs: FloatArray) -> FloatArray:
    """Candidates for a flip: everywhere between answers where few answers would be on the wrong side."""
    order = np.argsort(shifts)
    ordered, up = shifts[order], signs[order] > 0
    edges = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    wrong = np.concatenate([[0], np.cumsum(up)]) + np.concatenate([np.cumsum(~up[::-1])[::-1], [0]])
    (fits,) = np.nonzero(wrong <= wrong.min() + (wrong.min() > 0))
    return np.linspace(edges[fits[0]], edges[fits[-1] + 1], 101)


@dataclass(frozen=True, slots=True)
class Response:
    """One kind of response curve; ``fixed`` is the temperature of every answer, NaN if the request decides.

    No second answer comes beyond the log-odds ``cut_before``, or ``cut_after`` division by the temperature.
    If draws are ``repeated``, every one is an earlier answer to the same query.
    """

    cause: Cause
    width: float
    _: KW_ONLY
    scale: float = 1.0
    fixed: float = math.nan
    cut_before: float = math.inf
    cut_after: float = math.inf
    repeated: bool = False

    @property
    def fault(self) -> str:
        """What is wrong with it, in words."""
        faults: dict[Cause, str] = {
            "honoured": "nothing",
            "scaled": "answers off the flip vary by the wrong amount",
            "ignored": "answers vary no more at a high temperature than at T = 0",
            "fixed": f"answers vary as at T = {self.fixed}, whatever is asked",
            "cut": "rare answers never come, as if min_p or top_p cut them off",
            "repeated": "draws are not independent: the same query gets an earlier answer again",
        }
        return faults[self.cause]

    @property
    def contends(self) -> bool:
        """Whether it must be ruled out; scales near one only serve to measure the scale."""
        return self.cause != "scaled" or not 0.5 < self.scale < 2


def _responses(*, biased: bool) -> list[Response]:
    responses = [Response("honoured", width) for width in WIDTHS]
    responses += [Response("ignored", width, fixed=0.0) for width in WIDTHS]
    responses += [Response("fixed", WIDTHS[0], fixed=heat) for heat in FIXED]
    responses += [Response("repeated", width, repeated=True) for width in WIDTHS]
    if biased:
        responses += [Response("scaled", width, scale=by) for width in WIDTHS for by in SCALES if by != 1]
        responses += [Response("cut", width, cut_before=CUT) for width in WIDTHS]
        responses += [Response("cut", width, cut_after=CUT) for width in WIDTHS]
    return responses


class CurvePosterior:
    """What answers say about the response curve: the likelihood of each kind of curve.

    ``places`` has equally many candidates for each item's flip, and each row of ``priors`` their prior
    weights. ``stray`` is the share of answers replaced by the other one. If not ``biased``, all shifts are
    zero.
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
        columns = [
            (r.width, r.scale, r.fixed, r.cut_before, r.cut_after, r.repeated) for r in self._responses
        ]
        self._columns = np.array(columns).T[:, :, None, None]
        self._causes = np.array([response.cause for response in self._responses])
        self._right = self._causes == "honoured"
        self._contends = np.array([response.contends for response in self._responses])
        self._logs = {item: np.zeros((len(self._responses), at.size)) for item, at in places.items()}
        self._scores = np.zeros(len(self._responses))  # log-likelihoods
        self._known: dict[Query, FloatArray] = {}  # probabilities for those asked before
        self._drawn: dict[Query, list[int]] = {}  # the answers to each query

    def add(self, observations: Iterable[Observation]) -> None:
        """Take answers into account, except those to unknown items."""
        for seen in observations:
            if seen.query.item in self._logs:
                p = self._positive(seen.query)
                self._logs[seen.query.item] += np.log(p if seen.answer == POSITIVE else 1 - p)
                self._drawn.setdefault(seen.query, []).append(seen.answer)
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
        """Whether every answer may be drawn at one temperature, so that jitter at T = 0 is only apparent."""
        fixed = self._scores[self._causes == "fixed"].max()
        return bool(fixed > self._scores[self._right].max() - self._sure)

    @property
    def settled(self) -> bool:
        leader, other = self._first_two()
        return self.proved or (self.refuted and self._scores[leader] - self._scores[other] >= CLEAR)

    @property
    def likeliest(self) -> Response:
        return self._responses[int(self._scores.argmax())]

    @property
    def scale(self) -> tuple[float, float]:
        """A 95% interval of the factor by which the bias acts, if the temperature is honoured."""
        on = np.flatnonzero(np.isin(self._causes, ("honoured", "scaled")))
        scales = [self._responses[k].scale for k in on[self._scores[on] > self._scores[on].max() - DROP]]
        return min(scales), max(scales)

    def most_telling(self, queries: Sequence[Query], count: int) -> list[Query]:
        """The queries whose answers would differ most between the two likeliest kinds of curve."""
        first_two = self._first_two()

        def divergence(query: Query) -> float:  # Jeffreys'
            p, q = (self._predicted(query, response) for response in first_two)
            return (p - q) * (math.log(p / (1 - p)) - math.log(q / (1 - q)))

        return sorted(queries, key=divergence, reverse=True)[:count]

    def _first_two(self) -> tuple[int, int]:
        """The likeliest contending response, and the likeliest one with another cause."""
        leader = int(np.where(self._contends, self._scores, -np.inf).argmax())
        others = self._contends & (self._causes != self._causes[leader])
        return leader, int(np.where(others, self._scores, -np.inf).argmax())

    def _predicted(self, query: Query, response: int) -> float:
        logs = self._logs[query.item][response] + self._priors.max(axis=0)
        weights = np.exp(logs - logs.max())
        return float(self._positive(query)[response] @ weights / weights.sum())

    def _positive(self, query: Query) -> FloatArray:
        """P(positive), given the answers so far, for each response (rows) and candidate flip (columns)."""
        if query not in self._known:
            self._known[query] = self._independent(query)
        p, drawn = self._known[query], self._drawn.get(query)
        if drawn and query.temperature > 0:
            p = np.where(self._columns[-1, :, :, 0], np.mean(np.array(drawn) == POSITIVE), p)
        return np.asarray((1 - self._stray) * p + self._stray * (1 - p))

    def _independent(self, query: Query) -> FloatArray:
        distance = query.shift - self._places[query.item][None, :, None]
        width, scale, fixed, cut_before, cut_after, _ = self._columns
        heat = np.where(np.isnan(fixed), query.temperature, fixed)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            hidden = scale * (distance + width * _NODES)
            tempered = hidden / heat
            seen = (np.abs(hidden) <= cut_before) & (np.abs(tempered) <= cut_after)
            drawn = np.where(seen, expit(tempered), hidden > 0) @ (_WEIGHTS / _WEIGHTS.sum())
            greedy = ndtr(distance / width)[..., 0]
        return np.asarray(np.where(heat[..., 0] == 0, greedy, drawn))


async def ask_until_settled(
    posterior: CurvePosterior, queries: Sequence[Query], ask: Callable[[Query], Awaitable[int]], *, most: int
) -> int:
    """Ask the most telling queries until it is clear how the endpoint answers; returns their number."""
    asked = 0
    while asked < most and (not posterior.settled or (posterior.refuted and asked < LEAST_REFUTING)):
        telling = posterior.most_telling(queries, AT_A_TIME) * 2
        posterior.add(await ask_all(telling, ask))
        asked += len(telling)
    return asked


async def ask_all(queries: Sequence[Query], ask: Callable[[Query], Awaitable[int]]) -> list[Observation]:
    """The answers to queries sent concurrently, without the invalid ones."""
    answers = await together(*(ask(query) for query in queries))
    return [
        Observation(query, answer)
        for query, answer in zip(queries, answers, strict=True)
        if answer != INVALID
    ]


Answered = TypeVar("Answered")


async def together(*asking: Awaitable[Answered]) -> list[Answered]:
    """The results of queries under way at once; an error is raised once none of them is left."""
    results = await asyncio.gather(*asking, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]  # none is an exception
