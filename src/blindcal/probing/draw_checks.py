"""Do answers vary as they should without a bias? Checks of temperature, repeated answers and ``n``.

Without a bias the log-odds of an item cannot be moved, and only different temperatures tell an honoured
temperature from one that is ignored or fixed (METHOD 6). If an endpoint takes none, answers at its own
setting must differ between requests (METHOD 9): otherwise it is greedy, or a cache answers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import betaln

from blindcal.endpoints.query_format import CONSTRAINTS, ConstraintName, FreeTextQuestion, TokenQuestion
from blindcal.errors import FatalError, ReplyError
from blindcal.probing.client import ProbeClient
from blindcal.probing.response_curve import (
    CurvePosterior,
    Observation,
    Query,
    ask_all,
    ask_until_settled,
    together,
)
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item, Reply, Request, Targets

HEATS = (0.0, 0.5, 1.0, 2.0)  # temperatures at which answers show how temperature acts
FIRST_DRAWS = 4  # of each item at the highest temperature
MOST_DRAWN = 96
ANYWHERE = np.sinh(np.linspace(-1, 1, 80) * math.asinh(40))  # candidates for an unknown flip
PRIORS = np.array([np.hypot(1, ANYWHERE) / np.cosh(ANYWHERE / spread) for spread in (1, 2, 4, 8, 16)])
MOST_JITTER_DRAWN = 0.5  # an unbiased answer at T = 0.3 would follow the jitter more than the temperature
REPEATS = 4  # of each item at the endpoint's own setting, and once more if all agree
AT_ONCE = 4  # answers asked for in one request
MOST_AT_ONCE = 8  # requests for several answers
IDENTICAL = 0.01  # probability of what came back, if the answers to one request were independent


async def constraint_acts(
    name: ConstraintName,
    ask: Callable[[Request], Awaitable[Reply]],
    items: Sequence[Item],
    targets: Targets,
) -> bool:
    """Test a constraint with at most two queries per item; refused items are skipped.

    Each item is asked with one answer allowed, then another; a constraint that is ignored fails to produce
    one of them. Sampled answers may agree by luck, so pass several items.
    """
    constraint, question = CONSTRAINTS[name], TokenQuestion(targets)
    turns = itertools.cycle(reversed([*enumerate(targets.by_answer)]))  # of two answers, the positive first
    seen = set()
    for item in items:
        for number, tokens in itertools.islice(turns, 2):
            fields = constraint.fields(tokens)
            try:
                reply = await ask(Request(item.messages, max_tokens=constraint.max_tokens, fields=fields))
            except FatalError:
                return False
            except ReplyError:
                continue
            if question.parse(reply).answer != number:
                return False
            seen.add(number)
    return len(seen) > 1


class DrawChecks:
    """Checks of drawn answers; each adds findings and returns what is wrong. `repeated` sets ``at_once``."""

    def __init__(
        self, client: ProbeClient, items: list[Item], question: TokenQuestion | FreeTextQuestion
    ) -> None:
        self.client, self.items, self.question = client, items, question
        self.find = client.find
        self.at_once = 1

    async def temperature(self) -> str:
        asked, hottest = "temperature honoured", HEATS[-1]
        by_id = {item.id: item for item in self.items}
        pairs: dict[str, tuple[int, int]] = {}
        answers: list[tuple[float, int]] = []

        async def draw(query: Query) -> int:
            answers.append((query.temperature, await self._draw(by_id[query.item], query.temperature)))
            return answers[-1][1]

        async def compare(query: Query) -> int:
            up, down = pairs[query.item]
            return {up: POSITIVE, down: NEGATIVE}.get(await draw(query), INVALID)

        try:
            first = await ask_all(
                [Query(item, 0.0, heat) for item in by_id for heat in (0.0, *[hottest] * FIRST_DRAWS)], draw
            )
            moderate = [answer for heat, answer in answers if heat <= 1]
            if moderate.count(INVALID) > len(moderate) / 2:
                return self._illegible(asked)
            if len({(seen.query.item, seen.answer) for seen in first}) <= len(by_id):
                draws = FIRST_DRAWS * len(by_id)
                answer = f"no: {draws} draws at T = {hottest:g} all repeat the greedy answer"
                return self.find(asked, "bad", answer, "temperature changes no answer")
            pairs, first = self._pairs(first)
            posterior = CurvePosterior(dict.fromkeys(pairs, ANYWHERE), PRIORS, biased=False)
            posterior.add(first)
            queries = [Query(item, 0.0, heat) for item in pairs for heat in HEATS]
            await ask_until_settled(posterior, queries, compare, most=MOST_DRAWN)
        except FatalError as error:
            return self.find(asked, "bad", f"no: {error}", "temperature is not accepted")
        likeliest = posterior.likeliest
        if posterior.refuted:
            trouble = f"temperature is not honoured ({likeliest.fault})"
            return self.find(asked, "bad", f"no: {likeliest.fault}", trouble)
        if not posterior.proved:
            answer = f"{len(answers)} answers could not show it"
            return self.find(asked, "unknown", answer, "that temperature is honoured could not be shown")
        if likeliest.width > MOST_JITTER_DRAWN:
            return self.find(asked, "caution", "answers vary with it, but at T = 0 too")
        answer = "yes: answers vary with it; whether rare ones are cut off cannot be seen without logit_bias"
        return self.find(asked, "good", answer)

    def _pairs(self, first: Sequence[Observation]) -> tuple[dict[str, tuple[int, int]], list[Observation]]:
        """Compare the greedy answer with the most frequent other of the first draws.

        Given that one of two answers is drawn, its chance is a sigmoid, as if there were only two. The first
        draws favour the answer that they chose, so they are not counted.
        """
        if not self.client.targets.answers:
            return {item.id: (POSITIVE, NEGATIVE) for item in self.items}, list(first)
        pairs, kept = {}, []
        for item in self.items:
            own = [seen for seen in first if seen.query.item == item.id]
            greedy = next((seen for seen in own if seen.query.temperature == 0), None)
            if greedy is None:
                continue
            others = Counter(seen.answer for seen in own if seen.answer != greedy.answer)
            if others:
                pairs[item.id] = (greedy.answer, others.most_common(1)[0][0])
                kept.append(replace(greedy, answer=POSITIVE))
        return pairs, kept

    async def repeated(self) -> str:
        """Check that answers at the endpoint's own setting differ between requests."""
        asked = "repeated answers differ"
        seen: dict[str, list[int]] = {item.id: [] for item in self.items}
        for _ in range(2):
            await together(*(self._repeat(item, seen[item.id]) for item in self.items))
            drawn = [answer for answers in seen.values() for answer in answers]
            if drawn.count(INVALID) > len(drawn) / 2:
                return self._illegible(asked)
            if varied := [item for item in self.items if _varies(seen[item.id])]:
                ways = "in several ways" if self.client.targets.answers else "both ways"
                self.find(asked, "good", f"yes: {len(varied)} of {len(seen)} items were answered {ways}")
                await self._several_at_once(varied, seen)
                return ""
        answer = f"no: {len(drawn)} answers to {len(seen)} items, and each item's are all the same"
        trouble = "its answers do not vary: it answers greedily, out of a cache, or is sure of everything"
        return self.find(asked, "bad", answer, trouble)

    async def _several_at_once(self, varied: Sequence[Item], seen: dict[str, list[int]]) -> None:
        asked, chance, several = "several answers at once", 1.0, AT_ONCE
        for number in range(MOST_AT_ONCE):
            item = varied[number % len(varied)]
            try:
                reply = await self.client.reply(self._request(item, None, several))
            except FatalError as error:
                self.find(asked, "caution", f"no: {error}")
                return
            if reply is None:
                continue
            answers = [self.question.parse(each).answer for each in (reply, *reply.further)]
            if len(answers) < several:
                came = "one answer" if len(answers) == 1 else f"{len(answers)}"
                self.find(asked, "caution", f"no: {came} came where {several} were asked for")
                return
            if _varies(answers):
                self.at_once = several
                self.find(asked, "good", f"yes: {several} in one request, independent of each other")
                return
            chance *= _all_same(seen[item.id], answers, len(self.client.targets.by_answer))
            if chance < IDENTICAL:
                self.find(asked, "caution", "no: the answers to one request are all the same")
                return
        self.find(asked, "caution", "not shown")

    def _illegible(self, asked: str) -> str:
        last = self.client.illegible
        if last is None or last.reason not in ("cut short", "empty"):
            trouble = "most unbiased answers are no answer word: the prompt must ask for one of them"
            return self.find(asked, "unknown", "most answers are no answer word", trouble)
        error = self.question.complaint(self.client.queries, last.text, last.reason)
        self.client.broken = ReplyError(error.message, remedy=error.remedy, options=error.options)
        return self.find("answers at all", "bad", error.message, error.message)

    async def _repeat(self, item: Item, seen: list[int]) -> None:
        seen += await together(*(self._draw(item, None) for _ in range(REPEATS)))

    async def _draw(self, item: Item, temperature: float | None) -> int:
        return await self.client.answer(self._request(item, temperature), self.question)

    def _request(self, item: Item, temperature: float | None, n: int = 1) -> Request:
        asked = self.question.request(item.messages, 0.0, 1.0 if temperature is None else temperature)
        return replace(asked, temperature=temperature, n=n)


def _varies(answers: Sequence[int]) -> bool:
    return len(set(answers) - {INVALID}) > 1


def _all_same(seen: Sequence[int], answers: Sequence[int], count: int) -> float:
    """Probability that independent answers all agree, given those ``seen`` before and a flat prior."""
    valid = [answer for answer in seen if answer != INVALID]
    n = sum(answer != INVALID for answer in answers)
    total = 0.0
    for answer in range(count):
        a, b = 1 + valid.count(answer), count - 1 + len(valid) - valid.count(answer)
        total += math.exp(betaln(a + n, b) - betaln(a, b))
    return total
