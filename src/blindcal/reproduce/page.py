"""Write a reproduced table: Markdown, CSV, figures, and one page with everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blindcal.atomic_write import write_file
from blindcal.estimate.findings import Bin
from blindcal.estimate.truth import bin_edges
from blindcal.records import Estimate
from blindcal.report.page import environment, style
from blindcal.report.plots import Drawing, plot_calibration_curves, plot_reliability, save_drawings
from blindcal.report.style import DASHES, FULL, drawing, figure_style, ink, root_figure, series
from blindcal.reproduce import table
from blindcal.reproduce.table import TABLE_METHODS, Column, MethodTable, Row
from blindcal.text import file_name, printable

PAGE, FIGURES = "index.html", "figures"

_WIDE, _TALL = 6.4, 4.2  # inches
_LEAST = 1e-5  # where the logarithmic axis shows an error of zero
_MARKERS = "osD^vPX"
_ABOVE_LEGEND = 24  # points


def write(comparison: MethodTable, out: Path) -> Path:
    """Write a comparison into a folder and return its page; the same numbers give the same bytes."""
    texts = {"table.md": table.markdown(comparison), "cells.csv": table.cells_csv(comparison)}
    drawings = draw(comparison)
    save_drawings(drawings, out / FIGURES)
    templates = environment()
    templates.filters["shown"] = lambda text: printable(str(text), 400)
    texts[PAGE] = templates.get_template("reproduced.html").render(
        comparison=comparison,
        css=style("reproduced.css"),
        drawings=drawings,
        tables=table.tables(comparison),
        fitted={name for name in TABLE_METHODS if table.is_fitted(name)},
        files=list(texts),
    )
    for name, text in texts.items():
        write_file(out / name, text)
    return out / PAGE


def draw(comparison: MethodTable) -> list[Drawing]:
    """The Pareto figure, then one figure per column."""
    drawings = []
    if any(comparison.mean_error(row) is not None for row in comparison.rows):
        title = "Cost against error: mean absolute error of each method against its queries per item"
        drawings.append(Drawing("pareto", title, root_figure(plot_pareto(comparison))))
    for column in comparison.columns:
        if column.entries:  # else nothing could be measured
            title = f"Blind Calibration Curves and white-box reliability: {printable(column.name, 120)}"
            name = file_name(column.source.model, column.source.data)
            drawings.append(Drawing(name, title, plot_column(column)))
    return drawings


def pareto_front(comparison: MethodTable, errors: Mapping[Row, float]) -> list[Row]:
    """Rows with a smaller error than every other row of the same or a lower cost, cheapest first."""
    front: list[Row] = []
    for row in sorted(errors, key=lambda row: (comparison.mean_queries(row), errors[row])):
        if not front or errors[row] < errors[front[-1]]:
            front.append(row)
    return front


def plot_pareto(comparison: MethodTable, ax: Axes | None = None) -> Axes:
    """Plot mean absolute error against queries per item, with rings on the Pareto front."""
    errors = {row: error for row in comparison.rows if (error := comparison.mean_error(row)) is not None}
    with drawing(ax, _WIDE, _TALL) as axes:

        def draw_rows(rows: Sequence[Row], **style: Any) -> None:
            costs = [comparison.mean_queries(row) for row in rows]
            axes.plot(costs, [max(errors[row], _LEAST) for row in rows], **style)

        for number, method in enumerate(dict.fromkeys(row.method for row in errors)):
            draw_rows(
                [row for row in errors if row.method == method],
                color=series(number),
                linestyle=DASHES[number % len(DASHES)],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=4.5,
                label=method,
            )
        draw_rows(
            pareto_front(comparison, errors),
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
    """Plot a column's Blind Calibration Curves next to its white-box reliability diagram."""
    with figure_style():
        figure = Figure(figsize=(2 * _WIDE * 0.8, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
        # The published method and ours at one query per item, else the cheapest row.
        usual = [row for row in (Row("blind", 1), Row("latent", 1)) if row in column.entries]
        rows = usual or sorted(column.entries, key=lambda row: row.queries)[:1]
        plot_calibration_curves(gap_bins(column, rows), left)
        left.set_title("Blind Calibration Curves", pad=_ABOVE_LEGEND)
        plot_reliability(None, right, bins=column.oracle.bins)
        right.set_title("White-box reliability", pad=_ABOVE_LEGEND)
    return figure


def gap_bins(column: Column, rows: Sequence[Row]) -> dict[str, tuple[Bin, ...]]:
    """Gaps of the oracle and of the rows: mean over the seeds, ± standard deviation if several."""
    curves = {"oracle": column.oracle.bins}
    for row in rows:
        gaps = np.array([each.gaps for each in column.entries[row].measured])
        sds = gaps.std(axis=0).tolist() if len(gaps) > 1 else [None] * gaps.shape[1]
        edges = bin_edges(gaps.shape[1]).tolist()
        curves[row.name] = tuple(
            Bin(low, high, Estimate(gap) if sd is None else Estimate(gap, gap - sd, gap + sd))
            for low, high, gap, sd in zip(edges[:-1], edges[1:], gaps.mean(axis=0).tolist(), sds, strict=True)
        )
    return curves
