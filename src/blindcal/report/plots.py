"""One function per figure, from the records of `blindcal.estimate.findings` to matplotlib axes.

Each function draws on ``ax``, or on a new figure that pyplot does not manage, and returns the axes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blindcal.atomic_write import write_file
from blindcal.estimate.findings import (
    ACCEPTED_ERROR,
    Bin,
    ConfidenceHistogram,
    CostCurve,
    Curve,
    OperatingPoint,
    Part,
    RiskPoint,
)
from blindcal.records import Estimate, FloatArray, level_percent
from blindcal.report.style import (
    DASHES,
    FAINT,
    FIRM,
    FULL,
    HEIGHT,
    SOFT,
    SQUARE,
    WIDTH,
    drawing,
    file_bytes,
    ink,
    root_figure,
    series,
    svg,
    text_width,
)
from blindcal.report.wording import TWO_ANSWERS, Wording, shown_curve, wording_of
from blindcal.results.result import AuditResult
from blindcal.text import listed, printable

Color: TypeAlias = str | tuple[str, float]

_BAND = 0.18
_SMALL = 9.5  # points
_TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
_MOST_PARTS = 60
_LINE, _HANDLE = 295.0, 35.0  # width of a legend and of each of its handles, in points
_NAME = 150.0  # widest name of a part or a run, in points


def plot_calibration_curve(
    bins: Sequence[Bin],
    ax: Axes | None = None,
    *,
    ece: Estimate | None = None,
    words: Wording = TWO_ANSWERS,
) -> Axes:
    """Signed gaps with intervals; ``ece`` is written above, by default the sum of the bars' lengths."""
    with drawing(ax) as axes:
        _gap_axes(axes, words)
        known = [each for each in bins if each.gap.value is not None]
        for each in known:
            _gap_bar(axes, each.gap, each.low, each.high, _gap_color(each.gap))
        _zero_line(axes)
        _room_for_words(axes)
        _words(axes, 0.015, 0.98, "predicted > observed", va="top")
        _words(axes, 0.015, 0.02, "predicted < observed", va="bottom")
        for each in bins:
            if each.gap.value is None:
                _words(axes, (each.low + each.high) / 2, 0.6, "?", ha="center")
        total = sum(abs(float(each.gap)) for each in known) if len(known) == len(bins) else None
        _title(axes, f"ECE {ece or Estimate(total):.3f}")
    return axes


def plot_calibration_curves(
    runs: Mapping[str, Sequence[Bin]], ax: Axes | None = None, *, words: Wording = TWO_ANSWERS
) -> Axes:
    with drawing(ax, WIDTH, HEIGHT + _legend_height(runs)) as axes:
        _gap_axes(axes, words)
        for which, bins in enumerate(runs.values()):
            for each in bins:
                if each.gap.value is not None:
                    slot = 0.9 * (each.high - each.low) / len(runs)
                    left = each.low + 0.05 * (each.high - each.low) + which * slot
                    _gap_bar(axes, each.gap, left, left + slot, series(which))
        _zero_line(axes)
        for which, name in enumerate(runs):
            axes.bar(np.nan, np.nan, color=series(which), label=short_name(name))
        _legend(axes)
    return axes


def plot_reliability(
    curve: Curve | None,
    ax: Axes | None = None,
    *,
    bins: Sequence[Bin] = (),
    words: Wording = TWO_ANSWERS,
) -> Axes:
    """The curve with its band, and the bins as dots sized by their share of the items."""
    with drawing(ax, *SQUARE) as axes:
        _reliability_axes(axes, words)
        if curve is not None:
            band = "" if curve.level is None else f", {level_percent(curve.level)} band"
            _reliability_line(axes, curve, 0, f"curve{band}")
        dots = [(each.predicted, each.observed, each.share) for each in bins if each.observed is not None]
        if dots:
            predicted, observed, shares = np.array(dots, float).T
            axes.scatter(
                predicted,
                observed,
                12 + 260 * shares,
                facecolors=[(series(0), 0.35)],
                edgecolors=series(0),
                linewidths=1.0,
                zorder=4,
                clip_on=False,
                label="bins, by share of items",
            )
        if curve is None and not dots:
            _not_estimated(axes)
        else:
            _legend(axes)
    return axes


