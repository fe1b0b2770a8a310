"""Where an answer flips as the shift grows: finding the place, and how sharp it is.

The answer to an item turns from negative to positive at one shift, its flip (METHOD 2: at ``b = -s``).
With jitter on the hidden log-odds the turn is a normal curve around it; both are estimated from a
handful of answers.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.tokens import read_answer
from blindcal.errors import ReplyError
from blindcal.records import INVALID, POSITIVE, Item, Reply, Request, Targets

_INSIST = 3
_FINEST = 0.02


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer to one item at one shift and centre."""

    item: str
    shift: float
    center: float
    answer: int


@dataclass(frozen=True, slots=True)
class Flip:
    """The shift at which an item's answer turns, and the jitter of its log-odds (0: none was seen)."""

    shift: float
    jitter: float


class Asker:
    """Asks an endpoint about shifted answers, and keeps count of everything."""

    def __init__(self, endpoint: Endpoint, targets: Targets) -> None:
        self._endpoint = endpoint
        self._targets = targets
        self.queries = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.biased = 0
        self.outside = 0
        self.broken = ""
        self.readings: list[Reading] = []

    async def reply(self, request: Request) -> Reply | None:
        """One reply; ``None`` if it was broken, and the reason is kept."""
        self.queries += 1
        try:
            reply = await self._endpoint.ask(request)
        except ReplyError as error:
            self.broken = str(error)
            return None
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        return reply

    async def plain(self, item: Item, temperature: float = 0.0) -> int:
        """The answer without any bias."""
        reply = await self.reply(Request(item.messages, temperature=temperature))
        return INVALID if reply is None else read_answer(reply.text, self._targets)

    async def biased_by(
        self, item: Item, positive: float | None, negative: float | None, temperature: float = 0.0
    ) -> int:
        """The answer with so much on each side; ``None`` leaves a side out."""
        bias = {t.id: positive for t in self._targets.positive if positive is not None}
        bias |= {t.id: negative for t in self._targets.negative if negative is not None}
        for _ in range(_INSIST):
            reply = await self.reply(Request(item.messages, bias, temperature))
            answer = INVALID if reply is None else read_answer(reply.text, self._targets)
            if positive is not None and negative is not None:
                self.biased += 1
                self.outside += answer == INVALID
            if answer != INVALID:
                break
        return answer

    async def at(self, item: Item, shift: float, center: float, temperature: float = 0.0) -> int:
        """The answer at a shift, as an audit asks it."""
        answer = await self.biased_by(item, center + shift, center, temperature)
        if temperature == 0 and answer != INVALID:
            self.readings.append(Reading(item.id, shift, center, answer))
        return answer

    def readings_of(self, item: Item, center: float) -> list[Reading]:
        """What was answered for an item at one centre so far."""
        return [r for r in self.readings if r.item == item.id and r.center == center]


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


def fit(readings: Sequence[Reading], near: float) -> Flip:
    """The likeliest flip and jitter, given answers at shifts around ``near``."""
    shifts = np.array([r.shift for r in readings])
    signs = np.array([1.0 if r.answer == POSITIVE else -1.0 for r in readings])
    lowest = shifts[signs > 0].min(initial=math.inf)
    highest = shifts[signs < 0].max(initial=-math.inf)
    if highest < lowest:  # a clean turn: nothing speaks for jitter
        clean = math.isfinite(lowest) and math.isfinite(highest)
        return Flip((lowest + highest) / 2 if clean else near, 0.0)
    places = near + np.linspace(-4, 4, 321)
    widths = np.geomspace(_FINEST, 8.0, 61)
    steepness = signs * (shifts - places[:, None, None]) / widths[:, None]
    best = np.unravel_index(int(log_ndtr(steepness).sum(axis=2).argmax()), (places.size, widths.size))
    return Flip(float(places[best[0]]), float(widths[best[1]]))
