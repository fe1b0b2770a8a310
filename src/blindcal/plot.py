"""Figures of results and fits: ``bc.plot.reliability(result)``.

Each function draws a result, a `Run`, a fit or a `BlindResult` on ``ax`` or on a new figure, and
returns the axes. ``fit.at(bins=10, level=0.9)`` changes the bins and the level of a fit.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.findings import CostCurve, Findings, finite
from blindcal.estimate.fit import Fit
from blindcal.estimate.latent.operating import check_costs
from blindcal.estimate.published import BlindResult
from blindcal.records import Estimate
from blindcal.report import plots
from blindcal.report.style import figure_style, root_figure
from blindcal.report.style import svg as svg_element
from blindcal.report.wording import TWO_ANSWERS, Wording, shown_curve, wording_of
from blindcal.results.result import AuditResult
from blindcal.results.run import Run

__all__ = [
    *("calibration_curve", "confidence", "cost", "operating", "parts", "reliability", "risk", "style", "svg"),
]

style = figure_style
"""The look of all figures, for drawings of your own: ``with bc.plot.style(dark=True): ...``."""

Drawable: TypeAlias = Findings | Run | Fit | BlindResult
#: The attribute that each figure is drawn from, and its name in words.
_NEEDS = {
    "calibration_curve": ("bins", "bins"),
    "reliability": ("curve", "reliability curve"),
    "confidence": ("confidence", "distribution of the confidence"),
    "risk": ("risk", "risk-coverage curve"),
    "operating": ("operating", "operating points"),
    "cost": ("operating", "operating points"),
    "parts": ("parts", "parts"),
}


def calibration_curve(estimates: Drawable, ax: Axes | None = None) -> Axes:
    """The Blind Calibration Curve: signed gaps with intervals, whose lengths add up to the ECE."""
    source = _source(estimates, "calibration_curve")
    ece = None
    with suppress(NotIdentifiedError):  # if a gap is unknown, so is the ECE
        ece = source.ece
    return plots.plot_calibration_curve(source.bins, ax, ece=ece, words=_words(source))


def reliability(estimates: Drawable, ax: Axes | None = None) -> Axes:
    """The reliability diagram: the curve with its band, and the bins as dots."""
    source = _source(estimates, "reliability")
    curve = shown_curve(source) if isinstance(source, AuditResult) else source.curve
    return plots.plot_reliability(curve, ax, bins=source.bins, words=_words(source))


def confidence(estimates: Drawable, ax: Axes | None = None) -> Axes:
    """The distribution of the confidence for each label."""
    source = _source(estimates, "confidence")
    return plots.plot_confidence(source.confidence, ax, words=_words(source))


def risk(estimates: Drawable, ax: Axes | None = None) -> Axes:
    """The share of wrong answers among the surest items, at each share of items that are accepted."""
    return plots.plot_risk(_source(estimates, "risk").risk, ax)


def operating(estimates: Drawable, ax: Axes | None = None, *, threshold: float | None = None) -> Axes:
    """Precision, recall and accuracy at each threshold; ``threshold`` marks one."""
    source = _source(estimates, "operating")
    return plots.plot_operating(source.operating, ax, threshold=threshold, words=_words(source))


def cost(estimates: Drawable, cost_fp: float, cost_fn: float, ax: Axes | None = None) -> Axes:
    """The expected cost per decision at each threshold, given the costs of the two errors.

    A fit always has a band; a result has one if ``result.costs`` has a pair of costs in the same proportion.
    """
    source = _source(estimates, "cost")
    costs = _costs(source, *check_costs(cost_fp, cost_fn))
    thresholds = [point.threshold for point in source.operating]
    return plots.plot_cost(thresholds, costs, ax, words=_words(source))


def parts(estimates: Drawable, ax: Axes | None = None) -> Axes:
    """The ECE of each part with its interval."""
    source = _source(estimates, "parts")
    return plots.plot_parts(source.parts, ax, overall=source.ece)


def svg(drawn: Axes | Figure, title: str = "") -> str:
    """A figure as an SVG element to embed in a page; screen readers read ``title`` aloud."""
    return svg_element(drawn if isinstance(drawn, Figure) else root_figure(drawn), title)


def _source(estimates: object, figure: str) -> Any:
    source = estimates.result if isinstance(estimates, Run) else estimates
    available = _available(source)
    if figure in available:
        return source
    kind = type(source).__name__
    if not available:
        raise InputError(f"{figure}: estimates must be a result, a run or a fit, got {kind}")
    missing = _NEEDS[figure][1]
    raise InputError(f"{figure}: this {kind} has no {missing}; it can be drawn by {', '.join(available)}")


def _words(source: object) -> Wording:
    return wording_of(source) if isinstance(source, AuditResult) else TWO_ANSWERS


def _available(source: object) -> list[str]:
    if not isinstance(source, Findings):
        return [figure for figure, (name, _) in _NEEDS.items() if hasattr(type(source), name)]
    filled = [figure for figure, (name, _) in _NEEDS.items() if getattr(source, name)]
    if "reliability" not in filled and any(each.observed is not None for each in source.bins):
        filled.insert(1, "reliability")  # the bins alone, without a curve
    return filled


def _costs(source: Fit | Findings, cost_fp: float, cost_fn: float) -> CostCurve:
    if isinstance(source, Fit):
        return source.expected_cost(cost_fp, cost_fn)
    for curve in source.costs:
        if math.isclose(curve.cost_fp * cost_fn, curve.cost_fn * cost_fp):
            factor = cost_fp / curve.cost_fp
            return CostCurve(cost_fp, cost_fn, tuple(cost.times(factor) for cost in curve.expected))
    both = ((float(point.false_positive), float(point.false_negative)) for point in source.operating)
    expected = (finite(cost_fp * wrong + cost_fn * missed) for wrong, missed in both)
    return CostCurve(cost_fp, cost_fn, tuple(map(Estimate, expected)))