def plot_reliabilities(
    runs: Mapping[str, Curve], ax: Axes | None = None, *, words: Wording = TWO_ANSWERS
) -> Axes:
    with drawing(ax, SQUARE[0], SQUARE[1] + _legend_height(runs)) as axes:
        _reliability_axes(axes, words)
        for which, (name, curve) in enumerate(runs.items()):
            _reliability_line(axes, curve, which, short_name(name), _BAND if len(runs) <= 3 else _BAND / 2)
        _legend(axes)
    return axes


def plot_confidence(
    confidence: ConfidenceHistogram | None, ax: Axes | None = None, *, words: Wording = TWO_ANSWERS
) -> Axes:
    """The distribution of the confidence: positive labels up, negative labels down."""
    with drawing(ax) as axes:
        _zero_line(axes)
        _probability_axis(axes, words.confidence)
        axes.set_ylabel(words.side_share)
        if confidence is None:
            _not_estimated(axes)
            return axes
        highest = max(*confidence.positives, *confidence.negatives) or 1.0
        axes.set_ylim(-1.3 * highest, 1.3 * highest)  # a strip above and below for labels
        axes.set_yticks([tick for tick in axes.get_yticks() if abs(tick) <= 1.1 * highest])
        for shares, sign, which in ((confidence.positives, 1, 0), (confidence.negatives, -1, 1)):
            heights = sign * np.array(shares, float)
            axes.stairs(heights, confidence.edges, fill=True, color=(series(which), 0.75), edgecolor="none")
            axes.stairs(heights, confidence.edges, color=series(which), linewidth=1.0)
            there = words.sides[which] if heights.any() else f"no {words.sides[which]}"
            _words(axes, 0.5, 0.5 + sign * 0.47, there, ha="center")
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0%}")
        axes.grid(visible=False, axis="x")
    return axes


def plot_operating(
    operating: Sequence[OperatingPoint],
    ax: Axes | None = None,
    *,
    threshold: float | None = None,
    words: Wording = TWO_ANSWERS,
) -> Axes:
    with drawing(ax) as axes:
        at = [row.threshold for row in operating]
        for which, (name, label) in enumerate(words.rates):
            _line_with_band(axes, at, [getattr(row, name) for row in operating], which, label)
        _probability_axis(axes, words.threshold)
        if threshold is not None:
            axes.axvline(threshold, color=ink(FIRM), linewidth=1.0)
        axes.set(ylim=(-0.02, 1.02), ylabel="share")
        axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        if operating:
            _legend(axes)
        else:
            _not_estimated(axes)
    return axes


def plot_risk(risk: Sequence[RiskPoint], ax: Axes | None = None) -> Axes:
    """The share of wrong answers among the surest items, and the accepted error as a dashed line."""
    with drawing(ax) as axes:
        _line_with_band(axes, [point.coverage for point in risk], [point.error for point in risk], 0)
        axes.axhline(ACCEPTED_ERROR, color=ink(SOFT), linewidth=1.0, linestyle=DASHES[1], zorder=1)
        _probability_axis(axes, "share of items accepted, the surest first")
        axes.set_ylabel("wrong answers among them")
        axes.set_ylim(bottom=0)
    return axes


def plot_cost(
    thresholds: Sequence[float], costs: CostCurve, ax: Axes | None = None, *, words: Wording = TWO_ANSWERS
) -> Axes:
    with drawing(ax) as axes:
        value, _, high = _columns_of(costs.expected)
        _probability_axis(axes, words.threshold)
        axes.set_ylabel("expected cost per decision")
        if np.isfinite(value).any():
            best = int(np.nanargmin(value))
            _line_with_band(axes, thresholds, costs.expected, 0)
            axes.plot(thresholds[best], value[best], "o", color=series(1), markersize=6, zorder=4)
            axes.set_ylim(0, 1.12 * np.nanmax([value, high]) or 1)
            _title(
                axes,
                f"lowest: {_amount(value[best])} at threshold {thresholds[best]:g}\n"
                f"{words.errors[0]} costs {costs.cost_fp:.3g}, {words.errors[1]} {costs.cost_fn:.3g}",
            )
        else:
            _not_estimated(axes)
    return axes


