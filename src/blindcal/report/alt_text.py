"""Alt text of each figure: its shape in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence

from blindcal.estimate.findings import Bin, ConfidenceHistogram, CostCurve, Curve, OperatingPoint, Part
from blindcal.estimate.streams.alarms import EvidencePath
from blindcal.records import Estimate
from blindcal.report.sentences import evidence_text, gap_text
from blindcal.report.wording import TWO_ANSWERS, Wording
from blindcal.text import listed, printable

_CONFIDENCES = (0.1, 0.3, 0.5, 0.7, 0.9)
_THRESHOLDS = (0.25, 0.5, 0.75)
_MOST_PARTS = 8
_ENOUGH = 0.05  # share of the items in a bin without which the curve says little there
_WIDEST = 0.4  # a band that is wider says little too


def calibration_curve(bins: Sequence[Bin], ece: Estimate) -> str:
    """The gap of each bin, from the lowest to the highest."""
    known = [f"{100 * one.gap.value:+.1f}" for one in bins if one.gap.value is not None]
    return _sentences(
        f"Blind Calibration Curve: the signed gap of each of {len(bins)} bins of confidence",
        f"ECE {ece:.3f}",
        f"Gaps in percentage points, from the lowest bin to the highest: {listed(known)}" if known else "",
    )


def reliability(curve: Curve | None, bins: Sequence[Bin], words: Wording = TWO_ANSWERS) -> str:
    """The curve at five confidences, as far as items are there, or the bins if there is no curve."""
    if curve is not None:
        pairs = _points(curve, bins)
    else:
        pairs = [
            (one.predicted, one.observed)
            for one in bins
            if one.predicted is not None and one.observed is not None
        ]
    shares = [f"{share:.0%} at {confidence:.0%}" for confidence, share in pairs]
    return _sentences(
        f"Reliability diagram: the {words.observed} at each confidence, against the diagonal",
        f"The share is {listed(shares)} confidence" if shares else "",
    )


def _points(curve: Curve, bins: Sequence[Bin]) -> list[tuple[float, float]]:
    """The curve at five confidences, as far as items are there."""
    near = {min(range(len(curve.f)), key=lambda k: abs(curve.f[k] - at)) for at in _CONFIDENCES}
    return [(curve.f[k], curve.value[k]) for k in sorted(near) if _is_known(curve, k, bins)]


def _is_known(curve: Curve, place: int, bins: Sequence[Bin]) -> bool:
    """Whether a point of the curve is one at which there are items, with a band that says something."""
    f = curve.f[place]
    there = [one for one in bins if one.low <= f <= one.high and one.share is not None]
    if there and max(one.share or 0.0 for one in there) < _ENOUGH:
        return False
    return curve.low is None or curve.high is None or curve.high[place] - curve.low[place] <= _WIDEST


def confidence(found: ConfidenceHistogram, words: Wording = TWO_ANSWERS) -> str:
    """The share of each kind of items above one half; of the negative items, the share below it."""
    middle = len(found.positives) // 2
    shares = []
    if any(found.positives):
        shares.append(f"{sum(found.positives[middle:]):.0%} of the {words.of_sides[0]} are above one half")
    if any(found.negatives):
        above = ("above", found.negatives[middle:])
        where, share = above if words.several else ("below", found.negatives[:middle])
        shares.append(f"{sum(share):.0%} of the {words.of_sides[1]} are {where} one half")
    return _sentences(words.distribution, listed(shares) if shares else "")


def operating(points: Sequence[OperatingPoint], words: Wording = TWO_ANSWERS) -> str:
    """Precision and recall at three thresholds; with several answers, precision and the share answered."""
    found = []
    for at in _THRESHOLDS:
        point = min(points, key=lambda one: abs(one.threshold - at))
        rates = {name: getattr(point, name).value for name, _ in words.rates[:2]}
        if None not in rates.values():
            found.append(f"At threshold {point.threshold:g}, {words.decided.format(**rates)}")
    return _sentences(words.decisions, *found)


def cost(thresholds: Sequence[float], costs: CostCurve, words: Wording = TWO_ANSWERS) -> str:
    """The threshold with the lowest cost, and the costs at both ends."""
    wrong, missed = words.errors
    first = (
        f"Expected cost per decision at each threshold, if a {wrong} costs {costs.cost_fp:g} and a "
        f"{missed} {costs.cost_fn:g}"
    )
    both = zip(costs.expected, thresholds, strict=True)
    known = [(one.value, threshold) for one, threshold in both if one.value is not None]
    if not known:
        return _sentences(first)
    lowest, at = min(known)
    ends = [f"{value:.3g} at {threshold:g}" for value, threshold in (known[0], known[-1])]
    return _sentences(first, f"It is lowest, {lowest:.3g}, at threshold {at:g}", f"It is {listed(ends)}")


def parts(found: Sequence[Part]) -> str:
    """The ECE of the largest parts."""
    largest = sorted((one for one in found if one.ece.value is not None), key=lambda one: -one.items)
    shown = [f"{printable(one.name, 60)} {one.ece.value:.3f}" for one in largest[:_MOST_PARTS]]
    which = "The largest parts" if len(largest) > _MOST_PARTS else "The parts"
    return _sentences(
        f"ECE of each of {len(found)} parts with its interval", f"{which}: {listed(shown)}" if shown else ""
    )


def evidence(name: str, path: EvidencePath, threshold: float, raised_at: int | None) -> str:
    """Where the evidence of an alarm ends, its highest value, and whether the alarm was raised."""
    last, highest = path.log_evidence[-1], max(path.log_evidence)
    raised = "It was never raised" if raised_at is None else f"It was raised after {raised_at:,}"
    return _sentences(
        f"Evidence of the {name} alarm after each of {path.observations[-1]:,} observations, on a log scale",
        f"It is {evidence_text(last)} now and was {evidence_text(highest)} at its highest",
        f"{threshold:,.4g} raises the alarm",
        raised,
    )


def gaps(found: Sequence[tuple[str, Estimate]]) -> str:
    """Each gap with its interval."""
    each = [f"{printable(name, 60)} {gap_text(gap)}" for name, gap in found]
    return _sentences(
        "Confidence sequences of confidence minus the share of positive labels, around zero", *each
    )


def window(items: int, curve: Curve, reference: Curve | None) -> str:
    """Both curves at five confidences."""
    shown = {f"The last {items:,} labelled items": curve, "The reference": reference}
    told = []
    for name, one in shown.items():
        if one is None:
            continue
        shares = [f"{share:.0%} at {confidence:.0%}" for confidence, share in _points(one, ())]
        told.append(f"{name}: {listed(shares)} confidence" if shares else "")
    return _sentences("Reliability curves: the share of positive labels at each confidence", *told)


def _sentences(*found: str) -> str:
    """Join sentences, each with a full stop; skip empty ones."""
    return " ".join(f"{one}." for one in found if one)
