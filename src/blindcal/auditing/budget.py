"""Spending a given sum where it helps most: a pilot tells what a query costs, and so how many there can be.

What is decided is noted in the run before it is acted on, so that a run taken up again asks the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from blindcal.auditing.limits import Limits
from blindcal.auditing.token_estimate import TokenEstimator
from blindcal.design import LEAST_PILOT, PILOT
from blindcal.errors import ConfigError
from blindcal.planning.next_dollar import MOST_QUERIES
from blindcal.planning.plan import PROBE_QUERIES
from blindcal.prices import CHARACTERS_A_TOKEN, Prices, total_cost
from blindcal.records import Usage
from blindcal.settings import Settings
from blindcal.store.run_store import Store

LEAST = 40  # queries, below which nothing is worth asking
_CAREFUL = 0.98  # share of the money that is planned with: the rest of the items may be a bit longer
_CLEARLY = 1.5
_WORTHWHILE = 0.02  # queries per item, below which the rest of the money stays
_QUERIES_NOTE, _ITEMS_NOTE = "budget", "budget_items"


def decides_queries(settings: Settings, limits: Limits, store: Store) -> bool:
    """Whether the money decides how many queries are asked: it was so when the run began, or is now."""
    if settings.design.method != "latent" or settings.design.queries is not None:
        return False
    begun = store.note("config")
    return limits.max_cost is not None if begun is None else begun.get("queries") is None


def decides_items(settings: Settings, limits: Limits, store: Store) -> bool:
    """Whether the money decides how many items are asked, by methods that ask each of them as often.

    So it is where a sum is given and no number of items, and where it was so before. Without a probe nothing
    is known of what a query costs: there a sum only ends the run.
    """
    design = settings.design
    if design.method == "latent" or settings.estimator_name == "stated" or design.sample is not None:
        return False
    return store.note(_ITEMS_NOTE) is not None or (limits.max_cost is not None and not store.rounds())


def kept_limits(settings: Settings, limits: Limits, store: Store) -> Limits:
    """Limits with the sum that was decided on, if none is given now: nothing more is spent then."""
    if not (settings.design.queries is None or decides_items(settings, limits, store)):
        return limits
    noted = store.note(_QUERIES_NOTE) or store.note(_ITEMS_NOTE)
    return limits if noted is None or limits.max_cost else replace(limits, max_cost=noted["max_cost"])


def check_affords_probe(max_cost: float, prices: Prices, characters: float) -> None:
    """Refuse a budget that cannot even pay for the probe, before anything is spent.

    ``characters`` are those of a mean question. Tokens are guessed by them, so only what is clearly too
    little is refused.
    """
    tokens = round(characters / CHARACTERS_A_TOKEN * PROBE_QUERIES)
    probe = prices.cost(Usage(PROBE_QUERIES, PROBE_QUERIES, tokens, PROBE_QUERIES))
    if probe > _CLEARLY * max_cost:
        least = probe * (PROBE_QUERIES + LEAST) / PROBE_QUERIES
        raise ConfigError(
            f"{{max_cost}} does not pay for the probe: its about {PROBE_QUERIES} queries cost about "
            f"${probe:.2g}, and the smallest audit ${least:.2g}; nothing was asked",
            options={"max_cost": max_cost},
        )


@dataclass(frozen=True, slots=True)
class BudgetDecision:
    """What was decided: how many items the pilot asks, and after it how many queries the money pays for."""

    pilot: int
    total: int | None = None
    max_cost: float | None = None

    def mean(self, n: int) -> float:
        """Mean queries per item; of a run that ended in its pilot, the pilot's."""
        return (self.total or self.pilot) / n


@dataclass(frozen=True, slots=True)
class AffordableItems:
    """How many of the items a sum was found to pay for."""

    items: int
    max_cost: float


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

    def affordable_items(self, each: float) -> int:
        """How many items can be asked ``each`` times, what was asked included; decided once for a sum."""
        noted = self.store.note(_ITEMS_NOTE)
        before = None if noted is None else msgspec.convert(noted, AffordableItems)
        if before is not None and (self.max_cost is None or self.max_cost <= before.max_cost):
            return before.items
        queries = self.store.usage().queries + self._affordable(self._money)
        found = min(self.n, int(queries / each))
        if found < min(self.n, LEAST):
            raise self._too_little(f"{queries} queries after the probe, or {found} items")
        found = max(found, 0 if before is None else before.items)
        self.store.set_note(_ITEMS_NOTE, msgspec.to_builtins(AffordableItems(found, self._money)))
        return found

    def decided(self) -> BudgetDecision:
        """What was decided before; else the pilot, a quarter of what is asked or can be paid for."""
        noted = self.store.note(_QUERIES_NOTE)
        if noted is not None:
            return msgspec.convert(noted, BudgetDecision)
        queries = self._affordable(self._money)
        if queries < min(self.n, LEAST):
            raise self._too_little(f"{queries} queries after the probe")
        first = min(self.n, queries)
        return self._note(BudgetDecision(round(PILOT * first) if first >= LEAST_PILOT else first))

    def decide(self) -> None:
        """Decide how much is asked in all, if it is not decided, or there is more money now."""
        before = self.decided()
        if before.total is not None and (self.max_cost is None or self.max_cost <= (before.max_cost or 0)):
            return
        asked = self.store.usage().queries
        total = min(asked + self._affordable(self._money), round(MOST_QUERIES * self.n))
        self._note(BudgetDecision(before.pilot, max(total, before.total or 0, before.pilot), self._money))

    def top_up(self) -> bool:
        """Decide on more, if all that was decided is asked and cost less than was thought."""
        before, asked = self.decided(), self.store.usage().queries
        if self.batch or self.max_cost is None or before.total is None or asked < before.total:
            return False
        total = min(asked + self._affordable(self.max_cost), round(MOST_QUERIES * self.n))
        if total < before.total + max(1, _WORTHWHILE * self.n):
            return False
        self._note(BudgetDecision(before.pilot, total, self.max_cost))
        return True

    @property
    def _money(self) -> float:
        if self.max_cost is None or self.prices is None:
            raise ConfigError(
                "a budget decides how much this run asks",
                remedy="give {max_cost} and {prices} again",
                options={"max_cost": ..., "prices": ...},
            )
        return self.max_cost

    def _too_little(self, pays_for: str) -> ConfigError:
        return ConfigError(
            f"{{max_cost}} pays for {pays_for}, and an audit takes at least {min(self.n, LEAST)}",
            remedy="raise it and run the same again; what was asked is kept",
            options={"max_cost": self._money},
        )

    def _affordable(self, money: float) -> int:
        """So many more queries as the rest of the money pays for, by what they cost so far."""
        assert self.prices is not None
        asked = self.store.usage()
        known = asked
        if not asked.prompt_tokens:  # some endpoints do not say how many they billed
            tokens = TokenEstimator(0, self.size, self.probed.prompt_tokens)
            out = max(1, round(self.probed.completion_tokens / max(1, self.probed.queries)))
            known = Usage(1, 1, round(tokens.expected(self.characters)), out)
        each = (self.prices.batched if self.batch else self.prices).cost(known) / known.queries
        left = money - total_cost(self.prices, self.probed, asked, self.batch)
        return max(0, int(_CAREFUL * left / each)) if each > 0 else round(MOST_QUERIES * self.n)

    def _note(self, decided: BudgetDecision) -> BudgetDecision:
        self.store.set_note(_QUERIES_NOTE, msgspec.to_builtins(decided))
        return decided
