"""Goals: what an audit is to decide about the deployed model, and so where it asks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from blindcal.errors import InputError

GoalName: TypeAlias = Literal["precision", "recall", "cost", "ece"]
GOAL_FORMS = "precision=0.95, recall=0.9, cost=5:1 (a false positive : a false negative) or ece=0.05"
"""The forms of a goal, in words."""
SURE = 0.95
"""Probability with which a precision or a recall must be reached, unless another is asked for."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A precision or a recall to reach, two costs to weigh, or the highest ECE to allow.

    ``value`` is the precision, the recall or the ECE. For costs it is that of a false positive, and
    ``cost_fn`` that of a false negative.

    Examples
    --------
    >>> Goal.parse("cost = 5:1")
    Goal(name='cost', value=5.0, cost_fn=1.0)
    >>> str(Goal.parse("precision=.95"))
    'precision=0.95'
    """

    name: GoalName
    value: float
    cost_fn: float | None = None

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read a goal in one of `GOAL_FORMS`; raises `InputError` if it is none."""
        name, _, rest = (part.strip() for part in text.partition("="))
        costs = rest.split(":")
        try:
            numbers = [float(part) for part in costs]
        except ValueError:
            numbers = []
        for known in get_args(GoalName):
            if name != known or len(numbers) != (2 if known == "cost" else 1):
                continue
            if known == "cost" and all(0 < one < math.inf for one in numbers):
                return cls(known, *numbers)
            if known != "cost" and 0 < numbers[0] < 1:
                return cls(known, numbers[0])
            rule = "two costs above 0" if known == "cost" else "a number between 0 and 1"
            raise InputError(f"goal: {known} must be {rule}, got {rest!r}")
        raise InputError(f"goal: must be {GOAL_FORMS}, got {text!r}")

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}" + ("" if self.cost_fn is None else f":{self.cost_fn:g}")

    @property
    def words(self) -> str:
        """The goal in words."""
        if self.cost_fn is not None:
            costs = f"a wrong positive costs {self.value:g} and a wrong negative {self.cost_fn:g}"
            return f"lowest expected cost if {costs}"
        return f"ECE at most {self.value:g}" if self.name == "ece" else f"{self.name} at least {self.value:g}"

    @property
    def chooses_threshold(self) -> bool:
        """Whether it is about a decision threshold, unlike an ECE."""
        return self.name != "ece"

    @property
    def wanted(self) -> dict[str, float]:
        """The arguments of ``choose_threshold``."""
        if self.cost_fn is not None:
            return {"cost_fp": self.value, "cost_fn": self.cost_fn}
        return {self.name: self.value}
