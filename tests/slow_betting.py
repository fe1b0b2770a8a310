"""The wealth of the bets, computed again in the plainest way: one item after the other, product by product.

Written from METHOD 11, not from the code that it checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

BINS = 60
Number = Fraction | float


def bin_of(t: float) -> int:
    """The bin of a threshold; 1 belongs to the last one."""
    return min(int(Fraction(t) * BINS), BINS - 1)


def chance_of_yes(f: Number, k: int) -> Number:
    """How often an answer is positive at a threshold that is uniform in bin k."""
    return min(max(f * BINS - k, 0), 1)


def in_the_large(curve: Sequence[float], k: int, d: int, y: int) -> float:
    """The curve at f minus the label, which one answer measures; the curve is given at the bins' edges."""
    return curve[0] + d * BINS * (curve[k + 1] - curve[k]) - y


def stakes_of(gains: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Stakes of which the worst observation loses these shares."""
    return [share / -min(gains) for share in shares]


def distorted(p: float, shift: float, slope: float) -> float:
    """A probability whose log-odds are stretched and shifted."""
    odds = math.log(p / (1 - p))
    return 1 / (1 + math.exp(-shift - slope * odds))


def closest_ratio(a: float, b: float, shift: float, slope: float, steps: int) -> list[float]:
    """Ratio of an alternative to the closest calibrated law, for (bin, answer, label) in this order.

    Under the alternative, f has a beta(a, b) distribution and labels are distorted. The closest law is found
    by this number of steps of the usual iteration for mixtures. The ratio is not divided by its highest mean.
    """
    cells = 2 * BINS
    middles = [(i + 0.5) / cells for i in range(cells)]
    outcomes = [(k, d, y) for k in range(BINS) for d in (0, 1) for y in (0, 1)]

    def law(f: float, chance: float) -> list[float]:
        each = []
        for k, d, y in outcomes:
            yes = float(chance_of_yes(f, k))
            each.append((yes if d else 1 - yes) * (chance if y else 1 - chance) / BINS)
        return each

    mass = [f ** (a - 1) * (1 - f) ** (b - 1) for f in middles]
    mass = [one / math.fsum(mass) for one in mass]
    others = [law(f, distorted(f, shift, slope)) for f in middles]
    wanted = np.array(mass) @ np.array(others)
    rows = np.array([law(f, f) for f in middles])
    weights = np.full(cells, 1 / cells)
    for _ in range(steps):
        whose = rows * weights[:, None] / (weights @ rows)  # the E-step: which f an outcome comes from
        weights = whose @ wanted
    return [float(one) for one in wanted / (weights @ rows)]


def starts(places: Sequence[int], spacing: int) -> list[tuple[int, Fraction]]:
    """The starting points up to the last of these places, with their shares: 1/2, then 1/(2 k (k + 1))."""
    evenly = [k * spacing for k in range(1, 21)]
    later = [math.ceil(Fraction(evenly[-1]) * Fraction(11, 10) ** k) for k in range(1, 100)]
    found = [(0, Fraction(1, 2))]
    for k, start in enumerate([*evenly, *later], 1):
        if start > max(places, default=0):
            break
        found.append((start, Fraction(1, 2 * k * (k + 1))))
    return found


def wealth_path(
    factors: Sequence[Sequence[Number]], shares: Sequence[Number], places: Sequence[int], spacing: int = 500
) -> list[float]:
    """The wealth after each observation; ``factors`` are those of each observation for every bet.

    What starts later than an observation's place does not bet on it, and is still what it was.
    """
    begun = starts(places, spacing)
    wealth: list[list[Number]] = [[1 for _ in shares] for _ in begun]
    path = []
    for row, place in zip(factors, places, strict=True):
        for mine, (start, _) in zip(wealth, begun, strict=True):
            if place >= start:
                mine[:] = [have * factor for have, factor in zip(mine, row, strict=True)]
        total: Number = 1
        for mine, (_, share) in zip(wealth, begun, strict=True):
            won = sum(own * have for own, have in zip(shares, mine, strict=True))
            total += (share if isinstance(won, Fraction) else float(share)) * (won - 1)
        path.append(float(total))
    return path
