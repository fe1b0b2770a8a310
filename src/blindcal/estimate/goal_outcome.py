"""Whether an audit reached its goal."""

from __future__ import annotations

import numpy as np

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.findings import GoalOutcome
from blindcal.estimate.latent_fit import LatentFit
from blindcal.goals import SURE, Goal
from blindcal.records import Estimate


def goal_outcome(goal: Goal, fit: LatentFit, ece: Estimate, max_shift: float = np.inf) -> GoalOutcome:
    """What a fit with resamples says about a goal; ``ece`` is the ECE as the result shows it."""
    if not goal.chooses_threshold:
        high = ece.high
        reached = high is not None and high <= goal.value
        return GoalOutcome(str(goal), reached, ece, why=None if reached else "the interval reaches further")
    try:
        chosen = fit.choose_threshold(**goal.wanted, confidence=SURE, max_shift=max_shift)
    except NotIdentifiedError as error:
        return GoalOutcome(str(goal), False, why=str(error))
    value = chosen.expected_cost or getattr(chosen.point, goal.name)
    return GoalOutcome(str(goal), True, value, chosen.point.threshold, chosen.point.shift)
