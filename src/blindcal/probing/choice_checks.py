"""Does a bias on every one of several answers do what METHOD 8 says? Services drop, limit or refuse entries.

On each item, its greedy answer and the runner-up are compared as two answers are (`BiasChecks`): jitter,
clamping, rounding, penalties and scale show there. What is left are biases on many answers at once:

- Each answer is forced, with a bias on all of them.
- The margins of one item's answers are found by bisection. They predict the answer to every further query
  exactly: it is the one whose logit and bias have the largest sum. Gumbel queries at several shifts must
  follow these predictions, and with them the curve ``exp(-exp(-(s + b)))``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from blindcal.errors import FatalError
from blindcal.probing.bias_checks import IRRESISTIBLE, BiasChecks
from blindcal.probing.client import ProbeClient
from blindcal.probing.findings import FindingOutcome
from blindcal.probing.flip_search import bisect
from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray, Item
from blindcal.text import listed, printable

FORCED = 2  # items on which each answer is forced
MOST_RIVALS = 4  # answers whose margins are found; the others are kept out of the way
CHANCES = (0.2, 0.5, 0.8)  # of the item's own answer, at the shifts of the Gumbel queries
REPEATS = 8  # Gumbel queries at each shift, and as many in which all answers have the same chance
WIDTH = 0.1  # of the interval in which a margin is located
INSIST = 3  # times to ask for one of two answers
NOT_BY_CHANCE = 4.0  # standard deviations between the curve and what was seen
EXPLAINED = 0.9  # least share of the answers that what a service does to biases must explain
_EVERY, _GUMBEL = "a bias on every answer", "Gumbel queries"


@dataclass(frozen=True, slots=True)
class GumbelQuery:
    """Biases on the answers of an item, and the answer that they must lead to.

    ``clear`` says that no other answer is near it. ``chance`` is that of the item's own answer, if the query
    is one of those that show the response curve, at a ``shift``.
    """

    biases: Mapping[int, float]
    predicted: int
    clear: bool
    chance: float | None = None
    shift: float = math.nan


class ChoiceChecks:
    """The checks of ``logit_bias`` for more than two answers, on top of those for two; each adds findings.

    ``plain`` has the greedy answer of each item, as far as it is known.
    """

    def __init__(self, asker: ProbeClient, bias: BiasChecks, plain: Mapping[str, int]) -> None:
        self.asker, self.bias, self.plain = asker, bias, plain
        self.strays = 0  # wrong answers that do not come again
        self.words = [printable(word.strip(), 20) for word in asker.targets.words]

    async def check(self) -> str:
        """Check everything that thresholds need; returns what is wrong, if anything."""
        await self._choose_pairs()
        return await self.bias.check() or await self._force_each() or await self._follow()

    # Which two answers are compared

    async def _choose_pairs(self) -> None:
        """Compare each item's greedy answer with the runner-up, as far as logprobs have not shown these."""
        ask, offset = self.asker.among, self.bias.offset
        for item in self.bias.items:
            if item.id in self.asker.pairs:
                continue
            answers = range(item.choices)
            first, second = self.plain.get(item.id, INVALID), INVALID
            try:
                if first not in answers:
                    first = await ask(item, dict.fromkeys(answers, offset))
                if first in answers:
                    lowered = {first: offset - self.bias.reach}
                    second = await ask(item, dict.fromkeys(answers, offset) | lowered)
            except FatalError:
                pass  # the checks of the bias and of its entries explain it
            first = first if first in answers else 0
            second = second if second in answers and second != first else (first + 1) % item.choices
            self.asker.pairs[item.id] = second, first

    # Each answer

    async def _force_each(self) -> str:
        """Force each answer on a few items, with a bias on all of them; returns what is wrong."""
        queries = list(self._forced())
        try:
            answers = await asyncio.gather(*(self._raised(item, number) for item, number in queries))
            doubtful = [
                (item, number, answer)
                for (item, number), answer in zip(queries, answers, strict=True)
                if answer != number
            ]
            wrong = [one for one in doubtful if await self._raised(*one[:2]) != one[1]]
        except FatalError as error:
            return await self._refused(error)
        if wrong:
            return await self._explain(*wrong[0][:2])
        self.strays += sum(answer != INVALID for _, _, answer in doubtful)
        untried = sorted(set(range(len(self.words))) - {number for _, number in queries})
        if untried:
            named = listed([self.words[number] for number in untried])
            return self.asker.find(_EVERY, "caution", f"yes, but not tried: {named}")
        count = len(self.words)
        return self.asker.find(_EVERY, "good", f"yes: each of {count} answers, {len(queries)} times in all")

    def _forced(self) -> Iterator[tuple[Item, int]]:
        """Items and answers to force that they do not give by themselves; the items take turns."""
        for number in range(len(self.words)):
            items = [
                item
                for item in self.bias.items
                if number < item.choices and number != self.asker.pair(item.id)[1]
            ]
            for turn in range(min(FORCED, len(items))):
                yield items[(number + turn) % len(items)], number

    def _raising(self, item: Item, number: int) -> dict[int, float]:
        """Biases that force one answer of an item, all inside the range that is not clamped."""
        rest = self.bias.offset - IRRESISTIBLE
        return {**dict.fromkeys(range(item.choices), rest), number: self.bias.offset + self.bias.max_shift}

    async def _raised(self, item: Item, number: int) -> int:
        return await self.asker.among(item, self._raising(item, number))

    async def _refused(self, error: FatalError) -> str:
        """Find out how many entries are accepted."""
        item = max(self.bias.items, key=lambda one: one.choices)
        accepted, refused = 2, item.choices
        while refused - accepted > 1:
            middle = (accepted + refused) // 2
            try:
                await self.asker.among(item, dict.fromkeys(range(middle), self.bias.offset))
                accepted = middle
            except FatalError:
                refused = middle
        trouble = f"logit_bias takes {accepted} entries at most, too few for {item.choices} answers"
        return self.asker.find(_EVERY, "bad", f"no: {error}", trouble)

    async def _explain(self, item: Item, number: int) -> str:
        """Find out why an answer cannot be forced together with biases on the others."""
        word, token = self.words[number], self.asker.targets.answers[number][0]
        biases = self._raising(item, number)
        if await self.asker.among(item, {number: biases[number]}) != number:
            answer = f"no: {word!r} cannot be forced, not even alone"
            trouble = f"a bias on the token of {word!r} ({token.id}) does not act: it may be the wrong token"
            return self.asker.find(_EVERY, "bad", answer, trouble)
        acting = 0
        others = [other for other in biases if other != number]
        for place in range(item.choices):
            entries = [*others[:place], number, *others[place:]]
            if await self.asker.among(item, {entry: biases[entry] for entry in entries}) != number:
                break
            acting = place + 1
        which = f"only the first {acting}" if acting else "not all"
        answer = f"no: {which} of {item.choices} entries act"
        return self.asker.find(_EVERY, "bad", answer, f"{which} of {item.choices} entries of logit_bias act")

    # Gumbel queries

    async def _follow(self) -> str:
        """Check that Gumbel queries are answered as one item's margins predict; returns what is wrong."""
        assert self.bias.flips is not None
        shifts = self.bias.flips.shifts  # with larger margins, more of the biases matter
        item = max(self.bias.items[:2], key=lambda one: abs(shifts[one.id]))
        logits = await self._logits(item)
        self.strays += self.asker.third
        if logits is None:
            answer = "the margins of the answers could not be found"
            return self.asker.find(_GUMBEL, "bad", answer, "answers do not follow biases on all of them")
        margin = WIDTH + self.bias.flips.margin
        queries = self._queries(item, logits, margin)
        answers = await asyncio.gather(*(self.asker.among(item, query.biases) for query in queries))
        clear = [
            (query, answer)
            for query, answer in zip(queries, answers, strict=True)
            if query.clear and answer != INVALID
        ]
        doubtful = [(query, answer) for query, answer in clear if answer != query.predicted]
        wrong = [one for one in doubtful if await self.asker.among(item, one[0].biases) == one[1]]
        self.strays += len(doubtful) - len(wrong)
        own = self.asker.pair(item.id)[1]
        if wrong:
            why = _cause(logits, clear, wrong, margin)
            answer = f"no: {len(wrong)} of {len(clear)} answers are not those with the largest sum{why}"
            return self.asker.find(
                _GUMBEL, "bad", answer, f"biases on several answers do not add up as they should{why}"
            )
        return self._report_curve(own, queries, answers, len(clear))

    def _report_curve(
        self, own: int, queries: Sequence[GumbelQuery], answers: Sequence[int], clear: int
    ) -> str:
        """Compare the share of the item's own answer at each shift with the curve of METHOD 8."""
        told, surplus, variance = [], 0.0, 0.0
        for chance in CHANCES:
            here = [(q.shift, a == own) for q, a in zip(queries, answers, strict=True) if q.chance == chance]
            if not here:
                continue
            hits = sum(hit for _, hit in here)
            told.append(
                f"{hits} of {len(here)} at shift {here[0][0]:+.1f} ({len(here) * chance:.1f} expected)"
            )
            surplus += hits - len(here) * chance
            variance += len(here) * chance * (1 - chance)
        seen = f"{self.words[own]!r} {', '.join(told)}"
        if variance and abs(surplus) > NOT_BY_CHANCE * math.sqrt(variance):
            trouble = "the answers to Gumbel queries do not follow their curve"
            return self.asker.find(_GUMBEL, "bad", f"no: {seen}", trouble)
        if not self.strays:
            return self.asker.find(_GUMBEL, "good", f"yes: {clear} of {clear} as predicted; {seen}")
        contradict = "1 answer contradicts" if self.strays == 1 else f"{self.strays} answers contradict"
        outcome: FindingOutcome = "caution" if self.strays == 1 else "bad"
        trouble = "" if self.strays == 1 else f"answers are unreliable ({contradict} the biases at random)"
        return self.asker.find(_GUMBEL, outcome, f"{contradict} the biases, for once only; {seen}", trouble)

    async def _logits(self, item: Item) -> dict[int, float] | None:
        """The logits of an item's answers, that of its own answer being 0; those of a few rivals only."""
        assert self.bias.flips is not None
        runner_up, own = self.asker.pair(item.id)
        found = {own: 0.0, runner_up: -self.bias.flips.shifts[item.id]}
        others = [number for number in range(item.choices) if number not in found]
        for number in others[: MOST_RIVALS - 1]:
            flip = await bisect(
                lambda shift, rival=number: self._duel(item, own, rival, shift),  # type: ignore[misc]
                -self.bias.flips.margin,
                self.bias.max_shift,
                WIDTH,
            )
            if flip is None:
                return None
            if flip < self.bias.max_shift - 1:  # others cannot be raised enough
                found[number] = -flip
        return found

    async def _duel(self, item: Item, own: int, rival: int, shift: float) -> int:
        """Whether a raised rival beats the item's own answer, with all other answers out of the way."""
        offset = self.bias.offset
        rest = dict.fromkeys(range(item.choices), offset - IRRESISTIBLE)
        biases = {**rest, own: offset, rival: offset + shift}
        for _ in range(INSIST):
            answer = await self.asker.among(item, biases)
            if answer in (own, rival):
                break
            self.strays += answer != INVALID
        return {rival: POSITIVE, own: NEGATIVE}.get(answer, INVALID)

    def _queries(self, item: Item, logits: Mapping[int, float], margin: float) -> list[GumbelQuery]:
        """Gumbel queries about the item's own answer at several shifts, and about all answers at once."""
        own = self.asker.pair(item.id)[1]
        rivals = [number for number in logits if number != own]
        log_odds = -float(logsumexp([logits[number] for number in rivals]))
        reach, rng = self.bias.max_shift, np.random.default_rng(len(logits))
        found = []
        for chance in (*CHANCES, None):
            shift = 0.0 if chance is None else -math.log(-math.log(chance)) - log_odds
            if abs(shift) > reach - margin:
                continue
            for _ in range(REPEATS):
                added = {number: float(rng.gumbel()) for number in logits}
                if chance is None:  # so that every answer has the same chance
                    added = {number: more - logits[number] for number, more in added.items()}
                else:
                    added[own] = shift
                if max(map(abs, added.values())) <= reach:
                    found.append(self._query(item, logits, added, margin, chance, shift))
        return found

    def _query(
        self,
        item: Item,
        logits: Mapping[int, float],
        added: Mapping[int, float],
        margin: float,
        chance: float | None,
        shift: float,
    ) -> GumbelQuery:
        offset = self.bias.offset
        rest = dict.fromkeys(range(item.choices), offset - IRRESISTIBLE)
        biases = {**rest, **{number: offset + more for number, more in added.items()}}
        ordered = sorted(logits, key=lambda number: logits[number] + biases[number], reverse=True)
        lead = logits[ordered[0]] + biases[ordered[0]] - logits[ordered[1]] - biases[ordered[1]]
        return GumbelQuery(biases, ordered[0], lead > margin, chance, shift)


def _cause(
    logits: Mapping[int, float],
    clear: Sequence[tuple[GumbelQuery, int]],
    wrong: Sequence[tuple[GumbelQuery, int]],
    margin: float,
) -> str:
    """What a service does to the biases, if that explains the wrong answers and nearly all; else empty."""
    numbers = list(logits)
    known = np.array([logits[number] for number in numbers])
    sent = np.array([[query.biases[number] for number in numbers] for query, _ in clear])
    answers = np.array([answer for _, answer in clear])
    missed = np.array([pair in wrong for pair in clear])
    causes: list[tuple[str, FloatArray]] = []
    for most in range(1, len(numbers)):
        kept = np.argsort(np.argsort(-sent, axis=1), axis=1) < most
        causes.append((f"only the {most} largest of them acted", np.where(kept, sent, 0.0)))
    causes.append(("they were rounded", np.round(sent)))
    for cause, applied in causes:
        sums = known + applied
        given = np.where(np.array(numbers) == answers[:, None], sums, -np.inf).max(axis=1)
        explained = given > sums.max(axis=1) - margin
        if explained[missed].all() and explained.mean() >= EXPLAINED:
            return f", as if {cause}"
    return ""
