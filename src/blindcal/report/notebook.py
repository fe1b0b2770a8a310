"""A result or a fit in a notebook: its main numbers next to the Blind Calibration Curve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from html import escape

from matplotlib.axes import Axes

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.published.blind import BlindResult
from blindcal.records import Estimate
from blindcal.report.plots import plot_calibration_curve
from blindcal.report.sentences import item_count
from blindcal.report.style import in_notebook, root_figure, svg
from blindcal.report.wording import wording_of
from blindcal.results.result import AuditResult
from blindcal.results.run import Run
from blindcal.text import printable

Row = tuple[str, str]


@singledispatch
def html(found: object) -> str:
    """An `AuditResult`, `Run`, `LatentFit` or `BlindResult` as HTML; a run is shown as its result.

    A fit is shown with its intervals, which runs the resampling if that has not been done yet.
    """
    raise InputError(f"found: must be a result, a run or a fit, got {type(found).__name__}")


@html.register
def _run(run: Run) -> str:
    return _result(run.result)


@html.register
def _result(result: AuditResult) -> str:
    counts = result.counts
    metrics = (
        ("ECE", result.ece),
        ("overconfidence", result.overconfidence),
        ("accuracy", result.accuracy),
        ("AUROC", result.auroc),
    )
    rows = [(name, f"{one:.4f}") for name, one in metrics if one.value is not None or name == "ECE"]
    if result.calibrated_pvalue is not None:
        rows.append(("p-value of “calibrated”", f"{result.calibrated_pvalue:.3g}"))
    rows.append(("items", item_count(counts)))
    if counts.invalid:
        rows.append(("invalid answers", f"{counts.invalid:,}"))
    if result.stopped is not None:
        rows.append(("stopped", result.stopped))
    if result.unverified is not None:
        rows.append(("unverified", result.unverified))
    if result.objection is not None:
        rows.append(("forced", "the probe found a problem: these estimates may be meaningless"))
    rows += [("warning", text) for text in result.warnings]
    curve = plot_calibration_curve(result.bins, ece=result.ece, words=wording_of(result))
    return _beside(f"{printable(result.model)}, {result.method}", rows, curve)


@html.register
def _latent(fit: LatentFit) -> str:
    rows = [
        (f"ECE, {fit.bin_count} bins", f"{fit.ece:.4f}"),
        ("accuracy", f"{fit.accuracy:.4f}"),
        ("AUROC", _auroc(fit)),
        ("Brier score", f"{fit.brier:.4f}"),
        ("p-value of “calibrated”", f"{fit.calibrated_pvalue:.3g}"),
        ("items", f"{fit.items:,}"),
        ("queries", f"{fit.queries:,}"),
    ]
    if fit.invalid:
        rows.append(("invalid answers", f"{fit.invalid:,}"))
    return _beside("latent fit", rows, plot_calibration_curve(fit.bins, ece=fit.ece))


def _auroc(fit: LatentFit) -> str:
    try:
        return f"{fit.auroc:.4f}"
    except NotIdentifiedError:
        return "needs items of both labels"


@html.register
def _blind(found: BlindResult) -> str:
    try:
        ece = found.ece
    except NotIdentifiedError:
        ece = Estimate(None)
    rows = [
        (f"ECE, {found.gaps.size} bins", f"{ece:.4f}"),
        ("items", f"{int(found.subset_sizes.sum()) + found.invalid:,}"),
        *(("note", note) for note in found.notes),
    ]
    return _beside("blind", rows, plot_calibration_curve(found.bins, ece=ece))


def _beside(caption: str, rows: Sequence[Row], curve: Axes) -> str:
    """A table and a figure side by side, or stacked if there is no room."""
    table = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    picture = svg(root_figure(curve), f"Blind Calibration Curve of {caption}")
    return in_notebook(
        '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:center">'
        f'<table><caption style="text-align:left;color:inherit"><b>{escape(caption)}</b></caption>'
        f"<tbody>{table}</tbody></table>"
        f'<div style="flex:0 1 24em;min-width:16em">{picture}</div></div>'
    )
