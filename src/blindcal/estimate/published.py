"""The published estimators (METHOD 3): `blind`, exactly, and the baselines at face value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.checks import ArrayLike, answers_array, labels_array, probabilities, whole, wholes
from blindcal.estimate.findings import NOTHING, Bin, Findings, bare_bins, share_around
from blindcal.estimate.shown import ShownFit
from blindcal.estimate.truth import bin_edges, bin_index, binned_ece
from blindcal.records import INVALID, NEGATIVE, POSITIVE, AnswerTable, Estimate, FloatArray, IntArray

EXTRACTION_REACH = 15.0


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class BlindResult:
    """The Blind Calibration Curve and the data behind it.

    Attributes
    ----------
    edges : array of shape (bins + 1,)
    gaps : array of shape (bins,)
        Signed gaps Delta_m, positive where the model is overconfident in the positive answer; NaN if unknown.
    subset_sizes : array of shape (bins,)
        Number of valid answers in each subset. Subset 1 is not asked: all its items count.
    invalid : int
        Number of invalid answers, which are left out of their subsets.
    invalid_bound : float
        The most by which ``ece`` could differ if the invalid answers had been valid.
    notes : tuple of str
        What is unusual about the data and how it affects the result.
    """

    edges: FloatArray
    gaps: FloatArray
    subset_sizes: IntArray
    invalid: int
    invalid_bound: float
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        items = int(self.subset_sizes.sum()) + self.invalid
        ece = np.abs(self.gaps).sum()
        return f"BlindResult({items:,} items, {self.gaps.size} bins, ECE {ece:.4f})"

    @property
    def ece(self) -> Estimate:
        """ECE_blind, the sum of absolute gaps, without an interval; an error if a gap is unknown."""
        missing = np.flatnonzero(np.isnan(self.gaps))
        if missing.size:
            raise NotIdentifiedError(
                f"ECE_blind: gap {missing[0] + 1} of {self.gaps.size} has no valid answer to rest on; "
                "use fewer bins or ask more items"
            )
        return Estimate(float(np.abs(self.gaps).sum()))

    @property
    def bins(self) -> tuple[Bin, ...]:
        return bare_bins(self.gaps)

    def findings(self) -> Findings:
        """Everything that a result shows."""
        try:
            ece = self.ece
        except NotIdentifiedError:  # a subset without a valid answer: the gaps next to it are unknown
            return Findings(ece=NOTHING, bins=self.bins, ece_if_invalid=(0.0, 1.0))
        # a bin around 1/2 says nothing about confidence
        side = np.sign(np.round(self.edges[:-1] + self.edges[1:] - 1, 9))
        return Findings(
            ece=ece,
            bins=self.bins,
            ece_if_invalid=share_around(float(ece), self.invalid_bound),
            overconfidence=Estimate(float(side @ self.gaps)),
            leaning=Estimate(float(self.gaps.sum())),
        )


def blind_subsets(n: int, bins: int, rng: np.random.Generator) -> IntArray:
    """Assign n items at random to subsets 0..bins-1 whose sizes differ by at most one."""
    subsets = np.empty(n, np.int64)
    subsets[rng.permutation(n)] = np.arange(n) % whole(bins, "bins")
    return subsets


def blind(
    labels: ArrayLike,
    thresholds: ArrayLike,
    answers: ArrayLike,
    bins: int = 5,
    *,
    counts: ArrayLike | None = None,
) -> BlindResult:
    """Compute ECE_blind from observed answers (METHOD 3).

    Parameters
    ----------
    labels : array_like of 0/1, shape (n,)
    thresholds : array_like, shape (n,)
        The threshold of each item: ``0, 1/bins, ...`` or ``(bins-1)/bins``. Items at 0 need no query: their
        ``answers`` are ignored.
    answers : array_like, shape (n,)
        1 if ``f >= threshold`` (positive), 0 if not, and -1, NaN or None for an invalid answer.
    bins : int
    counts : array_like, optional
        Number of items that each row stands for; see ``blindcal.Counts``.

    References
    ----------
    Plaud et al., "Single-Query Black-Box Calibration Auditing via Logit Bias" (2026).

    Examples
    --------
    >>> result = blind([1, 0, 1, 0], [0.0, 0.0, 0.5, 0.5], [1, 1, 1, 0], bins=2)
    >>> result.gaps.round(3).tolist(), result.ece.value
    ([0.125, -0.125], 0.25)
    """
    y = labels_array(labels)
    t = probabilities(thresholds, "thresholds", like=y.size)
    a = answers_array(answers, like=y.size)
    edges = bin_edges(bins)
    subset = np.rint(t * bins).astype(np.int64)
    off = (subset == bins) | (np.abs(edges[np.minimum(subset, bins)] - t) > 1e-9)
    if off.any():
        where = int(np.argmax(off))
        raise InputError(
            f"thresholds: must be one of 0, 1/{bins}, ..., {bins - 1}/{bins} for bins={bins}, "
            f"got {float(t[where])!r} at position {where}"
        )
    a = np.where(subset == 0, POSITIVE, a)
    use = a != INVALID
    weights = np.ones(y.size, np.int64) if counts is None else wholes(counts, "counts", y.size)
    sizes, left_out = (
        np.bincount(subset[part], weights=weights[part], minlength=bins).astype(np.int64)
        for part in (use, ~use)
    )
    centres = (edges[:-1] + edges[1:]) / 2
    above = (a == POSITIVE) & use

    def mean_over(m: int, centre: float) -> float:
        if m == bins:
            return 0.0
        mine = above & (subset == m)
        return float(((centre - y[mine]) * weights[mine]).sum() / sizes[m]) if sizes[m] else np.nan

    gaps = np.array([mean_over(m, c) - mean_over(m + 1, c) for m, c in enumerate(centres)])
    return BlindResult(
        edges=edges,
        gaps=gaps,
        subset_sizes=sizes,
        invalid=int(left_out.sum()),
        # each subset's mean can change by its invalid share, and enters the two gaps next to its threshold
        invalid_bound=float(2 * (left_out / np.maximum(sizes + left_out, 1)).sum()),
        notes=_notes(y, sizes, int(left_out.sum())),
    )


def _notes(y: IntArray, sizes: IntArray, invalid: int) -> tuple[str, ...]:
    notes = []
    if y.min() == y.max():
        notes.append(f"all labels are {y[0]}: the gaps compare confidence with that one class only")
    empty = np.flatnonzero(sizes == 0)
    if empty.size:
        notes.append(f"{empty.size} subset(s) hold no valid answer: the gaps beside them are undefined")
    if invalid:
        notes.append(f"{invalid} invalid answer(s) left out of their subsets")
    return tuple(notes)


# Baselines: each item's own answers as a probability


def sampled_shares(n: int, answered: AnswerTable) -> FloatArray:
    """Sampling: the share of positive answers among each item's valid answers; NaN if it has none."""
    asked = np.bincount(answered.items[answered.answers != INVALID], minlength=n)
    positive = np.bincount(answered.items[answered.answers == POSITIVE], minlength=n)
    return np.where(asked > 0, positive / np.maximum(asked, 1), np.nan)


