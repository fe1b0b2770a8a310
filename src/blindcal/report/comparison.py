"""A comparison of two runs as figures and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from blindcal.evidence import FEW_ITEMS
from blindcal.records import level_percent
from blindcal.report.narrative import meanings
from blindcal.report.page import environment, style
from blindcal.report.plots import Drawing, plot_calibration_curves, plot_reliabilities
from blindcal.report.sentences import item_count
from blindcal.report.style import root_figure
from blindcal.report.wording import shown_curve, wording_of
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
from blindcal.results.result import AuditResult
from blindcal.results.run import Run
from blindcal.text import printable


def draw_comparison(results: Sequence[AuditResult], names: Sequence[str]) -> tuple[Drawing, ...]:
    """The calibration curves of both runs in one figure, and their reliability curves in another."""
    words = wording_of(results[0])
    shown = {name: shown_curve(one) for name, one in zip(names, results, strict=True)}
    curves = {name: curve for name, curve in shown.items() if curve is not None}
    bins = {name: one.bins for name, one in zip(names, results, strict=True)}
    drawn = [
        Drawing(
            "calibration-curves",
            "Blind Calibration Curves of both runs: the signed gap of each bin of confidence.",
            root_figure(plot_calibration_curves(bins, words=words)),
        )
    ]
    if len(curves) == len(names):
        title = f"Reliability curves of both runs: the {words.observed} at each confidence."
        figure = root_figure(plot_reliabilities(curves, words=words))
        drawn.append(Drawing("reliability-curves", title, figure))
    return tuple(drawn)


def labels_of(found: RunComparison) -> tuple[str, str]:
    """Short names for the legend."""
    one, two = (printable(model, 40) for model in found.models)
    return (f"A: {one}", f"B: {two}")


def comparison_page(found: RunComparison, drawn: Sequence[Drawing], runs: tuple[Run, Run]) -> str:
    """One page: the headline, every difference, the curves of both runs and the settings that differ."""
    return (
        environment()
        .get_template("comparison.html")
        .render(
            found=found,
            headline=headline(found),
            pairing=pairing(found),
            notes=_notes(runs),
            runs=tuple(zip("AB", runs, strict=True)),
            item_count=item_count,
            rows=[(one, NAMES[one.quantity], verdict(one), better(one)) for one in found.differences],
            meanings=meanings(runs[0].result),
            words=wording_of(runs[0].result),
            settings=differing(*runs),
            drawings=[(one.name, one.svg()) for one in drawn],
            level=level_percent(found.level),
            chance=min(1.0, (1 - found.level) * len(found.differences)),
            css=style("page.css", "comparison.css"),
        )
    )


def _notes(runs: tuple[Run, Run]) -> list[str]:
    """The caveats of a comparison."""
    notes = []
    for letter, run in zip("AB", runs, strict=True):
        if run.result.objection is not None:
            forced = f"Run {letter} was forced although the probe found a problem."
            notes.append(f"{forced} Its estimates may be meaningless.")
        notes += [f"Run {letter}: {text}" for text in run.result.warnings]
        if not run.result.complete:
            notes.append(f"Run {letter} was stopped early. It covers a random sample of its items.")
        if run.result.counts.items < FEW_ITEMS:
            few = f"Run {letter} has only {run.result.counts.items} items"
            notes.append(f"{few}: rely on the intervals, not on the estimates.")
    if len({run.result.semantics for run in runs}) > 1:
        notes.append(OTHER_SEMANTICS)
    return notes
