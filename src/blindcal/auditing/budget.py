"""Spending a given sum where it helps most: a pilot tells what a query costs, and so how many there can be.

What is decided is noted in the run before it is acted on, so that a run taken up again asks the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec

from blindcal import design
from blindcal.auditing.job import Limits, RunOutcome
from blindcal.auditing.prepare import ABOUT
from blindcal.auditing.token_estimate import TokenEstimator
from blindcal.errors import ConfigError
from blindcal.estimate.latent import latent
from blindcal.planning.forecast import forecast
from blindcal.planning.shapes import Shape
from blindcal.prices import CHARACTERS_A_TOKEN, Prices, total_cost
from blindcal.records import AnswerTable, IntArray, Round, Usage
from blindcal.results.figures import Estimation
from blindcal.results.result import Estimate, NextDollar
from blindcal.settings import Settings
from blindcal.store.run_store import Store

LEAST = 40  # queries, below which nothing is worth asking
MOST = 4.0  # queries an item, beyond which what is left is the labels' own noise
_CAREFUL = 0.98  # share of the money that is planned with: the rest of the items may be a bit longer
_CLEARLY = 1.5
_WORTHWHILE = 0.02  # queries an item, below which the rest of the money stays
_NOTE, _SHARE = "budget", "budget_items"


def check(max_cost: float, prices: Prices, characters: float) -> None:
    """Refuse a budget that cannot even pay for the probe, before anything is spent.

    ``characters`` are those of a mean question. Tokens are guessed by them, so only what is clearly too
    little is refused.
    """
    probe = prices.cost(Usage(ABOUT, ABOUT, round(characters / CHARACTERS_A_TOKEN * ABOUT), ABOUT))
    if probe > _CLEARLY * max_cost:
        raise ConfigError(
            f"--max-cost {max_cost:g} does not even pay for the probe: its about {ABOUT} queries cost about "
            f"${probe:.2g}, and the least audit ${probe * (ABOUT + LEAST) / ABOUT:.2g}; nothing was asked"
        )


@dataclass(frozen=True, slots=True)
class BudgetDecision:
    """What was decided: how many items the pilot asks, and after it how many queries the money pays for."""

    pilot: int
    total: int | None = None
    max_cost: float | None = None

    def mean(self, n: int) -> float:
        """Mean queries an item; of a run that ended in its pilot, the pilot's."""
        return (self.total or self.pilot) / n


