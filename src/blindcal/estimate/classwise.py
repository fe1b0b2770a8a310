"""Calibration of every answer against the rest, with more than two answers ("classwise", METHOD 8).

For each answer j the problem has two labels, "j is right" or not, and the probability of j. A query with a
shift on j and Gumbel numbers on all others reads its log-odds: P(answer j) = exp(-exp(-(s + b))).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from blindcal.errors import NotIdentifiedError
from blindcal.estimate import functionals as of
from blindcal.estimate.axis import LOG_ODDS
from blindcal.estimate.findings import AnswerPart, Findings, bare_bins, gap_bins, share_around
from blindcal.estimate.latent_fit import LatentFit
from blindcal.estimate.model import fit_ensemble
from blindcal.estimate.patterns import count_patterns
from blindcal.estimate.resampling import Resampling
from blindcal.estimate.uncertainty import absolute_sum_interval, draw_quantile
from blindcal.records import INVALID, NEGATIVE, POSITIVE, AnswerTable, Estimate, FloatArray, IntArray, Noise

FEW_QUERIES = 100
"""Fewer queries about an answer than this are too few to trust its estimates."""


def fit_each_answer(
    labels: IntArray,
    answered: AnswerTable,
    choices: IntArray,
    groups: IntArray | None = None,
    *,
    noise: Noise | None = None,
    bins: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
) -> Mapping[int, LatentFit]:
    """A fit for each answer that queries were about, to the items that were asked about it."""
    assert answered.about is not None
    noise = Noise() if noise is None else noise
    valid = (answered.answers >= 0) & (answered.answers < choices[answered.items])
    fits = {}
    for answer in range(int(choices.max())):
        rows = answered.rows(answered.about == answer)
        said = np.where(
            valid[answered.about == answer],
            np.where(rows.answers == answer, POSITIVE, NEGATIVE),
            INVALID,
        )
        if not (said != INVALID).any():
            continue
        items, owner = np.unique(rows.items, return_inverse=True)
        binary = replace(
            rows, items=owner, answers=said, about=None, biases=None, gumbel=np.ones(len(rows), bool)
        )
        right = (labels[items] == answer).astype(np.int64)
        patterns = count_patterns(right, binary, flip_rate=noise.flip_rate, axis=LOG_ODDS)
        ensemble = fit_ensemble(patterns)
        units = None if groups is None else groups[items]
        fits[answer] = LatentFit(
            patterns=patterns,
            ensemble=ensemble,
            resampling=Resampling(patterns, ensemble, resamples, answer, units),
            items=items.size,
            queries=len(rows),
            invalid=int((said == INVALID).sum()),
            jitter=noise.jitter,
            bin_count=bins,
            level=level,
        )
    if not fits:
        raise NotIdentifiedError("no query about an answer has a valid answer")
    return fits


def classwise_findings(fits: Mapping[int, LatentFit], labels: IntArray) -> Findings:
    """The mean over the answers of the ECE and of the gap of each bin, and a row per answer."""
    each = list(fits.values())
    k, bins, level = len(each), each[0].bin_count, each[0].level
    gaps = np.array([fit.gaps for fit in each])
    value = float(np.abs(gaps).sum() / k)
    ece, rows = Estimate(value), bare_bins(gaps.mean(axis=0))
    if each[0].resampling.size:
        drawn = np.stack([of.gaps(fit.draws, bins) for fit in each], axis=1)
        ece = _mean_ece(value, np.array([of.gaps(fit.population, bins) for fit in each]), drawn, level)
        tail = (1 - level) / 2
        low, high = (draw_quantile(drawn.mean(axis=1), share) for share in (tail, 1 - tail))
        rows = gap_bins(
            Estimate(float(gap), min(float(gap), float(a)), max(float(gap), float(b)), level)
            for gap, a, b in zip(gaps.mean(axis=0), low, high, strict=True)
        )
    reach = float(np.mean([fit.invalid_bound for fit in each]))
    parts = tuple(
        AnswerPart(
            answer,
            int((labels == answer).sum()),
            None,
            None,
            fit.ece,
            fit.label_share,
            fit.mean_confidence,
            fit.leaning,
            fit.queries < FEW_QUERIES,
        )
        for answer, fit in fits.items()
    )
    return Findings(ece=ece, bins=rows, ece_if_invalid=share_around(value, reach), by_answer=parts)


def _mean_ece(value: float, gaps: FloatArray, drawn: FloatArray, level: float) -> Estimate:
    """The mean of the answers' ECEs with its interval; the answers are refitted independently."""
    k, size = len(gaps), len(drawn)
    low, high = absolute_sum_interval(gaps.reshape(-1) / k, drawn.reshape(size, -1) / k, level)
    return Estimate(value, max(0.0, low), min(1.0, high), level)