def plot_parts(parts: Sequence[Part], ax: Axes | None = None, *, overall: Estimate | None = None) -> Axes:
    """The largest parts, hollow if unreliable; ``overall``, the ECE of all items, is a dashed line."""
    shown = sorted(parts, key=lambda part: -part.items)[:_MOST_PARTS] if len(parts) > _MOST_PARTS else parts
    with drawing(ax, WIDTH, max(1.7, 1.0 + 0.25 * len(shown))) as axes:
        notes = [f"the {len(shown)} largest of {len(parts)} parts"] if len(shown) < len(parts) else []
        if any(part.few for part in shown):
            notes.append("hollow: few items")
        if overall is not None and overall.value is not None:
            notes.append("dashed: all items")
            axes.axvline(overall.value, color=ink(SOFT), linewidth=1.0, linestyle=DASHES[1])
            if overall.low is not None and overall.high is not None:
                axes.axvspan(overall.low, overall.high, color=ink(FAINT), linewidth=0)
        color = series(0)
        for row, part in enumerate(shown):
            if part.ece.low is not None and part.ece.high is not None:
                style = ":" if part.few else "-"
                axes.hlines(row, part.ece.low, part.ece.high, color=color, linewidth=1.4, linestyle=style)
            if part.ece.value is None:
                axes.text(0, row, " unknown", va="center", color=ink(FIRM), fontsize=_SMALL)
            else:
                face = "none" if part.few else color
                how: dict[str, Any] = {"markersize": 5.5, "markerfacecolor": face, "markeredgecolor": color}
                axes.plot(part.ece.value, row, "o", **how)
        axes.set_yticks(range(len(shown)), [f"{short_name(part.name)}  ({part.items:,})" for part in shown])
        for tick in axes.get_yticklabels():
            tick.set_parse_math(False)
        axes.set(ylim=(len(shown) - 0.4, -0.6), xlabel="ECE")
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        words = textwrap.fill("; ".join(notes), 40)
        axes.set_title(words, loc="right", color=ink(FIRM), fontsize=_SMALL)
    return axes


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with a file name and an alt text."""

    name: str
    title: str
    figure: Figure

    def svg(self) -> str:
        return svg(self.figure, self.title)


def draw(result: AuditResult) -> tuple[Drawing, ...]:
    """Draw every figure that a result has numbers for, in the order of the report."""
    words, bins, curve = wording_of(result), result.bins, shown_curve(result)
    axes = plot_calibration_curve(bins, ece=result.ece, words=words)
    drawn = [("calibration-curve", describe_calibration_curve(bins, result.ece), axes)]
    if curve is not None or any(each.observed is not None for each in bins):
        axes = plot_reliability(curve, bins=bins, words=words)
        drawn.append(("reliability", describe_reliability(curve, bins, words), axes))
    if result.confidence is not None:
        axes = plot_confidence(result.confidence, words=words)
        drawn.append(("confidence", describe_confidence(result.confidence, words), axes))
    if result.risk:
        drawn.append(("risk", describe_risk(result.risk, result.coverage), plot_risk(result.risk)))
    if result.operating:
        axes = plot_operating(result.operating, words=words)
        drawn.append(("operating", describe_operating(result.operating, words), axes))
    if result.parts:
        axes = plot_parts(result.parts, overall=result.ece)
        drawn.append(("parts", describe_parts(result.parts), axes))
    return tuple(Drawing(name, title, root_figure(axes)) for name, title, axes in drawn)


def save_drawings(drawings: Sequence[Drawing], folder: str | Path) -> list[Path]:
    """Write each figure as PNG and SVG; the same numbers give the same bytes."""
    written = []
    for each in drawings:
        for kind in ("png", "svg"):
            written.append(Path(folder) / f"{each.name}.{kind}")
            write_file(written[-1], file_bytes(each.figure, kind))
    return written


def _gap_axes(axes: Axes, words: Wording) -> None:
    _probability_axis(axes, words.confidence)
    axes.set_ylabel("gap, weighted by share of items")
    axes.grid(visible=False, axis="x")


def _gap_color(gap: Estimate) -> Color:
    """One colour above zero and one below; grey if chance alone may have made the gap."""
    if gap.has_interval and 0 in gap:
        return ink(SOFT)
    return series(1 if float(gap) > 0 else 0)


def _gap_bar(axes: Axes, gap: Estimate, left: float, right: float, color: Color) -> None:
    width, middle = right - left, (left + right) / 2
    axes.bar(middle, float(gap), 0.86 * width, color=color, zorder=2)
    if (low := gap.low) is not None and (high := gap.high) is not None:
        cap = min(0.12 * width, 0.02)
        axes.vlines(middle, low, high, color=ink(FULL), linewidth=1.1, zorder=3)
        axes.hlines([low, high], middle - cap, middle + cap, color=ink(FULL), linewidth=1.1, zorder=3)


def _reliability_axes(axes: Axes, words: Wording) -> None:
    axes.plot([0, 1], [0, 1], color=ink(SOFT), linewidth=1.0, linestyle=DASHES[1], zorder=1)
    _probability_axis(axes, words.confidence)
    axes.set(ylim=(0, 1), ylabel=words.share, aspect="equal")
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])


def _reliability_line(axes: Axes, curve: Curve, which: int, label: str, band: float = _BAND) -> None:
    color = series(which)
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.f, curve.low, curve.high, color=(color, band), linewidth=0, zorder=2)
    dashes = DASHES[which % len(DASHES)]
    axes.plot(curve.f, curve.value, color=color, linestyle=dashes, zorder=3, label=label)


def _line_with_band(
    axes: Axes, at: Sequence[float], estimates: Sequence[Estimate], which: int, label: str | None = None
) -> None:
    value, low, high = _columns_of(estimates)
    axes.fill_between(at, low, high, color=(series(which), _BAND), linewidth=0)
    axes.plot(at, value, color=series(which), linestyle=DASHES[which], label=label)


def _probability_axis(axes: Axes, words: str) -> None:
    axes.set(xlim=(0, 1), xlabel=words)
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])


def _zero_line(axes: Axes) -> None:
    axes.axhline(0, color=ink(FIRM), linewidth=0.8, zorder=2.5)


def _room_for_words(axes: Axes) -> None:
    low, high = axes.get_ylim() if axes.patches else (0.0, 0.0)
    highest = max(high, -low, 0.01)
    axes.set_ylim(min(low, -0.25 * highest) - 0.12 * highest, max(high, 0.25 * highest) + 0.12 * highest)


def _words(axes: Axes, x: float, y: float, words: str, **how: object) -> None:
    how = {"va": "center", "color": ink(FIRM), "fontsize": _SMALL, **how}
    axes.text(x, y, words, transform=axes.transAxes, parse_math=False, **how)  # type: ignore[arg-type]


def _not_estimated(axes: Axes) -> None:
    _words(axes, 0.5, 0.5, "not estimated by this method", ha="center")


def _title(axes: Axes, words: str) -> None:
    axes.set_title(words, loc="left", color=ink(FULL), parse_math=False)


def _legend(axes: Axes) -> None:
    names = [str(name) for name in axes.get_legend_handles_labels()[1]]
    legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=_columns(names), borderaxespad=0.3)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _columns(names: Sequence[str]) -> int:
    widths = np.array([text_width(name, _SMALL) + _HANDLE for name in names])
    for columns in (3, 2):
        if sum(some.max() for some in np.array_split(widths, columns) if some.size) <= _LINE:
            return columns
    return 1


def _legend_height(runs: Mapping[str, object]) -> float:
    """Height, in inches, of the lines of a legend after the first."""
    return 0.21 * (math.ceil(len(runs) / _columns([short_name(name) for name in runs])) - 1)


def _amount(cost: float) -> str:
    return "below 0.0001" if 0 < cost < 0.0001 else f"{cost:.3g}"


def _columns_of(estimates: Sequence[Estimate]) -> tuple[FloatArray, FloatArray, FloatArray]:
    ends = [(each.value, each.low, each.high) for each in estimates]
    value, low, high = np.array(ends, float).reshape(-1, 3).T
    return value, low, high


def short_name(name: str) -> str:
    shown = printable(name, 60)
    while text_width(shown, _SMALL) > _NAME:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown


# Alt texts

_CONFIDENCES = (0.1, 0.3, 0.5, 0.7, 0.9)
_THRESHOLDS = (0.25, 0.5, 0.75)
_PARTS_NAMED = 8
_ENOUGH = 0.05  # a bin with a smaller share of the items says little
_WIDEST = 0.4  # a wider band says little


def describe_calibration_curve(bins: Sequence[Bin], ece: Estimate) -> str:
    gaps = [f"{100 * each.gap.value:+.1f}" for each in bins if each.gap.value is not None]
    return as_sentences(
        f"Blind Calibration Curve: the signed gap of each of {len(bins)} bins of confidence",
        f"ECE {ece:.3f}",
        f"Gaps in percentage points, from the lowest bin to the highest: {listed(gaps)}" if gaps else "",
    )


def describe_reliability(curve: Curve | None, bins: Sequence[Bin], words: Wording = TWO_ANSWERS) -> str:
    shares = shares_at(curve, bins)
    if curve is None:
        known = [each for each in bins if each.predicted is not None]
        shares = [f"{each.observed:.0%} at {each.predicted:.0%}" for each in known]
    return as_sentences(
        f"Reliability diagram: the {words.share} at each confidence, against the diagonal",
        f"The share is {listed(shares)} confidence" if shares else "",
    )


def shares_at(curve: Curve | None, bins: Sequence[Bin] = ()) -> list[str]:
    """The curve at five confidences, without those where items are few or the band is wide."""
    if curve is None:
        return []
    shares = []
    for f in _CONFIDENCES:
        k = min(range(len(curve.f)), key=lambda place: abs(curve.f[place] - f))
        at = curve.f[k]
        there = [each.share for each in bins if each.low <= at <= each.high and each.share is not None]
        wide = curve.low is not None and curve.high is not None and curve.high[k] - curve.low[k] > _WIDEST
        if not wide and max(there, default=1.0) >= _ENOUGH:
            shares.append(f"{curve.value[k]:.0%} at {at:.0%}")
    return list(dict.fromkeys(shares))


def describe_confidence(shares: ConfidenceHistogram, words: Wording = TWO_ANSWERS) -> str:
    middle = len(shares.positives) // 2
    where, negatives = "below", shares.negatives[:middle]
    if words.several:
        where, negatives = "above", shares.negatives[middle:]
    parts = []
    if any(shares.positives):
        above = sum(shares.positives[middle:])
        parts.append(f"{above:.0%} of the {words.sides[0]} are above one half")
    if any(shares.negatives):
        parts.append(f"{sum(negatives):.0%} of the {words.sides[1]} are {where} one half")
    return as_sentences(words.distribution, listed(parts) if parts else "")


def describe_risk(risk: Sequence[RiskPoint], coverage: Estimate) -> str:
    errors = [f"{point.error.value:.1%} of the surest {point.coverage:.0%}" for point in risk[9::10]]
    return as_sentences(
        "Risk and coverage: the share of wrong answers among the surest items",
        f"Wrong are {listed(errors)}",
        f"The surest {coverage.value:.0%} have at most {ACCEPTED_ERROR:.0%}" if coverage.value else "",
    )


def describe_operating(points: Sequence[OperatingPoint], words: Wording = TWO_ANSWERS) -> str:
    sentences = []
    for at in _THRESHOLDS:
        point = min(points, key=lambda each: abs(each.threshold - at))
        rates = {name: getattr(point, name).value for name, _ in words.rates[:2]}
        if None not in rates.values():
            sentences.append(f"At threshold {point.threshold:g}, {words.decided.format(**rates)}")
    return as_sentences(words.decisions, *sentences)


def describe_parts(each: Sequence[Part]) -> str:
    largest = sorted((part for part in each if part.ece.value is not None), key=lambda part: -part.items)
    shown = [f"{printable(part.name, 60)} {part.ece.value:.3f}" for part in largest[:_PARTS_NAMED]]
    which = "The largest parts" if len(largest) > _PARTS_NAMED else "The parts"
    return as_sentences(
        f"ECE of each of {len(each)} parts with its interval", f"{which}: {listed(shown)}" if shown else ""
    )


def as_sentences(*each: str) -> str:
    return " ".join(f"{sentence}." for sentence in each if sentence)
