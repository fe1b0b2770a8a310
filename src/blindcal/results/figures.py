"""The figures of a result, from the answers of a run, whatever method asked for them.

``bins_of``, ``curve_of``, ``confidence_of`` and ``operating_of`` turn one `LatentFit` into the records that a
result holds and the report draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logit

from blindcal.design import BlindDesign, Design
from blindcal.errors import NotIdentifiedError
from blindcal.estimate import functionals
from blindcal.estimate.grid import MID_P, memberships
from blindcal.estimate.latent import LatentFit, latent
from blindcal.estimate.operating import Band
from blindcal.estimate.truth import bin_edges, bin_index, binned_ece
from blindcal.methods import blind_result, face_value
from blindcal.records import INVALID, POSITIVE, AnswerTable, Estimator, FloatArray, IntArray
from blindcal.results.result import (
    Bin,
    Confidence,
    CostCurve,
    Curve,
    Estimate,
    Operating,
    ece_if_invalid,
    number,
)

NOTHING = Estimate(None)
CONFIDENCE_BINS = 20
STEPS = 40
"""Operating points lie at every 1/40 between 0 and 1."""

COSTS = ((1.0, 1.0), (5.0, 1.0), (1.0, 5.0))
"""What a wrong positive and a missed one cost, in a result's examples."""

_THRESHOLDS = np.arange(1, STEPS) / STEPS

# Above 1/2 the predicted answer is the positive one, below it the other (METHOD 1).
_OVER, _LEAN = np.array([-1.0, 1.0]), np.array([1.0, 1.0])


@dataclass(frozen=True, slots=True)
class Figures:
    """What answers say about calibration; an `Estimate` of ``None`` is what a method cannot tell.

    ``halves`` are the signed gaps below and above 1/2 (shape 2) with ``halves_covariance``, from which parts
    are compared; ``None`` where they have no known noise.
    """

    ece: Estimate
    bins: tuple[Bin, ...]
    ece_if_invalid: tuple[float, float]
    overconfidence: Estimate = NOTHING
    leaning: Estimate = NOTHING
    auroc: Estimate = NOTHING
    accuracy: Estimate = NOTHING
    brier: Estimate = NOTHING
    log_loss: Estimate = NOTHING
    tce: Estimate = NOTHING
    calibrated_pvalue: float | None = None
    curve: Curve | None = None
    confidence: Confidence | None = None
    operating: tuple[Operating, ...] = ()
    costs: tuple[CostCurve, ...] = ()
    halves: FloatArray | None = None
    halves_covariance: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Estimation:
    """How answers are read: by which estimator, of which design, in which bins, and how sure is sure."""

    reads: Estimator
    design: Design
    bins: int
    level: float
    jitter: float = 0.0
    resamples: int = 1000


def figures(
    how: Estimation,
    labels: IntArray,
    groups: IntArray | None,
    answered: AnswerTable,
    chosen: IntArray | None = None,
    *,
    brief: bool = False,
) -> Figures:
    """Estimate everything that the method's answers tell.

    Parameters
    ----------
    how : Estimation
    labels, groups : arrays, shape (items,)
    answered : AnswerTable
    chosen : array of item numbers, optional
        Only these items.
    brief : bool
        Leave out what a part of a result does not show: curves and tests.

    Without a single valid answer there is nothing to rest on, and every figure is ``None``.
    """
    if chosen is not None:
        answered = answered.of(chosen)
    if not (answered.answers != INVALID).any():
        nowhere = _bins(np.full(how.bins, np.nan))
        return Figures(NOTHING, nowhere, (0.0, 1.0))
    if how.reads == "blind":
        assert isinstance(how.design, BlindDesign)
        return _blind(how.design, labels, answered, chosen)
    p = face_value(how.reads, labels.size, answered)
    if p is not None:
        asked = np.unique(answered.items)
        found = _direct(labels[asked], p[asked], None if groups is None else groups[asked], how.bins)
        # No shift moves a confidence that is stated in words.
        return replace(found, operating=(), costs=()) if how.reads == "stated" else found
    fit = latent(
        labels[answered.items],
        answered.shifts,
        answered.answers,
        answered.temperatures,
        answered.items,
        None if groups is None else groups[answered.items],
        jitter=how.jitter,
        resamples=how.resamples,
    )
    return _latent(fit, how.bins, how.level, brief)


