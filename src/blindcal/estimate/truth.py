"""The quantities themselves, when the probabilities are known: binned ECE, TCE, bin rules and bounds.

METHOD 1 defines them, METHOD 3 the bin rules and the bounds of the published estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.checks import ArrayLike, labels_array, probabilities, whole
from blindcal.records import Estimate, FloatArray


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class BinnedCalibration:
    """Signed gaps per bin and what they add up to.

    Attributes
    ----------
    edges : array of shape (bins + 1,)
    gaps : array of shape (bins,)
        Sum over the bin's items of (confidence - outcome), divided by the number of all items;
        positive where the model is overconfident in the class it is binned by.
    counts : array of shape (bins,)
        Items in each bin.
    """

    edges: FloatArray
    gaps: FloatArray
    counts: FloatArray

    def __repr__(self) -> str:
        items = int(self.counts.sum())
        return f"BinnedCalibration({items:,} items, {self.gaps.size} bins, ECE {float(self.ece):.4f})"

    @property
    def ece(self) -> Estimate:
        """Expected calibration error, the sum of absolute gaps; known, so that it has no interval."""
        return Estimate(float(np.abs(self.gaps).sum()))


def bin_edges(bins: int) -> FloatArray:
    """Equal-width edges 0 = t_1 < ... < t_{bins+1} = 1."""
    return np.arange(whole(bins, "bins") + 1) / bins


def bin_index(p: FloatArray, bins: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The bin of each probability; an edge belongs to the bin above it, as ``f >= t`` says."""
    return np.searchsorted(bin_edges(bins)[1:-1], p, side="right").astype(np.int64)


def binned_ece(
    labels: ArrayLike, p: ArrayLike, bins: int = 5, *, top_label: bool = False
) -> BinnedCalibration:
    """Binned calibration error of known probabilities: the paper's oracle.

    Parameters
    ----------
    labels : array_like of 0/1, shape (n,)
    p : array_like, shape (n,)
        Probability of the positive class.
    bins : int
        Equal-width bins on [0, 1].
    top_label : bool
        Bin the confidence of the *predicted* class against being right, instead of the positive
        class against the label. Confidence is then at least 1/2, so the lower bins stay empty.

    Examples
    --------
    >>> round(binned_ece([1, 0, 1, 1], [0.9, 0.2, 0.7, 0.95], bins=5).ece.value, 4)
    0.1625
    """
    y = labels_array(labels)
    f = probabilities(p, like=y.size)
    outcome = y.astype(np.float64)
    if top_label:
        predicted = f >= 0.5
        outcome = (predicted == (y == 1)).astype(np.float64)
        f = np.where(predicted, f, 1 - f)
    where = bin_index(f, bins)
    return BinnedCalibration(
        edges=bin_edges(bins),
        gaps=np.bincount(where, f - outcome, minlength=bins) / y.size,
        counts=np.bincount(where, minlength=bins).astype(np.float64),
    )


def tce(
    density: Callable[[float], float], curve: Callable[[float], float], *, points: tuple[float, ...] = ()
) -> float:
    """True calibration error E|E[Y|f] - f| of a population with a known density of f on (0, 1).

    ``points`` are places where the integrand has a kink or a pole, for the quadrature.
    """
    from scipy.integrate import quad  # slow to import, and only this needs it

    edges = (0.0, *sorted(points), 1.0)
    pieces = [
        quad(lambda f: abs(curve(f) - f) * density(f), low, high, limit=200)[0]
        for low, high in pairwise(edges)
    ]
    return float(sum(pieces))


def bins_blind(n: int) -> int:
    """Bins for the blind estimator: round(n^(1/5)), 5 for BoolQ's 3,270 and 9 for MMLU's 56,168."""
    return max(1, int(np.rint(np.power(whole(n, "n"), 0.2))))


def bins_bound(n: int) -> int:
    """Bins that minimise the theorem's own bound: round((2n/3)^(1/5))."""
    return max(1, int(np.rint(np.power(2 * whole(n, "n") / 3, 0.2))))


def bins_oracle(n: int) -> int:
    """Bins for known probabilities: round(n^(1/3))."""
    return max(1, int(np.rint(np.cbrt(whole(n, "n")))))


@dataclass(frozen=True, slots=True)
class BlindBounds:
    """The theorem's bounds on the blind estimator at n items and M bins (METHOD 3)."""

    gap_variance: float
    statistical: float
    trapezoid: float
    binning: float
    variance: float

    @property
    def bias(self) -> float:
        """Sum of the three biases."""
        return self.statistical + self.trapezoid + self.binning

    @property
    def mse(self) -> float:
        """Bound on the mean squared error."""
        return self.bias**2 + self.variance


def blind_bounds(n: int, bins: int, lipschitz: float = 1.0) -> BlindBounds:
    """Every bound of METHOD 3; ``lipschitz`` is the constant L of E[Y|f]."""
    n, bins = whole(n, "n"), whole(bins, "bins")
    if not lipschitz >= 0:
        raise InputError(f"lipschitz: must be at least 0, got {lipschitz!r}")
    return BlindBounds(
        gap_variance=2 * bins / n,
        statistical=float(np.sqrt(2) * bins**1.5 / np.sqrt(n)),
        trapezoid=1 / (2 * bins),
        binning=(1 + lipschitz) / (2 * bins),
        variance=8 * bins**2 / n,
    )
