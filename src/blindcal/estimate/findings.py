"""Records of what answers tell about calibration, as results hold them and reports show them.

A fit, a result of `blind` and a finished audit use the same names for the same things: ``ece``, ``bins``,
``curve`` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import chdtrc

from blindcal.estimate.truth import bin_edges
from blindcal.records import Estimate, FloatArray

NOTHING = Estimate(None)
HISTOGRAM_BINS = 20

COSTS = ((1.0, 1.0), (5.0, 1.0), (1.0, 5.0))
"""Costs of a false positive and a false negative, in the examples of a result."""

STEPS = 40
THRESHOLDS: FloatArray = np.arange(1, STEPS) / STEPS
"""Thresholds of the operating points: 1/40, 2/40, ..., 39/40."""

#: Signs of the gaps below and above 1/2: below it the given answer is the negative one (METHOD 1).
OVERCONFIDENCE, LEANING = np.array([-1.0, 1.0]), np.array([1.0, 1.0])


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of the confidence; ``gap`` > 0 means that the confidence is too high.

    ``share`` is the share of all items that lie in the bin, ``predicted`` their mean confidence, and
    ``observed`` the share of them with a positive label: gap = share * (predicted - observed).
    """

    low: float
    high: float
    gap: Estimate
    share: float | None = None
    predicted: float | None = None
    observed: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """The reliability curve: the share ``value`` of positive labels at each ``f``, with a pointwise band."""

    f: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    level: float | None = None


@dataclass(frozen=True, slots=True)
class ConfidenceHistogram:
    """For each label, the share of its items whose confidence lies between two edges."""

    edges: tuple[float, ...]
    negatives: tuple[float, ...]
    positives: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The results of deciding "positive iff f >= threshold"; ``shift`` on the positive answer deploys it.

    ``positive_rate``, ``false_positive`` and ``false_negative`` are shares of all decisions;
    ``negative_precision`` is the share of negative decisions that are right.
    """

    threshold: float
    shift: float
    precision: Estimate
    recall: Estimate
    accuracy: Estimate
    positive_rate: Estimate
    false_positive: Estimate = NOTHING
    false_negative: Estimate = NOTHING
    negative_precision: Estimate = NOTHING


@dataclass(frozen=True, slots=True)
class CostCurve:
    """The expected cost per decision at each operating point, given the costs of the two errors."""

    cost_fp: float
    cost_fn: float
    expected: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The estimates for the items that share one value of a field; ``few`` if they are too few to trust.

    ``calibrated_pvalue`` is the p-value of "this part is perfectly calibrated", and ``same_pvalue`` that of
    "it is as miscalibrated as the others". Both are adjusted for the number of parts (Holm): of all audits
    without such a part, at most 5% have one whose p-value is below 5%.
    """

    name: str
    items: int
    positive_labels: int
    ece: Estimate
    accuracy: Estimate
    leaning: Estimate
    overconfidence: Estimate
    few: bool
    calibrated_pvalue: float | None = None
    same_pvalue: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """The estimates for one of several answers; ``answer`` is its number.

    ``labelled`` counts the items that have it as their label, ``given`` those to which it was given, and
    ``right`` those to which it was given rightly.
    ``ece``, ``accuracy``, ``confidence`` (the mean) and ``overconfidence`` are about the items to which it
    was given. ``few`` if these are too few to trust.
    """

    answer: int
    labelled: int
    given: int
    right: int
    ece: Estimate
    accuracy: Estimate
    confidence: Estimate
    overconfidence: Estimate
    few: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What answers tell about calibration; an `Estimate` of ``None`` means that the method cannot tell.

    ``overconfidence`` is the mean confidence in the given answer minus the share of correct answers;
    ``leaning`` is the mean probability of the positive answer minus the share of positive labels.
    ``ece_if_invalid`` bounds the ECE over all possible values of the invalid answers. ``costs`` are for three
    pairs of costs, at the thresholds of ``operating``. ``parts`` are the estimates for each part of a
    breakdown, and ``parts_pvalue`` is the p-value of "all parts are equally miscalibrated". ``parts_level``
    is the confidence with which the intervals of all parts hold together; ``None`` if each holds by itself.

    With more than two answers (METHOD 8), everything is about the answer that the model gave and whether it
    is right ("top-label"), and ``leaning`` is not known. ``by_answer`` has a row per answer. ``confusion``
    counts the answers given: a row per label, a column per answer.
    """

    ece: Estimate
    overconfidence: Estimate = NOTHING
    leaning: Estimate = NOTHING
    auroc: Estimate = NOTHING
    accuracy: Estimate = NOTHING
    brier: Estimate = NOTHING
    log_loss: Estimate = NOTHING
    tce: Estimate = NOTHING
    calibrated_pvalue: float | None = None
    bins: tuple[Bin, ...]
    curve: Curve | None = None
    confidence: ConfidenceHistogram | None = None
    operating: tuple[OperatingPoint, ...] = ()
    costs: tuple[CostCurve, ...] = ()
    ece_if_invalid: tuple[float, float]
    parts: tuple[Part, ...] = ()
    parts_pvalue: float | None = None
    parts_level: float | None = None
    by_answer: tuple[AnswerPart, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Every estimate by its name, and the p-value of "perfectly calibrated", which has no interval."""
        values = {field.name: getattr(self, field.name) for field in fields(Findings)}
        estimates = {name: value for name, value in values.items() if isinstance(value, Estimate)}
        return estimates | {"calibrated_pvalue": Estimate(self.calibrated_pvalue)}


