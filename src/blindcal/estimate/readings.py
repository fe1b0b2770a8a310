"""The readings of a problem as patterns, which the likelihood needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blindcal.estimate.axis import LOG_ODDS, Axis, Excess, log_odds_from, margin_axis
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.estimate.problem import Problem
from blindcal.records import Noise


def read(problem: Problem, noise: Noise, axis: Axis | None = None) -> Patterns:
    """Count the readings of the problem's items by pattern; by default the axis is that of log-odds."""
    items = problem.items
    rows = problem.readings.of(items)
    rows = replace(rows, items=np.searchsorted(items, rows.items))
    return count_patterns(
        problem.labels[items],
        rows,
        None if problem.counts is None else problem.counts[items],
        jitter=noise.jitter,
        flip_rate=noise.flip_rate,
        axis=axis_of(problem, None) if axis is None else axis,
    )


def axis_of(problem: Problem, excess: Excess | None) -> Axis:
    """The axis to read a problem on; that of margins if what the excess is matters."""
    if problem.choices is None:
        return LOG_ODDS
    choices = problem.choices[problem.items]
    if excess is not None:
        return margin_axis(choices, excess)
    return log_odds_from(choices) if problem.greedy else LOG_ODDS
