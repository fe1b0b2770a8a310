"""Results, fits and comparisons as the output of a notebook cell."""

from __future__ import annotations

from contextlib import suppress
from html import escape

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.fit import Fit
from blindcal.estimate.latent.operating import ChosenThreshold
from blindcal.estimate.published import BlindResult
from blindcal.records import Estimate, level_percent
from blindcal.report.comparison import NAMES, verdict
from blindcal.report.wording import TWO_ANSWERS, item_count, wording_of
from blindcal.results.check import CheckResult
from blindcal.results.compare import RunComparison
from blindcal.results.result import AuditResult
from blindcal.results.run import Run
from blindcal.text import printable


def html(shown: object) -> str:
    """A result, a run, a fit, a check, a comparison or a chosen threshold as HTML."""
    if (tabled := _tabled(shown)) is not None:
        return _in_notebook(*tabled)
    from blindcal.report.plots import plot_calibration_curve
    from blindcal.report.style import root_figure, svg

    source = shown.result if isinstance(shown, Run) else shown
    words = TWO_ANSWERS
    if isinstance(source, AuditResult):
        caption, rows = f"{printable(source.model)}, {source.method}", _result(source)
        words = wording_of(source)
    elif isinstance(source, Fit):
        caption, rows = "fit", _fit(source)
    elif isinstance(source, BlindResult):
        caption, items = "blind", int(source.subset_sizes.sum()) + source.invalid
        rows = [("items", f"{items:,}"), *(("note", note) for note in source.notes)]
    else:
        raise InputError(f"shown: must be a result, a run or a fit, got {type(source).__name__}")
    ece = Estimate(None)
    with suppress(NotIdentifiedError):
        ece = source.ece
    rows.insert(0, (f"ECE, {len(source.bins)} bins", f"{ece:.4f}"))
    curve = plot_calibration_curve(source.bins, ece=ece, words=words)
    return _in_notebook(caption, rows, svg(root_figure(curve), f"Blind Calibration Curve of {caption}"))


def _tabled(shown: object) -> tuple[str, list[tuple[str, str]]] | None:
    if isinstance(shown, CheckResult):
        verdicts = [(str(each.outcome), f"{each.name}: {each.text}") for each in shown.rows]
        return f"{printable(shown.path)}: {shown.outcome}", verdicts
    if isinstance(shown, RunComparison):
        names = " and ".join(
            f"{letter} {printable(name)}" for letter, name in zip("AB", shown.models, strict=True)
        )
        values = (
            (row.quantity, f"{row.first.value:.4f}, {row.second.value:.4f}", row) for row in shown.differences
        )
        return names, [
            (NAMES[name], f"{both}; B - A {row.difference:.4f}, {verdict(row)}") for name, both, row in values
        ]
    if isinstance(shown, ChosenThreshold):
        measured = ("precision", "recall", "accuracy", "positive_rate")
        rows = [(name.replace("_", " "), f"{getattr(shown.point, name):.4f}") for name in measured]
        sure = "the estimate alone" if shown.confidence is None else f"{level_percent(shown.confidence)} sure"
        return f"threshold {shown.threshold:.4f}", [("goal", sure), *rows]
    return None


def _in_notebook(caption: str, rows: list[tuple[str, str]], picture: str = "") -> str:
    from blindcal.report.style import in_notebook

    table = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return in_notebook(
        '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:center">'
        f'<table><caption style="text-align:left;color:inherit"><b>{escape(caption)}</b></caption>'
        f"<tbody>{table}</tbody></table>"
        f'<div style="flex:0 1 24em;min-width:16em">{picture}</div></div>'
    )


def _result(result: AuditResult) -> list[tuple[str, str]]:
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


def _fit(fit: Fit) -> list[tuple[str, str]]:
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
