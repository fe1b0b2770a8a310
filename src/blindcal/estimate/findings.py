"""Records of what answers show about calibration, under the same names in fits, results and reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import chdtrc

from blindcal.estimate.truth import bin_edges
from blindcal.records import Estimate, FloatArray

NOTHING = Estimate(None)
ACCEPTED_ERROR = 0.05
"""Error of the accepted items at which results show the coverage."""
HISTOGRAM_BINS = 20

COSTS = ((1.0, 1.0), (5.0, 1.0), (1.0, 5.0))
"""Costs of a false positive and a false negative that results show as examples."""

STEPS = 40
THRESHOLDS: FloatArray = np.arange(1, STEPS) / STEPS
"""Thresholds of the operating points: 1/40, 2/40, ..., 39/40."""

#: Signs of the gaps below and above 1/2: below it the given answer is the negative one (METHOD 1).
OVERCONFIDENCE, LEANING = np.array([-1.0, 1.0]), np.array([1.0, 1.0])


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of the confidence; ``gap`` > 0 means that the confidence is too high.

    gap = share * (predicted - observed): share of all items, mean confidence and share of positive labels.
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
    """Share of each label's items whose confidence lies between consecutive edges."""

    edges: tuple[float, ...]
    negatives: tuple[float, ...]
    positives: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Results of deciding "positive iff f >= threshold"; ``shift`` on the positive answer deploys it.

    ``positive_rate``, ``false_positive`` and ``false_negative`` are shares of all decisions;
    ``negative_precision`` is the share of negative decisions that are right. ``net_benefit`` is the share of
    true positives minus that of false ones times the odds of the threshold, as in a decision curve;
    ``act_on_all`` is that of deciding "positive" for every item, and to act on none has 0.
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
    net_benefit: Estimate = NOTHING
    act_on_all: Estimate = NOTHING


@dataclass(frozen=True, slots=True)
class RiskPoint:
    """Share ``error`` of wrong answers among a share ``coverage`` of the items, the surest first."""

    coverage: float
    error: Estimate


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Expected cost per decision at each operating point, given the costs of the two errors."""

    cost_fp: float
    cost_fn: float
    expected: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Estimates for the items that share a value of a field; ``few`` if these are too few to trust."""

    name: str
    items: int
    positive_labels: int
    ece: Estimate
    accuracy: Estimate
    leaning: Estimate
    overconfidence: Estimate
    few: bool


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """Estimates for the items ``given`` one of several answers; ``few`` if too few to trust.

    ``labelled`` counts the items with this label, ``right`` those with both. ``confidence`` is the mean.
    ``classwise`` is the ECE of the answer's own probability over all items, as that of a yes/no question.
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
    classwise: Estimate = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What answers show about calibration; an `Estimate` of ``None`` means that the method cannot tell.

    ``overconfidence`` is the mean confidence in the given answer minus the share of correct answers;
    ``leaning`` is the mean probability of the positive answer minus the share of positive labels.
    ``miscalibration`` - ``discrimination`` + ``uncertainty`` is the Brier score, by isotonic regression.
    ``smece`` is the smooth ECE, ``atb`` the averaged two-bin calibration error. ``aurc`` is the area under
    the ``risk`` curve, and ``coverage`` the largest share of items that have at most `ACCEPTED_ERROR`.
    ``ece_if_invalid`` bounds the ECE over all possible values of the invalid answers. ``costs`` are at the
    thresholds of ``operating``. ``parts_pvalue`` tests "all parts are equally miscalibrated".

    With more than two answers (METHOD 8), everything is about the given answer and whether it is right
    ("top-label"), and ``leaning`` is unknown. ``by_answer`` has a row per answer, ``confusion`` a row per
    label and a column per given answer. ``classwise`` is the mean over answers of the ECE of each one's own
    probability, where all are shown.
    """

    ece: Estimate
    overconfidence: Estimate = NOTHING
    leaning: Estimate = NOTHING
    auroc: Estimate = NOTHING
    accuracy: Estimate = NOTHING
    brier: Estimate = NOTHING
    log_loss: Estimate = NOTHING
    tce: Estimate = NOTHING
    smece: Estimate = NOTHING
    atb: Estimate = NOTHING
    miscalibration: Estimate = NOTHING
    discrimination: Estimate = NOTHING
    uncertainty: Estimate = NOTHING
    aurc: Estimate = NOTHING
    coverage: Estimate = NOTHING
    classwise: Estimate = NOTHING
    calibrated_pvalue: float | None = None
    bins: tuple[Bin, ...]
    curve: Curve | None = None
    confidence: ConfidenceHistogram | None = None
    risk: tuple[RiskPoint, ...] = ()
    operating: tuple[OperatingPoint, ...] = ()
    costs: tuple[CostCurve, ...] = ()
    ece_if_invalid: tuple[float, float]
    parts: tuple[Part, ...] = ()
    parts_pvalue: float | None = None
    by_answer: tuple[AnswerPart, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Every estimate by name, and the p-value of "perfectly calibrated" without an interval."""
        values = {field.name: getattr(self, field.name) for field in fields(Findings)}
        estimates = {name: value for name, value in values.items() if isinstance(value, Estimate)}
        return estimates | {"calibrated_pvalue": Estimate(self.calibrated_pvalue)}


def finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def no_findings(bins: int) -> Findings:
    return Findings(ece=NOTHING, bins=bare_bins(np.full(bins, np.nan)), ece_if_invalid=(0.0, 1.0))


def bare_bins(gaps: FloatArray) -> tuple[Bin, ...]:
    """Bins of which only the gaps are known; NaN is an unknown gap."""
    return gap_bins([Estimate(finite(gap)) for gap in gaps])


def gap_bins(gaps: Sequence[Estimate]) -> tuple[Bin, ...]:
    edges = bin_edges(len(gaps)).tolist()
    return tuple(map(Bin, edges, edges[1:], gaps))


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
    columns = bin_edges(HISTOGRAM_BINS), negatives, positives
    return ConfidenceHistogram(*(tuple(column.tolist()) for column in columns))


def share_around(value: float, distance: float) -> tuple[float, float]:
    """The interval value ± distance, within [0, 1]."""
    return max(0.0, value - distance), min(1.0, value + distance)


@dataclass(frozen=True, slots=True)
class AnswerMargins:
    """Share of items that each answer was ``given`` to, and that have it as label (``labelled``).

    ``moved`` is the share of answers to change for both to agree. ``pvalue`` tests that they do (Stuart and
    Maxwell); ``None`` with groups or if no answer is wrong.
    """

    given: tuple[float, ...]
    labelled: tuple[float, ...]
    moved: float
    pvalue: float | None

    @classmethod
    def of(cls, confusion: Sequence[Sequence[int]], *, grouped: bool = False) -> AnswerMargins | None:
        """From a table with a row per label and a column per answer; ``None`` if it is empty.

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
    """P-value of equal margins of a square table of pairs (Stuart 1955, Maxwell 1970)."""
    off = table.sum(axis=1) - table.sum(axis=0)
    spread = np.diag(table.sum(axis=1) + table.sum(axis=0)) - table - table.T
    # an answer that is never confused with others adds nothing, and the differences sum to zero
    rank = int(np.linalg.matrix_rank(spread))
    if not rank:
        return None
    statistic = off @ np.linalg.pinv(spread, hermitian=True) @ off
    return float(chdtrc(rank, statistic))
