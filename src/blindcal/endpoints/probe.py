"""Can this endpoint be audited, and how? About 90 queries find out before thousands are paid for.

An audit relies on ``logit_bias`` doing what METHOD 2 says, and services differ: some refuse it, others
accept it but ignore, clamp or round it. The probe forces the answers of several items both ways, which
cannot succeed by luck if the bias is ignored; finds the flips of two items; checks them with other
common biases C, where clamping and rounding show as disagreement; and repeats queries around them, one
at a time and concurrently, to measure jitter. If the bias is unusable, it tests temperature (METHOD 6).

A bias that is multiplied by a constant cannot be detected from outside: with greedy answers it looks like
a model with other log-odds. If logprobs are exposed, the bias is checked against them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.flip_search import FlipFit, FlipReading, ProbeClient, bisect, fit
from blindcal.errors import FatalError, InputError
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item, Request, Targets

ProbeVerdict: TypeAlias = Literal["thresholds", "temperature", "not auditable"]
FindingOutcome: TypeAlias = Literal["good", "caution", "bad", "unknown"]
Biases: TypeAlias = tuple[float | None, float | None]  # on the positive and the negative side

QUESTIONS = (
    "answers at all",
    "one token out",
    "logit_bias accepted",
    "logit_bias acts",
    "one flip",
    "acts by the right amount",
    "fractions honoured",
    "range",
    "repeatable alone",
    "repeatable under concurrency",
    "answers inside the targets",
    "temperature honoured",
    "logprobs",
)
ITEMS = 6  # number of items whose answers are forced both ways
LADDER = (-1.2, -0.5, -0.2, -0.08, 0.08, 0.2, 0.5, 1.2)  # distances from a flip, to measure jitter
FAR = (-25.0, -6.0, 6.0, 25.0)  # distances from a flip, to check that there is only one
DRAWS = 10
IRRESISTIBLE = 20.0  # a shift that overrides any model; with less, confident answers may not change
LEAST_SHIFT = 7.0  # thresholds from 0.001 to 0.999
MOST_JITTER = 1.0  # more than half the noise of a draw at T = 1: thresholds tell little more than draws
MOST_OUTSIDE = 0.2
NARROW = 0.2  # largest distance at which two flips count as the same
PRECISION = 0.2  # with which a clamp is located
TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One question about the endpoint, its outcome, and the answer in words."""

    question: str
    outcome: FindingOutcome
    answer: str


@dataclass(frozen=True, slots=True)
class Forced:
    """The items whose answers could be forced both ways; how many did not move or moved the wrong way."""

    moved: list[Item]
    unmoved: int
    reversed: int
    most_moved: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """What the probe found.

    ``max_shift`` is the largest usable |b| at ``offset``; ``clamp`` is the value at which the endpoint
    clamps the bias, ``integer_bias`` whether it rounds it. ``jitter`` and ``crowd_jitter`` are standard
    deviations in log-odds, alone and under concurrency; ``outside`` is the share of biased answers that
    were neither target. These three are NaN if they could not be measured. ``remedy`` and ``options``
    are those of the last reply that could not be read.
    """

    verdict: ProbeVerdict
    reason: str
    findings: tuple[Finding, ...]
    targets: Targets
    offset: float
    max_shift: float
    clamp: float | None
    integer_bias: bool
    jitter: float
    crowd_jitter: float
    outside: float
    logprobs: bool
    queries: int
    prompt_tokens: int
    completion_tokens: int
    remedy: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def within_clamp(self) -> dict[str, object]:
        """The offset and limit to try if the bias is clamped too low for the given ones; else empty."""
        if self.clamp is None or self.max_shift >= LEAST_SHIFT:
            return {}
        return {"offset": round(self.clamp / 2, 1), "limit": round(self.clamp, 1)}


async def probe(
    endpoint: Endpoint,
    items: Sequence[Item],
    targets: Targets,
    *,
    offset: float = 50.0,
    limit: float = 100.0,
    seed: int = 0,
) -> Probe:
    """Find out how `endpoint` can be audited, on a few of the audit's own items.

    `offset` is the common bias C that the audit will use and `limit` the largest bias the service
    documents. Wrap the endpoint in :class:`~blindcal.endpoints.base.Patient` if it may be throttled. A
    wrong key, model or address raises :class:`~blindcal.errors.FatalError` as it would in a run.
    """
    if not items:
        raise InputError("a probe needs at least one item")
    rng = np.random.default_rng(seed)
    chosen = [items[int(k)] for k in rng.permutation(len(items))[:ITEMS]]
    return await _Probing(endpoint, chosen, targets, offset, limit).run()


