"""Does ``logit_bias`` do what METHOD 2 says? Services clamp, round, scale or ignore it.

Forcing several items both ways shows whether it acts. Queries repeated around the flips of two items, alone
and concurrently, measure jitter; queries far from them catch stray answers. With larger and smaller common
biases C, flips move if the bias is clamped, rounded or penalised. Draws off the flips show how temperature,
its truncation and the scale of the bias act.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from blindcal.errors import FatalError
from blindcal.probing.client import ProbeClient
from blindcal.probing.draw_checks import DrawChecks
from blindcal.probing.findings import LEAST_SHIFT, SCALE, FindingOutcome
from blindcal.probing.response_curve import (
    CurvePosterior,
    FlipFit,
    Query,
    ask_until_settled,
    bisect,
    fit,
    together,
)
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item

LADDER = (-1.2, -0.5, -0.2, -0.08, 0.08, 0.2, 0.5, 1.2)  # distances from a flip, to measure jitter
FAR = (-25.0, -6.0, 6.0, 25.0)  # distances from a flip, to check that there is only one
OFF = ((0.7, 1.0), (1.5, 1.0), (3.1, 1.0), (1.5, 2.0), (4.0, 2.0), (1.5, 0.0), (3.1, 0.0))
"""Distances from a flip and temperatures at which answers show how temperature and bias act."""
RAREST_STRAY = 0.0002
MOST_DRAWS = 280  # off the flip
IRRESISTIBLE = 20.0  # shift that overrides any model; confident answers may withstand less
MOST_JITTER = 1.0  # more than half the noise of a draw at T = 1: thresholds are little better than draws
MOST_OUTSIDE = 0.2
NARROW = 0.2  # largest distance at which two flips count as the same
PRECISION = 0.2  # with which a clamp is located
SMALLER = (0.24, 0.4, 0.6)  # common biases, as shares of the usual one, at which flips must be the same
_MOST_FLIPS_LOST = 6  # one in this many flips may seem to hold by chance if the bias is rounded


@dataclass(frozen=True, slots=True)
class Forced:
    """The items that were forced both ways, and counts of those that did not move or moved the wrong way."""

    moved: list[Item]
    unmoved: int
    reversed: int
    most_moved: bool


Biases: TypeAlias = tuple[float | None, float | None]
"""Those of the positive and of the negative side; ``None`` leaves a side unbiased."""


class BiasChecks:
    """The checks of ``logit_bias`` on a few items. Each adds findings and returns what is wrong, if anything.

    ``offset`` is the audit's common bias C and ``limit`` the largest bias that the service documents. After
    `check`, ``max_shift`` is the largest usable shift, ``clamp`` where the bias is clamped, and the jitters
    are ``None`` if not measured. ``hopeless`` means that temperature without a bias cannot help either.
    ``gaps`` are the log-odds of the answer tokens by item, where logprobs show them. ``unchecked`` is why the
    dearest checks, of concurrency and of draws, are left out.
    """

    def __init__(
        self,
        client: ProbeClient,
        draws: DrawChecks,
        items: list[Item],
        offset: float,
        limit: float,
        unchecked: str = "",
    ) -> None:
        self.client, self.draws, self.items, self.unchecked = client, draws, items, unchecked
        self.find = client.find
        self.offset, self.limit, self.room = offset, limit, limit - offset
        self.acts = self.hopeless = False
        self.max_shift = 0.0
        self.clamp: float | None = None
        self.jitter: float | None = None
        self.crowd_jitter: float | None = None
        self.scale: tuple[float, float] | None = None
        self.forced = self.strays = 0  # answers far from the flips, and those that contradict the bias
        self.gaps: dict[str, float] = {}
        self.flips = FlipFit({}, 0.0, 0.0, 0.0)
        self._known: tuple[list[tuple[int, int]], str] | None = None

    async def check(self) -> str:
        trouble = await self._force() or await self._measure()
        outside = self.client.outside / max(1, self.client.compared)
        inside = f"{1 - outside:.0%} of {self.client.compared}"
        if self.acts and outside > MOST_OUTSIDE:
            self.hopeless = True
            trouble = (
                f"{outside:.0%} of the answers are neither target: change the prompt or the answer words"
            )
            return self.find("answers inside the targets", "bad", inside, trouble)
        if not trouble:
            self.find("answers inside the targets", "caution" if outside else "good", inside)
        return trouble

    async def agrees_with_logprobs(self) -> str:
        """Check that flips are where logprobs say; a bias that does not act contradicts nothing."""
        if await self._force():
            return ""
        for item in [item for item in self.items if item.id in self.gaps][:2]:
            flip = await self._flip(item)
            if flip is not None and (trouble := self._compare_with_logprobs(item, flip, NARROW)):
                return trouble
        return ""

    # Whether it acts at all

    async def _force(self) -> str:
        """Force the items both ways, once for each choice of pairs."""
        pairs = [self.client.pair(item.id) for item in self.items]
        if self._known is None or self._known[0] != pairs:
            trouble = await self._forced_trouble()
            self._known = [self.client.pair(item.id) for item in self.items], trouble
        return self._known[1]

    async def _forced_trouble(self) -> str:
        try:
            await self.client.biased_by(self.items[0], self.limit, self.offset)
        except FatalError as error:
            return self.find("logit_bias accepted", "bad", f"no: {error}", "logit_bias is not accepted")
        self.find("logit_bias accepted", "good", "yes")
        forced = await self._force_both((self.limit, self.offset), (self.offset - self.room, self.offset))
        astray = forced.reversed + (forced.unmoved if self.room >= IRRESISTIBLE else 0)
        if forced.most_moved and not astray:
            ways = "from one answer to another" if self.client.targets.answers else "both ways"
            moved = f"{len(forced.moved)} of {len(self.items)} items forced {ways}"
            self.items, self.acts = forced.moved, True
            return self.find("logit_bias acts", "good", moved)
        return await self._diagnose(unreliable=forced.most_moved)

    async def _force_both(self, up: Biases, down: Biases) -> Forced:
        ups, downs = await together(self._forced(up, POSITIVE), self._forced(down, NEGATIVE))
        answers = list(zip(ups, downs, strict=True))
        moved = [item for item, pair in zip(self.items, answers, strict=True) if pair == (POSITIVE, NEGATIVE)]
        unmoved = sum(pair in ((POSITIVE, POSITIVE), (NEGATIVE, NEGATIVE)) for pair in answers)
        return Forced(moved, unmoved, answers.count((NEGATIVE, POSITIVE)), 2 * len(moved) >= len(answers))

    async def _forced(self, biases: Biases, expected: int) -> list[int]:
        """A few wrong answers may be strays, so they are asked again."""
        answers = await together(*(self.client.biased_by(item, *biases) for item in self.items))
        wrong = [k for k, answer in enumerate(answers) if answer not in (expected, INVALID)]
        if len(wrong) <= max(1, len(self.items) // 3):
            for k in wrong:
                again = await together(*(self.client.biased_by(self.items[k], *biases) for _ in range(4)))
                if again.count(expected) >= 3:
                    answers[k] = expected
                    self.strays += 1
        self.forced += len(answers)
        return answers

    async def _diagnose(self, *, unreliable: bool) -> str:
        """Find out why the bias does not act as it should, by raising or lowering one side alone."""
        question, most = "logit_bias acts", self.limit
        raised, again = await together(*(self._force_both((most, None), (None, most)) for _ in range(2)))
        if raised.most_moved and not raised.reversed and raised.moved == again.moved:
            self.clamp = await self._strength(raised.moved[0], None)
            unreliable = self.clamp is not None and self.clamp > self.offset + IRRESISTIBLE
            if not unreliable:
                where = "somewhere" if self.clamp is None else f"at about {self.clamp:.1f}"
                answer = f"clamped {where}: raised alone, an answer can be forced"
                return self.find(question, "bad", answer, self._clamped())
        else:
            lowered = await self._force_both((-most, None), (None, -most))
            if len(lowered.moved) == len(self.items):
                trouble = "logit_bias acts with its sign inverted: report it to the provider"
                return self.find(question, "bad", "with the wrong sign: what is lowered is answered", trouble)
        if unreliable:
            self.clamp, self.hopeless = None, True
            answer = "only at times: some forced answers follow it, others do not"
            return self.find(question, "bad", answer, "answers do not follow logit_bias reliably")
        trouble = "logit_bias is accepted but ignored"
        return self.find(question, "bad", "no: forced answers do not follow it", trouble)

    def _clamped(self) -> str:
        if self.clamp is None:
            return "logit_bias is clamped too low to be used"
        room = f"which leaves thresholds only |b| <= {self.clamp / 2:.1f}"
        return f"logit_bias is clamped at about {self.clamp:.1f}, {room}"

    async def _strength(self, item: Item, flip: float | None) -> float | None:
        """Measure what the largest bias really adds by balancing it with a smaller one on the other side."""
        ask, most = self.client.biased_by, self.limit

        async def one_sided(lead: float) -> int:
            return await ask(item, lead if lead > 0 else None, -lead if lead < 0 else None)

        async def against_most(bias: float) -> int:
            if flip is None or flip < 0:  # the positive side leads by -flip, so it balances with less
                return await ask(item, bias, most)
            return {POSITIVE: NEGATIVE, NEGATIVE: POSITIVE}.get(await ask(item, most, bias), INVALID)

        if flip is None:
            flip = await bisect(one_sided, -most, most, PRECISION)
        balance = None if flip is None else await bisect(against_most, 0.0, most, PRECISION)
        return None if flip is None or balance is None else balance + abs(flip)

    # Flips, and what surrounds them

    async def _measure(self) -> str:
        items = self.items[:2]
        if None in await together(*map(self._flip, items)):
            answer = "no flip could be found: the answers are neither target"
            return self.find("one flip", "bad", answer, "answers do not follow the shift")
        await self._repeat(items)
        flip = self.flips.shifts[items[0].id]
        return (
            self._check_sharpness()
            or await self._follow(items)
            or await self._check_smaller_offsets(items)
            or await self._check_range(items)
            or await self._check_fractions(items)
            or self._compare_with_logprobs(items[0], flip, self.flips.margin)
            or await self._draw(items)
        )

    async def _flip(self, item: Item) -> float | None:
        """Bisect for the flip of an item, and again if a stray answer misled the bisection."""
        for _ in range(3):
            flip = await bisect(lambda b: self.client.at(item, b, self.offset), -self.room, self.room)
            if flip is None or await self._crosses(item, flip, LADDER[-1], self.offset):
                break
        return flip

    async def _repeat(self, items: list[Item]) -> None:
        seen = self.client.observations
        count, self.flips = len(seen), fit(seen)
        for step in LADDER:
            await self._near(items[0], step)
        self.flips = alone = fit(seen)
        if alone.jitter:  # the ladder may be too narrow to measure it, and the bisections were not alone
            wider = 5 if alone.jitter > LADDER[-3] else 1
            for step in LADDER:
                await self._near(items[0], wider * step)
            self.flips, alone = fit(seen), fit(seen[count:])
        count = len(seen)
        steps = [(items[0], step) for step in FAR]
        if not self.unchecked:
            steps += [(item, step) for item in items for step in (*LADDER, *FAR)]
        await together(*(self._near(*step) for step in steps))
        crowd = fit(seen[count:], {**self.flips.shifts, **alone.shifts})
        self.jitter, self.crowd_jitter = alone.jitter, crowd.jitter
        self.flips = fit(seen)
        self._report_jitter("repeatable alone", alone)
        if self.unchecked:
            self.crowd_jitter = None
            self.find("repeatable under concurrency", "unknown", self.unchecked)
            return
        crowding = "" if self.jitter else "; ask with less concurrency, or one request at a time"
        limit = replace(crowd, most=self.flips.most) if crowd.jitter == 0 else crowd
        self._report_jitter("repeatable under concurrency", limit, crowding)

    async def _near(self, item: Item, step: float) -> int:
        shift = min(max(self.flips.shifts[item.id] + step, -self.room), self.room)
        return await self.client.at(item, shift, self.offset)

    def _report_jitter(self, question: str, flips: FlipFit, cure: str = "") -> None:
        if flips.jitter == 0:
            self.find(question, "good", f"yes: jitter below {flips.most:.2g} in log-odds")
            return
        limits = f"{flips.least:.2g} to {flips.most:.2g}"
        answer = f"jitter of about {flips.jitter:.2g} ({limits}) in log-odds{cure}"
        self.find(question, "caution" if flips.jitter <= MOST_JITTER else "bad", answer)

    def _check_sharpness(self) -> str:
        crowd = self.crowd_jitter or 0.0
        alone = max(self.flips.jitter, self.jitter or 0.0)
        if max(alone, crowd / 3) <= MOST_JITTER:
            return ""
        self.hopeless = True
        jitter = max(alone, crowd)
        answer = f"none that is sharper than {jitter:.2g} in log-odds"
        trouble = f"answers at T = 0 change from query to query (by about {jitter:.2g} in log-odds)"
        return self.find("one flip", "bad", answer, trouble)

    async def _follow(self, items: list[Item]) -> str:
        by_id, flips, seen = {item.id: item for item in items}, self.flips, self.client.observations
        strays = [stray for stray in seen if flips.astray(stray)]
        for stray in strays[:3]:
            item, shift = by_id[stray.query.item], stray.query.shift
            again = await together(*(self.client.at(item, shift, self.offset) for _ in range(2)))
            if again == [stray.answer] * 2:
                answer = f"no: the answer turns back at shift {shift:+.1f}"
                return self.find("one flip", "bad", answer, "the answer is not monotone in the shift")
        if strays or self.strays:  # ask more, to see how common they are
            await together(*(self._near(item, step) for item in items for step in FAR * 4))
        places = ", ".join(f"{shift:+.2f}" for shift in flips.shifts.values())
        self.find("one flip", "good", f"yes: at shift {places}")
        far = [answered for answered in seen if flips.far(answered.query)]
        self.forced += len(far)
        self.strays += sum(map(flips.astray, far))
        question = "answers follow the bias"
        if not self.strays:
            return self.find(question, "good", f"yes: all of {self.forced} far from the flip")
        contradict = f"{self.strays} of {self.forced} far from the flip contradict it"
        if self.strays == 1:
            return self.find(question, "caution", f"no: {contradict}; more may be wrong during the audit")
        self.hopeless = True
        return self.find(question, "bad", f"no: {contradict}", f"answers are unreliable ({contradict})")

    # Whether the flips stay where they are with other common biases

    async def _check_smaller_offsets(self, items: list[Item]) -> str:
        """A penalty after the bias multiplies both, so flips move with C; a clamp moves them at large C."""
        question, margin = "no penalty after the bias", max(NARROW, self.flips.margin)
        for share in SMALLER:
            less = math.floor((1 - share) * self.offset)  # whole, as the bias may be rounded
            lower = self.offset - less
            shifts = self.flips.shifts
            stays = await together(
                *(self._holds(item, shifts[item.id], margin, lower, counted=False) for item in items)
            )
            if set(stays) == {None}:
                continue  # with so small a bias, other words win
            where = f"at C = {self.offset - less:g}"
            if False not in stays:
                return self.find(question, "good", f"none: the flips are the same {where}")
            trouble = "the bias is scaled after it is added, as by a repetition penalty: turn the penalty off"
            return self.find(question, "bad", f"no: the flips are elsewhere {where}", trouble)
        return self.find(question, "unknown", "with a smaller C the answers are neither target")

    async def _check_range(self, items: list[Item]) -> str:
        margin, places = self.flips.margin, [(item, self.flips.shifts[item.id]) for item in items]

        async def holds(item: Item, shift: float) -> bool:
            highest_offset = self.limit - max(0, math.ceil(shift + margin))
            return bool(await self._holds(item, shift, margin, highest_offset))

        held = await together(*(holds(*place) for place in places))
        for (item, shift), whole in zip(places, held, strict=True):
            if not whole:
                strength = await self._strength(item, shift)
                if strength is None or strength < self.limit - 1 - margin:
                    return self._report_clamp(strength)
        self.max_shift = self.room
        return self.find("range", "good", f"to {self.limit:g} unclamped: |b| <= {self.max_shift:g}")

    def _report_clamp(self, strength: float | None) -> str:
        self.clamp = strength
        self.max_shift = 0.0 if strength is None else max(0.0, strength - PRECISION - self.offset)
        if self.max_shift < LEAST_SHIFT:
            return self.find("range", "bad", self._clamped(), self._clamped())
        return self.find("range", "caution", f"clamped at about {strength:.0f}: |b| <= {self.max_shift:.0f}")

    async def _check_fractions(self, items: list[Item]) -> str:
        """With C half a unit lower, rounding moves every flip by that much, jitter only some."""
        question, lower = "fractions honoured", self.offset - 0.5
        shifts = self.flips.shifts
        tried = (self._holds(item, shifts[item.id], NARROW, lower) for item in items)
        holds = [bool(each) for each in await together(*tried)]
        if all(holds):
            return self.find(question, "good", f"yes: flips agree to {NARROW:g} at three values of C")

        async def flip_holds(item: Item) -> bool:
            flip = await self._flip(item)
            return flip is not None and bool(await self._holds(item, flip, NARROW, lower))

        # more items distinguish rounding from jitter
        holds += await together(*map(flip_holds, self.items[len(items) :]))
        if sum(holds) > len(holds) / _MOST_FLIPS_LOST:
            return self.find(question, "unknown", "jitter hides it")
        trouble = "logit_bias is rounded, so thresholds fall where they were not put"
        return self.find(question, "bad", "no: with C half a unit lower the flips are elsewhere", trouble)

    async def _holds(
        self, item: Item, flip: float, margin: float, offset: float, *, counted: bool = True
    ) -> bool | None:
        """Whether one of three attempts finds the flip in the same place with another C.

        If not ``counted``, C may let other words through, and ``None`` means that they came.
        """
        for _ in range(3):
            crosses = await self._crosses(item, flip, margin, offset, counted=counted)
            if crosses or (crosses is None and not counted):
                return crosses
        return False

    async def _crosses(
        self, item: Item, flip: float, margin: float, offset: float, *, counted: bool = True
    ) -> bool | None:
        ask = self.client.at if counted else self.client.once
        pair = await together(*(ask(item, flip + step, offset) for step in (-margin, margin)))
        return None if INVALID in pair else pair == [NEGATIVE, POSITIVE]

    def _compare_with_logprobs(self, item: Item, flip: float, margin: float) -> str:
        gap = self.gaps.get(item.id)
        if gap is None:
            return ""
        compared = f"flip at {-flip:.2f}, logprob gap {gap:.2f}"
        if abs(gap + flip) > margin + 0.02 * abs(gap):
            return self.find(SCALE, "bad", f"no: {compared}", "logit_bias acts by the wrong amount")
        return self.find(SCALE, "good", f"yes: {compared}")

    # Draws off the flips

    async def _draw(self, items: list[Item]) -> str:
        if self.unchecked:
            self.find("temperature honoured", "unknown", self.unchecked)
            return self._report_scale(None)
        several = any(len(side) > 1 for side in self.client.targets.by_answer)
        spread = 0.1 + 1.5 * self.flips.jitter + several  # several spellings move the flip of sampled answers
        by_id = {item.id: item for item in items if abs(self.flips.shifts[item.id]) <= self.max_shift}
        places = {name: self.flips.shifts[name] + spread * np.linspace(-1, 1, 11) for name in by_id}
        posterior = CurvePosterior(
            places, np.ones((1, 11)), stray=max(RAREST_STRAY, self.strays / self.forced)
        )
        posterior.add(self.client.observations)
        queries = [
            Query(name, shift, heat)
            for name in by_id
            for distance, heat in OFF
            for shift in (self.flips.shifts[name] - distance, self.flips.shifts[name] + distance)
            if abs(shift) <= self.max_shift
        ]

        async def ask(query: Query) -> int:
            return await self.client.at(by_id[query.item], query.shift, self.offset, query.temperature)

        if not queries:  # the flips are too near the end of the range
            await self.draws.temperature()
            return self._report_scale(None)
        try:
            asked = await ask_until_settled(posterior, queries, ask, most=MOST_DRAWS)
        except FatalError as error:
            self.find("temperature honoured", "caution", f"no: {error}")
            return self._report_scale(None)
        return self._report_heat(posterior, asked) or self._report_scale(posterior)

    def _report_heat(self, posterior: CurvePosterior, asked: int) -> str:
        """Report how temperature acts; only what harms thresholds too is trouble."""
        question, likeliest = "temperature honoured", posterior.likeliest
        if posterior.proved:
            return self.find(question, "good", f"yes: {asked} answers off the flip show it")
        trouble = ""
        outcome: FindingOutcome = "caution" if posterior.refuted else "unknown"
        if posterior.refuted:
            answer = f"no: {likeliest.fault}"
            if likeliest.cause == "fixed" or likeliest.width > MOST_JITTER:
                trouble = f"temperature is not honoured ({likeliest.fault})"
        else:
            answer = f"{asked} answers off the flip could not show it"
            if posterior.may_be_fixed:
                trouble = "answers at T = 0 change from query to query, as if drawn at a higher temperature"
        self.hopeless |= bool(trouble)
        return self.find(question, "bad" if trouble else outcome, answer, trouble)

    def _report_scale(self, posterior: CurvePosterior | None) -> str:
        if SCALE in self.client.findings:
            return ""  # logprobs have shown it
        if posterior is None or (posterior.refuted and posterior.likeliest.cause != "scaled"):
            answer = f"unverified: {self.unchecked or 'neither draws nor logprobs show its scale'}"
            return self.find(SCALE, "unknown", answer)
        self.scale = posterior.scale
        times = f"{self.scale[0]:.2g} to {self.scale[1]:.2g} times what it should be"
        if posterior.refuted:
            self.hopeless = True
            trouble = f"logit_bias, or temperature, acts by the wrong amount ({times})"
            return self.find(SCALE, "bad", f"no: {times}", trouble)
        if self.scale[0] > 0.5 and self.scale[1] < 2:
            return self.find(SCALE, "good", f"yes: {times}, by draws off the flip")
        return self.find(SCALE, "unknown", f"unverified: {times}")
