"""Check audits, their parts and certificates against limits, at a given confidence, as a gate in CI does.

An estimate within its limit is not enough: of models that are just beyond the limit, half would pass. The
bound must be within it too: the end of an interval beyond which the truth is with probability 1 - confidence.

With many parts, some estimates are beyond a limit by chance alone. So a part fails only if the other end of
its interval is beyond the limit too, at a level that allows for the number of parts and limits (Holm's
step-down method): if all parts are within their limits, any of them fails with probability 1 - confidence at
most.

A certificate holds if it has not expired and promises enough. A run fits it if the same model was asked in
the same words at the same endpoint, and if its own interval of the precision at the certified thresholds does
not lie below what the certificate promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.simultaneous import beyond
from blindcal.records import Estimate, level_percent
from blindcal.results.certificate import Certificate, CertifiedSide, is_certificate, prompt_digest
from blindcal.results.result import AuditResult
from blindcal.results.run import Run, open_result, opened
from blindcal.store.run_store import ServedModel
from blindcal.text import printable

CheckOutcome: TypeAlias = Literal["passed", "failed", "undecided"]

PART_RESAMPLES = 300
"""Refits of each part at most, to save time."""
_LIMITED = {
    "ece": ("ECE", "max_ece"),
    "brier": ("Brier score", "max_brier"),
    "accuracy": ("accuracy", "min_accuracy"),
    "auroc": ("AUROC", "min_auroc"),
    "invalid": ("share of invalid answers", "max_invalid"),
}
"""The quantities that have limits: their names, and the argument with the limit."""
_UNFINISHED = "the audit was stopped early: finish it, or let a partial one count"
_DECIDED = {"accept": "accepted", "reject": "rejected"}


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a quantity: at most ``value``, or at least ``value`` if higher is better."""

    quantity: str
    value: float

    @property
    def at_most(self) -> bool:
        """Whether it is an upper limit."""
        return _LIMITED[self.quantity][1].startswith("max")

    def holds(self, value: float) -> bool:
        """Whether a value is within the limit."""
        return value <= self.value if self.at_most else value >= self.value

    def verdict(
        self, outcome: CheckOutcome, why: str, estimate: float | None, bound: float | None = None
    ) -> Verdict:
        """The outcome of this limit."""
        name = _LIMITED[self.quantity][0]
        words = f"{name} at {'most' if self.at_most else 'least'} {self.value:g}"
        return Verdict(
            quantity=self.quantity,
            limit=self.value,
            words=words,
            outcome=outcome,
            why=why,
            estimate=estimate,
            bound=bound,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one limit or condition; ``words`` say what must hold.

    ``bound`` bounds the quantity with the requested confidence; it is ``None`` if it was not used or does not
    exist. The outcome is ``undecided`` if the estimate is within the limit but the bound is not, or if the
    audit cannot support a verdict. A verdict on a ``part``, of ``items`` items, is ``failed`` only if it is
    shown to be beyond the limit.
    """

    quantity: str
    limit: float | str
    words: str
    outcome: CheckOutcome
    why: str
    estimate: float | None = None
    bound: float | None = None
    part: str | None = None
    items: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult:
    """What was checked, the ``result`` of a run or a ``certificate``, and the verdict on each limit.

    ``parts`` are the verdicts on the parts ``by`` a field, if they were asked for. A part that fails always
    counts; one that is undecided counts with ``every_part``.
    """

    path: str
    confidence: float | None
    verdicts: tuple[Verdict, ...]
    result: AuditResult | None = None
    certificate: Certificate | None = None
    by: str | None = None
    parts: tuple[Verdict, ...] = ()
    every_part: bool = False

    def __repr__(self) -> str:
        limits = ", ".join(f"{one.words}: {one.outcome}" for one in self.verdicts)
        return f"CheckResult({self.path!r}, {limits})"

    @property
    def model(self) -> str:
        """The model that was audited or certified."""
        checked = self.result or self.certificate
        assert checked is not None
        return checked.model

    @property
    def outcome(self) -> CheckOutcome:
        """The worst outcome of all that count."""
        outcomes = {one.outcome for one in (*self.verdicts, *self.counting_parts)}
        return "failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"

    @property
    def counting_parts(self) -> tuple[Verdict, ...]:
        """The verdicts on parts that are bad news: those that fail, or that are undecided and count."""
        bad = ("failed", "undecided") if self.every_part else ("failed",)
        return tuple(one for one in self.parts if one.outcome in bad)


def check(
    run: Run | str | Path,
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
    by_part: bool = False,
    every_part: bool = False,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> CheckResult:
    """Check a finished audit against limits, or a certificate.

    Parameters
    ----------
    run : Run or path
        The run, its folder, its ``result.json`` alone, or a certificate. A certificate must not have expired,
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
    by_part, every_part : bool
        Check each part of the run's breakdown too. If all parts are within their limits, any of them fails
        with probability 1 - ``confidence`` at most. With ``every_part``, each limit must be shown to hold in
        every part.
    progress : callable
        Called with the number of parts that are fitted and that of all parts.
    """
    if not isinstance(run, Run) and is_certificate(run):
        held = Certificate.load(run)
        return CheckResult(
            path=str(run),
            confidence=confidence,
            verdicts=tuple(_of_certificate(held, min_precision, model, confidence)),
            certificate=held,
        )
    values = (max_ece, max_brier, min_accuracy, min_auroc, max_invalid)
    limits = [Limit(name, value) for name, value in zip(_LIMITED, values, strict=True) if value is not None]
    if not limits and certificate is None:
        options = (*(option for _, option in _LIMITED.values()), "certificate")
        *first, last = (f"{{{option}}}" for option in options)
        raise InputError(
            "there is no limit to check",
            remedy=f"give {', '.join(first)} or {last}",
            options=dict.fromkeys(options, ...),
        )
    result = run.result if isinstance(run, Run) else open_result(run)
    verdicts = _of_run(run, result, limits, confidence, resamples, partial)
    if certificate is not None:
        held = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
        verdicts += _of_fitting(run, result, held, confidence or held.level, resamples)
    parts: tuple[Verdict, ...] = ()
    if by_part or every_part:
        if confidence is None:
            raise InputError("a part is checked by its interval: give a confidence")
        of_parts = [limit for limit in limits if limit.quantity != "invalid"]
        if not of_parts:
            options = tuple(option for _, option in _LIMITED.values())[:-1]
            raise InputError(
                "there is no limit to check the parts against",
                remedy="give {max_ece}, {max_brier}, {min_accuracy} or {min_auroc}",
                options=dict.fromkeys(options, ...),
            )
        parts = _of_parts(opened(run), of_parts, confidence, min(resamples, PART_RESAMPLES), progress)
    return CheckResult(
        path=str(run.folder if isinstance(run, Run) else run),
        confidence=confidence,
        verdicts=tuple(verdicts),
        result=result,
        by=result.by if by_part or every_part else None,
        parts=parts,
        every_part=every_part,
    )


def _fit(run: Run | str | Path, confidence: float, resamples: int, part: str | None = None) -> LatentFit:
    """The fit in whose intervals the truth is beyond each end with probability 1 - confidence."""
    return opened(run).fit(part=part, level=2 * confidence - 1, resamples=resamples)


def _known(fit: LatentFit, quantity: str) -> Estimate:
    """A quantity of a fit; unknown if its answers do not tell it."""
    with suppress(NotIdentifiedError):
        estimate: Estimate = getattr(fit, quantity)
        return estimate
    return Estimate(None)


# Runs


def _of_run(
    run: Run | str | Path,
    result: AuditResult,
    limits: Sequence[Limit],
    confidence: float | None,
    resamples: int,
    partial: bool,
) -> list[Verdict]:
    estimated = [limit.quantity for limit in limits if limit.quantity != "invalid"]
    bounds = {} if confidence is None else _bounds(run, result, estimated, confidence, resamples)
    return [
        _verdict(result, limit, bounds.get(limit.quantity, Estimate(None)), confidence, partial)
        for limit in limits
    ]


def _bounds(
    run: Run | str | Path,
    result: AuditResult,
    quantities: Sequence[str],
    confidence: float,
    resamples: int,
) -> dict[str, Estimate]:
    """Intervals; the truth is beyond each of their ends with probability 1 - confidence."""
    stored: dict[str, Estimate] = {name: getattr(result, name) for name in quantities}
    if result.estimator != "latent" or all(one.low is None for one in stored.values()):
        return {}
    try:
        fit = _fit(run, confidence, resamples)
    except (StoreError, NotIdentifiedError):
        # A result without its run, or without one fit: its own interval is used if its level is high enough.
        return stored if result.level >= 2 * confidence - 1 - 1e-12 else {}
    return {name: _known(fit, name) for name in quantities}


def _verdict(
    result: AuditResult, limit: Limit, between: Estimate, confidence: float | None, partial: bool
) -> Verdict:
    counts, stopped = result.counts, not (result.complete or partial)
    if limit.quantity == "invalid":
        share = counts.invalid / max(1, counts.answers)
        if limit.holds(share) and stopped:
            return limit.verdict("undecided", _UNFINISHED, share)
        what = "none of those asked for" if result.answers else "neither word"
        outcome: CheckOutcome = "passed" if limit.holds(share) else "failed"
        return limit.verdict(outcome, f"{counts.invalid:,} answers were {what}", share)
    value: float | None = getattr(result, limit.quantity).value
    bound = between.high if limit.at_most else between.low
    if value is None:
        return limit.verdict("undecided", "the audit could not estimate it", None)
    if not limit.holds(value):
        return limit.verdict("failed", "the estimate is beyond the limit", value, bound)
    if (doubt := _doubt(result, stopped)) is not None:
        return limit.verdict("undecided", doubt, value)
    if confidence is None:
        return limit.verdict("passed", "by the estimate alone", value)
    sure = level_percent(confidence)
    if bound is not None and limit.holds(bound):
        return limit.verdict("passed", f"{sure} sure", value, bound)
    why = f"the estimate is within the limit, but not with {sure} confidence: audit more items"
    if bound is None and result.estimator != "latent":
        why = f"no interval for it by method {result.method}: only the estimate alone can decide"
    elif bound is None:
        why = f"no bound that is {sure} sure: the run is needed, not its result alone"
    return limit.verdict("undecided", why, value, bound)


def _doubt(result: AuditResult, stopped: bool) -> str | None:
    """Why an audit passes no limit on its estimates, whatever they are."""
    if result.objection is not None:
        unfit = "the probe found the endpoint unfit and the audit was forced"
        return f"{unfit}: its estimates may mean nothing"
    return result.warnings[0] if result.warnings else _UNFINISHED if stopped else None


# Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A limit for a part: the estimate with an interval of which each end holds with the confidence."""

    part: str
    items: int
    limit: Limit
    estimate: Estimate
    fit: LatentFit | None

    def shown_beyond(self, between: Estimate) -> float | None:
        """The end of an interval that shows the part to be beyond the limit; ``None`` if it does not."""
        end = between.low if self.limit.at_most else between.high
        return end if end is not None and not self.limit.holds(end) else None

    def at_tail(self, tail: float) -> Estimate:
        """The estimate, with an interval beyond each of whose ends the truth is with probability ``tail``."""
        assert self.fit is not None
        far: Estimate = getattr(self.fit.at(level=1 - 2 * tail), self.limit.quantity)
        return beyond(self.estimate, far, least=0.0)


def _of_parts(
    run: Run,
    limits: Sequence[Limit],
    confidence: float,
    resamples: int,
    progress: Callable[[int, int], object],
) -> tuple[Verdict, ...]:
    cases: list[_Case] = []
    names = run.part_names
    for done, part in enumerate(names):
        progress(done, len(names))
        cases += _cases(run, part, limits, confidence, resamples)
    progress(len(names), len(names))
    failed = _failed(cases, 1 - confidence)
    verdicts = (_part_verdict(case, failed.get(place), confidence) for place, case in enumerate(cases))
    return tuple(
        replace(verdict, part=case.part, items=case.items)
        for case, verdict in zip(cases, verdicts, strict=True)
    )


def _cases(
    run: Run, part: str, limits: Sequence[Limit], confidence: float, resamples: int
) -> Iterator[_Case]:
    """The limits for a part; the fit is kept only where it is needed again."""
    fit: LatentFit | None = None
    try:
        fit = _fit(run, confidence, resamples, part)
    except NotIdentifiedError:
        if not run.fits_parts:
            raise
    items = int(run.members(part).size) if fit is None else fit.items
    for limit in limits:
        estimate = Estimate(None) if fit is None else _known(fit, limit.quantity)
        case = _Case(part=part, items=items, limit=limit, estimate=estimate, fit=fit)
        yield replace(case, fit=None) if case.shown_beyond(estimate) is None else case


def _failed(cases: Sequence[_Case], alpha: float) -> dict[int, float]:
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


def _part_verdict(case: _Case, beyond_by: float | None, confidence: float) -> Verdict:
    limit, sure, value = case.limit, level_percent(confidence), case.estimate.value
    within = case.estimate.high if limit.at_most else case.estimate.low
    if value is None or within is None:
        return limit.verdict("undecided", "the answers of this part do not tell it", value)
    if beyond_by is not None:
        why = f"beyond the limit, {sure} sure for all parts together"
        return limit.verdict("failed", why, value, beyond_by)
    if limit.holds(value) and limit.holds(within):
        return limit.verdict("passed", f"{sure} sure", value, within)
    side = "within" if limit.holds(value) else "beyond"
    return limit.verdict(
        "undecided", f"the estimate is {side} the limit, but that may be chance", value, within
    )


# Certificates


def _of_certificate(
    certificate: Certificate, min_precision: float | None, model: str | None, confidence: float | None
) -> Iterator[Verdict]:
    """The verdicts on a certificate; ``min_precision`` is about accepted items.

    Without a ``confidence``, the share of right decisions counts instead of its bound.
    """
    wanted = certificate.accept.wanted if min_precision is None else min_precision
    yield _promised("accept", certificate.accept, wanted, confidence)
    if certificate.reject is not None:
        yield _promised("reject", certificate.reject, certificate.reject.wanted, confidence)
    if confidence is not None:
        sure = f"it is {level_percent(certificate.level)} sure"
        words = f"certified with at least {level_percent(confidence)} confidence"
        enough = certificate.level >= confidence - 1e-12
        yield _condition("confidence", confidence, words, enough, sure, sure, otherwise="undecided")
    last = certificate.expires
    yield _condition(
        "expires",
        str(last),
        "not expired",
        not certificate.expired(),
        f"it is valid until {last}",
        f"it expired on {last}: certify again",
    )
    if model is not None:
        yield _same_model(certificate.model, model)


def _condition(
    quantity: str,
    limit: float | str,
    words: str,
    holds: bool,
    yes: str,
    no: str,
    *,
    otherwise: CheckOutcome = "failed",
) -> Verdict:
    """A verdict without numbers, and why it holds or does not."""
    outcome: CheckOutcome = "passed" if holds else otherwise
    return Verdict(quantity=quantity, limit=limit, words=words, outcome=outcome, why=yes if holds else no)


def _precision(name: str, limit: float, shown: str) -> Verdict:
    """The condition on the precision of accepted or rejected items, not yet decided."""
    return Verdict(
        quantity=f"{name}_precision",
        limit=limit,
        words=f"precision of {_DECIDED[name]} items at least {shown}",
        outcome="undecided",
        why="the run could not estimate it",
    )


def _promised(name: str, side: CertifiedSide, wanted: float, confidence: float | None) -> Verdict:
    share = side.right / side.decided if side.decided else None
    why = f"{side.right:,} of {side.decided:,} were right"
    outcome: CheckOutcome = "passed"
    bound: float | None = side.bound
    if share is None or share < wanted:
        outcome = "failed"
    elif confidence is None:
        bound, why = None, f"{why}, by the estimate alone"
    elif side.bound < wanted:
        outcome, why = "undecided", f"{why}: certify on more items"
    condition = _precision(name, wanted, f"{wanted:g}")
    return replace(condition, outcome=outcome, why=why, estimate=share, bound=bound)


def _same_model(model: str, wanted: str) -> Verdict:
    other = f"the certificate is about {printable(model, 80)}"
    words = f"model {printable(wanted, 80)}"
    return _condition("model", wanted, words, model == wanted, "it is the certified one", other)


def _of_fitting(
    run: Run | str | Path, result: AuditResult, certificate: Certificate, confidence: float, resamples: int
) -> Iterator[Verdict]:
    """The verdicts on a run that a certificate should still hold for."""
    yield _same_model(certificate.model, result.model)
    yield _condition(
        "prompt",
        certificate.prompt_digest,
        "prompt as certified",
        prompt_digest(result.settings, result.targets) == certificate.prompt_digest,
        "same template, answer words, tokens and common bias",
        "the template, the answer words, their tokens or the common bias differ",
    )
    yield _same_endpoint(result, certificate)
    for name, side in (("accept", certificate.accept), ("reject", certificate.reject)):
        if side is not None:
            yield _no_contradiction(run, name, side, confidence, resamples)


def _same_endpoint(result: AuditResult, certificate: Certificate) -> Verdict:
    known = ", ".join(name.words for name in certificate.served) or "no name"
    served = () if result.steadiness is None else result.steadiness.served
    named = [ServedModel(one.model, one.fingerprint) for one in served]
    outcome: CheckOutcome = "passed"
    why = "replies name the same model and system"
    if others := [one.words for one in named if one not in certificate.served]:
        outcome, why = "failed", f"replies come from {printable(', '.join(others))}, certified was {known}"
    elif certificate.served and not named:
        outcome, why = "undecided", f"replies of the run name nothing, certified was {known}"
    return Verdict(quantity="endpoint", limit=known, words="endpoint as certified", outcome=outcome, why=why)


def _no_contradiction(
    run: Run | str | Path, name: str, side: CertifiedSide, confidence: float, resamples: int
) -> Verdict:
    """Whether the run's interval of the precision at a threshold reaches up to what is promised."""
    condition = _precision(name, side.bound, f"{side.bound:.4g}")
    try:
        fit = _fit(run, confidence, resamples)
    except (StoreError, NotIdentifiedError) as error:
        return replace(condition, why=f"the run has no interval: {error.message}")
    (point,) = fit.operating_at([side.threshold])
    precision: Estimate = point.precision if name == "accept" else point.negative_precision
    if precision.value is None or precision.high is None:
        return replace(condition, estimate=precision.value)
    outcome: CheckOutcome = "passed"
    why = "the run does not contradict it"
    if precision.high < side.bound:
        outcome = "failed"
        why = f"the run contradicts it with {level_percent(confidence)} confidence: certify again"
    return replace(condition, outcome=outcome, why=why, estimate=precision.value, bound=precision.high)
