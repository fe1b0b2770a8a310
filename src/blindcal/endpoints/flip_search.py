"""Where an answer flips as the shift grows: finding the place, and how sharp it is.

The answer to an item turns from negative to positive at one shift, its flip (METHOD 2: at ``b = -s``).
With jitter on the hidden log-odds the turn is a normal curve around it; both are estimated from a
handful of answers.
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
_DROP = 1.92  # in log-likelihood, to the end of a 95% interval


@dataclass(frozen=True, slots=True)
class FlipReading:
    """One answer to one item at one shift."""

    item: str
    shift: float
    answer: int


@dataclass(frozen=True, slots=True)
class FlipFit:
    """The shift at which each item's answer turns, the jitter of its log-odds, and how large it may be.

    ``jitter`` is 0 where every answer is on its side of the flip; ``most`` is an upper limit even then.
    """

    shifts: Mapping[str, float]
    jitter: float
    most: float


class ProbeClient:
    """Asks an endpoint about shifted answers, and keeps count of everything."""

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
        """One reply; ``None`` if it was broken, and the error is kept."""
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
        """What one reply says; a broken one is invalid."""
        reply = await self.reply(request)
        return INVALID if reply is None else self._read(reply.text)

    async def biased_by(
        self, item: Item, positive: float | None, negative: float | None, temperature: float = 0.0
    ) -> int:
        """The answer with so much on each side; ``None`` leaves a side out."""
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
        """The answer at a shift, as an audit asks it."""
        answer = await self.biased_by(item, offset + shift, offset, temperature)
        if temperature == 0 and answer != INVALID:
            self.readings.append(FlipReading(item.id, shift, answer))
        return answer


async def bisect(
    answer: Callable[[float], Awaitable[int]], low: float, high: float, width: float = 0.05
) -> float | None:
    """Where ``answer`` turns positive between a negative end and a positive one; ``None`` if unreadable.

    The middle is taken on a scale that is even near zero and logarithmic far out, where flips are rare.
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
    """The likeliest flip of each item, unless `known`, and the jitter they share."""
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
    """Places for a flip: from the last negative answer to the first positive one, in either order."""
    ends = [shifts[signs < 0].max(initial=-np.inf), shifts[signs > 0].min(initial=np.inf)]
    low, high = np.sort(np.clip(ends, shifts.min() - 1, shifts.max() + 1))
    return np.linspace(low, high, 201)
