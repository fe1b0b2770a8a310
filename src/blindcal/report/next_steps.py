"""What a result means for someone who acts on the model, and the commands that come next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from blindcal.estimation import FEW_ITEMS
from blindcal.report.sentences import ALPHA, QUOTED
from blindcal.results.result import AuditResult

NEGLIGIBLE = 0.05
"""A calibration error below this leaves most decisions as they are."""


@dataclass(frozen=True, slots=True)
class Assessment:
    outcome: str
    tone: Literal["good", "bad", "unknown"]
    advice: str


@dataclass(frozen=True, slots=True)
class NextStep:
    """What a command is for; its name and argument, of which RUN is the folder of the run; its options."""

    purpose: str
    command: str
    options: Mapping[str, str | float | bool] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The command line."""
        options = (
            f"--{name}" if value is True else f"--{name} {value}" for name, value in self.options.items()
        )
        return " ".join((f"blindcal {self.command}", *options))


def verdict(result: AuditResult) -> Assessment | None:
    """The verdict of an audit; ``None`` if it gives no estimate that can be relied on."""
    if result.ece.value is None or result.objection is not None:
        return None
    if not result.ece.has_interval:
        return Assessment(
            "not tested", "unknown", "Without an interval, an error cannot be told from chance."
        )
    if result.direction == "overconfident":
        return Assessment(
            "overconfident",
            "bad",
            "It is right less often than it says. Act on its answers only from a threshold chosen on data "
            "like these, or correct its confidence first.",
        )
    if result.direction == "underconfident":
        return Assessment(
            "underconfident",
            "bad",
            "It is right more often than it says. A threshold taken from its confidence leaves out good "
            "answers: choose it on data like these.",
        )
    if result.calibrated_pvalue is not None and result.calibrated_pvalue < ALPHA:
        return Assessment(
            "not calibrated",
            "bad",
            "It is off at some confidences, though not in one direction. Choose thresholds on data like "
            "these.",
        )
    if result.ece.high is not None and result.ece.high <= NEGLIGIBLE:
        return Assessment(
            "calibrated", "good", "Its confidence can be taken as it is, within the interval above."
        )
    return Assessment("undecided", "unknown", "These answers are too few to tell an error from chance.")


def next_steps(result: AuditResult) -> tuple[NextStep, ...]:
    """Useful commands, the most useful first; none if the result cannot be relied on."""
    judged = verdict(result)
    return () if judged is None else tuple(_steps(result, judged))


def _steps(result: AuditResult, judged: Assessment) -> Iterator[NextStep]:
    high = result.ece.high
    if high is None:
        limit = {"max-ece": 0.1, "estimate": True}
        yield NextStep("Compare the estimate with a limit:", "check RUN", limit)
        return
    if (precision := reached_precision(result)) is not None:
        purpose = f"Act only where it is right at least {precision:.0%} of the time:"
        yield NextStep(purpose, "threshold RUN", {"precision": precision})
        yield NextStep("Have that guaranteed by an exact test:", "certify RUN", {"precision": precision})
    few = result.counts.items < FEW_ITEMS
    if judged.tone == "bad" and not few:
        yield NextStep("Correct its confidence:", "recalibrate RUN")
    if few or judged.outcome == "undecided":
        yield NextStep("Narrow the interval, which four times the items halve:", "plan ITEMS")
    else:
        yield NextStep("Stop a release that is worse:", "check RUN", {"max-ece": math.ceil(100 * high) / 100})
    changes = "Notice when the model or the questions change:"
    yield NextStep(changes, "watch TRAFFIC", {"reference": "RUN"})


def reached_precision(result: AuditResult) -> float | None:
    """The highest round precision that some threshold reaches for sure."""
    for precision in QUOTED:
        if any((point.precision.low or 0.0) >= precision for point in result.operating):
            return precision
    return None
