"""Find the shift at which an answer flips, and how sharp the flip is.

The answer to an item changes from negative to positive at one shift, its flip (METHOD 2: ``b = -s``).
With jitter on the hidden log-odds, the probability of a positive answer is a normal distribution
function around the flip. The flip and the jitter are estimated from a handful of answers.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import ReplyError
from blindcal.records import INVALID, POSITIVE, FloatArray, Item, Reply, Request, Targets

_INSIST = 5
_FINEST, _WIDEST = 0.01, 10.0
_DROP = 1.92  # of the log-likelihood, from its maximum to the end of a 95% interval


@dataclass(frozen=True, slots=True)
class FlipReading:
    """One answer to one item at one shift."""

    item: str
    shift: float
    answer: int


@dataclass(frozen=True, slots=True)
class FlipFit:
    """The flip of each item, and the jitter of the log-odds with an upper limit.

    ``jitter`` is 0 if every answer is on the right side of its flip; ``most`` is an upper limit even then.
    """

    shifts: Mapping[str, float]
    jitter: float
    most: float


class ProbeClient:
    """Sends the queries of a probe, and counts queries, tokens and invalid answers."""

    def __init__(self, endpoint: Endpoint, targets: Targets) -> None:
        self._endpoint = endpoint
        self._targets = targets
        self._read = TokenQuestion(targets).answer
        self.queries = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.biased = 0
        self.outside = 0
        self.broken: ReplyError | None = None
        self.longest = 0
        self.readings: list[FlipReading] = []

    async def reply(self, request: Request) -> Reply | None:
        """The reply to a request; ``None`` if it cannot be read, and the error is kept."""
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
        return INVALID if reply is None else self._read(reply.text)

    async def biased_by(
        self, item: Item, positive: float | None, negative: float | None, temperature: float = 0.0
    ) -> int:
        """The answer with these biases on the two sides; ``None`` leaves a side unbiased."""
        bias = {t.id: positive for t in self._targets.positive if positive is not None}
        bias |= {t.id: negative for t in self._targets.negative if negative is not None}
        for _ in range(_INSIST):
            answer = await self.answer(Request(item.messages, bias, temperature))
            if positive is not None and negative is not None:
                self.biased += 1
                self.outside += answer == INVALID
            if answer != INVALID:
                break
        return answer

    async def at(self, item: Item, shift: float, offset: float, temperature: float = 0.0) -> int:
        """The answer at a shift, asked as in an audit."""
        answer = await self.biased_by(item, offset + shift, offset, temperature)
        if temperature == 0 and answer != INVALID:
            self.readings.append(FlipReading(item.id, shift, answer))
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


def fit(readings: Sequence[FlipReading], known: Mapping[str, float] | None = None) -> FlipFit:
    """The likeliest flip of each item (or the `known` one) and the likeliest common jitter."""
    widths = np.geomspace(_FINEST, _WIDEST, 73)
    profile = np.zeros(widths.size)
    places: dict[str, FloatArray] = {}
    clean = True
    for item in dict.fromkeys(reading.item for reading in readings):
        own = [reading for reading in readings if reading.item == item]
        shifts = np.array([reading.shift for reading in own], float)
        signs = np.array([1.0 if reading.answer == POSITIVE else -1.0 for reading in own])
        candidates = _between(shifts, signs) if known is None else np.array([known[item]])
        away = signs * (shifts - candidates[:, None])
        clean &= bool((away > 0).all(axis=1).any())
        likelihood = log_ndtr(away[:, None, :] / widths[:, None]).sum(axis=2)
        places[item] = candidates[likelihood.argmax(axis=0)]
        profile += likelihood.max(axis=0)
    best = int(profile.argmax())
    plausible = widths[profile > profile[best] - _DROP]
    flips = {item: float(found[best]) for item, found in places.items()}
    return FlipFit(flips, 0.0 if clean else float(widths[best]), float(plausible.max()))


def _between(shifts: FloatArray, signs: FloatArray) -> FloatArray:
    """Candidates for a flip, between the last negative and the first positive answer, in either order."""
    ends = [shifts[signs < 0].max(initial=-np.inf), shifts[signs > 0].min(initial=np.inf)]
    low, high = np.sort(np.clip(ends, shifts.min() - 1, shifts.max() + 1))
    return np.linspace(low, high, 201)