def _blind(design: BlindDesign, labels: IntArray, answered: AnswerTable, chosen: IntArray | None) -> Figures:
    found = blind_result(design, labels, answered, chosen)
    try:
        ece = found.ece
    except NotIdentifiedError:  # a subset without a valid answer: the gaps beside it are not known
        return Figures(NOTHING, _bins(found.gaps), (0.0, 1.0))
    edges = bin_edges(found.gaps.size)
    side = np.sign(np.round(edges[:-1] + edges[1:] - 1, 9))  # a bin around 1/2 says nothing about confidence
    return Figures(
        Estimate(ece),
        _bins(found.gaps),
        (max(0.0, ece - found.invalid_bound), min(1.0, ece + found.invalid_bound)),
        overconfidence=Estimate(float(side @ found.gaps)),
        leaning=Estimate(float(found.gaps.sum())),
    )


def _direct(labels: IntArray, p: FloatArray, groups: IntArray | None, bins: int) -> Figures:
    """The figures of probabilities taken at face value; NaN where there was no valid answer."""
    known = np.isfinite(p)
    y, f = labels[known], p[known]
    found = binned_ece(y, f, bins)
    halves = binned_ece(y, f, 2).gaps
    each = (f - y)[:, None] * (bin_index(f, 2)[:, None] == np.arange(2))
    covariance = np.cov(each.T) / y.size if y.size > 1 and groups is None else None
    with np.errstate(divide="ignore"):
        loss = -np.log(np.where(y == POSITIVE, f, 1 - f)).mean()
    operating = _operating_at_face_value(y, f) if np.unique(y).size > 1 else ()
    return Figures(
        Estimate(found.ece),
        _bins_at_face_value(y, f, found.gaps),
        ece_if_invalid(found.ece, 1 - y.size / labels.size),
        overconfidence=Estimate(float(halves @ _OVER)),
        leaning=Estimate(float(halves @ _LEAN)),
        auroc=Estimate(_rank_auroc(y, f)),
        accuracy=Estimate(float(((f >= 0.5) == (y == POSITIVE)).mean())),
        brier=Estimate(float(((f - y) ** 2).mean())),
        log_loss=Estimate(number(loss)),
        confidence=_confidence_at_face_value(y, f),
        operating=operating,
        costs=_costs_at_face_value(operating),
        halves=halves,
        halves_covariance=covariance,
    )


def _bins(gaps: FloatArray) -> tuple[Bin, ...]:
    edges = bin_edges(gaps.size).tolist()
    return tuple(
        Bin(low, high, Estimate(number(gap))) for low, high, gap in zip(edges, edges[1:], gaps, strict=False)
    )


def _bins_at_face_value(y: IntArray, f: FloatArray, gaps: FloatArray) -> tuple[Bin, ...]:
    where, n = bin_index(f, gaps.size), gaps.size
    share = np.bincount(where, minlength=n) / y.size
    return _filled(
        _bins(gaps),
        share,
        np.bincount(where, f, minlength=n) / y.size,
        np.bincount(where, y, minlength=n) / y.size,
    )


def _filled(
    bins: tuple[Bin, ...], share: FloatArray, predicted: FloatArray, observed: FloatArray
) -> tuple[Bin, ...]:
    """Bins with their share and, where there is one, their means; the latter come times the share."""
    return tuple(
        replace(one, share=float(s), predicted=float(p / s), observed=float(o / s))
        if s > 0
        else replace(one, share=0.0)
        for one, s, p, o in zip(bins, share, predicted, observed, strict=True)
    )


