"""Does a bias on every one of several answers do what METHOD 8 says? Services drop, limit or refuse entries.

`BiasChecks` compares each item's greedy answer with the runner-up. What is left are biases on many answers at
once. Each answer is forced with a bias on all of them. Then bisection measures the margins of one item's
answers, which predict every further answer: it has the largest sum of logit and bias. Gumbel queries must
follow these predictions, and the curve ``exp(-exp(-(s + b)))``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from scipy.special import logsumexp

from blindcal.errors import FatalError
from blindcal.probing.bias_checks import IRRESISTIBLE, BiasChecks
from blindcal.probing.client import ProbeClient
from blindcal.probing.findings import FindingOutcome
from blindcal.probing.response_curve import bisect, together
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item
from blindcal.text import listed, printable

FORCED = 2  # items on which each answer is forced
MOST_RIVALS = 4  # answers whose margins are found; the others are kept out of the way
CHANCES = (0.2, 0.5, 0.8)  # of the item's own answer, at the shifts of the Gumbel queries
REPEATS = 8  # Gumbel queries at each shift, and as many in which all answers have the same chance
WIDTH = 0.1  # of the interval in which a margin is located
ATTEMPTS = 3  # to get one of two answers
NOT_BY_CHANCE = 4.0  # standard deviations between the curve and what was seen
_EVERY, _GUMBEL = "a bias on every answer", "Gumbel queries"


@dataclass(frozen=True, slots=True)
class GumbelQuery:
    """Biases on an item's answers and the answer that they must lead to, ``clear`` if no other is close.

    ``chance`` is that of the item's own answer at ``shift``, for queries that show the response curve.
    """

    biases: Mapping[int, float]
    predicted: int
    _: KW_ONLY
    clear: bool
    chance: float | None = None
    shift: float = math.nan


class ChoiceChecks:
    """The checks of ``logit_bias`` for more than two answers; ``plain`` has known greedy answers by item."""

    def __init__(self, client: ProbeClient, bias: BiasChecks, plain: Mapping[str, int]) -> None:
        self.client, self.bias, self.plain = client, bias, plain
        self.find, self.among = client.find, client.among
        self.strays = 0  # wrong answers that do not come again
        self.words = [printable(word.strip(), 20) for word in client.targets.words]

    async def check(self) -> str:
        await self._choose_pairs()
        return await self.bias.check() or await self._force_each() or await self._follow()

    async def _choose_pairs(self) -> None:
        """Choose each item's greedy answer and the runner-up where logprobs have not shown them."""
        offset = self.bias.offset
        for item in self.bias.items:
            if item.id in self.client.pairs:
                continue
            answers = range(item.choices)
            level = dict.fromkeys(answers, offset)
            first, second = self.plain.get(item.id, INVALID), INVALID
            try:
                if first not in answers:
                    first = await self.among(item, level)
                if first in answers:
                    second = await self.among(item, level | {first: offset - self.bias.room})
            except FatalError:
                pass  # the checks of the bias and of its entries explain it
            first = first if first in answers else 0
            second = second if second in answers and second != first else (first + 1) % item.choices
            self.client.pairs[item.id] = second, first

    # Each answer

    async def _force_each(self) -> str:
        queries = list(self._to_force())
        try:
            answers = await together(*(self._raised(*query) for query in queries))
            doubtful = [k for k, answer in enumerate(answers) if answer != queries[k][1]]
            wrong = [queries[k] for k in doubtful if await self._raised(*queries[k]) != queries[k][1]]
        except FatalError as error:
            trouble = "logit_bias does not take an entry for every answer"
            return self.find(_EVERY, "bad", f"no: {error}", trouble)
        if wrong:
            return await self._explain(*wrong[0])
        self.strays += sum(answers[k] != INVALID for k in doubtful)
        untried = sorted(set(range(len(self.words))) - {number for _, number in queries})
        if untried:
            names = listed([self.words[number] for number in untried])
            return self.find(_EVERY, "caution", f"yes, but not tried: {names}")
        return self.find(
            _EVERY, "good", f"yes: each of {len(self.words)} answers, {len(queries)} times in all"
        )

    def _to_force(self) -> Iterator[tuple[Item, int]]:
        """Items and answers to force that they do not give by themselves; the items take turns."""
        for number in range(len(self.words)):
            items = [
                item
                for item in self.bias.items
                if number < item.choices and number != self.client.pair(item.id)[1]
            ]
            for turn in range(min(FORCED, len(items))):
                yield items[(number + turn) % len(items)], number

    def _out_of_the_way(self, item: Item) -> dict[int, float]:
        return dict.fromkeys(range(item.choices), self.bias.offset - IRRESISTIBLE)

    async def _raised(self, item: Item, number: int) -> int:
        raised = {number: self.bias.offset + self.bias.max_shift}
        return await self.among(item, self._out_of_the_way(item) | raised)

    async def _explain(self, item: Item, number: int) -> str:
        word, token = self.words[number], self.client.targets.answers[number][0]
        if await self.among(item, {number: self.bias.offset + self.bias.max_shift}) == number:
            trouble = f"not all of {item.choices} entries of logit_bias act"
            return self.find(_EVERY, "bad", f"no: {word!r} can be forced only alone", trouble)
        answer = f"no: {word!r} cannot be forced, not even alone"
        trouble = f"a bias on the token of {word!r} ({token.id}) does not act: it may be the wrong token"
        return self.find(_EVERY, "bad", answer, trouble)

    # Gumbel queries

    async def _follow(self) -> str:
        shifts = self.bias.flips.shifts  # with larger margins, more of the biases matter
        item = max(self.bias.items[:2], key=lambda item: abs(shifts[item.id]))
        logits = await self._logits(item)
        self.strays += self.client.third
        if logits is None:
            answer = "the margins of the answers could not be found"
            return self.find(_GUMBEL, "bad", answer, "answers do not follow biases on all of them")
        margin = WIDTH + self.bias.flips.margin
        queries = self._queries(item, logits, margin)
        answers = await together(*(self.among(item, query.biases) for query in queries))
        answered = list(zip(queries, answers, strict=True))
        clear = [(query, answer) for query, answer in answered if query.clear and answer != INVALID]
        doubtful = [(query, answer) for query, answer in clear if answer != query.predicted]
        wrong = [pair for pair in doubtful if await self.among(item, pair[0].biases) == pair[1]]
        self.strays += len(doubtful) - len(wrong)
        if wrong:
            answer = f"no: {len(wrong)} of {len(clear)} answers are not those with the largest sum"
            trouble = "biases on several answers do not add up as they should"
            return self.find(_GUMBEL, "bad", answer, trouble)
        return self._report_curve(self.client.pair(item.id)[1], answered, len(clear))

    def _report_curve(self, own: int, answered: Sequence[tuple[GumbelQuery, int]], clear: int) -> str:
        counts, surplus, variance = [], 0.0, 0.0
        for chance in CHANCES:
            at_chance = [(query.shift, answer == own) for query, answer in answered if query.chance == chance]
            if not at_chance:
                continue
            shift, n = at_chance[0][0], len(at_chance)
            hits = sum(hit for _, hit in at_chance)
            counts.append(f"{hits} of {n} at shift {shift:+.1f} ({n * chance:.1f} expected)")
            surplus += hits - n * chance
            variance += n * chance * (1 - chance)
        seen = f"{self.words[own]!r} {', '.join(counts)}"
        if variance and abs(surplus) > NOT_BY_CHANCE * math.sqrt(variance):
            trouble = "the answers to Gumbel queries do not follow their curve"
            return self.find(_GUMBEL, "bad", f"no: {seen}", trouble)
        if not self.strays:
            return self.find(_GUMBEL, "good", f"yes: {clear} of {clear} as predicted; {seen}")
        contradict = "1 answer contradicts" if self.strays == 1 else f"{self.strays} answers contradict"
        outcome: FindingOutcome = "caution" if self.strays == 1 else "bad"
        trouble = "" if self.strays == 1 else f"answers are unreliable ({contradict} the biases at random)"
        return self.find(_GUMBEL, outcome, f"{contradict} the biases, for once only; {seen}", trouble)

    async def _logits(self, item: Item) -> dict[int, float] | None:
        """The logits of an item's answers relative to its own, for a few rivals only."""
        flips, largest = self.bias.flips, self.bias.max_shift
        runner_up, own = self.client.pair(item.id)
        logits = {own: 0.0, runner_up: -flips.shifts[item.id]}
        others = [number for number in range(item.choices) if number not in logits]
        for rival in others[: MOST_RIVALS - 1]:

            async def duel(shift: float, rival: int = rival) -> int:
                return await self._duel(item, own, rival, shift)

            flip = await bisect(duel, -flips.margin, largest, WIDTH)
            if flip is None:
                return None
            if flip < largest - 1:  # others cannot be raised enough
                logits[rival] = -flip
        return logits

    async def _duel(self, item: Item, own: int, rival: int, shift: float) -> int:
        """Whether a raised rival beats the item's own answer, with all others out of the way."""
        offset = self.bias.offset
        biases = {**self._out_of_the_way(item), own: offset, rival: offset + shift}
        for _ in range(ATTEMPTS):
            answer = await self.among(item, biases)
            if answer in (own, rival):
                break
            self.strays += answer != INVALID
        return {rival: POSITIVE, own: NEGATIVE}.get(answer, INVALID)

    def _queries(self, item: Item, logits: Mapping[int, float], margin: float) -> list[GumbelQuery]:
        """Gumbel queries about the item's own answer at several shifts, and about all answers at once."""
        own = self.client.pair(item.id)[1]
        log_odds = -float(logsumexp([logits[number] for number in logits if number != own]))
        largest, rng = self.bias.max_shift, np.random.default_rng(len(logits))
        queries = []
        for chance in (*CHANCES, None):
            shift = 0.0 if chance is None else -math.log(-math.log(chance)) - log_odds
            if abs(shift) > largest - margin:
                continue
            for _ in range(REPEATS):
                added = {number: float(rng.gumbel()) for number in logits}
                if chance is None:  # so that every answer has the same chance
                    added = {number: more - logits[number] for number, more in added.items()}
                else:
                    added[own] = shift
                if max(map(abs, added.values())) > largest:
                    continue
                raised = {number: self.bias.offset + more for number, more in added.items()}
                sums = {number: logits[number] + raised[number] for number in logits}
                first, second = sorted(sums, key=sums.__getitem__, reverse=True)[:2]
                queries.append(
                    GumbelQuery(
                        self._out_of_the_way(item) | raised,
                        first,
                        clear=sums[first] - sums[second] > margin,
                        chance=chance,
                        shift=shift,
                    )
                )
        return queries
