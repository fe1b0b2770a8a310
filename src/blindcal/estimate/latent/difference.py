"""Differences of two fits: items that they share are resampled together.

So the effects of hard items and of labels cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import checks, grid
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.intervals import incidence, of_units, resampled_tables
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
    first: LatentFit,
    second: LatentFit,
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
    if not (first.resampling.size and second.resampling.size):
        raise InputError("resamples: fits that are compared need at least 2, and one here has none")
    drawn = None if units is None else _jointly(first, second, units, seed)
    compared = []
    for name, of_tables in _quantities(first, bins).items():
        try:
            before, after = (getattr(fit.at(bins=bins, level=level), name) for fit in (first, second))
        except NotIdentifiedError:
            continue
        a, b = float(before), float(after)
        r = 0.0 if drawn is None else _correlation(*(of_tables(tables) for tables in drawn))
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


def _quantities(fit: LatentFit, bins: int) -> dict[str, Callable[[FloatArray], FloatArray]]:
    return {
        "ece": lambda tables: grid.ece(tables, bins),
        "accuracy": fit.accuracy_of,
        "auroc": grid.auroc,
        "brier": grid.brier,
        "log_loss": grid.log_loss,
    }


def _jointly(
    first: LatentFit, second: LatentFit, units: tuple[IntArray, IntArray], seed: int
) -> tuple[FloatArray, FloatArray]:
    count = 1 + int(max(each.max() for each in units))
    size = min(_DRAWS, first.resampling.size, second.resampling.size)

    def tables(turn: int, fit: LatentFit) -> FloatArray:
        resample = of_units(incidence(units[turn], count, fit.patterns))
        rng, stream = np.random.default_rng([seed, 12, turn]), np.random.default_rng([seed, 11])
        # units have their own random stream: it is the same for both fits and does not depend on chunks
        refitted = resampled_tables(
            fit.patterns, fit.ensemble, size, rng, lambda some, _: resample(some, stream)
        )
        return fit.patterns.axis.to_log_odds(refitted)

    return tables(0, first), tables(1, second)


def _correlation(a: FloatArray, b: FloatArray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


def _distance(a: float, b: float, r: float) -> float:
    a, b = max(a, 0.0), max(b, 0.0)  # a sample's estimate may lie just outside the population's interval
    return float(np.sqrt(max(a**2 + b**2 - 2 * r * a * b, 0.0)))
