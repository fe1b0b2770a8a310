"""Half-width against cost: what more money buys, and which audits are never worth theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from blindcal.errors import InputError
from blindcal.planning.plan import Plan, price_of, reach_of
from blindcal.report.style import FIRM, drawing, file_bytes, ink, series

KINDS = ("svg", "png")
_MARKS = "osD^v"


def plot_plans(
    plans: Sequence[Plan], front: Sequence[Plan] = (), chosen: Plan | None = None, ax: Axes | None = None
) -> Axes:
    """Every plan by its price and its reach, those that none beats joined, and one marked.

    Hollow marks belong to methods without intervals; there the error that is exceeded once in twenty stands
    for the half-width.
    """
    by_method: dict[str, list[Plan]] = {}
    for plan in plans:
        assert plan.promise is not None
        by_method.setdefault(plan.promise.method, []).append(plan)
    with drawing(ax, height=4.2) as axes:
        if front:
            axes.plot(*_places(front), "-", color=ink()[0], linewidth=1.2, label="front", zorder=1)
        for k, (method, mine) in enumerate(by_method.items()):
            hollow = mine[0].promise is not None and mine[0].promise.half_width is None
            axes.plot(
                *_places(mine),
                _MARKS[k % len(_MARKS)],
                color=series(k),
                markerfacecolor="none" if hollow else series(k),
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
        axes.set_ylabel("half-width (hollow: error once in 20)", alpha=FIRM)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
        return axes


def save_plan_figure(path: Path, plans: Sequence[Plan], front: Sequence[Plan], chosen: Plan) -> None:
    """Draw into a file; its suffix says which kind."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise InputError(f"{path}: a figure ends in {' or '.join('.' + kind for kind in KINDS)}")
    figure = plot_plans(plans, front, chosen).get_figure(root=True)
    assert isinstance(figure, Figure)
    path.write_bytes(file_bytes(figure, kind))


def _places(plans: Sequence[Plan]) -> tuple[list[float], list[float]]:
    return [price_of(plan) for plan in plans], [reach_of(plan) for plan in plans]
