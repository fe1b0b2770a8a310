"""Can this endpoint be audited, and how? About 170 queries find out before thousands are paid for.

An audit relies on ``logit_bias`` and temperature doing what METHOD 2 says, and services differ: some
refuse them, others accept them but ignore, clamp, round or scale them. The probe forces the answers of
several items both ways, which cannot succeed by luck if the bias is ignored; finds the flips of two
items; repeats queries around them, one at a time and concurrently, to measure jitter, and far from them
to catch stray answers; checks the flips with other common biases C, where clamping and rounding show as
disagreement; and draws answers off the flips, where temperature, its truncation and the scale of the
bias show. If the bias is unusable, it tests temperature alone (METHOD 6).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.flip_search import FlipFit, ProbeClient, bisect, fit
from blindcal.endpoints.http_errors import ITEM_STATUSES
from blindcal.endpoints.probe_findings import (
    LEAST_SHIFT,
    QUESTIONS,
    SCALE,
    Finding,
    FindingOutcome,
    Probe,
    ProbeVerdict,
)
from blindcal.endpoints.response_curve import CurveEvidence, Query, ask_all, ask_until_settled
from blindcal.errors import FatalError, InputError
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item, Request, Targets

Biases: TypeAlias = tuple[float | None, float | None]  # on the positive and the negative side

ITEMS = 6  # number of items whose answers are forced both ways
ITEMS_WITHOUT_BIAS = 12  # number of items to draw from if the bias is unusable
LADDER = (-1.2, -0.5, -0.2, -0.08, 0.08, 0.2, 0.5, 1.2)  # distances from a flip, to measure jitter
FAR = (-25.0, -6.0, 6.0, 25.0)  # distances from a flip, to check that there is only one
OFF = ((0.7, 1.0), (1.5, 1.0), (3.1, 1.0), (1.5, 2.0), (4.0, 2.0), (1.5, 0.0), (3.1, 0.0))
"""Distances from a flip and temperatures at which answers show how temperature and bias act."""
HEATS = (0.0, 0.5, 1.0, 2.0)  # temperatures at which answers show the same without a bias
FIRST_DRAWS = 4  # of each item at the highest temperature, if the bias is unusable
MOST_UNBIASED_DRAWS = 96
ANYWHERE = np.sinh(np.linspace(-1, 1, 80) * math.asinh(40))  # candidates for an unknown flip
PRIORS = np.array([np.hypot(1, ANYWHERE) / np.cosh(ANYWHERE / spread) for spread in (1, 2, 4, 8, 16)])
MOST_JITTER_DRAWN = 0.5  # an unbiased answer at T = 0.3 would follow the jitter more than the temperature
RAREST_STRAY = 0.0002
MOST_DRAWS = 280  # off the flip
IRRESISTIBLE = 20.0  # a shift that overrides any model; with less, confident answers may not change
MOST_JITTER = 1.0  # more than half the noise of a draw at T = 1: thresholds tell little more than draws
MOST_OUTSIDE = 0.2
NARROW = 0.2  # largest distance at which two flips count as the same
PRECISION = 0.2  # with which a clamp is located
TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Forced:
    """The items whose answers could be forced both ways; how many did not move or moved the wrong way."""

    moved: list[Item]
    unmoved: int
    reversed: int
    most_moved: bool


async def probe(
    endpoint: Endpoint,
    items: Sequence[Item],
    targets: Targets,
    *,
    offset: float = 50.0,
    limit: float = 100.0,
    seed: int = 0,
    send_seed: bool = False,
) -> Probe:
    """Find out how `endpoint` can be audited, on a few of the audit's own items.

    `offset` is the common bias C that the audit will use and `limit` the largest bias the service
    documents. With `send_seed`, sampled requests get seeds that follow from `seed`. Wrap the endpoint in
    :class:`~blindcal.endpoints.base.Patient` if it may be throttled. A wrong key, model or address raises
    :class:`~blindcal.errors.FatalError` as it would in a run.
    """
    if not items:
        raise InputError("a probe needs at least one item")
    rng = np.random.default_rng(seed)
    chosen = [items[int(k)] for k in rng.permutation(len(items))[:ITEMS_WITHOUT_BIAS]]
    asker = ProbeClient(endpoint, targets, seed if send_seed else None)
    return await _Probing(asker, chosen, targets, offset, limit).run()


class _Probing:
    """A probe in progress; each step adds findings."""

    def __init__(
        self, asker: ProbeClient, items: list[Item], targets: Targets, offset: float, limit: float
    ) -> None:
        self.asker = asker
        self.items, self.all_items = items[:ITEMS], items
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
        self.scale: tuple[float, float] | None = None
        self.forced = self.strays = (
            0  # answers far from the flips, and those of them that contradict the bias
        )
        self.hopeless = False
        self.gap: float | None = None
        self.logprobs = False

    async def run(self) -> Probe:
        if broken := await self._broken():
            return self._conclude("not auditable", broken)
        await self._look_for_logprobs()
        trouble = await self._force() or await self._measure()
        if not trouble or (self.acts and self._outside() > MOST_OUTSIDE):
            return self._usable()
        if self.hopeless:
            return self._conclude("not auditable", trouble)
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
        """Leave out items that are not answered, as content filters refuse some.

        Returns why none is answered, empty if one is. A wrong key or model raises an error here.
        """
        answered: list[Item] = []
        untried, fatal = iter(self.all_items), None
        for item in untried:
            try:
                if await self.asker.reply(Request(item.messages)) is not None:
                    answered.append(item)
            except FatalError as error:
                if error.status not in ITEM_STATUSES:
                    raise
                fatal = error
            if len(answered) == ITEMS or (not answered and self.asker.queries == ITEMS):
                break
        if answered:
            self.items, self.all_items = answered, [*answered, *untried]
            return ""
        if fatal is not None:
            raise fatal
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
            return self._find(question, "bad", answer, self._clamped())
        lowered = await self._force_both((-most, None), (None, -most))
        if len(lowered.moved) == len(self.items):
            trouble = "logit_bias acts with its sign inverted: report it to the provider"
            return self._find(question, "bad", "with the wrong sign: what is lowered is said", trouble)
        if unreliable:
            return self._unreliable(question)
        trouble = "logit_bias is accepted but ignored"
        return self._find(question, "bad", "no: forced answers do not follow it", trouble)

    def _unreliable(self, question: str) -> str:
        self.clamp, self.hopeless = None, True
        answer = "only at times: some forced answers follow it, others do not"
        return self._find(question, "bad", answer, "answers do not follow logit_bias reliably")

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
            return self._find("one flip", "bad", answer, "answers do not follow the shift")
        flips = await self._repeat(items)
        return (
            self._shape(flips)
            or await self._follow(items, flips)
            or await self._range(items, flips)
            or await self._fractions(items, flips)
            or self._compare_with_logprobs(flips.shifts[items[0].id], flips.margin)
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
            self._find(question, "good", f"yes: jitter below {found.most:.2g} in log-odds")
        else:
            outcome: FindingOutcome = "caution" if found.jitter <= MOST_JITTER else "bad"
            limits = f"{found.least:.2g} to {found.most:.2g}"
            self._find(question, outcome, f"jitter of about {found.jitter:.2g} ({limits}) in log-odds{cure}")

    def _shape(self, flips: FlipFit) -> str:
        """Check that the flips are sharp enough for thresholds."""
        alone = max(flips.jitter, self.jitter)
        if max(alone, self.crowd_jitter / 3) > MOST_JITTER:
            jitter = max(alone, self.crowd_jitter)
            answer = f"none that is sharper than {jitter:.2g} in log-odds"
            trouble = f"answers at T = 0 change from query to query (by about {jitter:.2g} in log-odds)"
            self.hopeless = True
            return self._find("one flip", "bad", answer, trouble)
        return ""

    async def _follow(self, items: list[Item], flips: FlipFit) -> str:
        """Check that answers far from a flip follow the bias: all of them, at any distance."""
        by_id = {item.id: item for item in items}
        strays = [reading for reading in self.asker.readings if flips.astray(reading)]
        for stray in strays[:3]:
            again = [await self.asker.at(by_id[stray.item], stray.shift, self.offset) for _ in range(2)]
            if again == [stray.answer] * 2:
                answer = f"no: the answer turns back at shift {stray.shift:+.1f}"
                return self._find("one flip", "bad", answer, "the answer is not monotone in the shift")
        if strays or self.strays:  # ask more, to see how common they are
            steps = FAR * 4
            await asyncio.gather(*(self._near(item, flips, step) for item in items for step in steps))
        places = ", ".join(f"{shift:+.2f}" for shift in flips.shifts.values())
        self._find("one flip", "good", f"yes: at shift {places}")
        far = [reading for reading in self.asker.readings if flips.far(reading)]
        self.forced += len(far)
        self.strays += sum(flips.astray(reading) for reading in far)
        question = "answers follow the bias"
        if not self.strays:
            return self._find(question, "good", f"yes: all of {self.forced} far from the flip")
        answer = f"no: {self.strays} of {self.forced} far from the flip contradict it"
        if self.strays == 1:
            return self._find(question, "caution", f"{answer}; more may be wrong during the audit")
        self.hopeless = True
        return self._find(question, "bad", answer, f"answers are unreliable ({answer[4:]})")

    async def _draw(self, items: list[Item], flips: FlipFit) -> str:
        """Draw answers off the flips, to see how temperature and bias act; returns what is wrong."""
        several = len(self.targets.positive) + len(self.targets.negative) > 2
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
            await self._vary_without_bias()
            return self._report_scale(None)
        try:
            asked = await ask_until_settled(evidence, queries, ask, most=MOST_DRAWS)
        except FatalError as error:
            self._find("temperature honoured", "caution", f"no: {error}")
            return self._report_scale(None)
        return self._report_heat(evidence, asked) or self._report_scale(evidence)

    def _report_heat(self, evidence: CurveEvidence, asked: int) -> str:
        """Report how temperature acts; returns what is wrong for thresholds."""
        question, likeliest = "temperature honoured", evidence.likeliest
        if not evidence.refuted:
            if evidence.proved:
                return self._find(question, "good", f"yes: {asked} answers off the flip show it")
            answer = f"{asked} answers off the flip could not show it"
            if not evidence.may_be_fixed:
                return self._find(question, "unknown", answer)
            self.hopeless = True
            trouble = "answers at T = 0 change from query to query, as if drawn at a higher temperature"
            return self._find(question, "bad", answer, trouble)
        answer = likeliest.fault
        if likeliest.cause == "fixed" or likeliest.width > MOST_JITTER:
            self.hopeless = True
            return self._find(question, "bad", f"no: {answer}", f"temperature is not honoured ({answer})")
        return self._find(question, "caution", f"no: {answer}")

    def _report_scale(self, evidence: CurveEvidence | None) -> str:
        """Report by how much the bias acts; returns what is wrong."""
        if any(finding.question == SCALE for finding in self.findings):
            return ""  # logprobs have shown it
        if evidence is None or (evidence.refuted and evidence.likeliest.cause != "scaled"):
            answer = "unverified: neither draws nor logprobs show its scale"
            return self._find(SCALE, "unknown", answer)
        self.scale = evidence.scale
        times = f"{self.scale[0]:.2g} to {self.scale[1]:.2g} times"
        if evidence.refuted:
            self.hopeless = True
            trouble = f"logit_bias, or temperature, acts by the wrong amount ({times} what it should)"
            return self._find(SCALE, "bad", f"no: {times} what it should be", trouble)
        if self.scale[0] > 0.5 and self.scale[1] < 2:
            return self._find(SCALE, "good", f"yes: {times} what it should be, by draws off the flip")
        return self._find(SCALE, "unknown", f"unverified: {times} what it should be")

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
        for item in self.items[len(items) :]:  # more items distinguish rounding from jitter
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
            if await self._crosses(item, flip, margin, offset):
                return True
        return False

    async def _crosses(self, item: Item, flip: float, margin: float, offset: float) -> bool:
        below = await self.asker.at(item, flip - margin, offset)
        above = await self.asker.at(item, flip + margin, offset)
        return (below, above) == (NEGATIVE, POSITIVE)

    def _compare_with_logprobs(self, flip: float, margin: float) -> str:
        if self.gap is None:
            return ""
        compared = f"flip at {-flip:.2f}, logprob gap {self.gap:.2f}"
        if abs(self.gap + flip) > margin + 0.02 * abs(self.gap):
            return self._find(SCALE, "bad", f"no: {compared}", "logit_bias acts by the wrong amount")
        return self._find(SCALE, "good", f"yes: {compared}")

    async def _vary_without_bias(self) -> str:
        """Check that temperature alone acts as it should; returns what is wrong."""
        question, hottest = "temperature honoured", HEATS[-1]
        self.findings = [finding for finding in self.findings if finding.question != question]
        by_id = {item.id: item for item in self.all_items}
        evidence = CurveEvidence(dict.fromkeys(by_id, ANYWHERE), PRIORS, biased=False)
        answers: list[int] = []

        async def ask(query: Query) -> int:
            request = Request(by_id[query.item].messages, temperature=query.temperature)
            answers.append(await self.asker.answer(request))
            return answers[-1]

        first = [Query(item, 0.0, heat) for item in by_id for heat in (0.0, *[hottest] * FIRST_DRAWS)]
        queries = [Query(item, 0.0, heat) for item in by_id for heat in HEATS]
        try:
            readings = await ask_all(first, ask)
            if answers.count(INVALID) > len(answers) / 2:
                trouble = "most unbiased answers are neither target: the prompt must ask for one of the two"
                return self._find(question, "unknown", "most answers are neither target", trouble)
            if len({(reading.item, reading.answer) for reading in readings}) <= len(by_id):
                draws = FIRST_DRAWS * len(by_id)
                answer = f"no: {draws} draws at T = {hottest:g} all repeat the greedy answer"
                return self._find(question, "bad", answer, "temperature changes no answer")
            evidence.add(readings)
            await ask_until_settled(evidence, queries, ask, most=MOST_UNBIASED_DRAWS)
        except FatalError as error:
            return self._find(question, "bad", f"no: {error}", "temperature is not accepted")
        likeliest = evidence.likeliest
        if evidence.refuted:
            answer = likeliest.fault
            return self._find(question, "bad", f"no: {answer}", f"temperature is not honoured ({answer})")
        if not evidence.proved:
            answer = f"{len(answers)} answers could not show it"
            return self._find(question, "unknown", answer, "that temperature is honoured could not be shown")
        if likeliest.width > MOST_JITTER_DRAWN:
            return self._find(question, "caution", "answers vary with it, but at T = 0 too")
        answer = "yes: answers vary with it; whether rare ones are cut off cannot be seen without logit_bias"
        return self._find(question, "good", answer)

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
            self.scale,
            self._outside(),
            self.logprobs,
            self.asker.queries,
            self.asker.prompt_tokens,
            self.asker.completion_tokens,
            self.asker.broken.remedy if self.asker.broken else "",
            self.asker.broken.options if self.asker.broken else {},
        )


async def _opposite(answer: Awaitable[int]) -> int:
    """The answer with the two sides swapped."""
    return {POSITIVE: NEGATIVE, NEGATIVE: POSITIVE}.get(await answer, INVALID)
