"""A judge that says pass or fail, beside labels of some of the items (METHOD 14).

Intervals come from the Bayesian bootstrap of units with half an item added to each cell of label and verdict:
without groups, that of a share is the interval of Jeffreys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
_NO_LABEL = 2  # row of the items without a label, after those of labels 0 and 1


@dataclass(frozen=True, kw_only=True)
class JudgeFindings:
    """How far the verdicts of a judge can be trusted; a pass is positive.

    ``pass_rate`` is the prediction-powered mean over all items, whose ``weight`` of the verdicts gives the
    smallest variance; ``more_labels`` would halve its interval (``None``: not even labels of all would).
    ``selection_pvalue`` tests whether passes and fails were labelled equally often; ``None`` if it cannot.
    """

    items: int
    labelled: int
    true_passes: int
    false_passes: int
    false_fails: int
    true_fails: int
    judged_pass_rate: float
    pass_rate: Estimate
    labels_alone: Estimate
    rogan_gladen: Estimate
    weight: float
    tpr: Estimate
    tnr: Estimate
    precision: Estimate
    agreement: Estimate
    kappa: Estimate
    more_labels: int | None
    labelled_passes: float  # shares
    labelled_fails: float
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
    known = checks.labels_of_some(labels, passed.size)
    stratum = (
        np.zeros(passed.size, np.int64) if strata is None else checks.codes(strata, "strata", passed.size)
    )
    units = None if groups is None else checks.codes(groups, "groups", passed.size)
    if (count := int(stratum.max()) + 1) > MOST_STRATA:
        raise InputError(f"strata: must be at most {MOST_STRATA}, got {count}")
    row = np.where(known == UNLABELLED, _NO_LABEL, known)
    cell = (stratum * 3 + row) * 2 + passed
    return _findings(_Tables(cell, count, units, seed), level)


@dataclass(frozen=True, eq=False)
class _Tables:
    """Items per stratum, label (0, 1, none) and verdict; ``cell`` is the place of each item."""

    cell: IntArray
    strata: int
    units: IntArray | None
    seed: int

    @cached_property
    def counts(self) -> FloatArray:
        """Shape (strata, 3, 2)."""
        counted = np.bincount(self.cell, minlength=6 * self.strata)
        return counted.reshape(self.strata, 3, 2).astype(np.float64)

    @cached_property
    def draws(self) -> FloatArray:
        """`counts` of resampled units, shape (draws, strata, 3, 2)."""
        cells, rng = 6 * self.strata, np.random.default_rng(self.seed)
        if self.units is None:
            units, drawn = self.cell.size, rng.standard_gamma(self.counts, (DRAWS, *self.counts.shape))
        else:
            units = int(self.units.max()) + 1
            own = np.zeros((units, cells))
            np.add.at(own, (self.units, self.cell), 1)
            patterns, times = np.unique(own, axis=0, return_counts=True)
            drawn = (rng.standard_gamma(times, (DRAWS, times.size)) @ patterns).reshape(
                DRAWS, *self.counts.shape
            )
        with_verdict = self.counts.sum(axis=1, keepdims=True) > 0  # of the strata, which share its half items
        shares = np.repeat(with_verdict / np.maximum(with_verdict.sum(axis=0), 1), 3, axis=1)
        shares[:, _NO_LABEL] = 0
        prior = rng.standard_gamma(_PRIOR * shares, drawn.shape)
        return np.asarray(drawn + self.cell.size / units * prior)


def _findings(tables: _Tables, level: float) -> JudgeFindings:
    counts, draws = tables.counts, tables.draws
    labelled = counts[:, :_NO_LABEL].sum(axis=(1, 2))
    if not labelled.all():
        where = f"stratum {int(np.argmin(labelled)) + 1}: " if tables.strata > 1 else ""
        raise InputError(f"labels: {where}no item has a label", remedy="label some, chosen at random")
    seen, drawn = _labelled_table(counts), _labelled_table(draws)
    weight = _weight(counts)

    def estimate(value: float | FloatArray, resampled: FloatArray) -> Estimate:
        if not np.isfinite(value):
            return Estimate(None)
        low, high = (percentile_interval(np.nan_to_num(resampled, nan=end), level) for end in (0.0, 1.0))
        return Estimate(float(value), min(low[0], float(value)), max(high[1], float(value)), level)

    (false_fails, true_passes), (true_fails, false_passes) = counts[:, 1].sum(0), counts[:, 0].sum(0)
    shares = _labelled_shares(counts)
    return JudgeFindings(
        items=int(counts.sum()),
        labelled=int(labelled.sum()),
        true_passes=int(true_passes),
        false_passes=int(false_passes),
        false_fails=int(false_fails),
        true_fails=int(true_fails),
        judged_pass_rate=float(counts[..., 1].sum() / counts.sum()),
        pass_rate=estimate(_pass_rate(counts, weight), _poststratified(draws)),
        labels_alone=estimate(_positive(seen), _positive(drawn)),
        rogan_gladen=_fieller(_rogan_gladen(counts), _rogan_gladen(draws), level),
        weight=weight,
        tpr=estimate(_tpr(seen), _tpr(drawn)),
        tnr=estimate(_tnr(seen), _tnr(drawn)),
        precision=estimate(_precision(seen), _precision(drawn)),
        agreement=estimate(_agreement(seen), _agreement(drawn)),
        kappa=estimate(_kappa(seen), _kappa(drawn)),
        more_labels=_more_labels(counts),
        labelled_passes=float(shares[1]),
        labelled_fails=float(shares[0]),
        selection_pvalue=_selection_pvalue(counts, draws),
    )


# Tables have the axes label (0, 1) and verdict last, counts strata before them and a row without a label.


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0))


def _strata_shares(counts: FloatArray) -> FloatArray:
    sizes = counts.sum(axis=(-1, -2))
    return np.asarray(sizes / sizes.sum(axis=-1, keepdims=True))


def _labelled_table(counts: FloatArray) -> FloatArray:
    """The joint table of the labelled items, strata weighted by their size."""
    seen = counts[..., :_NO_LABEL, :]
    scale = _strata_shares(counts) / seen.sum(axis=(-1, -2))
    return np.asarray((seen * scale[..., None, None]).sum(axis=-3))


def _positive(table: FloatArray) -> FloatArray:
    return np.asarray(table[..., 1, :].sum(axis=-1))


def _tpr(table: FloatArray) -> FloatArray:
    return _ratio(table[..., 1, 1], table[..., 1, :].sum(axis=-1))


def _tnr(table: FloatArray) -> FloatArray:
    return _ratio(table[..., 0, 0], table[..., 0, :].sum(axis=-1))


def _precision(table: FloatArray) -> FloatArray:
    return _ratio(table[..., 1, 1], table[..., 1].sum(axis=-1))


def _agreement(table: FloatArray) -> FloatArray:
    return np.asarray(table[..., 1, 1] + table[..., 0, 0])


def _kappa(table: FloatArray) -> FloatArray:
    chance = (table.sum(axis=-1) * table.sum(axis=-2)).sum(axis=-1)
    return _ratio(_agreement(table) - chance, 1 - chance)


def _rogan_gladen(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Numerator and denominator of the estimate of Rogan and Gladen."""
    table, passed = _labelled_table(counts), counts[..., 1].sum(axis=(-1, -2)) / counts.sum(axis=(-1, -2, -3))
    return passed + _tnr(table) - 1, _tpr(table) + _tnr(table) - 1


