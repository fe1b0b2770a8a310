"""A judge that says pass or fail, beside labels of some of the items (PPI++, Angelopoulos and others 2024).

Tables of items have the axes stratum, label (0, 1, none) and verdict. Intervals come from the Bayesian
bootstrap of units, with half an item added to each cell of label and verdict: without groups, that of a share
is the interval of Jeffreys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from blindcal.errors import InputError
from blindcal.estimate import checks
from blindcal.estimate.checks import ArrayLike
from blindcal.estimate.uncertainty import percentile_interval
from blindcal.records import UNLABELLED, Estimate, FloatArray, IntArray

MOST_STRATA = 50
DRAWS = 4000
_PRIOR = 0.5  # items added to each cell of label and verdict
_NONE = 2  # the row of items without a label
_TRIED = np.linspace(0, 1, 1001)  # pass rates


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeFindings:
    """How far the verdicts of a judge can be trusted; a pass is positive.

    ``pass_rate`` is the prediction-powered mean over all items, whose ``weight`` of the verdicts gives the
    smallest variance; ``more_labels`` would halve its interval (``None``: not even labels of all would).
    ``selection_pvalue`` tests whether passes and fails were labelled equally often; ``None`` if it cannot.
    ``labelled_fails`` and ``labelled_passes`` are the shares that were.
    """

    items: int
    labelled: int
    strata: int
    judged_pass_rate: float
    pass_rate: Estimate
    labels_alone: Estimate
    rogan_gladen: Estimate
    tpr: Estimate
    tnr: Estimate
    precision: Estimate
    agreement: Estimate
    kappa: Estimate
    true_fails: int
    false_passes: int
    false_fails: int
    true_passes: int
    weight: float
    more_labels: int | None
    labelled_fails: float | None
    labelled_passes: float | None
    selection_pvalue: float | None


def judge(
    verdicts: ArrayLike,
    labels: ArrayLike,
    groups: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> JudgeFindings:
    """Compare the verdicts of a judge with the labels of some of the items.

    Parameters
    ----------
    verdicts : array_like, shape (n,)
        1 for a pass and 0 for a fail.
    labels : array_like, shape (n,)
        The same by someone who is right, and -1 for an item without a label.
    groups : array_like, optional
        The group of each item; intervals then resample groups.
    strata : array_like, optional
        The stratum of each item, if labels were chosen at random within each stratum only.

    Examples
    --------
    >>> found = judge([1, 1, 1, 1, 0, 0, 1, 1, 1, 0], [1, 1, 0, 1, 0, 1, -1, -1, -1, -1])
    >>> round(float(found.tpr), 3), round(float(found.pass_rate), 3), found.judged_pass_rate
    (0.75, 0.675, 0.7)
    """
    checks.fraction(level, "level")
    passed = checks.labels_array(verdicts, "verdicts")
    n = passed.size
    known = checks.labels_of_some(labels, n)
    stratum = np.zeros(n, np.int64) if strata is None else checks.codes(strata, "strata", n)
    units = None if groups is None else checks.codes(groups, "groups", n)
    if (number := int(stratum.max()) + 1) > MOST_STRATA:
        raise InputError(f"strata: must be at most {MOST_STRATA}, got {number}")
    cell = (stratum * 3 + np.where(known == UNLABELLED, _NONE, known)) * 2 + passed
    counts = np.bincount(cell, minlength=6 * number).reshape(number, 3, 2).astype(np.float64)
    labelled = counts[:, :_NONE].sum(axis=(1, 2))
    if not labelled.all():
        where = f"stratum {int(np.argmin(labelled)) + 1}: " if number > 1 else ""
        raise InputError(f"labels: {where}no item has a label", remedy="label some, chosen at random")
    draws = _resampled(counts, cell, units, np.random.default_rng(seed))
    drawn = {**_figures(draws), "pass_rate": _poststratified(draws)}
    weight = _weight(counts)
    values = {**_figures(counts), "pass_rate": _pass_rate(counts, weight)}
    sums = counts.sum(axis=0)
    shares: list[float | None] = [
        float(some / whole) if whole else None
        for some, whole in zip(sums[:_NONE].sum(axis=0), sums.sum(axis=0), strict=True)
    ]
    return JudgeFindings(
        items=n,
        labelled=int(labelled.sum()),
        strata=number,
        judged_pass_rate=float(passed.mean()),
        rogan_gladen=_rogan_gladen(counts, draws, level),
        **{name: _estimate(value, drawn[name], level) for name, value in values.items()},
        true_fails=int(sums[0, 0]),
        false_passes=int(sums[0, 1]),
        false_fails=int(sums[1, 0]),
        true_passes=int(sums[1, 1]),
        weight=weight,
        more_labels=_more_labels(counts),
        labelled_fails=shares[0],
        labelled_passes=shares[1],
        selection_pvalue=_selection_pvalue(counts, draws),
    )


def _resampled(
    counts: FloatArray, cell: IntArray, units: IntArray | None, rng: np.random.Generator
) -> FloatArray:
    """Tables of resampled units."""
    if units is None:
        size, drawn = 1.0, rng.standard_gamma(counts, (DRAWS, *counts.shape))
    else:
        own = np.zeros((int(units.max()) + 1, counts.size))
        np.add.at(own, (units, cell), 1)
        patterns, times = np.unique(own, axis=0, return_counts=True)
        drawn = rng.standard_gamma(times, (DRAWS, times.size)) @ patterns
        size, drawn = cell.size / len(own), drawn.reshape(DRAWS, *counts.shape)
    there = counts.sum(axis=1, keepdims=True) > 0  # strata that have a verdict share its half items
    prior = np.repeat(_PRIOR * there / np.maximum(there.sum(axis=0), 1), 3, axis=1)
    prior[:, _NONE] = 0
    return np.asarray(drawn + size * rng.standard_gamma(prior, drawn.shape))


def _estimate(value: FloatArray, drawn: FloatArray, level: float) -> Estimate:
    if not np.isfinite(value):
        return Estimate(None)
    low, high = (percentile_interval(np.nan_to_num(drawn, nan=end), level)[end] for end in (0, 1))
    return Estimate(float(value), min(low, float(value)), max(high, float(value)), level)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0))


def _strata_shares(counts: FloatArray) -> FloatArray:
    sizes = counts.sum(axis=(-1, -2))
    return np.asarray(sizes / sizes.sum(axis=-1, keepdims=True))


def _figures(counts: FloatArray) -> dict[str, FloatArray]:
    """What the labelled items show, strata weighted by their size."""
    seen = counts[..., :_NONE, :]
    scale = _strata_shares(counts) / seen.sum(axis=(-1, -2))
    table = (seen * scale[..., None, None]).sum(axis=-3)
    by_label, by_verdict = table.sum(axis=-1), table.sum(axis=-2)
    agreement, chance = table[..., 0, 0] + table[..., 1, 1], (by_label * by_verdict).sum(axis=-1)
    return {
        "tpr": _ratio(table[..., 1, 1], by_label[..., 1]),
        "tnr": _ratio(table[..., 0, 0], by_label[..., 0]),
        "precision": _ratio(table[..., 1, 1], by_verdict[..., 1]),
        "agreement": agreement,
        "kappa": _ratio(agreement - chance, 1 - chance),
        "labels_alone": by_label[..., 1],
    }


def _rogan_gladen(counts: FloatArray, draws: FloatArray, level: float) -> Estimate:
    """The pass rate that the judge's errors explain, and those that the draws do not exclude (Fieller)."""

    def parts(tables: FloatArray) -> tuple[FloatArray, FloatArray]:
        rates, passed = _figures(tables), tables[..., 1].sum(axis=(-1, -2)) / tables.sum(axis=(-1, -2, -3))
        return passed + rates["tnr"] - 1, rates["tpr"] + rates["tnr"] - 1

    (above, informed), (drawn, drawn_informed) = parts(counts), parts(draws)
    if not informed > 0:
        return Estimate(None)
    rate = float(np.clip(above / informed, 0, 1))
    beyond, below = (
        np.sort((drawn / drawn_informed)[side]) for side in (drawn_informed > 0, drawn_informed < 0)
    )
    more = (np.searchsorted(-beyond[::-1], -_TRIED) + np.searchsorted(below, _TRIED)) / DRAWS
    kept = np.append(_TRIED[np.minimum(more, 1 - more) >= (1 - level) / 2], rate)
    return Estimate(rate, float(kept.min()), float(kept.max()), level)


