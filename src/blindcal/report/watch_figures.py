"""Figures of a watch: evidence of the alarms, gaps, and the last window beside the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from blindcal.estimate.streams.alarms import Alarm, EvidencePath, Gap
from blindcal.records import level_percent
from blindcal.report.plots import Drawing, as_sentences, plot_reliabilities, shares_at, short_name
from blindcal.report.style import DASHES, FAINT, FIRM, WIDTH, drawing, ink, root_figure, series
from blindcal.report.wording import MINUS, OBSERVED, evidence_text, gap_text, wording_of
from blindcal.results.watch_result import WatchResult
from blindcal.text import listed, printable

_SMALL = 9.5  # points
_PANEL = (3.6, 2.4)  # inches: three of them side by side on a desktop, one on a phone
_MOST = 500.0  # highest logarithm that is drawn: its exponential, with room above, is still a float
_LEAST_SPAN = math.log(100)  # the axis spans at least two powers of ten
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plot_evidence(path: EvidencePath, alarm: Alarm, ax: Axes | None = None) -> Axes:
    """The e-value of an alarm after each observation, on a log scale, with the threshold as a dashed line."""
    with drawing(ax, *_PANEL) as axes:
        at = np.array([0, *path.observations], float)
        logs = np.clip([0.0, *path.log_evidence], -_MOST, _MOST)
        colour = series(1 if alarm.raised else 0)
        axes.plot(at, np.exp(logs), color=colour, zorder=3)
        axes.axhline(alarm.threshold, color=ink(FIRM), linewidth=1.0, linestyle=DASHES[1], zorder=2)
        axes.axhline(1, color=ink(FAINT), linewidth=0.8, zorder=1)
        if alarm.raised_at is not None:
            height = max(float(np.exp(np.interp(alarm.raised_at, at, logs))), alarm.threshold)
            axes.axvline(alarm.raised_at, color=colour, linewidth=0.8, alpha=0.5, zorder=1)
            axes.plot(alarm.raised_at, height, "o", color=colour, markersize=6, zorder=4)
        low, high = min(float(logs.min()), 0.0), max(float(logs.max()), math.log(alarm.threshold))
        low = min(low, high - _LEAST_SPAN)
        room = 0.12 * (high - low)
        axes.set_yscale("log")
        axes.set_ylim(math.exp(low - room / 2), math.exp(high + 1.6 * room))
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
        axes.set_xlim(0, max(float(at[-1]), 1))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(xlabel=OBSERVED[alarm.name], ylabel="evidence")
        axes.text(
            0.01,
            alarm.threshold,
            f"raised at {alarm.threshold:,.4g}",
            transform=axes.get_yaxis_transform(),
            va="bottom",
            color=ink(FIRM),
            fontsize=_SMALL,
            parse_math=False,
        )
    return axes


def plot_gaps(gaps: Sequence[Gap], ax: Axes | None = None) -> Axes:
    """The confidence sequence of each gap; coloured if it excludes zero."""
    with drawing(ax, WIDTH, max(1.6, 0.95 + 0.27 * len(gaps))) as axes:
        axes.axvline(0, color=ink(FIRM), linewidth=0.8, zorder=2)
        farthest = 0.02
        for row, each in enumerate(gaps):
            gap = each.gap
            if gap.value is None or gap.low is None or gap.high is None:
                axes.text(
                    0, row, " not known yet", va="center", color=ink(FIRM), fontsize=_SMALL, parse_math=False
                )
                continue
            colour = ink(FIRM) if 0 in gap else series(1 if gap.value > 0 else 0)
            axes.hlines(row, gap.low, gap.high, color=colour, linewidth=2.2, zorder=3)
            axes.plot(gap.value, row, "o", color=colour, markersize=5.5, zorder=4)
            farthest = max(farthest, abs(gap.low), abs(gap.high))
        axes.set_yticks(range(len(gaps)), [f"{short_name(each.name)}  {_share(each)}" for each in gaps])
        for tick in axes.get_yticklabels():
            tick.set_parse_math(False)
        axes.set(ylim=(len(gaps) - 0.4, -0.6), xlim=(-1.08 * farthest, 1.08 * farthest))
        axes.set_xlabel(f"confidence {MINUS} observed share, points")
        axes.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _points(value)))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        levels = {each.gap.level for each in gaps if each.gap.level is not None}
        if len(levels) == 1:
            words = f"{level_percent(levels.pop())} confidence sequences"
            axes.set_title(words, loc="right", color=ink(FIRM), fontsize=_SMALL)
    return axes


def draw_watch(result: WatchResult) -> tuple[Drawing, ...]:
    state, window, drawn = result.state, result.window, []
    words = wording_of(result)
    for alarm in state.alarms:
        path = state.paths[alarm.name]
        if path.observations:
            drawn.append((f"evidence-{alarm.name}", _described(path, alarm), plot_evidence(path, alarm)))
    if state.gaps:
        shown = [f"{printable(each.name, 60)} {gap_text(each.gap)}" for each in state.gaps]
        text = f"Confidence sequences of confidence minus the {words.share}, around zero"
        drawn.append(("gaps", as_sentences(text, *shown), plot_gaps(state.gaps)))
    if window is not None:
        curves = {f"last {window.items:,} labelled items": window.curve}
        if window.reference is not None:
            curves["reference audit"] = window.reference
        shares = {name: shares_at(curve) for name, curve in curves.items()}
        shown = [f"The {name}: {listed(each)} confidence" for name, each in shares.items() if each]
        text = f"Reliability curves: the {words.share} at each confidence"
        drawn.append(("window", as_sentences(text, *shown), plot_reliabilities(curves, words=words)))
    return tuple(Drawing(name, title, root_figure(axes)) for name, title, axes in drawn)


def _described(path: EvidencePath, alarm: Alarm) -> str:
    last, highest = path.log_evidence[-1], max(path.log_evidence)
    observations = path.observations[-1]
    return as_sentences(
        f"Evidence of the {alarm.name} alarm after each of {observations:,} observations, on a log scale",
        f"It is {evidence_text(last)} now and was {evidence_text(highest)} at its highest",
        f"{alarm.threshold:,.4g} raises the alarm",
        "It was never raised" if alarm.raised_at is None else f"It was raised after {alarm.raised_at:,}",
    )


def _power(value: float) -> str:
    if 0.005 < value < 20_000:
        return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    return f"10{str(round(math.log10(value))).translate(_SUPERSCRIPT)}"


def _points(value: float) -> str:
    shown = f"{100 * value:+.3g}".replace("-", MINUS)
    return "0" if abs(value) < 1e-9 else shown


def _share(each: Gap) -> str:
    return "" if each.share is None else f"({each.share:.0%})"
