"""The figures and the page of a reproduced table: what each method costs and errs, model by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blindcal.report.plots import plot_calibration_curves, plot_reliability
from blindcal.report.style import (
    DASHES,
    FULL,
    drawing,
    figure_style,
    file_bytes,
    ink,
    root_figure,
    series,
    svg,
)
from blindcal.reproduce.table import Column, MethodTable, Row, WhiteBoxBins
from blindcal.results.result import Bin, Estimate
from blindcal.text import printable

_WIDE, _TALL = 6.4, 4.2  # inches
_LEAST = 1e-5  # an error of nothing, on a logarithmic axis
_MARKERS = "osD^vPX"
_ABOVE_LEGEND = 24  # points


@dataclass(frozen=True, slots=True)
class Point:
    """A row's place in the cost-error plane."""

    row: Row
    queries: float
    error: float


def points(comparison: MethodTable) -> list[Point]:
    """Every row whose error is known in all columns: mean queries an item, mean absolute error."""
    found = []
    for row in comparison.rows:
        error = comparison.mean_error(row)
        if error is not None:
            asked = float(np.mean([column.entries[row].asked for column in comparison.columns]))
            found.append(Point(row, asked, error))
    return found


def front(every: Sequence[Point]) -> list[Point]:
    """The points that no other one beats at no higher cost, cheapest first."""
    best: list[Point] = []
    for point in sorted(every, key=lambda one: (one.queries, one.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best


def plot_pareto(comparison: MethodTable, ax: Axes | None = None) -> Axes:
    """Mean absolute error against queries an item: a line a method, rings on the front."""
    every = points(comparison)
    with drawing(ax, _WIDE, _TALL) as axes:
        for which, way in enumerate(dict.fromkeys(point.row.way for point in every)):
            mine = [point for point in every if point.row.way == way]
            axes.plot(
                [point.queries for point in mine],
                [max(point.error, _LEAST) for point in mine],
                color=series(which),
                linestyle=DASHES[which % len(DASHES)],
                marker=_MARKERS[which % len(_MARKERS)],
                markersize=4.5,
                label=way,
            )
        best = front(every)
        axes.plot(
            [point.queries for point in best],
            [max(point.error, _LEAST) for point in best],
            linestyle="none",
            marker="o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor=ink(FULL),
            label="Pareto front",
        )
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("queries an item")
        axes.set_ylabel("mean |estimate - oracle|")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return axes


def gap_bins(column: Column, rows: Sequence[Row]) -> dict[str, tuple[Bin, ...]]:
    """The gaps of the oracle and of some rows: means over the seeds, and the deviation if there are two."""
    found: dict[str, tuple[Bin, ...]] = {}
    if column.oracle is not None:
        found["oracle"] = known_bins(column.oracle)
    for row in rows:
        if row in column.entries:
            one = column.entries[row]
            edges = np.linspace(0, 1, len(one.gaps) + 1).tolist()
            found[row.name] = tuple(
                Bin(low, high, Estimate(gap, gap - sd, gap + sd) if len(one.estimates) > 1 else Estimate(gap))
                for low, high, gap, sd in zip(edges[:-1], edges[1:], one.gaps, one.gap_sds, strict=True)
            )
    return found


def known_bins(known: WhiteBoxBins) -> tuple[Bin, ...]:
    """The white-box bins as a result would hold them."""
    edges = np.linspace(0, 1, known.gaps.size + 1).tolist()
    columns = (known.gaps, known.share, known.predicted, known.observed)
    return tuple(
        Bin(low, high, Estimate(gap), share, *((None, None) if share == 0 else (predicted, observed)))
        for low, high, gap, share, predicted, observed in zip(
            edges[:-1], edges[1:], *(column.tolist() for column in columns), strict=True
        )
    )


def plot_column(column: Column) -> Figure:
    """The Blind Calibration Curves of a model on a data set beside the white-box reliability diagram."""
    with figure_style():
        figure = Figure(figsize=(2 * _WIDE * 0.8, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
        plot_calibration_curves(gap_bins(column, _cheapest(column)), left)
        left.set_title("Blind Calibration Curves", pad=_ABOVE_LEGEND)
        plot_reliability(None, right, bins=() if column.oracle is None else known_bins(column.oracle))
        right.set_title("White-box reliability", pad=_ABOVE_LEGEND)
    return figure


def _cheapest(column: Column) -> list[Row]:
    """The published method and ours at one query an item; where these are missing, what is cheapest."""
    usual = [row for row in (Row("blind", 1), Row("latent", 1)) if row in column.entries]
    return usual or sorted(column.entries, key=lambda row: row.queries)[:1]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with a name for its files and words for who cannot see it."""

    name: str
    title: str
    figure: Figure


def draw(comparison: MethodTable, names: Sequence[str]) -> list[Drawing]:
    """Every figure: the Pareto figure, then one for each column under the name given for it."""
    drawn = []
    if points(comparison):
        title = "Cost against error: mean absolute error of each method against its queries an item"
        drawn.append(Drawing("pareto", title, root_figure(plot_pareto(comparison))))
    for column, name in zip(comparison.columns, names, strict=True):
        if not column.entries:  # nothing could be measured
            continue
        title = f"Blind Calibration Curves and white-box reliability: {printable(column.name, 120)}"
        drawn.append(Drawing(name, title, plot_column(column)))
    return drawn


def save(drawn: Sequence[Drawing], folder: Path) -> None:
    """Write each figure as PNG and SVG; the same numbers give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in drawn:
        for kind in ("png", "svg"):
            (folder / f"{one.name}.{kind}").write_bytes(file_bytes(one.figure, kind))


def page(
    comparison: MethodTable,
    drawn: Sequence[Drawing],
    tables: Sequence[tuple[str, Sequence[Sequence[str]]]],
    notes: Sequence[str],
    files: Sequence[str],
) -> str:
    """One page with the tables and the figures that needs no other file."""
    from blindcal.report.page import environment, style

    templates = environment()
    templates.filters["shown"] = lambda text: printable(str(text), 400)
    return templates.get_template("reproduced.html").render(
        comparison=comparison,
        css=style("reproduced.css"),
        figures=[(one.title, svg(one.figure, one.title)) for one in drawn],
        tables=tables,
        notes=notes,
        files=files,
    )
