"""Check an audit against limits, at a given confidence, as a gate in CI does.

An estimate within its limit is not enough: of models that are just beyond the limit, half would pass. The
bound must be within it too: the end of an interval beyond which the truth is with probability 1 - confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.records import Estimate, level_percent
from blindcal.results.compare import LOWER_IS_BETTER, NAMES
from blindcal.results.result import AuditResult
from blindcal.results.run import open_result, open_run

LimitedQuantity: TypeAlias = Literal["ece", "brier", "accuracy", "auroc", "invalid"]
CheckOutcome: TypeAlias = Literal["passed", "failed", "undecided"]

UNFINISHED = "the audit was stopped early: finish it, or let a partial one count"


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
class LimitVerdict:
    """The outcome of one limit.

    ``bound`` bounds the quantity with the requested confidence; it is ``None`` if it was not used or does not
    exist. The outcome is ``undecided`` if the estimate is within the limit but the bound is not, or if the
    audit cannot support a verdict.
    """

    limit: Limit
    outcome: CheckOutcome
    estimate: float | None
    bound: float | None
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult:
    """A run and the verdict on each limit."""

    path: str
    result: AuditResult
    confidence: float | None
    verdicts: tuple[LimitVerdict, ...]

    def __repr__(self) -> str:
        limits = ", ".join(f"{one.limit.words}: {one.outcome}" for one in self.verdicts)
        return f"CheckResult({self.path!r}, {limits})"

    @property
    def outcome(self) -> CheckOutcome:
        """The worst outcome of all limits."""
        found = {one.outcome for one in self.verdicts}
        return "failed" if "failed" in found else "undecided" if "undecided" in found else "passed"


def check(
    run: str | Path,
    *,
    max_ece: float | None = None,
    max_brier: float | None = None,
    min_accuracy: float | None = None,
    min_auroc: float | None = None,
    max_invalid: float | None = None,
    confidence: float | None = 0.95,
    resamples: int = 1000,
    partial: bool = False,
) -> CheckResult:
    """Check a finished audit against limits.

    Parameters
    ----------
    run : path
        The run's folder, or its ``result.json`` alone.
    max_ece, max_brier, min_accuracy, min_auroc, max_invalid : float, optional
        The limits; at least one. ``max_invalid`` is the largest share of invalid answers.
    confidence : float or None
        Confidence with which a limit must hold; with ``None``, the estimate alone decides.
    resamples : int
        Number of refits for the bounds.
    partial : bool
        Whether an audit that was stopped early can pass; otherwise it is undecided at best.
    """
    given: dict[LimitedQuantity, float | None] = {
        "ece": max_ece,
        "brier": max_brier,
        "accuracy": min_accuracy,
        "auroc": min_auroc,
        "invalid": max_invalid,
    }
    limits = [Limit(quantity, value) for quantity, value in given.items() if value is not None]
    if not limits:
        raise InputError(
            "there is no limit to check",
            remedy="give {max_ece}, {max_brier}, {min_accuracy}, {min_auroc} or {max_invalid}",
            options=dict.fromkeys(("max_ece", "max_brier", "min_accuracy", "min_auroc", "max_invalid"), ...),
        )
    result = open_result(run)
    needed = [limit.quantity for limit in limits if limit.quantity != "invalid"]
    bounds: dict[LimitedQuantity, Estimate] = {}
    if confidence is not None and needed:
        bounds = _bounds(Path(run), result, needed, confidence, resamples)
    verdicts = tuple(
        _verdict(result, limit, bounds.get(limit.quantity), confidence, partial) for limit in limits
    )
    return CheckResult(str(run), result, confidence, verdicts)


def _bounds(
    path: Path,
    result: AuditResult,
    quantities: Sequence[LimitedQuantity],
    confidence: float,
    resamples: int,
) -> dict[LimitedQuantity, Estimate]:
    """Intervals; the truth is beyond each of their ends with probability 1 - confidence."""
    level = 2 * confidence - 1
    stored: dict[LimitedQuantity, Estimate] = {name: getattr(result, name) for name in quantities}
    if result.estimator != "latent" or all(one.low is None for one in stored.values()):
        return {}
    try:
        fit = open_run(path).fit(level=level, resamples=resamples)
    except (StoreError, NotIdentifiedError):
        # A result without its run, or without one fit: its own interval is used if its level is high enough.
        return stored if result.level >= level - 1e-12 else {}
    found: dict[LimitedQuantity, Estimate] = {}
    for name in quantities:
        with suppress(NotIdentifiedError):
            found[name] = getattr(fit, name)
    return found


def _verdict(
    result: AuditResult, limit: Limit, between: Estimate | None, confidence: float | None, partial: bool
) -> LimitVerdict:
    counts, stopped = result.counts, not (result.complete or partial)
    bound = None if between is None else between.high if limit.at_most else between.low
    value: float | None
    if limit.quantity == "invalid":
        value = counts.invalid / max(1, counts.answers)
    else:
        value = getattr(result, limit.quantity).value

    def verdict(outcome: CheckOutcome, why: str, bound: float | None = None) -> LimitVerdict:
        return LimitVerdict(limit, outcome, value, bound, why)

    if value is None:
        return verdict("undecided", "the audit could not estimate it")
    if limit.quantity == "invalid":
        if limit.holds(value) and stopped:
            return verdict("undecided", UNFINISHED)
        what = "none of those asked for" if result.answers else "neither word"
        why = f"{counts.invalid:,} answers were {what}"
        return verdict("passed" if limit.holds(value) else "failed", why)
    if not limit.holds(value):
        return verdict("failed", "the estimate is beyond the limit", bound)
    if result.objection is not None:
        unfit = "the probe found the endpoint unfit and the audit was forced"
        return verdict("undecided", f"{unfit}: its estimates may mean nothing")
    if result.warnings:
        return verdict("undecided", result.warnings[0])
    if stopped:
        return verdict("undecided", UNFINISHED)
    if confidence is None:
        return verdict("passed", "by the estimate alone")
    sure = level_percent(confidence)
    if bound is None and result.estimator != "latent":
        only = "only the estimate alone can decide"
        return verdict("undecided", f"no interval for it by method {result.method}: {only}")
    if bound is None:
        return verdict("undecided", f"no bound that is {sure} sure: the run is needed, not its result alone")
    if limit.holds(bound):
        return verdict("passed", f"{sure} sure", bound)
    why = f"the estimate is within the limit, but not with {sure} confidence: audit more items"
    return verdict("undecided", why, bound)
