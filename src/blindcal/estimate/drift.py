"""Whether the answers of a run changed while it was under way.

The queries of a round are asked in random order. If the endpoint is the same throughout, the order tells
nothing about the answers, whatever the model: the running sum of any score of the answers, centred, is then a
Brownian bridge in the limit, and its largest distance from zero has Kolmogorov's distribution (the CUSUM test
for a change at an unknown time). The scores are what the answers have left once the label, the shift and the
temperature are accounted for: their level (all log-odds moved), times the shift (the bias acts less or more),
and times the label (the model got better or worse).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import kolmogorov
from scipy.stats import rankdata

from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray

LEAST_ANSWERS = 100  # in a round, below which nothing is tested
_MOST_SHIFTS = 20  # ranges of the shift within which answers are compared
_IN_A_RANGE = 25  # answers, at least


@dataclass(frozen=True, slots=True)
class Drift:
    """The test of "the answers did not change during the run".

    ``pvalue`` allows for all rounds and scores that were tested. ``at`` is the number of queries after which
    the change was, if there was one.
    """

    pvalue: float
    at: int


def drift_test(
    labels: IntArray, rounds: Sequence[AnswerTable], requests: Sequence[IntArray] | None = None
) -> Drift | None:
    """Test for a change; each round is in the order of asking. ``None`` if no round has enough answers.

    ``requests`` has the number of the request that brought each answer of each round, if some brought several
    answers about an item. These are alike, and their order tells nothing: they count as one.
    """
    found: list[Drift] = []
    begin = 0
    for k, asked in enumerate(rounds):
        valid = np.flatnonzero(asked.answers != INVALID)
        if valid.size >= LEAST_ANSWERS:
            number = np.arange(len(asked)) if requests is None else requests[k]
            begins = np.flatnonzero(np.diff(number[valid], prepend=-1))  # of each request
            for score in _scores(labels, asked.rows(valid)):
                if (one := _cusum(score, begins)) is not None:
                    found.append(Drift(one.pvalue, begin + int(valid[one.at - 1]) + 1))
        begin += len(asked)
    if not found:
        return None
    clearest = min(found, key=lambda one: one.pvalue)
    return Drift(min(1.0, clearest.pvalue * len(found)), clearest.at)


def _scores(labels: IntArray, asked: AnswerTable) -> tuple[FloatArray, ...]:
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
    """The test of one score in one round; ``at`` counts its answers, ``begins`` is where requests begin."""
    centred = np.add.reduceat(score - score.mean(), begins)
    scale = np.sqrt((centred**2).sum())
    if scale < 1e-9 or begins.size < 2:
        return None
    path = np.abs(np.cumsum(centred)[:-1]) / scale
    at = int(path.argmax())
    return Drift(float(kolmogorov(path[at])), int(begins[at + 1]))