def finite(value: float) -> float | None:
    """The value as a float, or ``None`` if it is not finite."""
    return float(value) if math.isfinite(value) else None


def no_findings(bins: int) -> Findings:
    """The findings if no answer is valid."""
    return Findings(ece=NOTHING, bins=bare_bins(np.full(bins, np.nan)), ece_if_invalid=(0.0, 1.0))


def bare_bins(gaps: FloatArray) -> tuple[Bin, ...]:
    """Bins of which only the gaps are known; NaN stands for an unknown gap."""
    return gap_bins(Estimate(finite(gap)) for gap in gaps)


def gap_bins(gaps: Iterable[Estimate]) -> tuple[Bin, ...]:
    """Bins of equal width with these gaps."""
    each = tuple(gaps)
    edges = bin_edges(len(each)).tolist()
    return tuple(map(Bin, edges, edges[1:], each))


def filled_bins(
    bins: tuple[Bin, ...], share: FloatArray, predicted: FloatArray, observed: FloatArray
) -> tuple[Bin, ...]:
    """Add shares and means to bins; ``predicted`` and ``observed`` are means times the share."""
    return tuple(
        replace(bare, share=float(s), predicted=float(p / s), observed=float(o / s))
        if s > 0
        else replace(bare, share=0.0)
        for bare, s, p, o in zip(bins, share, predicted, observed, strict=True)
    )


def histogram(negatives: FloatArray, positives: FloatArray) -> ConfidenceHistogram:
    """The distribution of the confidence, from the share in each of `HISTOGRAM_BINS` bins."""
    columns = bin_edges(HISTOGRAM_BINS), negatives, positives
    return ConfidenceHistogram(*(tuple(column.tolist()) for column in columns))


def share_around(value: float, distance: float) -> tuple[float, float]:
    """The interval value ± reach, within [0, 1]."""
    return max(0.0, value - distance), min(1.0, value + distance)


@dataclass(frozen=True, slots=True)
class AnswerMargins:
    """The share of items that each answer was ``given`` to, and that it is the label of (``labelled``).

    ``moved`` is the share of answers that would have to be another one for the shares to agree. ``pvalue`` is
    that of "each answer is given as often as it is right" (the test of Stuart and Maxwell); ``None`` if the
    items are in groups, or if no answer is wrong.
    """

    given: tuple[float, ...]
    labelled: tuple[float, ...]
    moved: float
    pvalue: float | None

    @classmethod
    def of(cls, confusion: Sequence[Sequence[int]], *, grouped: bool = False) -> AnswerMargins | None:
        """From a table with a row per label and a column per answer; ``None`` if it is empty.

        Examples
        --------
        >>> AnswerMargins.of([[30, 0], [15, 15]]).moved
        0.25
        """
        table = np.array(confusion, np.float64)
        total = table.sum()
        if not total:
            return None
        labelled, given = table.sum(axis=1) / total, table.sum(axis=0) / total
        moved = float(np.abs(given - labelled).sum() / 2)
        pvalue = None if grouped else _homogeneity(table)
        return cls(tuple(given.tolist()), tuple(labelled.tolist()), moved, pvalue)


def _homogeneity(table: FloatArray) -> float | None:
    """The p-value of equal margins of a square table of pairs (Stuart 1955, Maxwell 1970)."""
    off = table.sum(axis=1) - table.sum(axis=0)
    spread = np.diag(table.sum(axis=1) + table.sum(axis=0)) - table - table.T
    # an answer that is never confused with others adds nothing, and the differences sum to zero
    rank = int(np.linalg.matrix_rank(spread))
    if not rank:
        return None
    statistic = off @ np.linalg.pinv(spread, hermitian=True) @ off
    return float(chdtrc(rank, statistic))