def _rank_auroc(y: IntArray, f: FloatArray) -> float | None:
    values, rank = np.unique(f, return_inverse=True)
    negative = np.bincount(rank[y != POSITIVE], minlength=values.size)
    positive = np.bincount(rank[y == POSITIVE], minlength=values.size)
    pairs = float(negative.sum()) * float(positive.sum())
    below = np.cumsum(negative) - negative / 2
    return float(positive @ below) / pairs if pairs else None


def _confidence_at_face_value(y: IntArray, f: FloatArray) -> Confidence:
    where = bin_index(f, CONFIDENCE_BINS)
    counts = [np.bincount(where[y == label], minlength=CONFIDENCE_BINS) for label in (0, 1)]
    negatives, positives = (count / max(count.sum(), 1) for count in counts)
    return _confidence(bin_edges(CONFIDENCE_BINS), negatives, positives)


def _confidence(edges: FloatArray, negatives: FloatArray, positives: FloatArray) -> Confidence:
    return Confidence(tuple(edges.tolist()), tuple(negatives.tolist()), tuple(positives.tolist()))


def _operating_at_face_value(y: IntArray, f: FloatArray) -> tuple[Operating, ...]:
    where = bin_index(f, STEPS)
    shares = [np.bincount(where[y == label], minlength=STEPS) / y.size for label in (0, 1)]
    return tuple(
        Operating(row.threshold, row.shift, *(Estimate(number(float(value))) for value in row.values))
        for row in _decisions(shares[0], shares[1])
    )


def _costs_at_face_value(operating: tuple[Operating, ...]) -> tuple[CostCurve, ...]:
    def expected(row: Operating, cost_fp: float, cost_fn: float) -> Estimate:
        assert row.false_positive.value is not None
        assert row.false_negative.value is not None
        return Estimate(cost_fp * row.false_positive.value + cost_fn * row.false_negative.value)

    return tuple(CostCurve(*costs, tuple(expected(row, *costs) for row in operating)) for costs in COSTS)


# One latent fit


def _latent(fit: LatentFit, bins: int, level: float, brief: bool) -> Figures:
    def estimate(name: str, value: Callable[[], float]) -> Estimate:
        try:
            between = fit.interval(name, level, bins=bins)
            return Estimate(number(value()), number(between.low), number(between.high))
        except NotIdentifiedError:
            return NOTHING

    halves, drawn = fit.gaps(2), functionals.gaps(fit.draws, 2)

    def signed(sign: FloatArray) -> Estimate:
        low, high = np.quantile(drawn @ sign, [(1 - level) / 2, (1 + level) / 2])
        return Estimate(float(halves @ sign), float(low), float(high))

    ece = fit.ece(bins)
    some = Figures(
        estimate("ece", lambda: ece),
        bins_of(fit, bins, level),
        (max(0.0, ece - fit.invalid_bound()), min(1.0, ece + fit.invalid_bound())),
        overconfidence=signed(_OVER),
        leaning=signed(_LEAN),
        accuracy=estimate("accuracy", fit.accuracy),
        halves=functionals.gaps(fit.population, 2),
        halves_covariance=np.cov(drawn.T),
    )
    if brief:
        return some
    one_label = np.unique(fit.patterns.labels).size < 2
    return replace(
        some,
        auroc=estimate("auroc", fit.auroc),
        brier=estimate("brier", lambda: fit.brier().score),
        log_loss=estimate("log_loss", fit.log_loss),
        tce=estimate("tce", fit.tce),
        calibrated_pvalue=number(fit.calibrated_pvalue()),
        confidence=confidence_of(fit),
        # of one label alone a curve is flat, and sure of it, whatever the model does
        curve=None if one_label else curve_of(fit, level),
        operating=() if one_label else operating_of(fit, level),
        costs=() if one_label else tuple(cost_of(fit, level, *costs) for costs in COSTS),
    )