def extracted(n: int, answered: AnswerTable) -> FloatArray:
    """Extraction: p = sigmoid(-b*), b* the middle of the bisected range; NaN without a valid answer."""
    low, high = flip_bounds(n, answered)
    valid = np.bincount(answered.items[answered.answers != INVALID], minlength=n) > 0
    return np.where(valid, expit(-(low + high) / 2), np.nan)


def stated(n: int, answered: AnswerTable) -> FloatArray:
    """Verbalized: the probability that each item's answer states in words; NaN if it states none."""
    assert answered.stated is not None
    p = np.full(n, np.nan)
    p[answered.items] = answered.stated
    return p


def flip_bounds(n: int, answered: AnswerTable) -> tuple[FloatArray, FloatArray]:
    """Bounds of each item's flip: at most the shifts answered positive, at least those answered negative."""
    low, high = np.full(n, -EXTRACTION_REACH), np.full(n, EXTRACTION_REACH)
    positive, negative = (answered.rows(answered.answers == answer) for answer in (POSITIVE, NEGATIVE))
    np.minimum.at(high, positive.items, positive.shifts)
    np.maximum.at(low, negative.items, negative.shifts)
    return low, high


def findings_at_face_value(labels: IntArray, p: FloatArray, bins: int) -> Findings:
    """Findings if these probabilities are the model's own; NaN for items without one."""
    known = np.isfinite(p)
    return ShownFit(labels=labels[known], p=p[known], read=known, bin_count=bins).findings()


def half_gaps_at_face_value(labels: IntArray, p: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Signed gaps below and above 1/2, and their covariance; ``None`` for a single item."""
    known = np.isfinite(p)
    y, f = labels[known], p[known]
    each = (f - y)[:, None] * (bin_index(f, 2)[:, None] == np.arange(2))
    return (binned_ece(y, f, 2).gaps, np.asarray(np.cov(each.T) / y.size)) if y.size > 1 else None
