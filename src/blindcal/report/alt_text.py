"""Alt text of each figure."""

from __future__ import annotations

from collections.abc import Sequence

from blindcal.estimate.findings import Bin, ConfidenceHistogram, Curve, OperatingPoint, Part
from blindcal.estimate.streams.alarms import EvidencePath
from blindcal.records import Estimate
from blindcal.report.wording import TWO_ANSWERS, Wording, evidence_text, gap_text
from blindcal.text import listed, printable

_CONFIDENCES = (0.1, 0.3, 0.5, 0.7, 0.9)
_THRESHOLDS = (0.25, 0.5, 0.75)
_MOST_PARTS = 8
_ENOUGH = 0.05  # a bin with a smaller share of the items says little
_WIDEST = 0.4  # a wider band says little


def calibration_curve(bins: Sequence[Bin], ece: Estimate) -> str:
    gaps = [f"{100 * one.gap.value:+.1f}" for one in bins if one.gap.value is not None]
    return _sentences(
        f"Blind Calibration Curve: the signed gap of each of {len(bins)} bins of confidence",
        f"ECE {ece:.3f}",
        f"Gaps in percentage points, from the lowest bin to the highest: {listed(gaps)}" if gaps else "",
    )


def reliability(curve: Curve | None, bins: Sequence[Bin], words: Wording = TWO_ANSWERS) -> str:
    shares = _shares(curve, bins)
    if curve is None:
        known = [one for one in bins if one.predicted is not None]
        shares = [f"{one.observed:.0%} at {one.predicted:.0%}" for one in known]
    return _sentences(
        f"Reliability diagram: the {words.observed} at each confidence, against the diagonal",
        f"The share is {listed(shares)} confidence" if shares else "",
    )


def _shares(curve: Curve | None, bins: Sequence[Bin] = ()) -> list[str]:
    """The curve at five confidences, without those where items are few or the band is wide."""
    if curve is None:
        return []
    shares = []
    for f in _CONFIDENCES:
        k = min(range(len(curve.f)), key=lambda place: abs(curve.f[place] - f))
        at = curve.f[k]
        there = [one.share for one in bins if one.low <= at <= one.high and one.share is not None]
        wide = curve.low is not None and curve.high is not None and curve.high[k] - curve.low[k] > _WIDEST
        if not wide and max(there, default=1.0) >= _ENOUGH:
            shares.append(f"{curve.value[k]:.0%} at {at:.0%}")
    return list(dict.fromkeys(shares))


def confidence(shares: ConfidenceHistogram, words: Wording = TWO_ANSWERS) -> str:
    middle = len(shares.positives) // 2
    where, negatives = "below", shares.negatives[:middle]
    if words.several:
        where, negatives = "above", shares.negatives[middle:]
    parts = []
    if any(shares.positives):
        above = sum(shares.positives[middle:])
        parts.append(f"{above:.0%} of the {words.of_sides[0]} are above one half")
    if any(shares.negatives):
        parts.append(f"{sum(negatives):.0%} of the {words.of_sides[1]} are {where} one half")
    return _sentences(words.distribution, listed(parts) if parts else "")


def operating(points: Sequence[OperatingPoint], words: Wording = TWO_ANSWERS) -> str:
    sentences = []
    for at in _THRESHOLDS:
        point = min(points, key=lambda each: abs(each.threshold - at))
        rates = {name: getattr(point, name).value for name, _ in words.rates[:2]}
        if None not in rates.values():
            sentences.append(f"At threshold {point.threshold:g}, {words.decided.format(**rates)}")
    return _sentences(words.decisions, *sentences)


def parts(each: Sequence[Part]) -> str:
    largest = sorted((part for part in each if part.ece.value is not None), key=lambda part: -part.items)
    shown = [f"{printable(part.name, 60)} {part.ece.value:.3f}" for part in largest[:_MOST_PARTS]]
    which = "The largest parts" if len(largest) > _MOST_PARTS else "The parts"
    return _sentences(
        f"ECE of each of {len(each)} parts with its interval", f"{which}: {listed(shown)}" if shown else ""
    )


def evidence(name: str, path: EvidencePath, threshold: float, raised_at: int | None) -> str:
    last, highest = path.log_evidence[-1], max(path.log_evidence)
    return _sentences(
        f"Evidence of the {name} alarm after each of {path.observations[-1]:,} observations, on a log scale",
        f"It is {evidence_text(last)} now and was {evidence_text(highest)} at its highest",
        f"{threshold:,.4g} raises the alarm",
        "It was never raised" if raised_at is None else f"It was raised after {raised_at:,}",
    )


def gaps(each: Sequence[tuple[str, Estimate]]) -> str:
    shown = [f"{printable(name, 60)} {gap_text(gap)}" for name, gap in each]
    return _sentences(
        "Confidence sequences of confidence minus the share of positive labels, around zero", *shown
    )


def window(items: int, curve: Curve, reference: Curve | None) -> str:
    curves = {f"The last {items:,} labelled items": curve, "The reference": reference}
    shares = {name: _shares(each) for name, each in curves.items()}
    shown = [f"{name}: {listed(each)} confidence" for name, each in shares.items() if each]
    return _sentences("Reliability curves: the share of positive labels at each confidence", *shown)


def _sentences(*each: str) -> str:
    return " ".join(f"{sentence}." for sentence in each if sentence)