def bins_of(fit: LatentFit, bins: int, level: float) -> tuple[Bin, ...]:
    """Signed gaps with an interval each, and what the sample's items did in each bin."""
    found = fit.gap_intervals(bins, level)
    negative, positive = functionals.by_label(fit.sample)
    within = memberships(bins)
    return _filled(
        tuple(
            Bin(float(a), float(b), Estimate(float(gap), float(low), float(high)))
            for a, b, gap, low, high in zip(
                found.edges[:-1], found.edges[1:], found.value, found.low, found.high, strict=True
            )
        ),
        (negative + positive) @ within,
        ((negative + positive) * MID_P) @ within,
        positive @ within,
    )


def curve_of(fit: LatentFit, level: float) -> Curve:
    """The reliability curve with its band, at every 0.01 and nearer the ends, where models crowd."""
    found = fit.curve(999, level)
    each = np.concatenate([[1, 2, 5], np.arange(10, 991, 10), [995, 998, 999]]) - 1
    f, value, low, high = (
        tuple(column[each].tolist()) for column in (found.f, found.value, found.low, found.high)
    )
    return Curve(f, value, low, high)


def confidence_of(fit: LatentFit) -> Confidence:
    """The distribution of the confidence for each label."""
    found = fit.confidence(CONFIDENCE_BINS)
    return _confidence(found.edges, found.negatives, found.positives)


def operating_of(fit: LatentFit, level: float) -> tuple[Operating, ...]:
    """What every threshold would do to the population, with intervals; nothing where all labels are alike."""
    try:
        found = fit.operating_curve(_THRESHOLDS, level=level)
    except NotIdentifiedError:
        return ()
    bands = (
        found.precision,
        found.recall,
        found.accuracy,
        found.positive_rate,
        found.false_positive,
        found.false_negative,
        found.negative_precision,
    )
    return tuple(
        Operating(float(threshold), float(shift), *estimates)
        for threshold, shift, *estimates in zip(
            found.thresholds, found.shifts, *map(_estimates, bands), strict=True
        )
    )


def cost_of(fit: LatentFit, level: float, cost_fp: float, cost_fn: float) -> CostCurve:
    """What a decision by each of those thresholds is expected to cost."""
    found = fit.operating_curve(_THRESHOLDS, level=level, cost_fp=cost_fp, cost_fn=cost_fn)
    assert found.expected_cost is not None
    return CostCurve(cost_fp, cost_fn, _estimates(found.expected_cost))


def _estimates(band: Band) -> tuple[Estimate, ...]:
    return tuple(Estimate(*map(number, ends)) for ends in zip(band.value, band.low, band.high, strict=True))


@dataclass(frozen=True, slots=True)
class _Decision:
    """One threshold, and the rates of `Operating` of one or many tables."""

    threshold: float
    shift: float
    values: tuple[FloatArray, ...]


def _decisions(negative: FloatArray, positive: FloatArray) -> list[_Decision]:
    """From the shares of all items in each of `STEPS` bins (last axis), by label."""
    above = [np.cumsum(half[..., ::-1], axis=-1)[..., ::-1] for half in (negative, positive)]
    share = positive.sum(axis=-1)
    found = []
    for k in range(1, STEPS):
        fp, tp, t = above[0][..., k], above[1][..., k], k / STEPS
        fn, tn = (np.where(rest > 1e-12, rest, 0.0) for rest in (share - tp, 1 - share - fp))
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.where(fp + tp > 1e-12, tp / (fp + tp), np.nan)
            recall = np.where(share > 1e-12, tp / share, np.nan)
            rejected = np.where(fn + tn > 1e-12, tn / (fn + tn), np.nan)
        rates = (precision, recall, tp + (1 - share) - fp, fp + tp, fp, fn, rejected)
        found.append(_Decision(t, 0.0 - float(logit(t)), rates))
    return found
