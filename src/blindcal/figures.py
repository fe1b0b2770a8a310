"""The figures of a result, from the answers of a run, whatever method asked for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blindcal.design import BlindDesign, Design
from blindcal.errors import NotIdentifiedError
from blindcal.estimate import functionals
from blindcal.estimate.latent import latent
from blindcal.estimate.truth import bin_edges, binned_ece
from blindcal.methods import blind_result, face_value
from blindcal.records import INVALID, POSITIVE, Answered, FloatArray, IntArray
from blindcal.result import Bin, Estimate, ece_if_invalid, number

NOTHING = Estimate(None)


@dataclass(frozen=True, slots=True)
class Figures:
    """What answers say about calibration; an `Estimate` of ``None`` is what a method cannot tell."""

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


def figures(
    method: str,
    design: Design,
    labels: IntArray,
    groups: IntArray | None,
    answered: Answered,
    bins: int,
    level: float,
    jitter: float = 0.0,
    resamples: int = 1000,
) -> Figures:
    """Estimate everything that the method's answers tell.

    Raises
    ------
    NotIdentifiedError
        If there is no valid answer to rest on.
    """
    if not (answered.answers != INVALID).any():
        raise NotIdentifiedError("no valid answer: nothing can be estimated")
    if isinstance(design, BlindDesign):
        return _blind(design, labels, answered)
    asked = np.unique(answered.items).size
    p = face_value(method, labels.size, answered)
    if p is not None:
        return _direct(labels, p, asked, bins)
    return _latent(labels, groups, answered, bins, level, jitter, resamples)


def _blind(design: BlindDesign, labels: IntArray, answered: Answered) -> Figures:
    found = blind_result(design, labels, answered)
    edges = bin_edges(found.gaps.size)
    side = np.sign(np.round(edges[:-1] + edges[1:] - 1, 9))  # a bin around 1/2 says nothing about confidence
    return Figures(
        Estimate(number(found.ece)),
        _bins(found.gaps),
        (max(0.0, found.ece - found.invalid_bound), min(1.0, found.ece + found.invalid_bound)),
        overconfidence=Estimate(float(side @ found.gaps)),
        leaning=Estimate(float(found.gaps.sum())),
    )


def _direct(labels: IntArray, p: FloatArray, asked: int, bins: int) -> Figures:
    """The figures of probabilities taken at face value."""
    known = np.isfinite(p)
    y, f = labels[known], p[known]
    found = binned_ece(y, f, bins)
    right = (f >= 0.5) == (y == POSITIVE)
    halves = binned_ece(y, f, 2).gaps
    return Figures(
        Estimate(found.ece),
        _bins(found.gaps),
        ece_if_invalid(found.ece, 1 - y.size / asked),
        overconfidence=Estimate(float(halves[1] - halves[0])),
        leaning=Estimate(float((f - y).mean())),
        accuracy=Estimate(float(right.mean())),
        brier=Estimate(float(((f - y) ** 2).mean())),
    )


def _bins(gaps: FloatArray) -> tuple[Bin, ...]:
    edges = bin_edges(gaps.size)
    return tuple(Bin(float(a), float(b), float(g)) for a, b, g in zip(edges, edges[1:], gaps, strict=False))


def _latent(
    labels: IntArray,
    groups: IntArray | None,
    answered: Answered,
    bins: int,
    level: float,
    jitter: float,
    resamples: int,
) -> Figures:
    fit = latent(
        labels[answered.items],
        answered.shifts,
        answered.answers,
        answered.temperatures,
        answered.items,
        None if groups is None else groups[answered.items],
        jitter=jitter,
        resamples=resamples,
    )

    def estimate(name: str, value: Callable[[], float]) -> Estimate:
        try:
            between = fit.interval(name, level, bins=bins)
            return Estimate(number(value()), number(between.low), number(between.high))
        except NotIdentifiedError:
            return NOTHING

    def signed(gaps: FloatArray, sign: FloatArray, draws: FloatArray) -> Estimate:
        low, high = np.quantile(draws @ sign, [(1 - level) / 2, (1 + level) / 2])
        return Estimate(float(gaps @ sign), float(low), float(high))

    halves, in_halves = fit.gaps(2), functionals.gaps(fit.draws, 2)
    ece = fit.ece(bins)
    return Figures(
        estimate("ece", lambda: ece),
        _bins(fit.gaps(bins)),
        (max(0.0, ece - fit.invalid_bound()), min(1.0, ece + fit.invalid_bound())),
        # Above 1/2 the predicted answer is the positive one, below it the other (METHOD 1).
        overconfidence=signed(halves, np.array([-1.0, 1.0]), in_halves),
        leaning=signed(halves, np.ones(2), in_halves),
        auroc=estimate("auroc", fit.auroc),
        accuracy=estimate("accuracy", fit.accuracy),
        brier=estimate("brier", lambda: fit.brier().score),
        log_loss=estimate("log_loss", fit.log_loss),
        tce=estimate("tce", fit.tce),
        calibrated_pvalue=number(fit.calibrated_pvalue()),
    )
