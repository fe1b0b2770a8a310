"""Whether a model changed while it was asked.

Queries are asked in random order, so without a change the running sum of a centred score tends to a Brownian
bridge. Its largest distance from zero, which has Kolmogorov's distribution, shows a sudden change; its mean,
which is normal with variance 1/12, shows a slow one. Scores are residuals given label, shift, temperature and
the item's other answers, also times the shift and times the label. Where probabilities are shown, scores are
their ranks instead.

Where flips are known, answers next to them show how far the log-odds have moved since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import kolmogorov, ndtr

from blindcal.records import INVALID, POSITIVE, AnswerTable, FloatArray, IntArray

LEAST_ANSWERS = 100  # in a round, below which nothing is tested
_MOST_SHIFTS = 20  # ranges of the shift within which answers are compared
_IN_A_RANGE = 25  # answers, at least
_MOVES = np.array([sign * size for size in (0.35, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0) for sign in (-1, 1)])
_BEGINS = np.linspace(0, 0.9, 10)  # of a sudden move
_JITTERS = np.geomspace(0.02, 4.0, 24)
_STRAY = 0.01  # share of answers that are wrong however far from the flip
LEAST_LEAD = 7.0  # in log-likelihood, of a move over none


@dataclass(frozen=True, slots=True)
class Drift:
    """The test of "the answers did not change"; ``at`` is the number of queries before the change."""

    pvalue: float
    at: int


def drift_test(
    labels: IntArray, rounds: Sequence[AnswerTable], requests: Sequence[IntArray] | None = None
) -> Drift | None:
    """Test for a change; each round is in the order of asking. ``None`` if no round has enough answers.

    ``requests`` numbers the request behind each answer; answers about an item from one request count as one.
    """
    tests: list[Drift] = []
    begin = 0
    for k, asked in enumerate(rounds):
        valid = np.flatnonzero(asked.answers != INVALID)
        if valid.size >= LEAST_ANSWERS:
            number = np.arange(len(asked)) if requests is None else requests[k]
            begins = np.flatnonzero(np.diff(number[valid], prepend=-1))  # of each request
            for score in _scores(labels, asked.rows(valid)):
                tests += [
                    Drift(test.pvalue, begin + int(valid[test.at - 1]) + 1) for test in _tests(score, begins)
                ]
        begin += len(asked)
    if not tests:
        return None
    clearest = min(tests, key=lambda test: test.pvalue)
    return Drift(min(1.0, clearest.pvalue * len(tests)), clearest.at)


def _scores(labels: IntArray, asked: AnswerTable) -> tuple[FloatArray, ...]:
    from scipy.stats import rankdata  # slow to import, and needed only once a run is finished

    label = labels[asked.items]
    if asked.bounds is not None:  # the rank of a probability says more than the answer
        middle = rankdata(asked.bounds.mean(axis=1)) / len(asked)
        means = np.bincount(label, middle) / np.maximum(np.bincount(label), 1)
        away = middle - means[label]
        return away, away * (label - 0.5), np.abs(middle - 0.5)
    others = np.bincount(asked.items, asked.answers)[asked.items] - asked.answers
    rank = (rankdata(asked.shifts) - 0.5) / len(asked)
    ranges = max(1, min(_MOST_SHIFTS, len(asked) // (2 * _IN_A_RANGE)))
    strata = np.column_stack([label, asked.temperatures, np.floor(ranges * rank), others])
    _, stratum = np.unique(strata, axis=0, return_inverse=True)
    stratum = stratum.reshape(-1)
    mean = np.bincount(stratum, asked.answers) / np.bincount(stratum)
    left = asked.answers - mean[stratum]
    return left, left * (rank - 0.5), left * (label - 0.5)


def _tests(score: FloatArray, begins: IntArray) -> list[Drift]:
    """The tests for a sudden and for a slow change."""
    centred = np.add.reduceat(score - score.mean(), begins)
    scale = np.sqrt((centred**2).sum())
    if scale < 1e-9 or begins.size < 2:
        return []
    path = np.cumsum(centred)[:-1] / scale
    at = int(np.abs(path).argmax())
    slow = 2 * ndtr(-np.sqrt(12) * abs(path.mean()))
    return [Drift(float(pvalue), int(begins[at + 1])) for pvalue in (kolmogorov(abs(path[at])), slow)]


def anchors_moved(times: FloatArray, off: FloatArray, answers: FloatArray) -> int:
    """Whether log-odds rose (1) or fell (-1) in a run, steadily or at once; 0 if they may not have.

    ``off`` is each query's distance from the item's known flip, and ``times`` its place in the run, from 0 to
    1. Jitter, which may have begun with the run, explains wrong answers on both sides of a flip alike.
    """
    if not answers.size:
        return 0
    sudden = [times >= begin for begin in _BEGINS]
    paths = _MOVES[:, None, None] * np.array([times, *sudden])
    paths = np.concatenate([np.zeros((1, times.size)), paths.reshape(-1, times.size)])
    p = _STRAY / 2 + (1 - _STRAY) * ndtr((off + paths)[:, None] / _JITTERS[:, None])
    fits = np.log(np.where(answers == POSITIVE, p, 1 - p)).sum(axis=2).max(axis=1)
    best = int(fits.argmax())
    return int(np.sign(paths[best].sum())) if fits[best] - fits[0] > LEAST_LEAD else 0
