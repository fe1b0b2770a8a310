"""Does ``logit_bias`` do what METHOD 2 says? Services clamp, round, scale or ignore it.

The checks force the answers of several items both ways, which cannot succeed by luck if the bias is ignored;
find the flips of two items; repeat queries around them, one at a time and concurrently, to measure jitter,
and far from them to catch stray answers; look for the flips with larger and smaller common biases C, where
clamping, rounding and penalties show as disagreement; and draw answers off the flips, where temperature, its
truncation and the scale of the bias show.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from blindcal.errors import FatalError
from blindcal.probing.client import ProbeClient
from blindcal.probing.draw_checks import DrawChecks
from blindcal.probing.findings import LEAST_SHIFT, SCALE, FindingOutcome
from blindcal.probing.flip_search import FlipFit, bisect, fit
from blindcal.probing.response_curve import CurveEvidence, Query, ask_until_settled
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item

Biases: TypeAlias = tuple[float | None, float | None]  # on the positive and the negative side

LADDER = (-1.2, -0.5, -0.2, -0.08, 0.08, 0.2, 0.5, 1.2)  # distances from a flip, to measure jitter
FAR = (-25.0, -6.0, 6.0, 25.0)  # distances from a flip, to check that there is only one
OFF = ((0.7, 1.0), (1.5, 1.0), (3.1, 1.0), (1.5, 2.0), (4.0, 2.0), (1.5, 0.0), (3.1, 0.0))
"""Distances from a flip and temperatures at which answers show how temperature and bias act."""
RAREST_STRAY = 0.0002
MOST_DRAWS = 280  # off the flip
IRRESISTIBLE = 20.0  # a shift that overrides any model; with less, confident answers may not change
MOST_JITTER = 1.0  # more than half the noise of a draw at T = 1: thresholds tell little more than draws
MOST_OUTSIDE = 0.2
NARROW = 0.2  # largest distance at which two flips count as the same
PRECISION = 0.2  # with which a clamp is located
SMALLER = (0.24, 0.4, 0.6)  # common biases, as shares of the usual one, at which flips must be the same
_MOST_FLIPS_LOST = 6  # one in this many flips may seem to hold by chance if the bias is rounded


@dataclass(frozen=True, slots=True)
class Forced:
    """The items whose answers could be forced both ways; how many did not move or moved the wrong way."""

    moved: list[Item]
    unmoved: int
    reversed: int
    most_moved: bool


class BiasChecks:
    """The checks of ``logit_bias`` on a few items; each adds findings.

    ``offset`` is the common bias C of the audit and ``limit`` the largest bias that the service documents.
    After `check`, ``max_shift`` is the largest usable shift, ``clamp`` where the bias is clamped and
    ``integer_bias`` whether it is rounded; ``jitter`` and ``crowd_jitter`` are ``None`` if not measured.
    ``hopeless`` says that temperature without a bias cannot help either. ``flips`` are those of the first two
    items. ``gaps`` are the log-odds of the
    answer tokens by item, where logprobs show them.
    """

    def __init__(
        self, asker: ProbeClient, draws: DrawChecks, items: list[Item], offset: float, limit: float
    ) -> None:
        self.asker, self.draws, self.items = asker, draws, items
        self.offset = offset
        self.limit = limit
        self.reach = limit - offset
        self.acts = False
        self.max_shift = 0.0
        self.clamp: float | None = None
        self.integer_bias = False
        self.jitter: float | None = None
        self.crowd_jitter: float | None = None
        self.scale: tuple[float, float] | None = None
        self.forced = self.strays = 0  # answers far from the flips, and those that contradict the bias
        self.hopeless = False
        self.gaps: dict[str, float] = {}
        self.flips: FlipFit | None = None

    async def check(self) -> str:
        """Check everything that thresholds need; returns what is wrong, if anything."""
        trouble = await self._force() or await self._measure()
        if self.acts and self.outside > MOST_OUTSIDE:
            self.hopeless = True
            self.asker.find("answers inside the targets", "bad", self._inside)
            return (
                f"{self.outside:.0%} of the answers are neither target: change the prompt or the answer words"
            )
        if not trouble:
            self.asker.find("answers inside the targets", "caution" if self.outside else "good", self._inside)
        return trouble

    async def agrees_with_logprobs(self) -> str:
        """Check that flips are where logprobs say; returns what is wrong.

        An endpoint whose bias does not act at all contradicts nothing.
        """
        if await self._force():
            return ""
        compared = 0
        for item in [item for item in self.items if item.id in self.gaps][:2]:
            flip = await self._flip(item)
            if flip is None:
                continue
            compared += 1
            if compared > 1:  # one finding is enough
                self.asker.findings.pop()
            if trouble := self._compare_with_logprobs(item, flip, NARROW):
                return trouble
        return ""

    @property
    def outside(self) -> float:
        """The share of biased answers that were neither target."""
        return self.asker.outside / max(1, self.asker.biased)

    @property
    def _inside(self) -> str:
        return f"{1 - self.outside:.0%} of {self.asker.biased}"

    async def _force(self) -> str:
        """Force every item both ways; returns what is wrong, if anything."""
        try:
            await self.asker.biased_by(self.items[0], self.limit, self.offset)
        except FatalError as error:
            return self.asker.find("logit_bias accepted", "bad", f"no: {error}", "logit_bias is not accepted")
        self.asker.find("logit_bias accepted", "good", "yes")
        forced = await self._force_both((self.limit, self.offset), (self.offset - self.reach, self.offset))
        astray = forced.reversed + (forced.unmoved if self.reach >= IRRESISTIBLE else 0)
        if forced.most_moved and not astray:
            ways = "from one answer to another" if self.asker.targets.answers else "both ways"
            moved = f"{len(forced.moved)} of {len(self.items)} items forced {ways}"
            self.items, self.acts = forced.moved, True
            return self.asker.find("logit_bias acts", "good", moved)
        return await self._diagnose(unreliable=forced.most_moved)

    async def _force_both(self, up: Biases, down: Biases) -> Forced:
        """Ask every item with biases towards a positive answer, then with biases towards a negative one."""
        ups, downs = await self._forced(up, POSITIVE), await self._forced(down, NEGATIVE)
        answers = list(zip(ups, downs, strict=True))
        moved = [item for item, pair in zip(self.items, answers, strict=True) if pair == (POSITIVE, NEGATIVE)]
        unmoved = sum(pair in ((POSITIVE, POSITIVE), (NEGATIVE, NEGATIVE)) for pair in answers)
        return Forced(moved, unmoved, answers.count((NEGATIVE, POSITIVE)), 2 * len(moved) >= len(answers))

    async def _forced(self, biases: Biases, wanted: int) -> list[int]:
        """The answer of every item with these biases; a few wrong ones may be strays and are asked again."""
        answers = await asyncio.gather(*(self.asker.biased_by(item, *biases) for item in self.items))
        wrong = [k for k, answer in enumerate(answers) if answer not in (wanted, INVALID)]
        strays = 0
        if len(wrong) <= max(1, len(self.items) // 3):
            for k in wrong:
                again = [await self.asker.biased_by(self.items[k], *biases) for _ in range(4)]
                if again.count(wanted) >= 3:
                    answers[k] = wanted
                    strays += 1
        self.forced += len(answers)
        self.strays += strays
        return answers

    async def _diagnose(self, *, unreliable: bool) -> str:
        """Find out why the bias does not act as it should, by raising or lowering one side alone."""
        question, most = "logit_bias acts", self.limit
        raised, again = [await self._force_both((most, None), (None, most)) for _ in range(2)]
        if raised.most_moved and not raised.reversed and raised.moved == again.moved:
            self.clamp = await self._strength(raised.moved[0], None)
            if self.clamp is not None and self.clamp > self.offset + IRRESISTIBLE:
                return self._unreliable(question)
            where = "somewhere" if self.clamp is None else f"at about {self.clamp:.1f}"
            answer = f"clamped {where}: raised alone, an answer can be forced"
            return self.asker.find(question, "bad", answer, self._clamped())
        lowered = await self._force_both((-most, None), (None, -most))
        if len(lowered.moved) == len(self.items):
            trouble = "logit_bias acts with its sign inverted: report it to the provider"
            return self.asker.find(question, "bad", "with the wrong sign: what is lowered is said", trouble)
        if unreliable:
            return self._unreliable(question)
        trouble = "logit_bias is accepted but ignored"
        return self.asker.find(question, "bad", "no: forced answers do not follow it", trouble)

    def _unreliable(self, question: str) -> str:
        self.clamp, self.hopeless = None, True
        answer = "only at times: some forced answers follow it, others do not"
        return self.asker.find(question, "bad", answer, "answers do not follow logit_bias reliably")

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
        """Measure what thresholds need: flips, jitter, range, scale; returns what is wrong."""
        items = self.items[:2]
        near = [await self._flip(item) for item in items]
        if None in near:
            answer = "no flip could be found: the answers are neither target"
            return self.asker.find("one flip", "bad", answer, "answers do not follow the shift")
        flips = self.flips = await self._repeat(items)
        return (
            self._shape(flips)
            or await self._follow(items, flips)
            or await self._smaller(items, flips)
            or await self._range(items, flips)
            or await self._fractions(items, flips)
            or self._compare_with_logprobs(items[0], flips.shifts[items[0].id], flips.margin)
            or await self._draw(items, flips)
        )

    async def _flip(self, item: Item) -> float | None:
        """Bisect for the flip of an item; again if a stray answer led the bisection astray."""
        for _ in range(3):
            flip = await bisect(lambda b: self.asker.at(item, b, self.offset), -self.reach, self.reach)
            if flip is None or await self._crosses(item, flip, LADDER[-1], self.offset):
                break
        return flip

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
        steps = (*LADDER, *FAR)
        await asyncio.gather(*(self._near(item, flips, step) for item in items for step in steps))
        crowd = fit(readings[alone:], flips.shifts)
        self.crowd_jitter = crowd.jitter
        everything = fit(readings)
        self._report_jitter("repeatable alone", flips)
        crowding = "" if self.jitter else "; ask with less concurrency, or one request at a time"
        limit = replace(crowd, most=everything.most) if crowd.jitter == 0 else crowd
        self._report_jitter("repeatable under concurrency", limit, crowding)
        return everything

    async def _near(self, item: Item, flips: FlipFit, step: float) -> int:
        shift = min(max(flips.shifts[item.id] + step, -self.reach), self.reach)
        return await self.asker.at(item, shift, self.offset)

    def _report_jitter(self, question: str, found: FlipFit, cure: str = "") -> None:
        if found.jitter == 0:
            self.asker.find(question, "good", f"yes: jitter below {found.most:.2g} in log-odds")
        else:
            outcome: FindingOutcome = "caution" if found.jitter <= MOST_JITTER else "bad"
            limits = f"{found.least:.2g} to {found.most:.2g}"
            self.asker.find(
                question, outcome, f"jitter of about {found.jitter:.2g} ({limits}) in log-odds{cure}"
            )

    def _shape(self, flips: FlipFit) -> str:
        """Check that the flips are sharp enough for thresholds."""
        crowd = self.crowd_jitter or 0.0
        alone = max(flips.jitter, self.jitter or 0.0)
        if max(alone, crowd / 3) > MOST_JITTER:
            jitter = max(alone, crowd)
            answer = f"none that is sharper than {jitter:.2g} in log-odds"
            trouble = f"answers at T = 0 change from query to query (by about {jitter:.2g} in log-odds)"
            self.hopeless = True
            return self.asker.find("one flip", "bad", answer, trouble)
        return ""

    async def _follow(self, items: list[Item], flips: FlipFit) -> str:
        """Check that answers far from a flip follow the bias: all of them, at any distance."""
        by_id = {item.id: item for item in items}
        strays = [reading for reading in self.asker.readings if flips.astray(reading)]
        for stray in strays[:3]:
            again = [await self.asker.at(by_id[stray.item], stray.shift, self.offset) for _ in range(2)]
            if again == [stray.answer] * 2:
                answer = f"no: the answer turns back at shift {stray.shift:+.1f}"
                return self.asker.find("one flip", "bad", answer, "the answer is not monotone in the shift")
        if strays or self.strays:  # ask more, to see how common they are
            steps = FAR * 4
            await asyncio.gather(*(self._near(item, flips, step) for item in items for step in steps))
        places = ", ".join(f"{shift:+.2f}" for shift in flips.shifts.values())
        self.asker.find("one flip", "good", f"yes: at shift {places}")
        far = [reading for reading in self.asker.readings if flips.far(reading)]
        self.forced += len(far)
        self.strays += sum(flips.astray(reading) for reading in far)
        question = "answers follow the bias"
        if not self.strays:
            return self.asker.find(question, "good", f"yes: all of {self.forced} far from the flip")
        answer = f"no: {self.strays} of {self.forced} far from the flip contradict it"
        if self.strays == 1:
            return self.asker.find(question, "caution", f"{answer}; more may be wrong during the audit")
        self.hopeless = True
        return self.asker.find(question, "bad", answer, f"answers are unreliable ({answer[4:]})")

    async def _draw(self, items: list[Item], flips: FlipFit) -> str:
        """Draw answers off the flips, to see how temperature and bias act; returns what is wrong."""
        several = any(len(side) > 1 for side in self.asker.targets.by_answer)
        spread = 0.1 + 1.5 * flips.jitter + several  # several spellings move the flip of sampled answers
        places = {
            item.id: flips.shifts[item.id] + spread * np.linspace(-1, 1, 11)
            for item in items
            if abs(flips.shifts[item.id]) <= self.max_shift
        }
        evidence = CurveEvidence(places, np.ones((1, 11)), stray=max(RAREST_STRAY, self.strays / self.forced))
        evidence.add(self.asker.readings)
        queries = [
            Query(item.id, shift, heat)
            for item in items
            if item.id in places
            for distance, heat in OFF
            for shift in (flips.shifts[item.id] - distance, flips.shifts[item.id] + distance)
            if abs(shift) <= self.max_shift
        ]
        by_id = {item.id: item for item in items}

        async def ask(query: Query) -> int:
            return await self.asker.at(by_id[query.item], query.shift, self.offset, query.temperature)

        if not queries:  # the flips are too near the end of the range
            await self.draws.temperature()
            return self._report_scale(None)
        try:
            asked = await ask_until_settled(evidence, queries, ask, most=MOST_DRAWS)
        except FatalError as error:
            self.asker.find("temperature honoured", "caution", f"no: {error}")
            return self._report_scale(None)
        return self._report_heat(evidence, asked) or self._report_scale(evidence)

    def _report_heat(self, evidence: CurveEvidence, asked: int) -> str:
        """Report how temperature acts; returns what is wrong for thresholds."""
        question, likeliest = "temperature honoured", evidence.likeliest
        if not evidence.refuted:
            if evidence.proved:
                return self.asker.find(question, "good", f"yes: {asked} answers off the flip show it")
            answer = f"{asked} answers off the flip could not show it"
            if not evidence.may_be_fixed:
                return self.asker.find(question, "unknown", answer)
            self.hopeless = True
            trouble = "answers at T = 0 change from query to query, as if drawn at a higher temperature"
            return self.asker.find(question, "bad", answer, trouble)
        answer = likeliest.fault
        if likeliest.cause == "fixed" or likeliest.width > MOST_JITTER:
            self.hopeless = True
            return self.asker.find(
                question, "bad", f"no: {answer}", f"temperature is not honoured ({answer})"
            )
        return self.asker.find(question, "caution", f"no: {answer}")

    def _report_scale(self, evidence: CurveEvidence | None) -> str:
        """Report by how much the bias acts; returns what is wrong."""
        if any(finding.question == SCALE for finding in self.asker.findings):
            return ""  # logprobs have shown it
        if evidence is None or (evidence.refuted and evidence.likeliest.cause != "scaled"):
            answer = "unverified: neither draws nor logprobs show its scale"
            return self.asker.find(SCALE, "unknown", answer)
        self.scale = evidence.scale
        times = f"{self.scale[0]:.2g} to {self.scale[1]:.2g} times"
        if evidence.refuted:
            self.hopeless = True
            trouble = f"logit_bias, or temperature, acts by the wrong amount ({times} what it should)"
            return self.asker.find(SCALE, "bad", f"no: {times} what it should be", trouble)
        if self.scale[0] > 0.5 and self.scale[1] < 2:
            return self.asker.find(SCALE, "good", f"yes: {times} what it should be, by draws off the flip")
        return self.asker.find(SCALE, "unknown", f"unverified: {times} what it should be")

    async def _range(self, items: list[Item], flips: FlipFit) -> str:
        """Check that the flips stay where they are with a bias at the limit."""
        margin = flips.margin
        for item in items:
            shift = flips.shifts[item.id]
            highest_offset = self.limit - max(0, math.ceil(shift + margin))
            if not await self._holds(item, shift, margin, highest_offset):
                strength = await self._strength(item, shift)
                if strength is None or strength < self.limit - 1 - margin:
                    return self._report_clamp(strength)
        self.max_shift = self.reach
        return self.asker.find("range", "good", f"to {self.limit:g} unclamped: |b| <= {self.max_shift:g}")

    def _report_clamp(self, strength: float | None) -> str:
        self.clamp = strength
        self.max_shift = 0.0 if strength is None else max(0.0, strength - PRECISION - self.offset)
        if self.max_shift < LEAST_SHIFT:
            return self.asker.find("range", "bad", self._clamped(), self._clamped())
        answer = f"clamped at about {strength:.0f}: |b| <= {self.max_shift:.0f}"
        return self.asker.find("range", "caution", answer)

    async def _fractions(self, items: list[Item], flips: FlipFit) -> str:
        """Check for rounding: with C half a unit lower it moves every flip by that much, jitter only some."""
        question, lower = "fractions honoured", self.offset - 0.5
        holds = [await self._holds(item, flips.shifts[item.id], NARROW, lower) for item in items]
        if all(holds):
            return self.asker.find(question, "good", f"yes: flips agree to {NARROW:g} at three values of C")
        for item in self.items[len(items) :]:  # more items distinguish rounding from jitter
            flip = await self._flip(item)
            holds.append(flip is not None and await self._holds(item, flip, NARROW, lower))
        if sum(holds) > len(holds) / _MOST_FLIPS_LOST:
            return self.asker.find(question, "unknown", "jitter hides it")
        self.integer_bias = True
        trouble = "logit_bias is rounded, so thresholds fall where they were not put"
        return self.asker.find(
            question, "bad", "no: with C half a unit lower the flips are elsewhere", trouble
        )

    async def _holds(self, item: Item, flip: float, margin: float, offset: float) -> bool:
        """Whether the flip is in the same place with another C; it is not if three attempts fail."""
        for _ in range(3):
            if await self._crosses(item, flip, margin, offset):
                return True
        return False

    async def _crosses(self, item: Item, flip: float, margin: float, offset: float) -> bool:
        below = await self.asker.at(item, flip - margin, offset)
        above = await self.asker.at(item, flip + margin, offset)
        return (below, above) == (NEGATIVE, POSITIVE)

    async def _smaller(self, items: list[Item], flips: FlipFit) -> str:
        """Check that the flips stay where they are with a much smaller C.

        A penalty on words of the prompt multiplies logit and bias together, if it is applied after the bias.
        A flip then moves with C. A clamp moves it at a large C only.
        """
        question, margin = "no penalty after the bias", max(NARROW, flips.margin)
        for share in SMALLER:
            lower = self.offset - math.floor(
                (1 - share) * self.offset
            )  # the same fraction, as it may be rounded
            stays = [await self._stays(item, flips.shifts[item.id], margin, lower) for item in items]
            if set(stays) == {None}:
                continue  # with so small a bias, other words win
            if False not in stays:
                return self.asker.find(question, "good", f"none: the flips are the same at C = {lower:g}")
            trouble = "the bias is scaled after it is added, as by a repetition penalty: turn the penalty off"
            return self.asker.find(question, "bad", f"no: the flips are elsewhere at C = {lower:g}", trouble)
        return self.asker.find(question, "unknown", "with a smaller C the answers are neither target")

    async def _stays(self, item: Item, flip: float, margin: float, offset: float) -> bool | None:
        """Whether the flip is in the same place with another C; ``None`` if other words come."""
        for _ in range(3):
            pair = [await self.asker.once(item, flip + step, offset) for step in (-margin, margin)]
            if INVALID in pair:
                return None
            if pair == [NEGATIVE, POSITIVE]:
                return True
        return False

    def _compare_with_logprobs(self, item: Item, flip: float, margin: float) -> str:
        gap = self.gaps.get(item.id)
        if gap is None:
            return ""
        compared = f"flip at {-flip:.2f}, logprob gap {gap:.2f}"
        if abs(gap + flip) > margin + 0.02 * abs(gap):
            return self.asker.find(SCALE, "bad", f"no: {compared}", "logit_bias acts by the wrong amount")
        return self.asker.find(SCALE, "good", f"yes: {compared}")


async def _opposite(answer: Awaitable[int]) -> int:
    """The answer with the two sides swapped."""
    return {POSITIVE: NEGATIVE, NEGATIVE: POSITIVE}.get(await answer, INVALID)