def _weight(counts: FloatArray) -> float:
    """The weight of the verdicts, from 0 to 1, with the smallest variance; 0 if they tell nothing."""
    part = slope = 0.0
    for share, own in zip(_strata_shares(counts), counts, strict=True):
        n, rest, passed = own[:_NONE].sum(), own[_NONE].sum(), own[:, 1].sum() / own.sum()
        if rest:
            covariance = own[1, 1] / n - own[1].sum() * own[:_NONE, 1].sum() / n**2
            part += share**2 * covariance / n
            slope += share**2 * passed * (1 - passed) * own.sum() / (own.sum() - 1) * (1 / n + 1 / rest)
    return float(np.clip(part / slope, 0, 1)) if slope else 0.0


def _pass_rate(counts: FloatArray, weight: float) -> FloatArray:
    """The prediction-powered mean."""
    seen, rest = counts[:, :_NONE], counts[:, _NONE]
    n = seen.sum(axis=(1, 2))
    ahead = np.nan_to_num(_ratio(rest[:, 1], rest.sum(axis=1)) - seen[..., 1].sum(axis=1) / n)
    return np.asarray(np.clip(_strata_shares(counts) @ (seen[:, 1].sum(axis=1) / n + weight * ahead), 0, 1))


def _poststratified(counts: FloatArray) -> FloatArray:
    """The pass rate by that of passes and that of fails, which is what the best weight approaches."""
    rates = np.nan_to_num(_ratio(counts[..., 1, :], counts[..., :_NONE, :].sum(axis=-2)))
    shares = counts.sum(axis=-2) / counts.sum(axis=(-1, -2, -3))[..., None, None]
    return np.asarray((shares * rates).sum(axis=(-1, -2)))


