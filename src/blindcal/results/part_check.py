"""Check every part of an audit against limits, with few false alarms over all parts together.

With many parts, some estimates are beyond a limit by chance alone. So a part fails only if the other end of
its interval is beyond the limit too, at a level that allows for the number of parts and limits (Holm's
step-down method): if all parts are within their limits, any of them fails with probability 1 - confidence at
most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.simultaneous import beyond
from blindcal.records import Estimate, level_percent
from blindcal.results.run import Run, opened
from blindcal.results.verdicts import CheckOutcome, Limit, LimitedQuantity, LimitVerdict


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """The outcome of one limit for one part.

    The outcome is ``failed`` if the part is shown to be beyond the limit, ``passed`` if it is shown to be
    within it, and else ``undecided``. ``bound`` is the end of the interval that the outcome rests on.
    """

    part: str
    items: int
    verdict: LimitVerdict


@dataclass(frozen=True, slots=True, repr=False)
class PartsCheck:
    """A run and the verdict on each limit for each part.

    If all parts are within their limits, any of them fails with probability 1 - ``confidence`` at most. A
    part that is just beyond its limit passes with this probability at most.
    """

    path: str
    by: str
    confidence: float
    verdicts: tuple[PartVerdict, ...]

    def __repr__(self) -> str:
        return f"PartsCheck({self.path!r}, by {self.by!r}, {len(self.of('failed'))} failed)"

    def of(self, outcome: CheckOutcome) -> tuple[PartVerdict, ...]:
        """The verdicts with this outcome."""
        return tuple(one for one in self.verdicts if one.verdict.outcome == outcome)

    @property
    def outcome(self) -> CheckOutcome:
        """The worst outcome of all parts."""
        outcomes: tuple[CheckOutcome, ...] = ("failed", "undecided")
        return next((one for one in outcomes if self.of(one)), "passed")


@dataclass(frozen=True, slots=True)
class _Case:
    """A limit for a part: the estimate with an interval of which each end holds with the confidence."""

    part: str
    items: int
    limit: Limit
    found: Estimate
    fit: LatentFit | None

    def shown_beyond(self, between: Estimate) -> float | None:
        """The end of an interval that shows the part to be beyond the limit; ``None`` if it does not."""
        end = between.low if self.limit.at_most else between.high
        return end if end is not None and not self.limit.holds(end) else None

    def at_tail(self, tail: float) -> Estimate:
        """The estimate, with an interval beyond each of whose ends the truth is with probability ``tail``."""
        assert self.fit is not None
        far: Estimate = getattr(self.fit.at(level=1 - 2 * tail), self.limit.quantity)
        return beyond(self.found, far, least=0.0)


def check_parts(
    run: Run | str | Path,
    *,
    max_ece: float | None = None,
    max_brier: float | None = None,
    min_accuracy: float | None = None,
    min_auroc: float | None = None,
    confidence: float = 0.95,
    resamples: int = 300,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> PartsCheck:
    """Check each part of a finished audit against limits.

    Parameters
    ----------
    run : Run or path
        A run that is broken down into parts, or its folder.
    max_ece, max_brier, min_accuracy, min_auroc : float, optional
        The limits; at least one.
    confidence : float
        If all parts are within their limits, the probability that none of them fails.
    resamples : int
        Number of refits of each part.
    progress : callable
        Called with the number of parts that are fitted and that of all parts.
    """
    given: dict[LimitedQuantity, float | None] = {
        "ece": max_ece,
        "brier": max_brier,
        "accuracy": min_accuracy,
        "auroc": min_auroc,
    }
    limits = [Limit(quantity, value) for quantity, value in given.items() if value is not None]
    if not limits:
        raise InputError(
            "there is no limit to check the parts against",
            remedy="give {max_ece}, {max_brier}, {min_accuracy} or {min_auroc}",
            options=dict.fromkeys(("max_ece", "max_brier", "min_accuracy", "min_auroc"), ...),
        )
    read = opened(run)
    cases = []
    names = read.part_names
    for done, part in enumerate(names):
        progress(done, len(names))
        cases += _cases(read, part, limits, confidence, resamples)
    progress(len(names), len(names))
    failed = _failed(cases, 1 - confidence)
    verdicts = tuple(
        PartVerdict(case.part, case.items, _verdict(case, failed.get(place), confidence))
        for place, case in enumerate(cases)
    )
    return PartsCheck(str(read.folder), str(read.result.by), confidence, verdicts)


def _cases(read: Run, part: str, limits: list[Limit], confidence: float, resamples: int) -> list[_Case]:
    """The limits for a part; the fit is kept only where it is needed again."""
    try:
        fit: LatentFit | None = read.fit(part=part, level=2 * confidence - 1, resamples=resamples)
    except NotIdentifiedError:
        if read.result.estimator != "latent":
            raise
        fit = None
    items = int(read.members(part).size) if fit is None else fit.items
    cases = []
    for limit in limits:
        found = Estimate(None)
        if fit is not None:
            try:
                found = getattr(fit, limit.quantity)
            except NotIdentifiedError:
                found = Estimate(None)
        case = _Case(part, items, limit, found, fit)
        cases.append(replace(case, fit=None) if case.shown_beyond(found) is None else case)
    return cases


def _failed(cases: list[_Case], alpha: float) -> dict[int, float]:
    """The places of the cases that are shown to be beyond their limits, each with its bound (Holm)."""
    failed: dict[int, float] = {}
    while True:
        tail = alpha / max(len(cases) - len(failed), 1)
        more = {}
        for place, case in enumerate(cases):
            if place not in failed and case.fit is not None:
                bound = case.shown_beyond(case.at_tail(tail))
                if bound is not None:
                    more[place] = bound
        if not more:
            return failed
        failed |= more


def _verdict(case: _Case, beyond_by: float | None, confidence: float) -> LimitVerdict:
    limit, found, sure = case.limit, case.found, level_percent(confidence)

    def verdict(outcome: CheckOutcome, why: str, bound: float | None = None) -> LimitVerdict:
        return LimitVerdict(limit, outcome, found.value, bound, why)

    if found.value is None or found.low is None or found.high is None:
        return verdict("undecided", "the answers of this part do not tell it")
    if beyond_by is not None:
        return verdict("failed", f"beyond the limit, {sure} sure for all parts together", beyond_by)
    within = found.high if limit.at_most else found.low
    if limit.holds(found.value) and limit.holds(within):
        return verdict("passed", f"{sure} sure", within)
    side = "within" if limit.holds(found.value) else "beyond"
    return verdict("undecided", f"the estimate is {side} the limit, but that may be chance", within)