def _fieller(
    value: tuple[FloatArray, FloatArray], drawn: tuple[FloatArray, FloatArray], level: float
) -> Estimate:
    """A share, and those that the draws do not exclude; unknown if the second is negative."""
    if not value[1] > 0:
        return Estimate(None)
    share = float(np.clip(value[0] / value[1], 0, 1))
    tried = np.linspace(0, 1, 1001)
    more = (drawn[0][:, None] > tried * drawn[1][:, None]).mean(axis=0)
    kept = np.append(tried[np.minimum(more, 1 - more) >= (1 - level) / 2], share)
    return Estimate(share, float(kept.min()), float(kept.max()), level)


def _weight(counts: FloatArray) -> float:
    """The weight of the verdicts with the smallest variance; 0 if they tell nothing."""
    part = slope = 0.0
    for share, own in zip(_strata_shares(counts), counts, strict=True):
        n, rest, passed = own[:_NO_LABEL].sum(), own[_NO_LABEL].sum(), own[:, 1].sum() / own.sum()
        if rest:
            both = own[1, 1] / n - own[1].sum() * own[:_NO_LABEL, 1].sum() / n**2
            spread = passed * (1 - passed) * own.sum() / max(own.sum() - 1, 1)
            part += share**2 * both / n
            slope += share**2 * spread * (1 / n + 1 / rest)
    return part / slope if slope else 0.0


