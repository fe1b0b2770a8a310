"""Find the shift at which an answer flips, and how sharp the flip is.

The answer to an item changes from negative to positive at one shift, its flip (METHOD 2: ``b = -s``).
With jitter on the hidden log-odds, the probability of a positive answer is a normal distribution
function around the flip. The flip and the jitter are estimated from a handful of answers, some of which
may be strays.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import ReplyError
from blindcal.query_seeds import query_seeds
from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray, Item, Reply, Request, Targets

DROP = 1.92  # of the log-likelihood, from its maximum to the end of a 95% interval
FARTHEST_JITTER = 3.0  # distance from a flip beyond which a wrong answer is a stray, not jitter
_INSIST = 5
_FINEST, _WIDEST = 0.01, 10.0
_STRAY = 0.001  # the share of stray answers; with more, they would explain what jitter does


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer to one item at one shift and temperature."""

    item: str
    shift: float
    answer: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class FlipFit:
    """The flip of each item, and the jitter of the log-odds with its limits.

    ``jitter`` is 0 if every answer is on the right side of its flip; ``most`` is an upper limit even then.
    Answers may stray: be the wrong one for no reason, however far from the flip.
    """

    shifts: Mapping[str, float]
    jitter: float
    least: float
    most: float

    @property
    def margin(self) -> float:
        """The distance from a flip beyond which answers are reliable."""
        return 0.05 + 3 * self.most

    def far(self, reading: Reading) -> bool:
        """Whether a greedy answer is so far from its flip that no jitter reaches it."""
        distance = abs(reading.shift - self.shifts[reading.item])
        return reading.temperature == 0 and distance > max(FARTHEST_JITTER, 4 * self.jitter)

    def astray(self, reading: Reading) -> bool:
        """Whether an answer is far from its flip and on the wrong side of it."""
        wanted = POSITIVE if reading.shift > self.shifts[reading.item] else NEGATIVE
        return self.far(reading) and reading.answer != wanted


class ProbeClient:
    """Sends the queries of a probe, and counts queries, tokens and invalid answers.

    Sampled queries get seeds that follow from ``seed``, if there is one.
    """

    def __init__(self, endpoint: Endpoint, targets: Targets, seed: int | None = None) -> None:
        self._seed = seed
        self._endpoint = endpoint
        self._targets = targets
        self._read = TokenQuestion(targets).parse
        self.queries = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.biased = 0
        self.outside = 0
        self.broken: ReplyError | None = None
        self.longest = 0
        self.readings: list[Reading] = []

    async def reply(self, request: Request) -> Reply | None:
        """The reply to a request; ``None`` if it cannot be read, and the error is kept."""
        if request.sampled and self._seed is not None:
            request = replace(request, seed=int(query_seeds(self._seed, self.queries, 1)[0]))
        self.queries += 1
        try:
            reply = await self._endpoint.ask(request)
        except ReplyError as error:
            self.broken = error
            return None
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.longest = max(self.longest, reply.completion_tokens)
        return reply

    async def answer(self, request: Request) -> int:
        """The answer to a request; a reply that cannot be read is invalid."""
        reply = await self.reply(request)
        return INVALID if reply is None else self._read(reply).answer

    async def biased_by(
        self, item: Item, positive: float | None, negative: float | None, temperature: float = 0.0
    ) -> int:
        """The answer with these biases on the two sides; ``None`` leaves a side unbiased."""
        bias = {t.id: positive for t in self._targets.positive if positive is not None}
        bias |= {t.id: negative for t in self._targets.negative if negative is not None}
        for _ in range(_INSIST):
            answer = await self.answer(Request(item.messages, bias, temperature))
            if positive is not None and negative is not None and temperature == 0:
                self.biased += 1
                self.outside += answer == INVALID
            if answer != INVALID:
                break
        return answer

    async def at(self, item: Item, shift: float, offset: float, temperature: float = 0.0) -> int:
        """The answer at a shift, asked as in an audit."""
        answer = await self.biased_by(item, offset + shift, offset, temperature)
        if answer != INVALID:
            self.readings.append(Reading(item.id, shift, answer, temperature))
        return answer


async def bisect(
    answer: Callable[[float], Awaitable[int]], low: float, high: float, width: float = 0.05
) -> float | None:
    """The place between ``low`` and ``high`` where ``answer`` turns positive; ``None`` if one is invalid.

    Bisects on a scale that is linear near zero and logarithmic far out, where flips are rare.
    """
    while high - low > width:
        middle = math.sinh((math.asinh(low) + math.asinh(high)) / 2)
        found = await answer(middle)
        if found == INVALID:
            return None
        if found == POSITIVE:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def fit(readings: Sequence[Reading], known: Mapping[str, float] | None = None) -> FlipFit:
    """The likeliest flip of each item (or the `known` one) and the likeliest common jitter, at T = 0."""
    widths = np.geomspace(_FINEST, _WIDEST, 73)
    profile = np.zeros(widths.size)
    places: dict[str, FloatArray] = {}
    clean = True
    readings = [reading for reading in readings if reading.temperature == 0]
    for item in dict.fromkeys(reading.item for reading in readings):
        own = [reading for reading in readings if reading.item == item]
        shifts = np.array([reading.shift for reading in own], float)
        signs = np.array([1.0 if reading.answer == POSITIVE else -1.0 for reading in own])
        candidates = _between(shifts, signs) if known is None else np.array([known[item]])
        away = signs * (shifts - candidates[:, None])
        clean &= bool(((away > 0) | (away < -FARTHEST_JITTER)).all(axis=1).any())
        right = _STRAY + (1 - 2 * _STRAY) * ndtr(away[:, None, :] / widths[:, None])
        likelihood = np.log(right).sum(axis=2)
        places[item] = candidates[likelihood.argmax(axis=0)]
        profile += likelihood.max(axis=0)
    best = int(profile.argmax())
    plausible = widths[profile > profile[best] - DROP]
    flips = {item: float(found[best]) for item, found in places.items()}
    least, jitter = (0.0, 0.0) if clean else (float(plausible.min()), float(widths[best]))
    return FlipFit(flips, jitter, least, float(plausible.max()))


def _between(shifts: FloatArray, signs: FloatArray) -> FloatArray:
    """Candidates for a flip: everywhere between answers where few answers would be on the wrong side."""
    order = np.argsort(shifts)
    ordered, up = shifts[order], signs[order] > 0
    edges = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    wrong = np.concatenate([[0], np.cumsum(up)]) + np.concatenate([np.cumsum(~up[::-1])[::-1], [0]])
    (fits,) = np.nonzero(wrong <= wrong.min() + (wrong.min() > 0))
    return np.linspace(edges[fits[0]], edges[fits[-1] + 1], 101)
