"""Forecasts of how likely an audit with a goal reaches it.

For an assumed shape, the expected counts of each round give the candidate thresholds of the next, and those
of all rounds one fit. Its refits scatter as the estimates of many audits do: each is taken for the estimate
of one audit, and the goal counts as reached if the lower bound around it reaches the goal at a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import logit, ndtr

from blindcal import design
from blindcal.errors import InputError
from blindcal.estimate.candidates import candidate_edges
from blindcal.estimate.grid import CELLS, EDGES_P
from blindcal.estimate.model import fit_ensemble
from blindcal.estimate.operating import QUANTITIES, decision_rates
from blindcal.estimate.patterns import Patterns
from blindcal.estimate.resampling import of_items, resampled_tables
from blindcal.goals import SURE, Goal
from blindcal.planning.forecast import forecast, threshold_counts
from blindcal.planning.shapes import Shape
from blindcal.records import FloatArray

WANTED = 0.8
"""Chance of reaching a goal with which a plan is content."""
LEAST, MOST = 100, 200_000
"""Numbers of items that a plan considers."""
_DRAWS = 200
_ROUGHLY = 1e-3  # log-likelihood units at which a fit may stop
_STEPS = 12


@dataclass(frozen=True, slots=True)
class GoalForecast:
    """How likely an audit of so many items, asked once each, reaches a goal.

    ``recall`` is the recall to expect at the promised threshold, ``None`` for an ECE.
    """

    goal: str
    items: int
    chance: float
    recall: float | None = None


def goal_forecast(shape: Shape, goal: Goal, n: int, *, bins: int = 5, level: float = SURE) -> GoalForecast:
    """Forecast how often audits of n items reach a goal, if the model has the assumed shape.

    Raises
    ------
    InputError
        If no audit could: the goal is out of reach of the shape, or it is about costs.
    """
    if goal.name == "cost":
        raise InputError("goal: any audit can choose by costs; plan for a precision, a recall or an ece")
    if goal.name == "ece":
        found = forecast(shape, "latent", n, 1.0, bins=bins, level=level, with_power=False)
        assert found.half_width is not None
        if found.ece >= goal.value:
            raise InputError(f"goal: {goal} is out of reach of this shape, whose ECE is {found.ece:.4f}")
        spread = max(found.error * np.sqrt(np.pi / 2), 1e-9)  # the mean absolute error of a normal estimate
        chance = float(ndtr((goal.value - found.half_width - found.ece) / spread))
        return GoalForecast(str(goal), n, chance)
    _check_within_reach(shape, goal)
    chance, recall = _promises(shape, goal, int(float(f"{n:.3g}")))
    return GoalForecast(str(goal), n, chance, recall)


def least_items(
    shape: Shape,
    goal: Goal,
    most: int = MOST,
    *,
    bins: int = 5,
    level: float = SURE,
    tried: Callable[[], object] = lambda: None,
) -> GoalForecast | None:
    """The smallest audit, to a few per cent, that reaches a goal with a chance of `WANTED`.

    ``None`` if ``most`` items do not suffice. ``tried`` is called after every forecast.
    """
    low, best, n = LEAST, None, min(1000, most)
    for _ in range(_STEPS):
        found = goal_forecast(shape, goal, n, bins=bins, level=level)
        tried()
        if found.chance >= WANTED:
            best = found
        elif n >= most:
            return None
        else:
            low = n
        if best is not None and best.items <= 1.1 * low:
            break
        n = min(3 * low, most) if best is None else round(np.sqrt(low * best.items))
        if best is not None and n >= best.items:
            break
    return best


def _check_within_reach(shape: Shape, goal: Goal) -> None:
    rates = decision_rates(shape.table)
    value = QUANTITIES[goal.name](rates)
    highest = float(np.nanmax(np.where(rates.recall > 0.02, value, 0.0)))
    if highest < goal.value:
        raise InputError(
            f"goal: {goal} is out of reach of this shape, whose {goal.name} is at most {highest:.3f}"
        )


@lru_cache(maxsize=64)
def _promises(shape: Shape, goal: Goal, n: int) -> tuple[float, float | None]:
    """The chance that a promise is made, and the mean recall of the promised thresholds."""
    pilot = round(design.PILOT * n) if n >= design.LEAST_PILOT else n
    labels = (1,) if goal.name == "recall" else (0, 1)
    deciding = (n - pilot) * float(shape.table.reshape(2, CELLS)[list(labels)].sum())
    evenly = np.diff(EDGES_P)
    patterns, found = _asked(shape.table, pilot, [evenly, evenly]), []
    for _ in range(2):  # as in `LatentDesign`
        found.append(candidate_edges(patterns, goal, int(deciding / 2), (0,)))
        at = np.bincount(found[-1], minlength=CELLS) / found[-1].size
        half = _asked(shape.table, (n - pilot) / 2, [at if y in labels else evenly for y in (0, 1)])
        patterns = _joined(patterns, half)
    ensemble = fit_ensemble(patterns, enough=_ROUGHLY)
    rng = np.random.default_rng(0)
    drawn = decision_rates(resampled_tables(patterns, ensemble, _DRAWS, rng, of_items(patterns)))
    places = np.unique(found) - 1
    value = logit(np.clip(QUANTITIES[goal.name](drawn)[:, places], 1e-6, 1 - 1e-6))
    below = np.median(value, axis=0) - np.quantile(value, (1 - SURE) / 2, axis=0)
    reached = value - below >= logit(goal.value)
    made = reached.any(axis=1)
    if goal.name == "recall":  # the highest threshold that reaches it
        which = places.size - 1 - np.argmax(reached[:, ::-1], axis=1)
    else:
        which = np.argmax(reached, axis=1)
    recall = decision_rates(shape.table).recall[places][which]
    return float(made.mean()), float(recall[made].mean()) if made.any() else None


def _asked(table: FloatArray, n: float, by_label: list[FloatArray]) -> Patterns:
    """Expected counts of one threshold query per item, given the density of the thresholds by label."""
    shares = [density[1:] / density[1:].sum() for density in by_label]
    return threshold_counts(table, n, np.arange(1, CELLS), shares)


def _joined(one: Patterns, other: Patterns) -> Patterns:
    """The patterns of both; the likelihood does not mind that some occur twice."""
    return Patterns(
        start=np.concatenate([one.start, other.start]),
        stop=np.concatenate([one.stop, other.stop]),
        counts=np.concatenate([one.counts, other.counts]),
    )
