"""Spend a budget where it helps most: a pilot shows what a query costs, and so how many it pays for.

Decisions are noted in the run before they take effect, so that a continued run asks the same queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from blindcal.auditing.controls import control_every, controls_usage, stored_controls
from blindcal.auditing.limits import Limits
from blindcal.auditing.prepare import Prepared
from blindcal.auditing.session import ITEMS_NOTE, QUERIES_NOTE, Session
from blindcal.auditing.token_estimate import TokenEstimator
from blindcal.design import LEAST_PILOT, PILOT
from blindcal.errors import ConfigError
from blindcal.planning.next_dollar import MOST_QUERIES
from blindcal.planning.plan import probe_queries
from blindcal.prices import CHARACTERS_A_TOKEN, Prices
from blindcal.records import Usage

LEAST = 40  # queries or items, below which an audit is not worthwhile
_CAREFUL = 0.98  # share of the money to plan with: the remaining items may be a bit longer
_CLEARLY = 1.5
_WORTHWHILE = 0.02  # queries per item, below which the rest of the money is not spent


def check_cost_known(limits: Limits | None, prices: Prices | None) -> None:
    """Refuse a limit on the cost if it is not known what a query costs."""
    if limits is not None and limits.max_cost is not None and prices is None:
        raise ConfigError(
            "{max_cost} limits nothing if it is not known what a query costs",
            remedy="give {prices} too",
            options={"max_cost": limits.max_cost, "prices": ...},
        )


def check_affords_probe(session: Session) -> None:
    """Refuse a budget that clearly cannot pay even for the probe, before anything is spent.

    Tokens are estimated from the mean number of characters per item.
    """
    max_cost, prices, items = session.limits.max_cost, session.prices, session.items
    if max_cost is None or prices is None or session.store.note("ready") is not None:
        return
    count = probe_queries(several=items.choices is not None)
    tokens = round(items.characters / len(items) / CHARACTERS_A_TOKEN * count)
    probe = prices.cost(Usage(count, count, tokens, count))
    if probe > _CLEARLY * max_cost:
        least = probe * (count + LEAST) / count
        raise ConfigError(
            f"{{max_cost}} does not pay for the probe: its about {count} queries cost about "
            f"${probe:.2g}, and the smallest audit ${least:.2g}; nothing was asked",
            options={"max_cost": max_cost},
        )


@dataclass(frozen=True, slots=True)
class BudgetDecision:
    """The number of items in the pilot and, decided after it, the total number of queries."""

    pilot: int
    total: int | None = None
    max_cost: float | None = None


@dataclass(frozen=True, slots=True)
class AffordableItems:
    """How many items a budget pays for."""

    items: int = 0
    max_cost: float = 0.0


class Budget:
    """What a run with ``n`` items may spend and has spent."""

    def __init__(self, session: Session, prepared: Prepared, n: int) -> None:
        self._store, self._prices, self._max_cost = session.store, session.prices, session.limits.max_cost
        self._characters = session.items.characters / len(session.items)
        self._control_every = control_every(session)
        self._prepared, self._n = prepared, n
        # with more than two answers, the plain ones alone say nothing about the confidence
        self._plain = n if session.items.answers else 0

    @property
    def _least(self) -> int:
        """The fewest queries that are worthwhile."""
        return self._plain + min(self._n, LEAST)

    def mean(self) -> float:
        """Mean queries per item; those of the pilot if the run ended in it."""
        decided = self.decided()
        return max(decided.total or decided.pilot, self._plain + 1 if self._plain else 0) / self._n

    def affordable_items(self, each: float) -> int:
        """How many items, including those already asked, can be asked ``each`` times; fixed per budget."""
        before = msgspec.convert(self._store.note(ITEMS_NOTE) or {}, AffordableItems)
        if before.items and (self._max_cost is None or self._max_cost <= before.max_cost):
            return before.items
        queries = self._store.usage().queries + self._affordable(self._money)
        found = min(self._n, int(queries / each))
        if found < min(self._n, LEAST):
            raise self._too_little(
                f"{queries} queries after the probe, or {found} items", min(self._n, LEAST)
            )
        found = max(found, before.items)
        self._store.set_note(ITEMS_NOTE, msgspec.to_builtins(AffordableItems(found, self._money)))
        return found

    def decided(self) -> BudgetDecision:
        """What was decided before; if nothing was, decide the pilot.

        The pilot is a quarter of the items, or of the affordable queries if these are fewer. Below
        `LEAST_PILOT` it is all of them.
        """
        noted = self._store.note(QUERIES_NOTE)
        if noted is not None:
            return msgspec.convert(noted, BudgetDecision)
        queries = self._affordable(self._money)
        if queries < self._least:
            raise self._too_little(f"{queries} queries after the probe", self._least)
        first = min(self._n, queries)
        return self._note(BudgetDecision(round(PILOT * first) if first >= LEAST_PILOT else first))

    def decide(self) -> None:
        """Decide the total number of queries, if it is still open or the budget has grown."""
        before = self.decided()
        if before.total is not None and (self._max_cost is None or self._max_cost <= (before.max_cost or 0)):
            return
        asked = self._store.usage().queries
        total = min(asked + self._affordable(self._money), round(MOST_QUERIES * self._n))
        self._note(BudgetDecision(before.pilot, max(total, before.total or 0, before.pilot), self._money))

    def top_up(self) -> bool:
        """Decide on more queries if all decided ones were asked and cost less than expected."""
        before, asked = self.decided(), self._store.usage().queries
        if self._max_cost is None or before.total is None or asked < before.total:
            return False
        total = min(asked + self._affordable(self._max_cost), round(MOST_QUERIES * self._n))
        if total < before.total + max(1, _WORTHWHILE * self._n):
            return False
        self._note(BudgetDecision(before.pilot, total, self._max_cost))
        return True

    @property
    def _money(self) -> float:
        if self._max_cost is None or self._prices is None:
            raise ConfigError(
                "a budget decides how much this run asks",
                remedy="give {max_cost} and {prices} again",
                options={"max_cost": ..., "prices": ...},
            )
        return self._max_cost

    def _too_little(self, pays_for: str, least: int) -> ConfigError:
        fewer = ", or ask fewer items with {sample}" if self._plain else ""
        return ConfigError(
            f"{{max_cost}} pays for {pays_for}, and an audit takes at least {least}",
            remedy=f"raise it and run the same again; what was asked is kept{fewer}",
            options={"max_cost": self._money, **({"sample": ...} if fewer else {})},
        )

    def _affordable(self, money: float) -> int:
        """How many more queries the rest of the money pays for, at their cost so far."""
        assert self._prices is not None
        asked, probed = self._store.usage(), self._prepared.spent
        known = asked
        if not (asked.queries and asked.prompt_tokens):  # none asked yet, or no tokens are reported
            tokens = TokenEstimator(0, self._prepared.size, probed.prompt_tokens)
            out = max(1, round(probed.completion_tokens / max(1, probed.queries)))
            known = Usage(1, 1, round(tokens.expected(self._characters)), out)
        each = self._prices.cost(known) / known.queries
        controls = controls_usage(stored_controls(self._store))
        left = money - self._prices.cost(probed + asked + controls)
        if self._control_every is not None:
            each *= 1 + 1 / self._control_every
        return max(0, int(_CAREFUL * left / each)) if each > 0 else round(MOST_QUERIES * self._n)

    def _note(self, decided: BudgetDecision) -> BudgetDecision:
        self._store.set_note(QUERIES_NOTE, msgspec.to_builtins(decided))
        return decided