def _more_labels(counts: FloatArray) -> int | None:
    within = between = 0.0  # variance of the pass rate from the labels, and from the verdicts
    for share, own in zip(_strata_shares(counts), counts, strict=True):
        judged, seen = own.sum(axis=0) / own.sum(), own[:_NONE].sum(axis=0)
        rates = np.nan_to_num(_ratio(own[1], seen))
        within += share**2 * float(judged @ (rates * (1 - rates))) / seen.sum()
        between += share**2 * float(judged @ (rates - judged @ rates) ** 2) / own.sum()
    labelled, spare = counts[:, :_NONE].sum(), (within + between) / 4 - between
    needed = labelled * within / spare if spare > 0 else np.inf
    return int(np.ceil(needed - labelled)) if needed <= counts.sum() else None


def _selection_pvalue(counts: FloatArray, draws: FloatArray) -> float | None:
    """Two-sided; ``None`` if all items are labelled, or each stratum has one verdict only."""
    both = (counts.sum(axis=1) > 0).all(axis=1)
    if not both.any() or not counts[:, _NONE].any():
        return None

    def difference(tables: FloatArray) -> FloatArray:
        own = tables[..., both, :, :]
        shares = own[..., :_NONE, :].sum(axis=-2) / own.sum(axis=-2)
        return np.asarray((_strata_shares(own) * (shares[..., 1] - shares[..., 0])).sum(axis=-1))

    return float(2 * ndtr(-abs(difference(counts)) / difference(draws).std()))
