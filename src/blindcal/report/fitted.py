"""The figures of a fit: its records, as a result would hold them, and the drawing of these."""

from __future__ import annotations

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.blind import BlindResult
from blindcal.estimate.drawn import DrawnFit, DrawnGaps
from blindcal.estimate.latent import LatentFit
from blindcal.report import plots
from blindcal.report.plots import Axes
from blindcal.results.figures import bins_of, confidence_of, cost_of, curve_of, operating_of
from blindcal.results.result import Bin, Estimate, number


def plot_curve(fit: DrawnFit, ax: Axes | None, bins: int, level: float) -> Axes:
    """The Blind Calibration Curve of a fit."""
    fit = latent_fit(fit)
    return plots.plot_calibration_curve(
        bins_of(fit, bins, level), ax, ece=ece_of(fit, bins, level), level=level
    )


def plot_reliability(fit: DrawnFit, ax: Axes | None, bins: int, level: float) -> Axes:
    """The reliability diagram of a fit."""
    fit = latent_fit(fit)
    return plots.plot_reliability(curve_of(fit, level), ax, bins=bins_of(fit, bins, level), level=level)


def plot_confidence(fit: DrawnFit, ax: Axes | None) -> Axes:
    """The distribution of the confidence."""
    return plots.plot_confidence(confidence_of(latent_fit(fit)), ax)


def plot_operating(fit: DrawnFit, ax: Axes | None, threshold: float | None, level: float) -> Axes:
    """What every threshold would do."""
    return plots.plot_operating(operating_of(latent_fit(fit), level), ax, threshold=threshold)


def plot_cost(fit: DrawnFit, cost_fp: float, cost_fn: float, ax: Axes | None, level: float) -> Axes:
    """What every threshold would cost."""
    fit = latent_fit(fit)
    costs = cost_of(fit, level, cost_fp, cost_fn).expected
    return plots.plot_cost(operating_of(fit, level), cost_fp, cost_fn, ax, costs=costs)


def plot_gaps(found: DrawnGaps, ax: Axes | None) -> Axes:
    """The Blind Calibration Curve of the published estimator, which has no intervals."""
    found = blind_result(found)
    return plots.plot_calibration_curve(gaps_of(found), ax, ece=blind_ece(found))


def ece_of(fit: LatentFit, bins: int, level: float) -> Estimate:
    """The ECE with its interval."""
    between = fit.interval("ece", level, bins=bins)
    return Estimate(fit.ece(bins), between.low, between.high)


def gaps_of(found: BlindResult) -> tuple[Bin, ...]:
    """The bins of the published estimator."""
    edges = found.edges.tolist()
    return tuple(
        Bin(low, high, Estimate(number(gap)))
        for low, high, gap in zip(edges[:-1], edges[1:], found.gaps, strict=True)
    )


def blind_ece(found: BlindResult) -> Estimate:
    """The ECE, or nothing where a gap is not known."""
    try:
        return Estimate(found.ece)
    except NotIdentifiedError:
        return Estimate(None)


def latent_fit(fit: DrawnFit) -> LatentFit:
    """The fit that draws itself."""
    assert isinstance(fit, LatentFit)
    return fit


def blind_result(found: DrawnGaps) -> BlindResult:
    """The estimate that draws itself."""
    assert isinstance(found, BlindResult)
    return found
