"""Every number of the report that has an interval: its true value in a population, and its interval in a fit.

Numbers have the same names in both. A threshold decides "positive iff f >= t", and the plain answer is
positive iff f >= 1/2.
"""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blindcal.estimate.fit import Fit
from blindcal.estimate.truth import bin_edges, bin_index
from blindcal.records import Estimate, FloatArray
from populations import COVERAGES, Population, Recorded, true_values

BoolArray: TypeAlias = npt.NDArray[np.bool_]

BINS = 5
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
COSTS = ((5.0, 1.0), (1.0, 5.0))
COSTS_AT = (0.5, 0.7, 0.9)
CURVE_AT = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of the confidence
LEAST = 0.01  # of the items must lie on a side of a threshold, or what happens there does not count
MANY = 100_000  # draws behind the true values of a population that is not recorded

SCALARS = {
    "ECE": "ece",
    "TCE": "tce",
    "accuracy": "accuracy",
    "AUROC": "auroc",
    "Brier score": "brier",
    "log loss": "log_loss",
    "overconfidence": "overconfidence",
    "leaning": "leaning",
    "mean confidence": "mean_confidence",
    "smooth ECE": "smece",
    "ATB": "atb",
    "miscalibration": "miscalibration",
    "discrimination": "discrimination",
    "uncertainty": "uncertainty",
    "AURC": "aurc",
    "coverage at 5% error": "coverage",
}
_GAPS = [f"gap from {low:g} to {low + 1 / BINS:.1g}" for low in bin_edges(BINS)[:-1]]
_CURVE = [f"curve, {share:.0%} quantile" for share in CURVE_AT]
_RATES = {
    "precision": "precision",
    "recall": "recall",
    "positive rate": "positive_rate",
    "negative precision": "negative_precision",
}
_DECISIONS = [f"{name} at {t:g}" for name, t in product(_RATES, THRESHOLDS)]
_COSTS = [f"cost {fp:g} to {fn:g} at {t:g}" for (fp, fn), t in product(COSTS, COSTS_AT)]
_BENEFITS = [f"net benefit at {t:g}" for t in COSTS_AT]
_ERRORS = [f"error at {c:g}" for c in COVERAGES]  # of the surest items
NAMES = (*SCALARS, *_GAPS, *_CURVE, *_DECISIONS, *_COSTS, *_BENEFITS, *_ERRORS)
#: Those that docs/figures.md explains.
FIGURES = (*list(SCALARS)[-7:], *_BENEFITS, *_ERRORS)


def true_figures(population: Population | Recorded) -> tuple[FloatArray, FloatArray | None]:
    """The population's values, in the order of `NAMES`, and the confidences at which its curve is checked.

    NaN stands for what is unknown or does not count. The curve of recorded scores is unknown, and their TCE.
    """
    if isinstance(population, Recorded):
        f, up = population.many()
        at, curve, tce = None, np.full(len(CURVE_AT), np.nan), np.nan
    else:
        f, up = population.many(MANY)
        at = np.quantile(f, CURVE_AT, method="nearest")
        curve, tce = population.curve(at), float(np.abs(f - up).mean())
    gaps = np.bincount(bin_index(f, BINS), f - up, minlength=BINS) / f.size
    found = {**true_values(f, up), "ece": float(np.abs(gaps).sum()), "tce": tce}
    rates = np.array([_true_rates(f >= t, up) for t in THRESHOLDS])
    costs = [
        float((fp * (1 - up)[f >= t].sum() + fn * up[f < t].sum()) / f.size)
        for (fp, fn), t in product(COSTS, COSTS_AT)
    ]
    benefits = [float(up[f >= t].sum() - t / (1 - t) * (1 - up)[f >= t].sum()) / f.size for t in COSTS_AT]
    errors = [found[name] for name in _ERRORS]
    scalars = [found[name] for name in SCALARS.values()]
    return np.concatenate([scalars, gaps, curve, rates.T.reshape(-1), costs, benefits, errors]), at


def _true_rates(yes: BoolArray, up: FloatArray) -> tuple[float, float, float, float]:
    """Precision, recall, share of positive decisions and precision of the negative ones."""
    rate, right, missed = float(yes.mean()), float(up[yes].sum() / up.size), float(up[~yes].sum() / up.size)
    some, rest = rate >= LEAST, 1 - rate >= LEAST
    return (
        right / rate if some else np.nan,
        right / (right + missed) if some and rest else np.nan,
        rate if some and rest else np.nan,
        1 - missed / (1 - rate) if rest else np.nan,
    )


def intervals(fit: Fit, at: FloatArray | None) -> FloatArray:
    """The intervals of a fit, in the order of `NAMES`, shape (2, figures); the curve's are at ``at``.

    Without ``at`` the population's curve is unknown, and so is its TCE.
    """
    found: list[Estimate] = [
        Estimate(None) if name == "tce" and at is None else getattr(fit, name) for name in SCALARS.values()
    ]
    found += [one.gap for one in fit.bins]
    band = np.full((2, len(CURVE_AT)), np.nan)
    if at is not None:
        curve = fit.curve_at(at)
        band = np.array([curve.low, curve.high], float)
    points = fit.operating_at(THRESHOLDS)
    decisions = [getattr(point, name) for name, point in product(_RATES.values(), points)]
    for costs in COSTS:
        decisions += fit.expected_cost(*costs, COSTS_AT).expected
    decisions += [point.net_benefit for point in fit.operating_at(COSTS_AT)]
    decisions += [point.error for point in fit.risk if point.coverage in COVERAGES]
    first, rest = (np.array([[one.low, one.high] for one in some], float).T for some in (found, decisions))
    return np.concatenate([first, band, rest], axis=1)
