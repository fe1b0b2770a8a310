"""Write a reproduced table: its formats, its figures, and one page with everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blindcal.atomic_write import atomic_write
from blindcal.estimate.findings import Bin
from blindcal.estimate.truth import bin_edges
from blindcal.records import Estimate
from blindcal.report.page import environment, style
from blindcal.report.plots import Drawing, plot_calibration_curves, plot_reliability, save_drawings
from blindcal.report.style import DASHES, FULL, drawing, figure_style, ink, root_figure, series
from blindcal.reproduce import table
from blindcal.reproduce.cells import TABLE_METHODS
from blindcal.reproduce.table import Column, MethodTable, Row
from blindcal.text import file_name, printable

PAGE, FIGURES = "index.html", "figures"

_WIDE, _TALL = 6.4, 4.2  # inches
_LEAST = 1e-5  # where the logarithmic axis shows an error of zero
_MARKERS = "osD^vPX"
_ABOVE_LEGEND = 24  # points


def write(comparison: MethodTable, out: Path, notes: Sequence[str] = ()) -> Path:
    """Write a comparison into a folder and return its page; the same numbers give the same bytes."""
    texts = {
        "table.md": table.markdown(comparison),
        "table.tex": table.latex(comparison),
        "cells.csv": table.cells_csv(comparison),
        "estimates.csv": table.estimates_csv(comparison),
    }
    drawings = draw(comparison)
    save_drawings(drawings, out / FIGURES)
    texts[PAGE] = _page(comparison, drawings, notes, list(texts))
    for name, text in texts.items():
        with atomic_write(out / name) as draft:
            draft.write_text(text, encoding="utf-8")
    return out / PAGE


def _page(
    comparison: MethodTable, drawings: Sequence[Drawing], notes: Sequence[str], files: Sequence[str]
) -> str:
    """One self-contained page with the tables and the figures."""
    templates = environment()
    templates.filters["shown"] = lambda text: printable(str(text), 400)
    return templates.get_template("reproduced.html").render(
        comparison=comparison,
        css=style("reproduced.css"),
        drawings=drawings,
        tables=table.tables(comparison),
        fitted={name for name, method in TABLE_METHODS.items() if method.fitted},
        notes=notes,
        files=files,
    )


# Figures


def draw(comparison: MethodTable) -> list[Drawing]:
    """Every figure: the Pareto figure, then one per column."""
    drawings = []
    if points(comparison):
        title = "Cost against error: mean absolute error of each method against its queries per item"
        drawings.append(Drawing("pareto", title, root_figure(plot_pareto(comparison))))
    for column in comparison.columns:
        if column.entries:  # else nothing could be measured
            title = f"Blind Calibration Curves and white-box reliability: {printable(column.name, 120)}"
            drawings.append(Drawing(file_name(column.model, column.data), title, plot_column(column)))
    return drawings


@dataclass(frozen=True, slots=True)
class CostPoint:
    """The cost of a row of the table, and its mean error against the oracle."""

    row: Row
    queries: float
    error: float


def points(comparison: MethodTable) -> list[CostPoint]:
    """Every row whose error is known in all columns: mean queries per item, mean absolute error."""
    found = []
    for row in comparison.rows:
        error = comparison.mean_error(row)
        if error is not None:
            asked = float(np.mean([column.entries[row].asked for column in comparison.columns]))
            found.append(CostPoint(row, asked, error))
    return found


def pareto_front(every: Sequence[CostPoint]) -> list[CostPoint]:
    """The points with a smaller error than every other point of the same or a lower cost, cheapest first."""
    front: list[CostPoint] = []
    for point in sorted(every, key=lambda point: (point.queries, point.error)):
        if not front or point.error < front[-1].error:
            front.append(point)
    return front


def plot_pareto(comparison: MethodTable, ax: Axes | None = None) -> Axes:
    """Mean absolute error against queries per item: a line per method, rings on the front."""
    every = points(comparison)
    with drawing(ax, _WIDE, _TALL) as axes:
        for which, method in enumerate(dict.fromkeys(point.row.method for point in every)):
            mine = [point for point in every if point.row.method == method]
            axes.plot(
                [point.queries for point in mine],
                [max(point.error, _LEAST) for point in mine],
                color=series(which),
                linestyle=DASHES[which % len(DASHES)],
                marker=_MARKERS[which % len(_MARKERS)],
                markersize=4.5,
                label=method,
            )
        front = pareto_front(every)
        axes.plot(
            [point.queries for point in front],
            [max(point.error, _LEAST) for point in front],
            linestyle="none",
            marker="o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor=ink(FULL),
            label="Pareto front",
        )
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("queries per item")
        axes.set_ylabel("mean |estimate - oracle|")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return axes


def plot_column(column: Column) -> Figure:
    """The Blind Calibration Curves of a model on a data set, next to the white-box reliability diagram."""
    with figure_style():
        figure = Figure(figsize=(2 * _WIDE * 0.8, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
        plot_calibration_curves(gap_bins(column, _cheapest(column)), left)
        left.set_title("Blind Calibration Curves", pad=_ABOVE_LEGEND)
        plot_reliability(None, right, bins=() if column.oracle is None else column.oracle.bins)
        right.set_title("White-box reliability", pad=_ABOVE_LEGEND)
    return figure


def gap_bins(column: Column, rows: Sequence[Row]) -> dict[str, tuple[Bin, ...]]:
    """Gaps of the oracle and of the given rows: mean over the seeds, ± standard deviation if several."""
    found: dict[str, tuple[Bin, ...]] = {}
    if column.oracle is not None:
        found["oracle"] = column.oracle.bins
    for row in rows:
        if row in column.entries:
            one = column.entries[row]
            edges = bin_edges(len(one.gaps)).tolist()
            found[row.name] = tuple(
                Bin(low, high, Estimate(gap, gap - sd, gap + sd) if len(one.estimates) > 1 else Estimate(gap))
                for low, high, gap, sd in zip(edges[:-1], edges[1:], one.gaps, one.gap_sds, strict=True)
            )
    return found


def _cheapest(column: Column) -> list[Row]:
    """The published method and ours at one query per item; if both are missing, the cheapest row."""
    usual = [row for row in (Row("blind", 1), Row("latent", 1)) if row in column.entries]
    return usual or sorted(column.entries, key=lambda row: row.queries)[:1]
