"""Check a certificate, and whether a run still fits one.

A certificate holds if it has not expired and promises enough. A run fits it if the same model was asked in
the same words at the same endpoint, and if its own interval of the precision at the certified thresholds does
not lie below what the certificate promises.
"""

from __future__ import annotations

from pathlib import Path

from blindcal.errors import NotIdentifiedError, StoreError
from blindcal.records import Estimate, level_percent
from blindcal.results.certificate import Certificate, CertifiedSide, ServedModel, prompt_digest
from blindcal.results.result import AuditResult
from blindcal.results.run import open_run
from blindcal.results.verdicts import CheckOutcome, Condition, LimitVerdict
from blindcal.text import printable
from blindcal.untrusted_json import JsonError, read_json

_WORDS = {"accept": "accepted", "reject": "rejected"}


def is_certificate(path: str | Path) -> bool:
    """Whether a file looks like a certificate, which may be damaged."""
    if not Path(path).is_file():
        return False
    try:
        found = read_json(Path(path).read_bytes())
    except (OSError, JsonError):
        return False
    return isinstance(found, dict) and {"format", "digest", "accept"} <= found.keys()


def certificate_verdicts(
    certificate: Certificate, min_precision: float | None, model: str | None, confidence: float | None
) -> tuple[LimitVerdict, ...]:
    """The verdicts on a certificate; ``min_precision`` is about accepted items.

    Without a ``confidence``, the share of right decisions counts instead of its bound.
    """
    wanted = certificate.accept.wanted if min_precision is None else min_precision
    found = [_promised("accept", certificate.accept, wanted, confidence)]
    if certificate.reject is not None:
        found.append(_promised("reject", certificate.reject, certificate.reject.wanted, confidence))
    if confidence is not None:
        found.append(_sure_enough(certificate.level, confidence))
    found.append(_not_expired(certificate))
    if model is not None:
        found.append(_same_model(certificate.model, model))
    return tuple(found)


def _stated(limit: Condition, outcome: CheckOutcome, why: str) -> LimitVerdict:
    """A verdict without numbers."""
    return LimitVerdict(limit, outcome, None, None, why)


def _promised(name: str, side: CertifiedSide, wanted: float, confidence: float | None) -> LimitVerdict:
    limit = Condition(f"{name}_precision", wanted, f"precision of {_WORDS[name]} items at least {wanted:g}")
    share = side.right / side.decided if side.decided else None
    counted = f"{side.right:,} of {side.decided:,} were right"
    if share is None or share < wanted:
        return LimitVerdict(limit, "failed", share, side.bound, counted)
    if confidence is None:
        return LimitVerdict(limit, "passed", share, None, f"{counted}, by the estimate alone")
    if side.bound < wanted:
        return LimitVerdict(limit, "undecided", share, side.bound, f"{counted}: certify on more items")
    return LimitVerdict(limit, "passed", share, side.bound, counted)


def _sure_enough(level: float, confidence: float) -> LimitVerdict:
    limit = Condition(
        "confidence", confidence, f"certified with at least {level_percent(confidence)} confidence"
    )
    enough = level >= confidence - 1e-12
    return _stated(limit, "passed" if enough else "undecided", f"it is {level_percent(level)} sure")


def _not_expired(certificate: Certificate) -> LimitVerdict:
    limit = Condition("expires", str(certificate.expires), "not expired")
    if certificate.expired():
        return LimitVerdict(
            limit, "failed", None, None, f"it expired on {certificate.expires}: certify again"
        )
    return _stated(limit, "passed", f"it is valid until {certificate.expires}")


def _same_model(found: str, wanted: str) -> LimitVerdict:
    limit = Condition("model", wanted, f"model {printable(wanted, 80)}")
    if found == wanted:
        return _stated(limit, "passed", "it is the certified one")
    return _stated(limit, "failed", f"the certificate is about {printable(found, 80)}")


def fitting_verdicts(
    path: Path, result: AuditResult, certificate: Certificate, confidence: float | None, resamples: int
) -> tuple[LimitVerdict, ...]:
    """The verdicts on a run that a certificate should still hold for."""
    sides = {"accept": certificate.accept, "reject": certificate.reject}
    return (
        _same_model(certificate.model, result.model),
        _same_prompt(result, certificate),
        _same_endpoint(result, certificate),
        *(
            _no_contradiction(path, name, side, confidence or certificate.level, resamples)
            for name, side in sides.items()
            if side is not None
        ),
    )


def _same_prompt(result: AuditResult, certificate: Certificate) -> LimitVerdict:
    limit = Condition("prompt", certificate.prompt_digest, "prompt as certified")
    if prompt_digest(result.settings, result.targets) == certificate.prompt_digest:
        return LimitVerdict(
            limit, "passed", None, None, "same template, answer words, tokens and common bias"
        )
    why = "the template, the answer words, their tokens or the common bias differ"
    return _stated(limit, "failed", why)


def _same_endpoint(result: AuditResult, certificate: Certificate) -> LimitVerdict:
    known = ", ".join(name.words for name in certificate.served) or "no name"
    limit = Condition("endpoint", known, "endpoint as certified")
    served = () if result.steadiness is None else result.steadiness.served
    found = [ServedModel(one.model, one.fingerprint) for one in served]
    outcome: CheckOutcome = "passed"
    why = "replies name the same model and system"
    if others := [one.words for one in found if one not in certificate.served]:
        outcome, why = "failed", f"replies come from {printable(', '.join(others))}, certified was {known}"
    elif certificate.served and not found:
        outcome, why = "undecided", f"replies of the run name nothing, certified was {known}"
    return _stated(limit, outcome, why)


def _no_contradiction(
    path: Path, name: str, side: CertifiedSide, confidence: float, resamples: int
) -> LimitVerdict:
    """Whether the run's interval of the precision at a threshold reaches up to what is promised."""
    words = f"precision of {_WORDS[name]} items at least {side.bound:.4g}"
    limit = Condition(f"{name}_precision", side.bound, words)
    try:
        fit = open_run(path).fit(level=2 * confidence - 1, resamples=resamples)
    except (StoreError, NotIdentifiedError) as error:
        return _stated(limit, "undecided", f"the run has no interval: {error.message}")
    (point,) = fit.operating_at([side.threshold])
    found: Estimate = point.precision if name == "accept" else point.negative_precision
    if found.value is None or found.high is None:
        return LimitVerdict(limit, "undecided", found.value, None, "the run could not estimate it")
    if found.high < side.bound:
        why = f"the run contradicts it with {level_percent(confidence)} confidence: certify again"
        return LimitVerdict(limit, "failed", found.value, found.high, why)
    return LimitVerdict(limit, "passed", found.value, found.high, "the run does not contradict it")
