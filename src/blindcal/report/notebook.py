"""A result or a fit in a notebook: its main numbers next to the Blind Calibration Curve."""

from __future__ import annotations

from contextlib import suppress
from html import escape

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.published.blind import BlindResult
from blindcal.records import Estimate
from blindcal.report.plots import plot_calibration_curve
from blindcal.report.sentences import item_count
from blindcal.report.style import in_notebook, root_figure, svg
from blindcal.report.wording import TWO_ANSWERS, wording_of
from blindcal.results.result import AuditResult
from blindcal.results.run import Run
from blindcal.text import printable

Rows = list[tuple[str, str]]


def html(shown: object) -> str:
    """An `AuditResult`, `Run`, `LatentFit` or `BlindResult` as HTML; a run is shown as its result.

    A fit is shown with its intervals, which runs the resampling if that has not been done yet.
    """
    source = shown.result if isinstance(shown, Run) else shown
    words = TWO_ANSWERS
    if isinstance(source, AuditResult):
        caption, rows = f"{printable(source.model)}, {source.method}", _result(source)
        words = wording_of(source)
    elif isinstance(source, LatentFit):
        caption, rows = "latent fit", _fit(source)
    elif isinstance(source, BlindResult):
        caption, items = "blind", int(source.subset_sizes.sum()) + source.invalid
        rows = [("items", f"{items:,}"), *(("note", note) for note in source.notes)]
    else:
        raise InputError(f"shown: must be a result, a run or a fit, got {type(source).__name__}")
    ece = Estimate(None)
    with suppress(NotIdentifiedError):
        ece = source.ece
    rows.insert(0, (f"ECE, {len(source.bins)} bins", f"{ece:.4f}"))
    table = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    curve = plot_calibration_curve(source.bins, ece=ece, words=words)
    picture = svg(root_figure(curve), f"Blind Calibration Curve of {caption}")
    return in_notebook(
        '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:center">'
        f'<table><caption style="text-align:left;color:inherit"><b>{escape(caption)}</b></caption>'
        f"<tbody>{table}</tbody></table>"
        f'<div style="flex:0 1 24em;min-width:16em">{picture}</div></div>'
    )


def _result(result: AuditResult) -> Rows:
    counts = result.counts
    metrics = {"overconfidence": result.overconfidence, "accuracy": result.accuracy, "AUROC": result.auroc}
    rows = [(name, f"{metric:.4f}") for name, metric in metrics.items() if metric.value is not None]
    if result.calibrated_pvalue is not None:
        rows.append(("p-value of “calibrated”", f"{result.calibrated_pvalue:.3g}"))
    rows.append(("items", item_count(counts)))
    if counts.invalid:
        rows.append(("invalid answers", f"{counts.invalid:,}"))
    forced = "the probe found a problem: these estimates may be meaningless"
    doubts = {
        "stopped": result.stopped,
        "unverified": result.unverified,
        "forced": None if result.objection is None else forced,
    }
    rows += [(name, text) for name, text in doubts.items() if text is not None]
    return rows + [("warning", text) for text in result.warnings]


def _fit(fit: LatentFit) -> Rows:
    auroc = "needs items of both labels"
    with suppress(NotIdentifiedError):
        auroc = f"{fit.auroc:.4f}"
    rows = [
        ("accuracy", f"{fit.accuracy:.4f}"),
        ("AUROC", auroc),
        ("Brier score", f"{fit.brier:.4f}"),
        ("p-value of “calibrated”", f"{fit.calibrated_pvalue:.3g}"),
        ("items", f"{fit.items:,}"),
        ("queries", f"{fit.queries:,}"),
    ]
    return [*rows, ("invalid answers", f"{fit.invalid:,}")] if fit.invalid else rows
