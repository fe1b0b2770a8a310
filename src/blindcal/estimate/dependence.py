"""Whether answers drawn at several temperatures are independent of each other.

A cache that repeats the first answer to an item, whatever the temperature, leaves answers that agree more
than any distribution of the log-odds allows: a draw at T = 2 often differs from one at T = 0.3. The test
compares the largest likelihood over all distributions, with and without a share of repeated first answers. At
one temperature a repeated answer looks like a confident model, so nothing is tested.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from blindcal.records import INVALID, AnswerTable, FloatArray

SHARES = (0.2, 0.4, 0.7, 0.95)  # of repeated answers; smaller ones harm little
LEAST_LEAD = 4.5  # in log-likelihood, over independent draws; 240 honest runs had at most 2.5
_LOG_ODDS = np.sinh(np.linspace(-1, 1, 61) * np.arcsinh(30))
_STEPS = 200  # of the EM algorithm


def repeated_share(rounds: Sequence[AnswerTable]) -> float:
    """The likeliest share of the draws that repeat the item's first answer; 0 if they may be independent.

    Each round is in the order of asking. Only draws without a shift between two answers are tested.
    """
    columns = [np.column_stack([t.items, t.temperatures, t.answers, t.shifts]) for t in rounds]
    asked = np.concatenate(columns) if columns else np.empty((0, 4))
    asked = asked[(asked[:, 1] > 0) & (asked[:, 2] != INVALID) & (asked[:, 3] == 0)]
    if np.unique(asked[:, 1]).size < 2 or asked[:, 2].max() > 1:
        return 0.0
    asked = asked[np.argsort(asked[:, 0], kind="stable")]
    sequences = np.split(asked[:, 1:3], np.flatnonzero(np.diff(asked[:, 0])) + 1)
    patterns: dict[bytes, tuple[FloatArray, int]] = {}
    for sequence in sequences:
        kept, count = patterns.get(sequence.tobytes(), (sequence, 0))
        patterns[sequence.tobytes()] = kept, count + 1
    fits = [_log_likelihood(list(patterns.values()), share) for share in (0.0, *SHARES)]
    best = int(np.argmax(fits))
    return (0.0, *SHARES)[best] if fits[best] - fits[0] > LEAST_LEAD else 0.0


def _log_likelihood(patterns: Sequence[tuple[FloatArray, int]], share: float) -> float:
    """The log-likelihood under the likeliest distribution of the log-odds."""
    rows = []
    for sequence, _ in patterns:
        heat, answer = sequence.T[:, :, None]
        p = expit(np.where(answer == 1, 1, -1) * _LOG_ODDS / heat)
        p[1:] = share * (answer[1:] == answer[0]) + (1 - share) * p[1:]
        rows.append(p.prod(axis=0))
    likelihood, counts = np.array(rows), np.array([count for _, count in patterns], float)
    weights = np.full(_LOG_ODDS.size, 1 / _LOG_ODDS.size)
    for _ in range(_STEPS):
        weights *= (counts / (likelihood @ weights)) @ likelihood / counts.sum()
    return float(counts @ np.log(likelihood @ weights))
