"""How much two fits differ, and how sure that is: paired where they rest on the same items.

Items that both fits saw are drawn together: a resample that holds an item twice holds it twice for both. What
hard items or a lucky draw of labels do to both fits then cancels in the difference, as it does in the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import functionals as of
from blindcal.estimate.checks import fraction, whole
from blindcal.estimate.latent_fit import LatentFit
from blindcal.estimate.resampling import incidence, of_units, resampled_tables
from blindcal.records import Estimate, FloatArray, IntArray

_DRAWS = 300  # joint refits at most: they only tell how far the two errors go together


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity in two fits, and the second's minus the first's.

    ``correlation`` is that of the two estimates' errors: near 0 pairing gains nothing, near 1 it gains all.
    """

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
    """The second fit's quantities minus the first's.

    Parameters
    ----------
    first, second : LatentFit
    units : pair of integer arrays, optional
        The unit (an item, or a group of them) that each item of each fit belongs to, in the fits' order of
        items; equal numbers are the same unit. Without it the fits are independent.
    bins : int
        Of the ECE.
    level : float
    seed : int
        Of the joint refits.

    Notes
    -----
    Each fit's own interval [l, u] around its estimate is combined with the correlation r of the joint
    refits (Zou and Donner's MOVER, 2008): the lower end of second - first lies
    ``sqrt(a^2 + b^2 - 2 r a b)`` below it, with a = second - l_second and b = u_first - first. So a
    difference inherits what the intervals take care of: the bias of an ECE near zero and what was not seen.
    What a class missing in either fit leaves undefined is left out.
    """
    fraction(level, "level")
    whole(bins, "bins")
    if not (first.resampling.size and second.resampling.size):
        raise InputError("resamples: fits that are compared need at least 2, and one here has none")
    drawn = None if units is None else _jointly(first, second, units, seed)
    found = []
    for name, of_tables in _quantities(bins).items():
        try:
            one, two = (getattr(fit.at(bins=bins, level=level), name) for fit in (first, second))
        except NotIdentifiedError:
            continue
        a, b = float(one), float(two)
        r = 0.0 if drawn is None else _correlation(*(of_tables(tables) for tables in drawn))
        low = b - a - _reach(b - two.low, one.high - a, r)
        high = b - a + _reach(two.high - b, a - one.low, r)
        found.append(Difference(name, one, two, Estimate(b - a, low, high, level), r))
    return tuple(found)


def _quantities(bins: int) -> dict[str, Callable[[FloatArray], FloatArray]]:
    """Each quantity that is compared, as a function of joint tables."""
    return {
        "ece": lambda tables: of.ece(tables, bins),
        "accuracy": of.accuracy,
        "auroc": of.auroc,
        "brier": of.brier,
        "log_loss": of.log_loss,
    }


def _jointly(
    first: LatentFit, second: LatentFit, units: tuple[IntArray, IntArray], seed: int
) -> tuple[FloatArray, FloatArray]:
    """Tables of both fits, refitted to the same resampled units."""
    count = 1 + int(max(one.max() for one in units))
    size = min(_DRAWS, first.resampling.size, second.resampling.size)

    def tables(turn: int, fit: LatentFit) -> FloatArray:
        resample = of_units(incidence(units[turn], count, fit.patterns))
        rng, stream = np.random.default_rng([seed, 12, turn]), np.random.default_rng([seed, 11])
        # units are drawn by a stream of their own: the same for both fits, whatever the chunks it is read in
        return resampled_tables(fit.patterns, fit.ensemble, size, rng, lambda some, _: resample(some, stream))

    return tables(0, first), tables(1, second)


def _correlation(a: FloatArray, b: FloatArray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


def _reach(a: float, b: float, r: float) -> float:
    a, b = max(a, 0.0), max(b, 0.0)  # a sample's estimate may lie just outside the population's interval
    return float(np.sqrt(max(a**2 + b**2 - 2 * r * a * b, 0.0)))
