"""A figure of half-width against cost: what more money buys, and which plans are never worth it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from blindcal.atomic_write import atomic_write
from blindcal.errors import InputError
from blindcal.planning.plan import Plan, price_of, reach_of
from blindcal.report.style import FIRM, drawing, file_bytes, ink, root_figure, series

KINDS = ("svg", "png")
_MARKS = "osD^v"


def plot_plans(
    plans: Sequence[Plan], front: Sequence[Plan] = (), chosen: Plan | None = None, ax: Axes | None = None
) -> Axes:
    """Half-width against cost of every plan with a forecast; a line is the front, a star the chosen plan.

    Methods without intervals have hollow marks, which show the error that 5% of audits exceed instead of the
    half-width. Without prices, the cost is the number of queries.
    """
    by_method: dict[str, list[Plan]] = {}
    hollow: set[str] = set()
    for plan in plans:
        if plan.forecast is None:
            continue
        by_method.setdefault(plan.forecast.method, []).append(plan)
        if plan.forecast.half_width is None:
            hollow.add(plan.forecast.method)
    with drawing(ax, height=4.2) as axes:
        if front:
            axes.plot(*_places(front), "-", color=ink()[0], linewidth=1.2, label="front", zorder=1)
        for k, (method, mine) in enumerate(by_method.items()):
            axes.plot(
                *_places(mine),
                _MARKS[k % len(_MARKS)],
                color=series(k),
                markerfacecolor="none" if method in hollow else series(k),
                markersize=4,
                label=method,
            )
        if chosen is not None:
            axes.plot(*_places([chosen]), "*", color=ink()[0], markersize=11, label="this plan", zorder=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis, places in ((axes.xaxis, (1.0,)), (axes.yaxis, (1.0, 2.0, 5.0))):
            axis.set_major_locator(LogLocator(subs=places))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("cost in dollars" if any(plan.cost for plan in plans) else "queries")
        axes.set_ylabel("half-width (hollow: 95% error bound)", alpha=FIRM)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
        return axes


def save_plan_figure(path: Path, plans: Sequence[Plan], front: Sequence[Plan], chosen: Plan) -> None:
    """Draw into a file; its suffix sets the format."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise InputError(f"{path}: a figure ends in {' or '.join('.' + kind for kind in KINDS)}")
    with atomic_write(path) as draft:
        draft.write_bytes(file_bytes(root_figure(plot_plans(plans, front, chosen)), kind))


def _places(plans: Sequence[Plan]) -> tuple[list[float], list[float]]:
    return [price_of(plan) for plan in plans], [reach_of(plan) for plan in plans]
