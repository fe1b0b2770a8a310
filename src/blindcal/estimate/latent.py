"""`latent`: estimates the distribution of the hidden log-odds given the label (METHOD 4 to 6).

Each answer is a censored (threshold) or noisy (sampled) reading of an item's log-odds. One likelihood takes
any mixture of them, with any number of queries per item.
"""

from __future__ import annotations

import warnings

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import checks
from blindcal.estimate.checks import ArrayLike, per_item
from blindcal.estimate.latent_fit import LatentFit
from blindcal.estimate.model import fit_ensemble
from blindcal.estimate.patterns import count_patterns
from blindcal.estimate.resampling import Resampling
from blindcal.records import INVALID, NEGATIVE, AnswerTable, IntArray


def latent(
    labels: ArrayLike,
    shifts: ArrayLike,
    answers: ArrayLike,
    temperatures: ArrayLike = 0.0,
    items: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    counts: ArrayLike | None = None,
    bounds: ArrayLike | None = None,
    jitter: float = 0.0,
    flip_rate: float = 0.0,
    bins: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> LatentFit:
    """Fit the distribution of the hidden log-odds given the label, by penalised maximum likelihood.

    Parameters
    ----------
    labels : array_like of 0/1, shape (queries,)
        The label of the item that each query asked.
    shifts : array_like, shape (queries,)
        The shift ``b`` added to the positive answer.
    answers : array_like, shape (queries,)
        1 for positive, 0 for negative; -1, NaN or None for invalid.
    temperatures : array_like or float
        0 for a threshold query, positive for a sampled one.
    items : array_like, optional
        The item that each query asked (any names); by default each query asks a different item.
    groups : array_like, optional
        The group of each query's item; intervals then resample groups, and the p-value allows for them.
    counts : array_like, optional
        How many items each query's item stands for; see ``blindcal.Counts``. Not with ``groups``.
    bounds : array_like, shape (queries, 2), optional
        Two log-odds between which the endpoint's own probabilities show an item's to be; NaN for answers
        that show none. An answer with bounds is read by these alone.
    jitter : float
        Standard deviation of the endpoint's noise on the log-odds of threshold queries.
    flip_rate : float
        Share of the threshold answers that are the opposite of what the log-odds say, at random; below 1/2.
    bins : int
        Number of bins of the ECE; ``LatentFit.at`` gives the same fit with other bins.
    level : float
        Confidence level of the intervals.
    resamples : int
        Number of refits for the intervals; with 0 there are no intervals.
    seed : int
        Random seed of those refits.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> f = rng.beta(2, 1, 3000)
    >>> labels = rng.random(3000) < f**2              # an overconfident model
    >>> thresholds = (rng.permutation(3000) + 0.5) / 3000
    >>> shifts = -np.log(thresholds / (1 - thresholds))
    >>> fit = latent(labels, shifts, f >= thresholds)
    >>> 0.13 < fit.ece.low < fit.ece.value < fit.ece.high < 0.20, fit.calibrated_pvalue < 1e-6
    (True, True)
    """
    y_rows = checks.labels_array(labels)
    rows = y_rows.size
    b = checks.reals(shifts, "shifts", rows, infinite=True)
    t = checks.reals(temperatures, "temperatures", rows, minimum=0.0)
    a = checks.answers_array(answers, rows)
    owner = np.arange(rows) if items is None else checks.codes(items, "items", rows)
    y = per_item("labels", y_rows, owner)
    clusters = None if groups is None else per_item("groups", checks.codes(groups, "groups", rows), owner)
    weights = None if counts is None else per_item("counts", checks.wholes(counts, "counts", rows), owner)
    if weights is not None and clusters is not None:
        raise InputError(
            "counts: items that were counted together cannot belong to groups; give one of the two"
        )
    if not (a != INVALID).any():
        raise NotIdentifiedError(f"answers: all {rows} are invalid, so nothing can be estimated")
    if not ((a != INVALID) & np.isfinite(b)).any():
        raise NotIdentifiedError(
            "shifts: all valid answers were forced by an infinite shift: nothing was asked"
        )
    stands_for = np.ones(rows, np.int64) if weights is None else weights[owner]
    queries, invalid = int(stands_for.sum()), int(stands_for[a == INVALID].sum())
    if invalid > queries / 2 and not (a == NEGATIVE).any():
        warnings.warn(
            f"answers: {invalid} of {queries} are invalid (-1) and none is 0; code answers as 1 and 0, not 1 "
            "and -1",
            stacklevel=2,
        )
    if isinstance(jitter, str) or not (np.isfinite(jitter) and jitter >= 0):
        raise InputError(f"jitter: must be a number of at least 0, got {jitter!r}")
    if not 0 <= flip_rate < 0.5:
        raise InputError(f"flip_rate: must be a number from 0 to below 0.5, got {flip_rate!r}")
    shown = None if bounds is None else checks.bounds_array(bounds, rows)
    answered = AnswerTable(owner, b, t, a, bounds=shown)
    patterns = count_patterns(y, answered, weights, jitter=jitter, flip_rate=flip_rate)
    ensemble = fit_ensemble(patterns)
    refits = checks.whole(resamples, "resamples", 0)
    if refits == 1:
        raise InputError("resamples: must be 0 or at least 2, got 1")
    return LatentFit(
        patterns=patterns,
        ensemble=ensemble,
        resampling=Resampling(patterns, ensemble, refits, seed, clusters),
        items=y.size if weights is None else int(weights.sum()),
        queries=queries,
        invalid=invalid,
        jitter=float(jitter),
        bin_count=checks.whole(bins, "bins"),
        level=checks.fraction(level, "level"),
    )


def fit_table(
    labels: IntArray,
    answers: AnswerTable,
    groups: IntArray | None = None,
    *,
    jitter: float = 0.0,
    flip_rate: float = 0.0,
    bins: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
) -> LatentFit:
    """Fit the answers of a run; labels and groups are per item."""
    return latent(
        labels[answers.items],
        answers.shifts,
        answers.answers,
        answers.temperatures,
        answers.items,
        None if groups is None else groups[answers.items],
        bounds=answers.bounds,
        jitter=jitter,
        flip_rate=flip_rate,
        bins=bins,
        level=level,
        resamples=resamples,
    )