def kept(limits: Limits, store: Store) -> Limits:
    """Limits with the sum that was decided on, if none is given now: nothing more is spent then."""
    noted = store.note(_NOTE) or store.note(_SHARE)
    return limits if noted is None or limits.max_cost else replace(limits, max_cost=noted["max_cost"])


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the items a sum was found to pay for."""

    items: int
    max_cost: float


def shares(settings: Settings, limits: Limits, store: Store) -> bool:
    """Whether the money decides how many items are asked: by methods that ask each of them as often.

    So it is where a sum is given and no number of items, and where it was so before. Without a probe nothing
    is known of what a query costs: there a sum only ends the run.
    """
    if settings.method == "latent" or settings.reads == "stated" or settings.subset is not None:
        return False
    return store.note(_SHARE) is not None or (limits.max_cost is not None and not store.rounds())


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run of ``n`` items may spend and has spent.

    ``characters`` are those of a mean question, ``size`` the bytes of all prompts of the probe.
    """

    store: Store
    prices: Prices | None
    batch: bool
    max_cost: float | None
    probed: Usage
    n: int
    characters: float
    size: int = 0

    def items(self, each: float) -> int:
        """How many items can be asked ``each`` times, what was asked included; decided once for a sum."""
        noted = self.store.note(_SHARE)
        before = None if noted is None else msgspec.convert(noted, Share)
        if before is not None and (self.max_cost is None or self.max_cost <= before.max_cost):
            return before.items
        queries = self.store.usage().queries + self._affordable(self._money)
        found = min(self.n, int(queries / each))
        if found < min(self.n, LEAST):
            raise ConfigError(
                f"--max-cost {self._money:g} pays for {queries} queries after the probe, or {found} items, "
                f"and an audit takes {min(self.n, LEAST)} at the least: raise it, and the same goes on"
            )
        found = max(found, 0 if before is None else before.items)
        self.store.set_note(_SHARE, msgspec.to_builtins(Share(found, self._money)))
        return found

    def decided(self) -> BudgetDecision:
        """What was decided before; else the pilot, a quarter of what is asked or can be paid for."""
        noted = self.store.note(_NOTE)
        if noted is not None:
            return msgspec.convert(noted, BudgetDecision)
        queries = self._affordable(self._money)
        if queries < min(self.n, LEAST):
            raise ConfigError(
                f"--max-cost {self._money:g} pays for {queries} queries after the probe, and an audit takes "
                f"{min(self.n, LEAST)} at the least: raise it, and the same command goes on"
            )
        first = min(self.n, queries)
        return self._note(
            BudgetDecision(round(design.PILOT * first) if first >= design.LEAST_PILOT else first)
        )

    def decide(self) -> None:
        """Decide how much is asked in all, if it is not decided, or there is more money now."""
        before = self.decided()
        if before.total is not None and (self.max_cost is None or self.max_cost <= (before.max_cost or 0)):
            return
        asked = self.store.usage().queries
        total = min(asked + self._affordable(self._money), round(MOST * self.n))
        self._note(BudgetDecision(before.pilot, max(total, before.total or 0, before.pilot), self._money))

    def top_up(self) -> bool:
        """Decide on more, if all that was decided is asked and cost less than was thought."""
        before, asked = self.decided(), self.store.usage().queries
        if self.batch or self.max_cost is None or before.total is None or asked < before.total:
            return False
        total = min(asked + self._affordable(self.max_cost), round(MOST * self.n))
        if total < before.total + max(1, _WORTHWHILE * self.n):
            return False
        self._note(BudgetDecision(before.pilot, total, self.max_cost))
        return True

    @property
    def _money(self) -> float:
        if self.max_cost is None or self.prices is None:
            raise ConfigError("a budget decides how much this run asks: give --max-cost, and prices, again")
        return self.max_cost

    def _affordable(self, money: float) -> int:
        """So many more queries as the rest of the money pays for, by what they cost so far."""
        assert self.prices is not None
        asked = self.store.usage()
        known = asked
        if not asked.prompt_tokens:  # some endpoints do not say how many they billed
            lengths = TokenEstimator(0, self.size, self.probed.prompt_tokens)
            out = max(1, round(self.probed.completion_tokens / max(1, self.probed.queries)))
            known = Usage(1, 1, round(lengths.expected(self.characters)), out)
        each = (self.prices.batched if self.batch else self.prices).cost(known) / known.queries
        left = money - total_cost(self.prices, self.probed, asked, self.batch)
        return max(0, int(_CAREFUL * left / each)) if each > 0 else round(MOST * self.n)

    def _note(self, decided: BudgetDecision) -> BudgetDecision:
        self.store.set_note(_NOTE, msgspec.to_builtins(decided))
        return decided


@dataclass(frozen=True)
class Pilot:
    """The first round of a design, and no more."""

    whole: design.Design

    def next_round(self, answered: AnswerTable) -> Round | None:
        """The first round."""
        return None if len(answered) else self.whole.next_round(answered)


async def pilot(
    purse: Budget, whole: design.Design, ask: Callable[[design.Design, int], Awaitable[RunOutcome]]
) -> RunOutcome | None:
    """Let a pilot decide the rest, if it is not decided; returns its outcome if it ended early.

    Batches take hours, so for them the probe stands for the pilot.
    """
    if purse.decided().total is None and not purse.batch:
        outcome = await ask(Pilot(whole), purse.decided().pilot)
        if outcome.stopped is not None:
            return outcome
    purse.decide()
    return None


def next_dollar(
    ece: Estimate, how: Estimation, labels: IntArray, n: int, outcome: RunOutcome, prices: Prices
) -> NextDollar | None:
    """What one more dollar would buy of ``n`` items: the ratio of what is promised with it and without.

    Promised for a model as the audit found it. New items come first, then further queries.
    """
    answered, each = outcome.answered, prices.cost(outcome.usage) / max(1, outcome.usage.queries)
    if ece.low is None or ece.high is None or each <= 0:
        return None
    fit = latent(
        labels[answered.items],
        answered.shifts,
        answered.answers,
        answered.temperatures,
        answered.items,
        jitter=how.jitter,
    )
    shape, asked = Shape("as found", fit.population), fit.items
    items = min(n, asked + int(1 / each))
    total = min(len(answered) + int(1 / each), round(MOST * items))
    if total <= len(answered):
        return None

    def expected(items: int, total: int) -> float:
        queries = max(1.0, total / items)
        found = forecast(shape, "latent", items, queries, bins=how.bins, level=how.level, tested=False)
        assert found.half_width is not None
        return found.half_width

    narrower = min(1.0, expected(items, total) / expected(asked, len(answered)))
    return NextDollar(total - len(answered), (ece.high - ece.low) / 2 * narrower)
