"""What a watch may spend in a day, and has spent so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from blindcal.asking.limits import Limits
from blindcal.errors import InputError
from blindcal.prices import Prices
from blindcal.records import Usage
from blindcal.store.watch_store import WatchStore

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(UTC)


def check_budget(max_cost_per_day: float | None, prices: Prices | None) -> None:
    """Refuse a daily budget that is no amount of money, or without prices."""
    if max_cost_per_day is not None and not (math.isfinite(max_cost_per_day) and max_cost_per_day > 0):
        raise InputError(f"max_cost_per_day: must be a number of dollars above 0, got {max_cost_per_day!r}")
    if max_cost_per_day is not None and prices is None:
        raise InputError(
            "{max_cost_per_day} limits nothing if it is not known what a query costs",
            remedy="give {prices} too",
            options={"max_cost_per_day": max_cost_per_day, "prices": ...},
        )


@dataclass(frozen=True)
class DayBudget:
    """The budget of a day, in UTC; ``max_cost_per_day`` is ``None`` if there is none.

    A day ends when the clock shows a later date than ever before: one that goes back gives no money twice.
    What was under way when a day ended counts for both days.
    """

    store: WatchStore
    prices: Prices | None
    max_cost_per_day: float | None
    clock: Clock

    def date(self) -> str:
        """The date that the clock shows (ISO 8601)."""
        return self.clock().astimezone(UTC).date().isoformat()

    def day(self) -> str:
        """The day that counts now."""
        return self._noted()[0]

    def limits(self, limits: Limits) -> Limits:
        """The limits of the queries to ask now, with what is left of the day's money."""
        _, before, _ = self._noted()
        if self.max_cost_per_day is None or self.prices is None:
            return limits
        most = self.prices.cost(before) + self.max_cost_per_day
        return replace(limits, max_cost=most if limits.max_cost is None else min(most, limits.max_cost))

    def spent_today(self) -> float | None:
        """What the day's queries have cost, if the prices are known."""
        _, before, used = self._noted()
        return None if self.prices is None else self.prices.cost(used) - self.prices.cost(before)

    def _noted(self) -> tuple[str, Usage, Usage]:
        """The latest day so far, what had been used before it, and what is used by now."""
        date, used, noted = self.date(), self.store.usage(), self.store.note("day")
        if noted is None or noted["day"] < date:
            noted = {"day": date, "before": msgspec.to_builtins(used) if noted is None else noted["used"]}
        self.store.set_note("day", {**noted, "used": msgspec.to_builtins(used)})
        return noted["day"], msgspec.convert(noted["before"], Usage), used
