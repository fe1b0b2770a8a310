"""A comparison as figures and as one small HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blindcal.report.plots import Drawing, plot_calibration_curves, plot_reliabilities
from blindcal.report.style import file_bytes, root_figure
from blindcal.results.compare import (
    NAMES,
    OTHER_SEMANTICS,
    RunComparison,
    better,
    differing,
    headline,
    pairing,
    verdict,
)
from blindcal.results.result import FEW, AuditResult
from blindcal.results.run import Run
from blindcal.text import printable

MEANINGS = {
    "ece": "How far confidence is from the share of right answers, on average over bins. Lower is better.",
    "accuracy": "How often the plain answer is right. Higher is better.",
    "auroc": "The chance that a positive item gets more confidence than a negative one. Higher is better.",
    "brier": "Mean squared distance between confidence and label. Lower is better.",
    "log_loss": "Mean surprise at the labels, in nats; a sure and wrong answer costs a lot. Lower is better.",
}


def draw_comparison(results: Sequence[AuditResult], names: Sequence[str]) -> tuple[Drawing, ...]:
    """Both runs' calibration curves and reliability curves over each other."""
    curves = {name: one.curve for name, one in zip(names, results, strict=True) if one.curve is not None}
    bins = {name: one.bins for name, one in zip(names, results, strict=True)}
    drawn = [
        Drawing(
            "calibration-curves",
            "Blind Calibration Curves of both runs: signed gap of each bin of confidence",
            root_figure(plot_calibration_curves(bins)),
        )
    ]
    if len(curves) == len(names):
        words = "Reliability curves of both runs: how often the label is positive at each confidence"
        drawn.append(Drawing("reliability-curves", words, root_figure(plot_reliabilities(curves))))
    return tuple(drawn)


def labels_of(found: RunComparison) -> tuple[str, str]:
    """Short names for the legend."""
    one, two = (printable(model, 40) for model in found.models)
    return (f"A: {one}", f"B: {two}")


def save_comparison(drawn: Sequence[Drawing], folder: Path) -> list[Path]:
    """Write each figure as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for one in drawn:
        for kind in ("png", "svg"):
            path = folder / f"{one.name}.{kind}"
            path.write_bytes(file_bytes(one.figure, kind))
            written.append(path)
    return written


def comparison_page(found: RunComparison, drawn: Sequence[Drawing], runs: tuple[Run, Run]) -> str:
    """One page: what differs in plain words, every difference, both curves, and what was asked otherwise."""
    from blindcal.report.page import environment, style

    return (
        environment()
        .get_template("comparison.html")
        .render(
            found=found,
            headline=headline(found),
            pairing=pairing(found),
            notes=_notes(runs),
            runs=tuple(zip("AB", runs, strict=True)),
            rows=[(one, NAMES[one.quantity], verdict(one), better(one)) for one in found.differences],
            meanings=MEANINGS,
            settings=differing(*runs),
            drawings=[(one.name, one.svg()) for one in drawn],
            chance=min(1.0, (1 - found.level) * len(found.differences)),
            css=style("page.css", "comparison.css"),
        )
    )


def _notes(runs: tuple[Run, Run]) -> list[str]:
    """What makes the comparison worth less, in sentences."""
    notes = []
    for letter, run in zip("AB", runs, strict=True):
        if (run.result.probe or {}).get("forced"):
            notes.append(f"Run {letter} was forced although the probe objected. It may measure nothing.")
        if not run.result.complete:
            notes.append(f"Run {letter} was stopped early; it covers a random part of its items.")
        if run.result.counts.items < FEW:
            notes.append(f"Run {letter} has only {run.result.counts.items} items: read the intervals.")
    if len({run.result.semantics for run in runs}) > 1:
        notes.append(OTHER_SEMANTICS)
    return notes
