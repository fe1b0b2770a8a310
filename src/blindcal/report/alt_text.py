"""What each figure shows, in words for who cannot see it: its shape in a few numbers, not its kind alone."""

from __future__ import annotations

from collections.abc import Sequence

from blindcal.results.result import AuditResult, Bin, Confidence, CostCurve, Operating, Part
from blindcal.text import printable

_AT = (0.1, 0.3, 0.5, 0.7, 0.9)
_FEW_PARTS = 8


def gaps(bins: Sequence[Bin]) -> str:
    """The gaps in points, from the lowest bin to the highest."""
    known = [f"{100 * one.gap.value:+.1f}" for one in bins if one.gap.value is not None]
    return f". From the lowest to the highest, in points: {_listed(known)}" if known else ""


def reliability(result: AuditResult) -> str:
    """The curve at five confidences, or the bins where there is none."""
    if (curve := result.curve) is not None:
        points = list(zip(curve.f, curve.value, strict=True))
        pairs = sorted({min(points, key=lambda point: abs(point[0] - at)) for at in _AT})
    else:
        pairs = [
            (one.predicted, one.observed)
            for one in result.bins
            if one.predicted is not None and one.observed is not None
        ]
    said = [f"{value:.0%} at {f:.0%}" for f, value in pairs]
    return f". It is {_listed(said)}" if said else ""


def confidence(found: Confidence) -> str:
    """How much of each label lies on its own side of one half."""
    middle = len(found.positives) // 2
    said = []
    if any(found.positives):
        said.append(f"{sum(found.positives[middle:]):.0%} of the positive ones lie above one half")
    if any(found.negatives):
        said.append(f"{sum(found.negatives[:middle]):.0%} of the negative ones below")
    return f". {_listed(said)}" if said else ""


def operating(rows: Sequence[Operating]) -> str:
    """Precision and recall at three thresholds."""
    said = []
    for at in (0.25, 0.5, 0.75):
        row = min(rows, key=lambda one: abs(one.threshold - at))
        if row.precision.value is not None and row.recall.value is not None:
            said.append(
                f"at {row.threshold:g} precision {row.precision.value:.0%} and recall {row.recall.value:.0%}"
            )
    return ". " + "; ".join(said) if said else ""


def cost(rows: Sequence[Operating], costs: CostCurve) -> str:
    """Where it is least, and what it is at both ends."""
    both = zip(costs.expected, rows, strict=True)
    known = [(one.value, row.threshold) for one, row in both if one.value is not None]
    if not known:
        return ""
    least, at = min(known)
    ends = f"{known[0][0]:.3g} at {known[0][1]:g} and {known[-1][0]:.3g} at {known[-1][1]:g}"
    return f". It is least, {least:.3g}, at {at:g}; it is {ends}"


def parts(found: Sequence[Part]) -> str:
    """The ECE of the largest parts."""
    largest = sorted((one for one in found if one.ece.value is not None), key=lambda one: -one.items)
    said = [f"{printable(one.name, 60)} {one.ece.value:.3f}" for one in largest[:_FEW_PARTS]]
    return f". {_listed(said)}" if said else ""


def _listed(said: Sequence[str]) -> str:
    return ", ".join(said[:-1]) + " and " + said[-1] if len(said) > 1 else said[0]
