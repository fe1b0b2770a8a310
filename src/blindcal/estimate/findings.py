"""Everything that a set of answers tells about calibration, in records that a result holds and a page shows.

A fit, a result of `blind` and a finished audit speak of the same things by the same names: ``ece``, ``bins``,
``curve`` and so on. These are the records behind those names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from blindcal.estimate.truth import bin_edges
from blindcal.records import Estimate, FloatArray

NOTHING = Estimate(None)
HISTOGRAM_BINS = 20

COSTS = ((1.0, 1.0), (5.0, 1.0), (1.0, 5.0))
"""What a wrong positive and a missed one cost, in a result's examples."""

STEPS = 40
THRESHOLDS: FloatArray = np.arange(1, STEPS) / STEPS
"""Thresholds of the operating points: every 1/40 between 0 and 1."""

#: Above 1/2 the predicted answer is the positive one, below it the other (METHOD 1).
OVERCONFIDENCE, LEANING = np.array([-1.0, 1.0]), np.array([1.0, 1.0])


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of the positive class's probability; ``gap`` > 0 means predicted more than it happens.

    ``share`` of all items lie in it; ``predicted`` is their mean probability of the positive class and
    ``observed`` the share of them whose label is positive: gap = share * (predicted - observed).
    """

    low: float
    high: float
    gap: Estimate
    share: float | None = None
    predicted: float | None = None
    observed: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """The reliability curve: at confidence ``f`` the share ``value`` is positive, with a pointwise band."""

    f: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    level: float | None = None


@dataclass(frozen=True, slots=True)
class ConfidenceHistogram:
    """Share of each label's items whose probability of the positive class lies between two edges."""

    edges: tuple[float, ...]
    negatives: tuple[float, ...]
    positives: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What deciding "positive iff f >= threshold" does; ``shift`` on the positive answer deploys it.

    ``positive_rate``, ``false_positive`` and ``false_negative`` are shares of all decisions;
    ``negative_precision`` is the share of the negative ones that are right.
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
    """The expected cost of a decision at each operating point, given what the two errors cost."""

    cost_fp: float
    cost_fn: float
    expected: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The estimates for items that share one value of a field; ``few`` where they are too few to trust."""

    name: str
    items: int
    positive_labels: int
    ece: Estimate
    accuracy: Estimate
    leaning: Estimate
    overconfidence: Estimate
    few: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What answers say about calibration; an `Estimate` of ``None`` is what a method cannot tell.

    ``overconfidence`` is the mean confidence in the predicted answer minus the share of right answers;
    ``leaning`` is the mean probability of the positive answer minus the share of positive labels.
    ``ece_if_invalid`` bounds the ECE whatever the invalid answers would have been. ``costs`` are for three
    pairs of costs, at the thresholds of ``operating``. ``parts`` are the values of the field that items are
    broken down by, and ``parts_pvalue`` is the p-value of "all parts are miscalibrated alike".
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


def finite(value: float) -> float | None:
    """A float for a record: ``None`` where there is no finite number."""
    return float(value) if math.isfinite(value) else None


def no_findings(bins: int) -> Findings:
    """What is left where not a single answer is valid."""
    return Findings(ece=NOTHING, bins=bare_bins(np.full(bins, np.nan)), ece_if_invalid=(0.0, 1.0))


def bare_bins(gaps: FloatArray) -> tuple[Bin, ...]:
    """Bins of which only the gaps are known, NaN for those that are not."""
    return gap_bins(Estimate(finite(gap)) for gap in gaps)


def gap_bins(gaps: Iterable[Estimate]) -> tuple[Bin, ...]:
    """Bins of equal width with these gaps."""
    each = tuple(gaps)
    edges = bin_edges(len(each)).tolist()
    return tuple(map(Bin, edges, edges[1:], each))


def filled_bins(
    bins: tuple[Bin, ...], share: FloatArray, predicted: FloatArray, observed: FloatArray
) -> tuple[Bin, ...]:
    """Bins with their share and, where there is one, their means; the latter come times the share."""
    return tuple(
        replace(one, share=float(s), predicted=float(p / s), observed=float(o / s))
        if s > 0
        else replace(one, share=0.0)
        for one, s, p, o in zip(bins, share, predicted, observed, strict=True)
    )


def histogram(negatives: FloatArray, positives: FloatArray) -> ConfidenceHistogram:
    """The distribution of the confidence, from shares in each of `HISTOGRAM_BINS`."""
    columns = bin_edges(HISTOGRAM_BINS), negatives, positives
    return ConfidenceHistogram(*(tuple(column.tolist()) for column in columns))


def share_around(value: float, reach: float) -> tuple[float, float]:
    """The interval of so far around a value, within [0, 1]."""
    return max(0.0, value - reach), min(1.0, value + reach)
