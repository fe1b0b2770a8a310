"""Check audits, their parts and certificates against limits, as a gate in CI does.

An estimate within its limit is not enough: of models just beyond the limit, half would pass. The bound must
be within it too: the end of an interval beyond which the truth lies with probability 1 - confidence. Likewise
a limit fails only if the other end is beyond it, so that a model within it seldom fails. In between it is
undecided; a ``strict`` check fails wherever the estimate is beyond the limit.

With many parts, some are shown to be beyond a limit by chance alone. Their intervals therefore allow for the
number of parts and limits (Bonferroni): if all parts are within their limits, any of them fails with
probability at most 1 - confidence.

A certificate holds if it has not expired and promises enough. A run fits it if it asked the same model the
same questions at the same endpoint, and if no interval of the run contradicts the certified precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.estimate.fit import Fit
from blindcal.estimate.uncertainty import beyond
from blindcal.records import Estimate, level_percent
from blindcal.results.certificate import Certificate, is_certificate, prompt_digest
from blindcal.results.result import AuditResult
from blindcal.results.run import Run, open_result, opened
from blindcal.store.run_file import ServedModel
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable

CheckOutcome: TypeAlias = Literal["passed", "failed", "undecided"]

PART_RESAMPLES = 300
"""At most this many refits per part, to save time."""
_NAMES = {
    "max_ece": "ECE",
    "max_smece": "smooth ECE",
    "max_brier": "Brier score",
    "min_accuracy": "accuracy",
    "min_auroc": "AUROC",
    "max_aurc": "AURC",
    "min_coverage": "coverage at 5% error",
    "max_invalid": "share of invalid answers",
}
_UNFINISHED = "the audit was stopped early: finish it, or let a partial one count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit on a quantity: at most ``value`` or, unless ``at_most``, at least ``value``."""

    quantity: str
    name: str
    value: float
    at_most: bool

    def holds(self, value: float) -> bool:
        return value <= self.value if self.at_most else value >= self.value

    def ends(self, estimate: Estimate) -> tuple[float | None, float | None]:
        """The end of an interval that must be within the limit, and the one that shows it to be broken."""
        low, high = estimate.low, estimate.high
        return (high, low) if self.at_most else (low, high)

    def broken_by(self, estimate: Estimate) -> float | None:
        """The end of an interval that is beyond the limit as a whole, else ``None``."""
        _, end = self.ends(estimate)
        return end if end is not None and not self.holds(end) else None

    def verdict(
        self,
        estimate: Estimate,
        confidence: float | None,
        *,
        against: Estimate | None = None,
        strict: bool = False,
        doubt: str | None = None,
        unbounded: str = "these answers do not tell it",
    ) -> Verdict:
        """Judge an estimate, which fails if all of its interval, or of ``against``, is beyond the limit.

        A ``strict`` verdict, or one without a confidence, is failed by the estimate. ``doubt`` keeps it from
        passing, and ``unbounded`` says why there is no bound.
        """
        value, (bound, _) = estimate.value, self.ends(estimate)
        broken = None if confidence is None else self.broken_by(estimate if against is None else against)
        sure = "" if confidence is None else level_percent(confidence)
        outcome: CheckOutcome = "undecided"
        if value is None:
            bound, why = None, "the audit could not estimate it"
        elif broken is not None:
            outcome, bound, why = "failed", broken, f"beyond the limit, {sure} sure"
        elif (strict or confidence is None) and not self.holds(value):
            outcome, why = "failed", "the estimate is beyond the limit"
        elif doubt is not None:
            bound, why = None, doubt
        elif confidence is None:
            outcome, bound, why = "passed", None, "by the estimate alone"
        elif bound is None:
            why = unbounded
        elif not self.holds(value):
            why = "the estimate is beyond the limit, but that may be chance: audit more items"
        elif not self.holds(bound):
            why = f"the estimate is within the limit, but not with {sure} confidence: audit more items"
        else:
            outcome, why = "passed", f"{sure} sure"
        return Verdict(
            quantity=self.quantity,
            limit=self.value,
            words=f"{self.name} at {'most' if self.at_most else 'least'} {self.value:g}",
            outcome=outcome,
            why=why,
            estimate=value,
            bound=bound,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one limit or condition; ``words`` say what must hold.

    It is ``undecided`` if the limit lies within the interval, or if the audit cannot support a verdict.
    ``bound`` is ``None`` if unused or unknown.
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

    @property
    def name(self) -> str:
        """What must hold, and for which part."""
        return self.words if self.part is None else f"{self.part}: {self.words}"

    @property
    def text(self) -> str:
        """The estimate, its bound and why the outcome is what it is."""
        if self.estimate is None:
            return self.why
        bound = "" if self.bound is None else f", bound {self.bound:.4f}"
        return f"{Estimate(self.estimate)}{bound}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult:
    """The verdict on each limit, and on each of the ``parts`` if they were checked.

    A failed part counts towards the outcome, an undecided one does not.
    """

    path: str
    confidence: float | None
    checked: AuditResult | Certificate
    verdicts: tuple[Verdict, ...]
    by: str | None = None
    parts: tuple[Verdict, ...] = ()

    def __repr__(self) -> str:
        limits = ", ".join(f"{verdict.words}: {verdict.outcome}" for verdict in self.verdicts)
        return f"CheckResult({self.path!r}, {limits})"

    @property
    def model(self) -> str:
        """The model that was audited or certified."""
        return self.checked.model

    @property
    def result(self) -> AuditResult | None:
        """The result that was checked; ``None`` if it was a certificate."""
        return self.checked if isinstance(self.checked, AuditResult) else None

    @property
    def outcome(self) -> CheckOutcome:
        """The worst outcome of all that count."""
        outcomes = {verdict.outcome for verdict in self.rows}
        return "failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"

    @property
    def rows(self) -> tuple[Verdict, ...]:
        """All verdicts that count: those on the limits and on the parts shown to be beyond one."""
        return (*self.verdicts, *(verdict for verdict in self.parts if verdict.outcome == "failed"))


def check(
    run: Run | str | Path,
    *,
    max_ece: float | None = None,
    max_smece: float | None = None,
    max_brier: float | None = None,
    min_accuracy: float | None = None,
    min_auroc: float | None = None,
    max_aurc: float | None = None,
    min_coverage: float | None = None,
    max_invalid: float | None = None,
    min_precision: float | None = None,
    model: str | None = None,
    certificate: Certificate | str | Path | None = None,
    confidence: float | None = 0.95,
    resamples: int = 1000,
    strict: bool = False,
    partial: bool = False,
    by_part: bool = False,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> CheckResult:
    """Check a finished audit against limits, or a certificate.

    Parameters
    ----------
    run : Run or path
        The run, its folder, its ``result.json`` alone, or a certificate, which must not have
        expired and must promise enough.
    max_ece, max_smece, max_brier, min_accuracy, min_auroc, max_aurc, min_coverage, max_invalid : optional
        The limits of a run. ``min_coverage`` is the smallest share of items that can be accepted with at most
        5% errors, ``max_invalid`` the largest share of invalid answers.
    min_precision : float, optional
        What a certificate must promise of accepted items; by default what it was made for.
    model : str, optional
        The model that a certificate must be about.
    certificate : Certificate or path, optional
        A certificate that nothing in the run may contradict.
    confidence : float or None
        Confidence with which a limit must hold; with ``None``, the estimate alone decides.
    resamples : int
        Number of refits for the bounds.
    strict : bool
        Whether an estimate beyond its limit fails even if that may be chance.
    partial : bool
        Whether an audit that was stopped early can pass; otherwise it is undecided at best.
    by_part : bool
        Check each part of the run too; a part counts if it is shown to be beyond a limit.
    progress : callable
        Called with the number of parts that are fitted and that of all parts.
    """
    if not isinstance(run, Run) and is_certificate(run):
        promise = Certificate.load(run)
        return CheckResult(
            path=str(run),
            confidence=confidence,
            checked=promise,
            verdicts=tuple(_of_certificate(promise, min_precision, model, confidence)),
        )
    values = (max_ece, max_smece, max_brier, min_accuracy, min_auroc, max_aurc, min_coverage, max_invalid)
    limits = [
        Limit(quantity=option[4:], name=name, value=value, at_most=option.startswith("max"))
        for (option, name), value in zip(_NAMES.items(), values, strict=True)
        if value is not None
    ]
    if not limits and certificate is None:
        raise _no_limit("there is no limit to check", (*_NAMES, "certificate"))
    result = run.result if isinstance(run, Run) else open_result(run)
    verdicts = list(_of_run(run, result, limits, confidence, resamples, strict=strict, partial=partial))
    if certificate is not None:
        promise = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
        verdicts += _of_fitting(run, result, promise, confidence or promise.level, resamples)
    parts: tuple[Verdict, ...] = ()
    if by_part:
        if confidence is None:
            raise InputError("a part is checked by its interval: give a confidence")
        limits = [limit for limit in limits if limit.quantity != "invalid"]
        if not limits:
            raise _no_limit("there is no limit to check the parts against", tuple(_NAMES)[:-1])
        parts = _of_parts(opened(run), limits, confidence, min(resamples, PART_RESAMPLES), progress)
    return CheckResult(
        path=str(run.folder if isinstance(run, Run) else run),
        confidence=confidence,
        checked=result,
        verdicts=tuple(verdicts),
        by=result.by if by_part else None,
        parts=parts,
    )


def _no_limit(message: str, options: Sequence[str]) -> InputError:
    *first, last = (f"{{{option}}}" for option in options)
    remedy = f"{', '.join(first)} or {last}"
    return InputError(message, remedy=f"give {remedy}", options=dict.fromkeys(options, ...))


def _fit(run: Run | str | Path, confidence: float, resamples: int, part: str | None = None) -> Fit:
    return opened(run).fit(part=part, level=2 * confidence - 1, resamples=resamples)


def _known(fit: Fit | AuditResult, quantity: str) -> Estimate:
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
    *,
    strict: bool,
    partial: bool,
) -> Iterator[Verdict]:
    stopped = not (result.complete or partial)
    doubt = result.warnings[0] if result.warnings else _UNFINISHED if stopped else None
    if result.objection is not None:
        doubt = "the probe found the endpoint unfit and the audit was forced: its estimates may mean nothing"
    measured = [limit.quantity for limit in limits if limit.quantity != "invalid"]
    bounded = None
    if confidence is not None and any(getattr(result, name).has_interval for name in measured):
        bounded = _with_bounds(run, result, confidence, resamples)
    for limit in limits:
        if limit.quantity == "invalid":
            invalid, answers = result.counts.invalid, result.counts.answers
            share = Estimate(invalid / max(1, answers))
            verdict = limit.verdict(share, None, doubt=_UNFINISHED if stopped else None)
            counted = replace(verdict, why=f"{invalid:,} of {answers:,} answers")
            yield verdict if verdict.outcome == "undecided" else counted
            continue
        unbounded = "there is no bound with this confidence: the run is needed, not its result alone"
        if result.estimator != "latent":
            unbounded = f"no interval for it by method {result.method}: only the estimate alone can decide"
        interval = Estimate(None) if bounded is None else _known(bounded, limit.quantity)
        estimate = replace(interval, value=getattr(result, limit.quantity).value)
        yield limit.verdict(estimate, confidence, strict=strict, doubt=doubt, unbounded=unbounded)


def _with_bounds(
    run: Run | str | Path, result: AuditResult, confidence: float, resamples: int
) -> Fit | AuditResult | None:
    """What has intervals beyond each end of which the truth lies with probability 1 - confidence."""
    if result.estimator != "latent":
        return None
    try:
        return _fit(run, confidence, resamples)
    except (StoreError, NotIdentifiedError) as error:
        # Without a run, or without a fit, the interval of the result serves if its level is high enough.
        if isinstance(error, StoreError) and _has_answers(run):
            raise
        return result if result.level >= 2 * confidence - 1 - 1e-12 else None


def _has_answers(run: Run | str | Path) -> bool:
    folder = run.folder if isinstance(run, Run) else Path(run)
    return ((folder.parent if folder.is_file() else folder) / RUN_FILE).is_file()


# Parts


def _of_parts(
    run: Run,
    limits: Sequence[Limit],
    confidence: float,
    resamples: int,
    progress: Callable[[int, int], object],
) -> tuple[Verdict, ...]:
    run.need_fit()
    names, verdicts = run.part_names, []
    shared = 1 - 2 * (1 - confidence) / (len(names) * len(limits))
    for done, part in enumerate(names):
        progress(done, len(names))
        fit: Fit | None = None
        with suppress(NotIdentifiedError):
            fit = _fit(run, confidence, resamples, part)
        items = int(run.members(part).size) if fit is None else fit.items
        for limit in limits:
            estimate = against = Estimate(None) if fit is None else _known(fit, limit.quantity)
            if fit is not None and limit.broken_by(estimate) is not None:
                against = beyond(estimate, getattr(fit.at(level=shared), limit.quantity))
            verdict = limit.verdict(estimate, confidence, against=against)
            verdicts.append(replace(verdict, part=part, items=items))
    progress(len(names), len(names))
    return tuple(verdicts)


# Certificates


def _precision(side: str, value: float) -> Limit:
    decided = {"accept": "accepted", "reject": "rejected"}[side]
    name = f"precision of {decided} items"
    return Limit(quantity=f"{side}_precision", name=name, value=value, at_most=False)


def _condition(quantity: str, words: str, limit: float | str, holds: bool, yes: str, no: str) -> Verdict:
    outcome: CheckOutcome = "passed" if holds else "failed"
    return Verdict(quantity=quantity, limit=limit, words=words, outcome=outcome, why=yes if holds else no)


def _of_certificate(
    certificate: Certificate, min_precision: float | None, model: str | None, confidence: float | None
) -> Iterator[Verdict]:
    """Without a ``confidence``, the share of right decisions counts instead of its bound."""
    for name, side in certificate.sides.items():
        wanted = side.wanted if min_precision is None or name == "reject" else min_precision
        sure = None if confidence is None else certificate.level
        verdict = _precision(name, wanted).verdict(
            Estimate(side.right / side.decided, side.bound), sure, strict=True
        )
        yield replace(verdict, why=f"{side.right:,} of {side.decided:,} were right; {verdict.why}")
    if confidence is not None:
        words = f"certified with at least {level_percent(confidence)} confidence"
        level, enough = level_percent(certificate.level), certificate.level >= confidence - 1e-12
        sure_of = f"it is {level} sure"
        verdict = _condition("confidence", words, confidence, enough, sure_of, sure_of)
        yield verdict if enough else replace(verdict, outcome="undecided")
    last = certificate.expires
    valid, over = f"it is valid until {last}", f"it expired on {last}: certify again"
    yield _condition("expires", "not expired", str(last), not certificate.expired(), valid, over)
    if model is not None:
        yield _same_model(certificate.model, model)


def _same_model(model: str, wanted: str) -> Verdict:
    other = f"the certificate is about {printable(model, 80)}"
    words = f"model {printable(wanted, 80)}"
    return _condition("model", words, wanted, model == wanted, "it is the certified one", other)


def _of_fitting(
    run: Run | str | Path, result: AuditResult, certificate: Certificate, confidence: float, resamples: int
) -> Iterator[Verdict]:
    yield _same_model(certificate.model, result.model)
    digest = certificate.prompt_digest
    yield _condition(
        "prompt",
        "prompt as certified",
        digest,
        prompt_digest(result.settings, result.targets) == digest,
        "same template, answer words, tokens and common bias",
        "the template, the answer words, their tokens or the common bias differ",
    )
    yield _same_endpoint(result, certificate)
    try:
        fit = _fit(run, confidence, resamples)
    except (StoreError, NotIdentifiedError) as error:
        why = f"the run has no interval: {error.message}"
        for name, side in certificate.sides.items():
            yield replace(_precision(name, side.bound).verdict(Estimate(None), None), why=why)
        return
    for name, side in certificate.sides.items():
        (point,) = fit.operating_at([side.threshold])
        precision = point.precision if name == "accept" else point.negative_precision
        verdict = _precision(name, side.bound).verdict(precision, confidence)
        if verdict.outcome == "failed":
            why = f"the run contradicts it with {level_percent(confidence)} confidence: certify again"
            verdict = replace(verdict, why=why)
        elif precision.high is not None:  # a certificate is believed as long as nothing contradicts it
            verdict = replace(verdict, outcome="passed", why="the run does not contradict it")
        yield verdict


def _same_endpoint(result: AuditResult, certificate: Certificate) -> Verdict:
    certified = ", ".join(name.words for name in certificate.served) or "no name"
    served = () if result.steadiness is None else result.steadiness.served
    named = [ServedModel(server.model, server.fingerprint) for server in served]
    others = ", ".join(name.words for name in named if name not in certificate.served)
    no = f"replies come from {printable(others)}, certified was {certified}"
    yes = "replies name the same model and system"
    verdict = _condition("endpoint", "endpoint as certified", certified, not others, yes, no)
    nothing = f"replies of the run name nothing, certified was {certified}"
    silent = certificate.served and not named
    return replace(verdict, outcome="undecided", why=nothing) if silent else verdict
