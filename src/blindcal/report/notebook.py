"""What a notebook shows of a result or a fit: the headline's numbers beside the Blind Calibration Curve."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.drawn import DrawnFit, DrawnGaps
from blindcal.report import fitted
from blindcal.report.plots import Axes, plot_calibration_curve
from blindcal.report.style import in_notebook, root_figure, svg
from blindcal.results.result import AuditResult, Estimate
from blindcal.text import printable

Row = tuple[str, str]


def result_html(result: AuditResult) -> str:
    """An audit's headline."""
    counts = result.counts
    measures = (
        ("ECE", result.ece),
        ("confidence minus accuracy", result.overconfidence),
        ("accuracy", result.accuracy),
        ("AUROC", result.auroc),
    )
    rows = [(name, words(one)) for name, one in measures if one.value is not None or name == "ECE"]
    if result.calibrated_pvalue is not None:
        rows.append(("p-value, if calibrated", f"{result.calibrated_pvalue:.3g}"))
    rows.append(("items", f"{counts.items:,}"))
    if counts.invalid:
        rows.append(("invalid answers", f"{counts.invalid:,}"))
    if result.stopped is not None:
        rows.append(("stopped", result.stopped))
    if result.probe is not None and result.probe.get("forced"):
        rows.append(("forced", "the probe found the endpoint unfit: these figures may mean nothing"))
    curve = plot_calibration_curve(result.bins, ece=result.ece, level=result.level)
    return _beside(f"{printable(result.model)}, {result.method}", rows, result.level, curve)


def fit_html(drawn: DrawnFit) -> str:
    """A fit's headline; shows intervals, so the resampling behind them is done if it has not been yet."""
    fit, level = fitted.latent_fit(drawn), 0.95
    rows: list[Row] = []
    for name, quantity, value in (
        ("ECE, 5 bins", "ece", fit.ece),
        ("accuracy", "accuracy", fit.accuracy),
        ("AUROC", "auroc", fit.auroc),
        ("Brier score", "brier", lambda: fit.brier().score),
    ):
        try:
            between = fit.interval(quantity, level)
            rows.append((name, words(Estimate(value(), between.low, between.high))))
        except NotIdentifiedError:
            rows.append((name, "needs items of both labels"))
    rows.append(("p-value, if calibrated", f"{fit.calibrated_pvalue():.3g}"))
    rows.append(("items, queries", f"{fit.items:,}, {fit.queries:,}"))
    if fit.invalid:
        rows.append(("invalid answers", f"{fit.invalid:,}"))
    return _beside("latent fit", rows, level, fit.plot_curve())


def blind_html(drawn: DrawnGaps) -> str:
    """The published estimator's headline."""
    found = fitted.blind_result(drawn)
    rows = [
        ("ECE", words(fitted.blind_ece(found))),
        ("items", f"{int(found.subset_sizes.sum()) + found.invalid:,} in {found.gaps.size} bins"),
        *(("note", note) for note in found.notes),
    ]
    return _beside("blind", rows, None, found.plot_curve())


def words(estimate: Estimate) -> str:
    """A number with its interval."""
    if estimate.value is None:
        return "not known"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4f}"
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"


def _beside(caption: str, rows: Sequence[Row], level: float | None, curve: Axes) -> str:
    """A table and a figure next to each other, or below where there is no room."""
    table = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    note = "" if level is None else f' <span style="opacity:.7">({level:.0%} intervals)</span>'
    picture = svg(root_figure(curve), f"Blind Calibration Curve of {caption}")
    return in_notebook(
        '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:center">'
        f'<table><caption style="text-align:left;color:inherit"><b>{escape(caption)}</b>{note}</caption>'
        f"<tbody>{table}</tbody></table>"
        f'<div style="flex:0 1 24em;min-width:16em">{picture}</div></div>'
    )
