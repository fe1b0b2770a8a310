"""Differences of two fits: items that they share are resampled together.

So the effects of hard items and of labels cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import checks, grid
from blindcal.estimate.fit import Fit, Quantity
from blindcal.estimate.grid import Cells
from blindcal.records import Estimate, FloatArray, IntArray

_DRAWS = 300  # most joint refits: they only estimate a correlation


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity in two fits, its difference (second minus first), and the correlation of their errors."""

    quantity: str
    first: Estimate
    second: Estimate
    difference: Estimate
    correlation: float


def differences(
    first: Fit,
    second: Fit,
    units: tuple[IntArray, IntArray] | None = None,
    *,
    bins: int = 5,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Difference, ...]:
    """Subtract the first fit's quantities from the second's, with intervals (Zou and Donner's MOVER, 2008).

    ``units`` are the unit (an item or a group) of each item of each fit; without them the fits are
    independent. Quantities that are undefined because a fit lacks a label are left out.
    """
    checks.fraction(level, "level")
    checks.whole(bins, "bins")
    if not (first.resamples and second.resamples):
        raise InputError("resamples: fits that are compared need at least 2, and one here has none")
    drawn = None if units is None else _jointly(first, second, units, seed)
    compared = []
    for name, quantity in _quantities(first, bins).items():
        try:
            before, after = (getattr(fit.at(bins=bins, level=level), name) for fit in (first, second))
        except NotIdentifiedError:
            continue
        a, b = float(before), float(after)
        r = 0.0 if drawn is None else _correlation(*(quantity(*tables) for tables in drawn))
        low = b - a - _distance(b - after.low, before.high - a, r)
        high = b - a + _distance(after.high - b, a - before.low, r)
        compared.append(
            Difference(
                quantity=name,
                first=before,
                second=after,
                difference=Estimate(b - a, low, high, level),
                correlation=r,
            )
        )
    return tuple(compared)


def _quantities(fit: Fit, bins: int) -> dict[str, Quantity]:
    return {
        "ece": lambda tables, cells: grid.ece(tables, bins, cells),
        "accuracy": fit.accuracy_of,
        "auroc": lambda tables, _: grid.auroc(tables),
        "brier": grid.brier,
        "log_loss": grid.log_loss,
    }


def _jointly(
    first: Fit, second: Fit, units: tuple[IntArray, IntArray], seed: int
) -> list[tuple[FloatArray, Cells]]:
    count = 1 + int(max(each.max() for each in units))
    size = min(_DRAWS, first.resamples, second.resamples)
    return [
        (fit.redrawn(mine, count, size, seed, turn), fit.draw_cells)
        for turn, (fit, mine) in enumerate(zip((first, second), units, strict=True))
    ]


def _correlation(a: FloatArray, b: FloatArray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


def _distance(a: float, b: float, r: float) -> float:
    a, b = max(a, 0.0), max(b, 0.0)  # a sample's estimate may lie just outside the population's interval
    return float(np.sqrt(max(a**2 + b**2 - 2 * r * a * b, 0.0)))