def _pass_rate(counts: FloatArray, weight: float) -> float:
    """The prediction-powered mean."""
    seen, rest = counts[:, :_NO_LABEL], counts[:, _NO_LABEL]
    n = seen.sum(axis=(1, 2))
    judged = _ratio(rest[:, 1], rest.sum(axis=1)) - seen[..., 1].sum(axis=1) / n
    mean = seen[:, 1].sum(axis=1) / n + weight * np.nan_to_num(judged)
    return float(np.clip(_strata_shares(counts) @ mean, 0, 1))


def _poststratified(counts: FloatArray) -> FloatArray:
    """The true pass rate by that of passes and of fails, which the best weight approaches."""
    rates = np.nan_to_num(_ratio(counts[..., 1, :], counts[..., :_NO_LABEL, :].sum(axis=-2)))
    shares = counts.sum(axis=-2) / counts.sum(axis=(-1, -2, -3))[..., None, None]
    return np.asarray((shares * rates).sum(axis=(-1, -2)))


def _more_labels(counts: FloatArray) -> int | None:
    within = between = 0.0
    for share, own in zip(_strata_shares(counts), counts, strict=True):
        judged, n = own.sum(axis=0) / own.sum(), own[:_NO_LABEL].sum()
        rates = np.nan_to_num(_ratio(own[1], own[:_NO_LABEL].sum(axis=0)))
        within += share**2 * float(judged @ (rates * (1 - rates))) / n
        between += share**2 * float(judged @ (rates - judged @ rates) ** 2) / own.sum()
    labelled, items = counts[:, :_NO_LABEL].sum(), counts.sum()
    spare = (within + between) / 4 - between
    needed = labelled * within / spare if spare > 0 else np.inf
    return int(np.ceil(needed - labelled)) if needed <= items else None


def _labelled_shares(counts: FloatArray) -> FloatArray:
    return _ratio(counts[..., :_NO_LABEL, :].sum(axis=(-2, -3)), counts.sum(axis=(-2, -3)))


def _selection_pvalue(counts: FloatArray, draws: FloatArray) -> float | None:
    """Two-sided; ``None`` if all items are labelled, or each stratum has one verdict only."""
    both = (counts.sum(axis=1) > 0).all(axis=1)
    if not both.any() or not counts[:, _NO_LABEL].any():
        return None

    def difference(tables: FloatArray) -> FloatArray:
        own = tables[..., both, :, :]
        shares = own[..., :_NO_LABEL, :].sum(axis=-2) / own.sum(axis=-2)
        return np.asarray((_strata_shares(own) * (shares[..., 1] - shares[..., 0])).sum(axis=-1))

    return float(2 * ndtr(-abs(difference(counts)) / difference(draws).std()))
