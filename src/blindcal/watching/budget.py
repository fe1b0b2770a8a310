"""The daily budget of a watch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from blindcal.asking.run_context import Limits
from blindcal.errors import InputError
from blindcal.prices import Prices
from blindcal.records import Usage
from blindcal.store.watch_store import WatchStore

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def check_budget(max_cost_per_day: float | None, prices: Prices | None) -> None:
    """Raise `InputError` if a daily budget is not a positive amount, or has no prices."""
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
    """The budget of a day, in UTC; unlimited if ``max_cost_per_day`` is ``None``.

    A day ends when the clock shows a later date than ever before, so setting it back gives no money twice.
    Queries under way when a day ends count for both days.
    """

    store: WatchStore
    prices: Prices | None
    max_cost_per_day: float | None
    clock: Clock

    def date(self) -> str:
        """Date of the clock (ISO 8601)."""
        return self.clock().astimezone(UTC).date().isoformat()

    def day(self) -> str:
        """The day that is charged now, the latest date so far."""
        return self._noted()[0]

    def limits(self, limits: Limits) -> Limits:
        """These limits, lowered to what is left of the day's money."""
        _, before, _ = self._noted()
        if self.max_cost_per_day is None or self.prices is None:
            return limits
        most = self.prices.cost(before) + self.max_cost_per_day
        return replace(limits, max_cost=most if limits.max_cost is None else min(most, limits.max_cost))

    def spent_today(self) -> float | None:
        """Cost of the queries of the day; ``None`` without prices."""
        _, before, used = self._noted()
        return None if self.prices is None else self.prices.cost(used) - self.prices.cost(before)

    def _noted(self) -> tuple[str, Usage, Usage]:
        """The day, the usage before it, and the usage by now."""
        date, used, noted = self.date(), self.store.usage(), self.store.note("day")
        if noted is None or noted["day"] < date:
            noted = {"day": date, "before": msgspec.to_builtins(used) if noted is None else noted["used"]}
        self.store.set_note("day", {**noted, "used": msgspec.to_builtins(used)})
        return noted["day"], msgspec.convert(noted["before"], Usage), used
