"""Candidate thresholds of a goal: where the answers so far leave open how it is decided.

Each refit to the answers so far is a possible truth, and chooses a threshold of its own. For a precision or
a recall it is the first one at which the audit could promise the goal with the queries that are left: a
little beyond the one that just reaches it. A few quantiles of these thresholds are the candidates. Many
queries at each of them show directly how the model decides there, however its confidence is distributed.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from blindcal.estimate.grid import CELLS
from blindcal.estimate.model import fit_ensemble
from blindcal.estimate.operating import Rates, decision_rates
from blindcal.estimate.patterns import Patterns
from blindcal.estimate.resampling import of_items, resampled_tables
from blindcal.goals import SURE, Goal
from blindcal.records import FloatArray, IntArray

MOST_CANDIDATES, LEAST_EACH = 3, 40
"""Most thresholds that the queries of a round are asked at, and the fewest queries at each."""
_REFITS = 100
_ROUGHLY = 1e-3  # log-likelihood units at which a fit may stop: far below the uncertainty of the answers
_WORTH = 0.02  # a threshold with a lower recall than this is not worth asking at
_EFFECTIVE = 0.5  # share of the queries that tell about one threshold: those at it, some at others


def candidate_edges(patterns: Patterns, goal: Goal, queries: int, seed: tuple[int, ...]) -> IntArray:
    """Edges of the grid to ask the next ``queries`` at, which can decide the goal; some may be the same."""
    ensemble = fit_ensemble(patterns, enough=_ROUGHLY)
    rng = np.random.default_rng(seed)
    tables = resampled_tables(patterns, ensemble, _REFITS, rng, of_items(patterns))
    places = np.sort(deciding_places(decision_rates(tables), goal, queries))
    count = min(max(queries // LEAST_EACH, 1), MOST_CANDIDATES)
    middle = ((np.arange(count) + 0.5) / count * places.size).astype(np.int64)
    return np.clip(places[middle] + 1, 1, CELLS - 1)


def deciding_places(rates: Rates, goal: Goal, queries: int) -> IntArray:
    """The place, among the thresholds of the grid, where each of some tables decides a goal.

    If a goal is out of reach, it is where the goal is missed by least.
    """
    if goal.cost_fn is not None:
        return np.asarray(np.argmin(rates.cost(goal.value, goal.cost_fn), axis=-1))
    precise = goal.name == "precision"
    value = np.nan_to_num(rates.precision if precise else rates.recall)
    share = rates.positive_rate if precise else 1.0
    slack = value - goal.value - _half_width(goal.value, _EFFECTIVE * queries * share)
    if not precise:  # the highest threshold that reaches a recall, the lowest that reaches a precision
        return np.asarray(value.shape[-1] - 1 - _first(slack[..., ::-1]))
    return _first(np.where(rates.recall > _WORTH, slack, -np.inf))


def _half_width(share: float, n: float | FloatArray) -> FloatArray:
    """How far below its estimate the lower bound of a share lies, with n observations."""
    return np.asarray(ndtri(SURE) * np.sqrt(share * (1 - share) / np.maximum(n, 1e-9)))


def _first(slack: FloatArray) -> IntArray:
    """The first place without a lack, or the one with the least."""
    reached = slack >= 0
    return np.asarray(np.where(reached.any(axis=-1), np.argmax(reached, axis=-1), np.argmax(slack, axis=-1)))