class _Probing:
    """A probe in progress; each step adds findings."""

    def __init__(
        self, endpoint: Endpoint, items: list[Item], targets: Targets, offset: float, limit: float
    ) -> None:
        self.asker = ProbeClient(endpoint, targets)
        self.items = items
        self.targets = targets
        self.offset = offset
        self.limit = limit
        self.reach = limit - offset
        self.findings: list[Finding] = []
        self.acts = False
        self.max_shift = 0.0
        self.clamp: float | None = None
        self.integer_bias = False
        self.jitter = self.crowd_jitter = math.nan
        self.gap: float | None = None
        self.logprobs = False

    async def run(self) -> Probe:
        if broken := await self._broken():
            return self._conclude("not auditable", broken)
        await self._look_for_logprobs()
        trouble = await self._force() or await self._measure()
        if not trouble or (self.acts and self._outside() > MOST_OUTSIDE):
            return self._usable()
        varies = await self._vary_without_bias()
        if varies:
            return self._conclude("not auditable", f"{trouble}, and {varies}")
        return self._conclude("temperature", trouble)

    def _usable(self) -> Probe:
        outside = self._outside()
        outcome: FindingOutcome = "bad" if outside > MOST_OUTSIDE else "caution" if outside else "good"
        self._find("answers inside the targets", outcome, f"{1 - outside:.0%} of {self.asker.biased}")
        if outcome == "bad":
            reason = f"{outside:.0%} of the answers are neither target: change the prompt or the answer words"
            return self._conclude("not auditable", reason)
        worst = [finding.question for finding in self.findings if finding.outcome == "caution"]
        caution = f"; mind: {', '.join(worst)}" if worst else ""
        return self._conclude("thresholds", f"the bias acts as it should{caution}")

    async def _broken(self) -> str:
        """Why replies cannot be read, empty if they can; a wrong key or model raises an error here."""
        for item in self.items[:2]:
            if await self.asker.reply(Request(item.messages)) is not None:
                return ""
        assert self.asker.broken is not None
        message = self.asker.broken.message
        return self._find("answers at all", "bad", message, message)

    async def _look_for_logprobs(self) -> None:
        try:
            reply = await self.asker.reply(Request(self.items[0].messages, top_logprobs=TOP_LOGPROBS))
        except FatalError:
            reply = None
        if reply is None or not (found := reply.logprobs):
            self._find("logprobs", "good", "hidden, as a black box has them")
            return
        self.logprobs = True
        self._find("logprobs", "good", "exposed after all: white-box scores are possible (blindcal score)")
        positive = [found[t.text] for t in self.targets.positive if t.text in found]
        negative = [found[t.text] for t in self.targets.negative if t.text in found]
        if positive and negative:
            self.gap = max(positive) - max(negative)

    async def _force(self) -> str:
        """Force every item both ways; returns what is wrong, if anything."""
        try:
            await self.asker.biased_by(self.items[0], self.limit, self.offset)
        except FatalError as error:
            return self._find("logit_bias accepted", "bad", f"no: {error}", "logit_bias is not accepted")
        self._find("logit_bias accepted", "good", "yes")
        forced = await self._force_both((self.limit, self.offset), (self.offset - self.reach, self.offset))
        astray = forced.reversed + (forced.unmoved if self.reach >= IRRESISTIBLE else 0)
        if forced.most_moved and not astray:
            moved = f"{len(forced.moved)} of {len(self.items)} items forced both ways"
            self.items, self.acts = forced.moved, True
            return self._find("logit_bias acts", "good", moved)
        return await self._diagnose()

    async def _force_both(self, up: Biases, down: Biases) -> Forced:
        """Ask every item with biases towards a positive answer, then with biases towards a negative one."""
        ups = await asyncio.gather(*(self.asker.biased_by(item, *up) for item in self.items))
        downs = await asyncio.gather(*(self.asker.biased_by(item, *down) for item in self.items))
        answers = list(zip(ups, downs, strict=True))
        moved = [item for item, pair in zip(self.items, answers, strict=True) if pair == (POSITIVE, NEGATIVE)]
        unmoved = sum(pair in ((POSITIVE, POSITIVE), (NEGATIVE, NEGATIVE)) for pair in answers)
        return Forced(moved, unmoved, answers.count((NEGATIVE, POSITIVE)), 2 * len(moved) >= len(answers))

    async def _diagnose(self) -> str:
        """Find out why the bias does not act as it should, by raising or lowering one side alone."""
        question, most = "logit_bias acts", self.limit
        raised = await self._force_both((most, None), (None, most))
        if raised.most_moved and not raised.reversed:
            self.clamp = await self._strength(raised.moved[0], None)
            where = "somewhere" if self.clamp is None else f"at about {self.clamp:.1f}"
            answer = f"clamped {where}: raised alone, an answer can be forced"
            return self._find(question, "bad", answer, self._clamped())
        lowered = await self._force_both((-most, None), (None, -most))
        if len(lowered.moved) == len(self.items):
            trouble = "logit_bias acts with its sign inverted: report it to the provider"
            return self._find(question, "bad", "with the wrong sign: what is lowered is said", trouble)
        trouble = "logit_bias is accepted but ignored"
        return self._find(question, "bad", "no: forced answers do not follow it", trouble)

    def _clamped(self) -> str:
        if self.clamp is None:
            return "logit_bias is clamped too low to be used"
        half = self.clamp / 2
        return f"logit_bias is clamped at about {self.clamp:.1f}, so thresholds reach only |b| <= {half:.1f}"

    async def _strength(self, item: Item, flip: float | None) -> float | None:
        """What the largest bias really adds, found by balancing it with a smaller one on the other side."""
        ask, most = self.asker.biased_by, self.limit
        if flip is None:
            one_sided = lambda d: ask(item, d if d > 0 else None, -d if d < 0 else None)  # noqa: E731
            flip = await bisect(one_sided, -most, most, PRECISION)
        if flip is None:
            return None
        if flip < 0:  # the positive side leads by -flip, so it balances with less
            balance = await bisect(lambda v: ask(item, v, most), 0.0, most, PRECISION)
        else:
            balance = await bisect(lambda v: _opposite(ask(item, most, v)), 0.0, most, PRECISION)
        return None if balance is None else balance + abs(flip)

    async def _measure(self) -> str:
        """Measure what thresholds need: flips, jitter, range, agreement across C; returns what is wrong."""
        items = self.items[:2]
        near = [await self._flip(item) for item in items]
        if None in near:
            answer = "no flip could be found: the answers are neither target"
            return self._find("one flip", "bad", answer, "answers do not follow the shift")
        flips = await self._repeat(items)
        await self._draw(items[0], flips)
        return (
            self._shape(flips)
            or await self._range(items, flips)
            or await self._fractions(items, flips)
            or self._right_amount(flips.shifts[items[0].id], _margin(flips))
        )

    async def _flip(self, item: Item) -> float | None:
        return await bisect(lambda b: self.asker.at(item, b, self.offset), -self.reach, self.reach)

    async def _repeat(self, items: list[Item]) -> FlipFit:
        """Ask around the flips again: one query at a time, then all at once."""
        readings = self.asker.readings
        flips = fit(readings)
        for step in (*LADDER, *FAR):
            await self._near(items[0], flips, step)
        flips = fit(readings)
        if flips.jitter > LADDER[-3]:  # the ladder may be too narrow to measure it
            for step in LADDER:
                await self._near(items[0], flips, 5 * step)
            flips = fit(readings)
        self.jitter = flips.jitter
        alone = len(readings)
        await asyncio.gather(*(self._near(item, flips, step) for item in items for step in LADDER))
        self.crowd_jitter = fit(readings[alone:], flips.shifts).jitter
        everything = fit(readings)
        self._report_jitter("repeatable alone", self.jitter, flips.most)
        crowding = "" if self.jitter else "; ask with less concurrency, or one request at a time"
        self._report_jitter("repeatable under concurrency", self.crowd_jitter, everything.most, crowding)
        return everything

    async def _near(self, item: Item, flips: FlipFit, step: float) -> int:
        shift = min(max(flips.shifts[item.id] + step, -self.reach), self.reach)
        return await self.asker.at(item, shift, self.offset)

    def _report_jitter(self, question: str, jitter: float, most: float, cure: str = "") -> None:
        if jitter == 0:
            self._find(question, "good", f"yes: jitter below {most:.2g} in log-odds")
        else:
            outcome: FindingOutcome = "caution" if jitter <= MOST_JITTER else "bad"
            self._find(question, outcome, f"jitter of about {jitter:.2g} in log-odds{cure}")

    async def _draw(self, item: Item, flips: FlipFit) -> None:
        """Check that draws at T = 1 give both answers at the flip, where they are equally likely."""
        question = "temperature honoured"
        shift = flips.shifts[item.id]
        try:
            draws = await asyncio.gather(
                *(self.asker.at(item, shift, self.offset, 1.0) for _ in range(DRAWS))
            )
        except FatalError as error:
            self._find(question, "caution", f"no: {error}")
            return
        positive = sum(draw == POSITIVE for draw in draws)
        seen = f"{positive} of {DRAWS} draws at the flip were positive"
        if flips.jitter > 0:
            self._find(question, "unknown", f"{seen}, which jitter alone could cause")
        elif 0 < positive < DRAWS:
            self._find(question, "good", f"yes: {seen}")
        else:
            self._find(question, "caution", f"no: {seen}")

    def _shape(self, flips: FlipFit) -> str:
        """Check that each item has one flip, and that jitter is small enough for thresholds."""
        if max(flips.jitter, self.crowd_jitter / 3) > MOST_JITTER:
            answer = f"none that is sharper than {flips.jitter:.2g} in log-odds"
            trouble = f"answers change from query to query (jitter of {flips.jitter:.2g} in log-odds)"
            return self._find("one flip", "bad", answer, trouble)
        strays = [reading for reading in self.asker.readings if _strays(reading, flips)]
        if strays:
            where = ", ".join(f"{reading.shift:+.1f}" for reading in strays[:3])
            answer = f"no: the answer turns back at shift {where}"
            return self._find("one flip", "bad", answer, "the answer is not monotone in the shift")
        places = ", ".join(f"{shift:+.2f}" for shift in flips.shifts.values())
        return self._find("one flip", "good", f"yes: at shift {places}")

    async def _range(self, items: list[Item], flips: FlipFit) -> str:
        """Check that the flips stay where they are with a bias at the limit."""
        margin = _margin(flips)
        for item in items:
            shift = flips.shifts[item.id]
            highest_offset = self.limit - max(0, math.ceil(shift + margin))
            if not await self._holds(item, shift, margin, highest_offset):
                strength = await self._strength(item, shift)
                if strength is None or strength < self.limit - 1 - margin:
                    return self._report_clamp(strength)
        self.max_shift = self.reach
        return self._find("range", "good", f"to {self.limit:g} unclamped: |b| <= {self.max_shift:g}")

    def _report_clamp(self, strength: float | None) -> str:
        self.clamp = strength
        self.max_shift = 0.0 if strength is None else max(0.0, strength - PRECISION - self.offset)
        if self.max_shift < LEAST_SHIFT:
            return self._find("range", "bad", self._clamped(), self._clamped())
        answer = f"clamped at about {strength:.0f}: |b| <= {self.max_shift:.0f}"
        return self._find("range", "caution", answer)

    async def _fractions(self, items: list[Item], flips: FlipFit) -> str:
        """Check for rounding: with C half a unit lower it moves every flip by that much, jitter only some."""
        question, lower = "fractions honoured", self.offset - 0.5
        holds = [await self._holds(item, flips.shifts[item.id], NARROW, lower) for item in items]
        if all(holds):
            return self._find(question, "good", f"yes: flips agree to {NARROW:g} at three values of C")
        if flips.jitter > 0 or any(holds):  # more items distinguish rounding from jitter
            for item in self.items[len(items) :]:
                flip = await self._flip(item)
                holds.append(flip is not None and await self._holds(item, flip, NARROW, lower))
        if sum(holds) > len(holds) / ITEMS:
            return self._find(question, "unknown", "jitter hides it")
        self.integer_bias = True
        trouble = "logit_bias is rounded, so thresholds fall where they were not put"
        return self._find(question, "bad", "no: with C half a unit lower the flips are elsewhere", trouble)

    async def _holds(self, item: Item, flip: float, margin: float, offset: float) -> bool:
        """Whether the flip is in the same place with another C; it is not if three attempts fail."""
        for _ in range(3):
            below = await self.asker.at(item, flip - margin, offset)
            above = await self.asker.at(item, flip + margin, offset)
            if (below, above) == (NEGATIVE, POSITIVE):
                return True
        return False

    def _right_amount(self, flip: float, margin: float) -> str:
        question = "acts by the right amount"
        if self.gap is None:
            answer = "the same at each C; its scale cannot be seen without logprobs"
            return self._find(question, "unknown", answer)
        compared = f"flip at {-flip:.2f}, logprob gap {self.gap:.2f}"
        if abs(self.gap + flip) > margin + 0.02 * abs(self.gap):
            return self._find(question, "bad", f"no: {compared}", "logit_bias acts by the wrong amount")
        return self._find(question, "good", f"yes: {compared}")

    async def _vary_without_bias(self) -> str:
        """Check that temperature alone makes answers vary; returns what is wrong."""
        question = "temperature honoured"
        self.findings = [finding for finding in self.findings if finding.question != question]
        greedy = [Request(item.messages) for item in self.items]
        drawn = [Request(item.messages, temperature=2.0) for item in self.items]
        ask = self.asker.answer
        cold = [await ask(request) for request in greedy for _ in range(2)]
        try:
            warm = [await asyncio.gather(*(ask(request) for _ in range(4))) for request in drawn]
        except FatalError as error:
            return self._find(question, "bad", f"no: {error}", "temperature is not accepted")
        every = [*cold, *(answer for draws in warm for answer in draws)]
        if every.count(INVALID) > len(every) / 2:
            trouble = "most unbiased answers are neither target: the prompt must ask for one of the two words"
            return self._find(question, "unknown", "most answers are neither target", trouble)
        if not any(draw != cold[2 * k] for k, draws in enumerate(warm) for draw in draws):
            answer = f"no: {4 * len(self.items)} draws at T = 2 all repeat the greedy answer"
            return self._find(question, "bad", answer, "temperature changes no answer")
        if any(cold[2 * k] != cold[2 * k + 1] for k in range(len(self.items))):
            return self._find(question, "caution", "answers vary, but at T = 0 too")
        return self._find(question, "good", "yes: answers vary at T = 2 and not at T = 0")

    def _outside(self) -> float:
        return self.asker.outside / self.asker.biased if self.asker.biased else math.nan

    def _find(self, question: str, outcome: FindingOutcome, answer: str, trouble: str = "") -> str:
        """Add a finding; returns ``trouble``, what it means for the audit, empty if it is harmless."""
        self.findings.append(Finding(question, outcome, answer))
        return trouble

    def _conclude(self, verdict: ProbeVerdict, reason: str) -> Probe:
        if self.asker.longest > 1:
            billed = (
                f"no: up to {self.asker.longest} were billed, so max_tokens is ignored or the model reasons"
            )
            self._find("one token out", "caution", billed)
        return Probe(
            verdict,
            reason,
            tuple(sorted(self.findings, key=lambda finding: QUESTIONS.index(finding.question))),
            self.targets,
            self.offset,
            self.max_shift,
            self.clamp,
            self.integer_bias,
            self.jitter,
            self.crowd_jitter,
            self._outside(),
            self.logprobs,
            self.asker.queries,
            self.asker.prompt_tokens,
            self.asker.completion_tokens,
            self.asker.broken.remedy if self.asker.broken else "",
            self.asker.broken.options if self.asker.broken else {},
        )


def _margin(flips: FlipFit) -> float:
    """The distance from a flip beyond which answers are reliable."""
    return 0.05 + 3 * flips.most


def _strays(reading: FlipReading, flips: FlipFit) -> bool:
    distance = reading.shift - flips.shifts[reading.item]
    expected = POSITIVE if distance > 0 else NEGATIVE
    return abs(distance) > _margin(flips) and reading.answer != expected


async def _opposite(answer: Awaitable[int]) -> int:
    """The answer with the two sides swapped."""
    return {POSITIVE: NEGATIVE, NEGATIVE: POSITIVE}.get(await answer, INVALID)
