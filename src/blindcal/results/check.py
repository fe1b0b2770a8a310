"""Check an audit against limits, at a given confidence, as a gate in CI does.

An estimate within its limit is not enough: of models that are just beyond the limit, half would pass. The
bound must be within it too: the end of an interval beyond which the truth is with probability 1 - confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.records import Estimate, level_percent
from blindcal.results.certificate import Certificate
from blindcal.results.certificate_check import certificate_verdicts, fitting_verdicts, is_certificate
from blindcal.results.result import AuditResult
from blindcal.results.run import open_result, open_run
from blindcal.results.verdicts import CheckOutcome, Limit, LimitedQuantity, LimitVerdict

_OPTIONS = ("max_ece", "max_brier", "min_accuracy", "min_auroc", "max_invalid")
UNFINISHED = "the audit was stopped early: finish it, or let a partial one count"


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult:
    """What was checked, the ``result`` of a run or a ``certificate``, and the verdict on each limit."""

    path: str
    result: AuditResult | None
    confidence: float | None
    verdicts: tuple[LimitVerdict, ...]
    certificate: Certificate | None = None

    def __repr__(self) -> str:
        limits = ", ".join(f"{one.limit.words}: {one.outcome}" for one in self.verdicts)
        return f"CheckResult({self.path!r}, {limits})"

    @property
    def model(self) -> str:
        """The model that was audited or certified."""
        found = self.result or self.certificate
        assert found is not None
        return found.model

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
    min_precision: float | None = None,
    model: str | None = None,
    certificate: Certificate | str | Path | None = None,
    confidence: float | None = 0.95,
    resamples: int = 1000,
    partial: bool = False,
) -> CheckResult:
    """Check a finished audit against limits, or a certificate.

    Parameters
    ----------
    run : path
        The run's folder, its ``result.json`` alone, or a certificate. A certificate must not have expired,
        and its confidence and its bounds must be as high as required.
    max_ece, max_brier, min_accuracy, min_auroc, max_invalid : float, optional
        The limits of a run; at least one. ``max_invalid`` is the largest share of invalid answers.
    min_precision, model : optional
        What a certificate must promise of accepted items, by default what was asked for when it was made; and
        the model that it must be about.
    certificate : Certificate or path, optional
        A certificate that the run must still fit: the same model, prompt and endpoint, and a precision at its
        thresholds that does not contradict it.
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
    if is_certificate(run):
        found = Certificate.load(run)
        verdicts = certificate_verdicts(found, min_precision, model, confidence)
        return CheckResult(str(run), None, confidence, verdicts, found)
    if not limits and certificate is None:
        raise InputError(
            "there is no limit to check",
            remedy="give {max_ece}, {max_brier}, {min_accuracy}, {min_auroc}, {max_invalid} or {certificate}",
            options=dict.fromkeys((*_OPTIONS, "certificate"), ...),
        )
    result = open_result(run)
    needed = [limit.quantity for limit in limits if limit.quantity != "invalid"]
    bounds: dict[LimitedQuantity, Estimate] = {}
    if confidence is not None and needed:
        bounds = _bounds(Path(run), result, needed, confidence, resamples)
    verdicts = tuple(
        _verdict(result, limit, bounds.get(limit.quantity), confidence, partial) for limit in limits
    )
    if certificate is not None:
        held = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
        verdicts += fitting_verdicts(Path(run), result, held, confidence, resamples)
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
