"""Limits and conditions that a check holds something to, and the verdict on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from blindcal.results.compare import LOWER_IS_BETTER, NAMES

LimitedQuantity: TypeAlias = Literal["ece", "brier", "accuracy", "auroc", "invalid"]
CheckOutcome: TypeAlias = Literal["passed", "failed", "undecided"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a quantity: at most ``value``, or at least ``value`` if higher is better."""

    quantity: LimitedQuantity
    value: float

    @property
    def at_most(self) -> bool:
        """Whether it is an upper limit."""
        return self.quantity in (*LOWER_IS_BETTER, "invalid")

    @property
    def words(self) -> str:
        """The limit in words, such as "ECE at most 0.1"."""
        name = NAMES.get(self.quantity, "share of invalid answers")
        return f"{name} at {'most' if self.at_most else 'least'} {self.value:g}"

    def holds(self, value: float) -> bool:
        """Whether a value is within the limit."""
        return value <= self.value if self.at_most else value >= self.value


@dataclass(frozen=True, slots=True)
class Condition:
    """What a certificate or its endpoint must be; ``words`` say it."""

    quantity: str
    value: float | str
    words: str


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """The outcome of one limit or condition.

    ``bound`` bounds the quantity with the requested confidence; it is ``None`` if it was not used or does not
    exist. The outcome is ``undecided`` if the estimate is within the limit but the bound is not, or if the
    audit cannot support a verdict.
    """

    limit: Limit | Condition
    outcome: CheckOutcome
    estimate: float | None
    bound: float | None
    why: str
