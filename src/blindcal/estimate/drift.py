"""Whether a model changed while it was asked.

The test is a CUSUM: queries are asked in random order, so without a change the running sum of a centred
score tends to a Brownian bridge, whose largest distance from zero has Kolmogorov's distribution. Scores are
residuals given label, shift and temperature, also times the shift and times the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import kolmogorov

from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray

LEAST_ANSWERS = 100  # in a round, below which nothing is tested
_MOST_SHIFTS = 20  # ranges of the shift within which answers are compared
_IN_A_RANGE = 25  # answers, at least


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
                if (test := _cusum(score, begins)) is not None:
                    tests.append(Drift(test.pvalue, begin + int(valid[test.at - 1]) + 1))
        begin += len(asked)
    if not tests:
        return None
    clearest = min(tests, key=lambda test: test.pvalue)
    return Drift(min(1.0, clearest.pvalue * len(tests)), clearest.at)


def _scores(labels: IntArray, asked: AnswerTable) -> tuple[FloatArray, ...]:
    from scipy.stats import rankdata  # slow to import, and needed only once a run is finished

    label = labels[asked.items]
    rank = (rankdata(asked.shifts) - 0.5) / len(asked)
    ranges = max(1, min(_MOST_SHIFTS, len(asked) // (2 * _IN_A_RANGE)))
    strata = np.column_stack([label, asked.temperatures, np.floor(ranges * rank)])
    _, stratum = np.unique(strata, axis=0, return_inverse=True)
    stratum = stratum.reshape(-1)
    mean = np.bincount(stratum, asked.answers) / np.bincount(stratum)
    left = asked.answers - mean[stratum]
    return left, left * (rank - 0.5), left * (label - 0.5)


def _cusum(score: FloatArray, begins: IntArray) -> Drift | None:
    centred = np.add.reduceat(score - score.mean(), begins)
    scale = np.sqrt((centred**2).sum())
    if scale < 1e-9 or begins.size < 2:
        return None
    path = np.abs(np.cumsum(centred)[:-1]) / scale
    at = int(path.argmax())
    return Drift(float(kolmogorov(path[at])), int(begins[at + 1]))
