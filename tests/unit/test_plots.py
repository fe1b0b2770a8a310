"""Figures show the numbers they are given, whatever these are."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

import results
from blindcal.estimate.findings import Bin, ConfidenceHistogram, Curve
from blindcal.records import Estimate
from blindcal.report import plots, style
from blindcal.report.style import root_figure
from reporting import bars, texts, whiskers
from results import NOTHING, around

HOSTILE = '$\\frac{1}{0}$ <script>alert(\'1\')</script> ]]> --> \u202egnp.\x1b[31m & " id="x" 東京'
THRESHOLDS = [row.threshold for row in results.operating()]


def drawn(axes: Axes) -> str:
    """The SVG, made to be sure that it can be; it must be XML."""
    page = style.svg(root_figure(axes))
    ElementTree.fromstring(page)
    return page


def outline(axes: Axes) -> Any:
    """The corners of the one band."""
    (band,) = [each for each in axes.collections if isinstance(each, PolyCollection)]
    return band.get_paths()[0].vertices


def test_the_calibration_curve_shows_gaps_and_intervals() -> None:
    """Bars are the signed gaps over their bins, whiskers the intervals; what is unknown is marked so."""
    axes = plots.plot_calibration_curve(results.bins(), ece=Estimate(0.125, 0.1, 0.15, 0.9))
    assert [bar.get_height() for bar in bars(axes)] == pytest.approx(results.GAPS)
    centres = [bar.get_x() + bar.get_width() / 2 for bar in bars(axes)]
    assert centres == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    expected = [(gap - 0.02, gap + 0.02) for gap in results.GAPS]
    assert np.array(whiskers(axes)) == pytest.approx(np.array(expected))
    assert "ECE 0.125 (90%: 0.100 to 0.150)" in texts(axes)
    assert "ECE 0.125" in texts(plots.plot_calibration_curve(results.bins()))  # the bars are summed
    below, *by_chance, _, above = [bar.get_facecolor() for bar in bars(axes)]
    assert by_chance[0] == by_chance[1]
    assert len({below, above, by_chance[0]}) == 3  # grey where a whisker crosses zero
    unknown = plots.plot_calibration_curve((*results.bins()[:4], Bin(0.8, 1.0, NOTHING)))
    assert len(bars(unknown)) == 4
    assert {"?", "ECE unknown"} <= set(texts(unknown).splitlines())
    low, high = plots.plot_calibration_curve((Bin(0, 1, NOTHING),)).get_ylim()
    assert low < 0 < high


def test_reliability_shows_curve_band_and_bins() -> None:
    """The line is the curve, the area its band with its level, and dots are the bins, by their share."""
    curve = results.curve()
    shares = (0.4, 0.1, 0.1, 0.1, 0.3)
    some = [replace(each, share=share) for each, share in zip(results.bins(), shares, strict=True)]
    axes = plots.plot_reliability(replace(curve, level=0.999), bins=some)
    assert "curve, 99.9% band" in texts(axes)
    assert np.array_equal(axes.lines[-1].get_ydata(), curve.value)
    assert np.isin(np.array([curve.low, curve.high]), outline(axes)).all()
    (dots,) = [each for each in axes.collections if isinstance(each, PathCollection)]
    centres = np.array([(each.predicted, each.observed) for each in some])
    assert np.asarray(dots.get_offsets()) == pytest.approx(centres)
    sizes = dots.get_sizes()
    assert sizes[0] > sizes[4] > sizes[1] == sizes[2]


def test_confidence_is_mirrored() -> None:
    """Positive labels go up and negative ones down, in their own shares; an absent class is named."""
    given = results.confidence()
    filled = [each for each in plots.plot_confidence(given).patches if isinstance(each, StepPatch)]
    assert filled[0].get_data()[0] == pytest.approx(np.array(given.positives))
    assert filled[2].get_data()[0] == pytest.approx(-np.array(given.negatives))
    assert "no negative items" in texts(plots.plot_confidence(replace(given, negatives=(0.0,) * 20)))


def test_operating_curves_and_costs_are_the_rows() -> None:
    """Named lines over the thresholds; the threshold to deploy and the cheapest one are marked."""
    rows, costs = results.operating(), results.cost(2, 1)
    axes = plots.plot_operating(rows, threshold=0.7)
    by_name = {line.get_label(): line for line in axes.lines}
    for name in ("precision", "recall", "accuracy"):
        assert by_name[name].get_xdata() == pytest.approx(THRESHOLDS)
        assert by_name[name].get_ydata() == pytest.approx([getattr(row, name).value for row in rows])
    assert any(list(np.unique(line.get_xdata())) == [0.7] for line in axes.lines)
    axes = plots.plot_cost(THRESHOLDS, costs)
    expected = [float(cost) for cost in costs.expected]
    assert axes.lines[0].get_ydata() == pytest.approx(expected)
    ends = np.array([(cost.low, cost.high) for cost in costs.expected], float)
    assert np.isin(ends, outline(axes)).all()
    best = int(np.argmin(expected))
    assert axes.lines[1].get_xdata() == pytest.approx([THRESHOLDS[best]])
    assert f"lowest: {expected[best]:.3g} at threshold {THRESHOLDS[best]:g}\n" in texts(axes)
    assert "false positive costs 2, false negative 1" in texts(axes)


def test_parts_with_few_items_are_hollow() -> None:
    """Dots are the parts' ECE, whiskers their intervals; of very many parts the largest are drawn."""
    axes = plots.plot_parts(results.result().parts, overall=around(0.125))
    lines = [
        line for each in axes.collections if isinstance(each, LineCollection) for line in each.get_segments()
    ]
    assert np.array(lines)[:, :, 0] == pytest.approx(np.array([(0.08, 0.12), (0.1, 0.3)]))
    full, hollow = [line for line in axes.lines if line.get_marker() == "o"]
    assert (full.get_xdata(), hollow.get_xdata()) == ([0.1], [0.2])
    assert full.get_markerfacecolor() != "none" == hollow.get_markerfacecolor()
    assert "few" in texts(axes)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["law  (400)", "physics  (60)"]
    many = plots.plot_parts([results.part(f"part {k}", around(0.1), 100 + k) for k in range(300)])
    assert len(many.get_yticklabels()) == 60
    assert "the 60 largest of 300 parts" in texts(many)
    assert root_figure(many).get_figheight() < 17


def test_several_runs_are_laid_over_each_other() -> None:
    """Each run has its own bars within every bin and its own line, with its name."""
    axes = plots.plot_calibration_curves({"a": results.bins(), "b": results.bins()[:2], "c": ()})
    heights = [bar.get_height() for bar in bars(axes)]
    assert heights == pytest.approx([*results.GAPS, *results.GAPS[:2]])
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars(axes))
    assert all(left[1] <= right[0] + 1e-12 for left, right in pairwise(spans))
    assert texts(axes).split() == ["a", "b", "c"]
    names = [f"{k} a model with a long name" for k in range(12)]  # squeezed axes would warn
    box = plots.plot_reliabilities(dict.fromkeys(names, results.curve()))
    assert texts(box).splitlines()[-12:] == names
    assert len({line.get_color() for line in box.lines[1:3]}) == 2
    drawn(box)
    assert box.get_window_extent().width > root_figure(box).bbox.width / 2


def test_given_axes_are_drawn_on_and_given_back() -> None:
    """A figure of the caller's own keeps its size and style, and one in our dark style is dark."""
    axes = Figure().subplots()
    assert plots.plot_parts(results.result().parts, axes) is axes
    assert mpl.rcParams["axes.spines.top"]
    with style.figure_style(dark=True):
        dark = plots.plot_calibration_curve(results.bins())
    assert mpl.colors.to_hex(root_figure(dark).get_facecolor()) == style.PAPER_DARK
    assert mpl.colors.to_hex(bars(dark)[0].get_facecolor()) == style.SERIES_DARK[0]


BARE = tuple(replace(each, gap=Estimate(each.gap.value)) for each in results.bins())
DEGENERATE: dict[str, dict[str, Any]] = {
    "no intervals": {"ece": Estimate(0.1), "bins": BARE, "curve": Curve((0.5,), (0.4,))},
    "no estimate at all": {
        **dict.fromkeys(("curve", "confidence")),
        **dict.fromkeys(("operating", "costs"), ()),
        "ece": NOTHING,
        "bins": (Bin(0, 1, NOTHING),),
        "parts": (results.part("x", NOTHING, 1),),
    },
    "perfect": {
        "ece": Estimate(0.0, 0.0, 0.0),
        "bins": (Bin(0, 1, Estimate(0.0, 0.0, 0.0), 1.0, 0.5, 0.5),),
    },
    "no class": {"confidence": replace(results.confidence(), positives=(0.0,) * 20, negatives=(0.0,) * 20)},
    "no precision above": {
        "operating": (*results.operating(), replace(results.operating()[-1], precision=NOTHING)),
        "costs": (),
    },
    "an interval beside its value": {"bins": (Bin(0, 1, Estimate(0.1, 0.2, 0.3), 1.0, 0.6, 0.5),)},
}


@pytest.mark.parametrize("changes", DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_results_are_drawn(changes: dict[str, Any]) -> None:
    """What a method does not estimate is left out; nothing fails and nothing warns."""
    result = results.result(**changes)
    pages = {each.name: ElementTree.fromstring(each.svg()) for each in plots.draw(result)}
    assert "calibration-curve" in pages
    assert ("operating" in pages) == bool(result.operating)


def test_a_figure_without_numbers_has_a_sentence() -> None:
    """Empty axes would leave the reader to guess."""
    unknown = replace(results.cost(1, 1), expected=(NOTHING,) * 19)
    for axes in (
        plots.plot_reliability(None),
        plots.plot_confidence(None),
        plots.plot_operating(()),
        plots.plot_cost(THRESHOLDS, unknown),
    ):
        assert "not estimated by this method" in texts(axes)


def test_nothing_is_cut_off() -> None:
    """Every word of every figure is inside it, with numbers as long as they come and names as well."""
    wide = results.result(
        ece=around(0.125, level=0.999),
        curve=replace(results.curve(), level=0.999),
        parts=[results.part("W" * 99, around(0.1, 0.2), 5_000_000 + k) for k in range(70)],
    )
    all_axes = [
        *(each.figure.axes[0] for each in plots.draw(wide)),
        plots.plot_cost(THRESHOLDS, results.cost(12345, 0.012345)),
        plots.plot_parts([results.part("x", around(0.1), 3)], overall=around(0.1)),
    ]
    for axes in all_axes:
        figure = root_figure(axes)
        figure.draw_without_rendering()
        inside, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert min(inside.x0, inside.y0) >= 0, axes
        assert (inside.x1 <= width, inside.y1 <= height) == (True, True), axes


def test_a_figure_has_a_description() -> None:
    """It has the numbers that make its shape, none where hardly any item is, and no sentence of nothing."""
    words = {each.name: each.title for each in plots.draw(results.result())}
    assert "ECE 0.125 (95%: 0.105 to 0.145)." in words["calibration-curve"]
    assert "to the highest: -4.0, -1.0, +0.5, +2.0 and +5.0." in words["calibration-curve"]
    shares = "The share is 22% at 10%, 36% at 30%, 50% at 50%, 64% at 70% and 78% at 90% confidence."
    assert shares in words["reliability"]
    sides = "74% of the positive items are above one half and 74% of the negative items are below one half."
    assert sides in words["confidence"]
    assert "At threshold 0.5, precision is 72% and recall is 55%." in words["operating"]
    assert words["parts"].endswith("with its interval. The parts: law 0.100 and physics 0.200.")
    many = [results.part(f"part {k}", around(0.1), 100 + k) for k in range(9)]
    assert "The largest parts: part 8 0.100, part 7 0.100" in plots.describe_parts(many)
    assert plots.describe_calibration_curve((Bin(0, 1, NOTHING),), NOTHING).endswith(". ECE unknown.")
    assert plots.describe_reliability(None, ()).endswith("against the diagonal.")
    absent = ConfidenceHistogram((0.0, 0.5, 1.0), (0.75, 0.25), (0.0, 0.0))
    assert plots.describe_confidence(absent).endswith(" label. 75% of the negative items are below one half.")
    curve, bins = results.curve(), list(results.bins())
    bins[4] = replace(bins[4], share=0.01)
    wide = replace(
        curve, low=(0.0,) * 14 + (curve.low or ())[14:], high=(0.5,) * 14 + (curve.high or ())[14:]
    )
    text = plots.describe_reliability(wide, bins)
    assert "The share is 36% at 30%, 50% at 50% and 64% at 70% confidence." in text


def test_an_inline_drawing_is_at_home_in_any_page() -> None:
    """Text is text, colours are variables, ids are unique on the page, and no style leaks out of it."""
    pages = [each.svg() for each in plots.draw(results.result())]
    for page in pages:
        root = ElementTree.fromstring(page)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        assert not [word for word in ("<style", "DejaVu") if word in page]
        assert not set(re.findall(r": ?#[0-9a-f]{6}", re.sub(r"var\([^)]*\)", "", page)))
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
        assert used <= set(re.findall(r'id="([^"]+)"', page))
    assert "precision" in "".join(ElementTree.fromstring(pages[4]).itertext())
    ids = [name for page in pages for name in re.findall(r'\sid="([^"]+)"', page)]
    assert len(ids) == len(set(ids))
    for name in re.findall(r"var\((--bc-[a-z0-9]+)", "".join(pages)):
        assert name == "--bc-font" or name in style.theme_css()


def test_both_themes_have_contrast() -> None:
    """Every colour stands out from its paper: 3 to 1 for the first three series, 7 to 1 for text (WCAG)."""

    def luminance(color: str) -> float:
        parts = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    def contrast(color: str, paper: str) -> float:
        low, high = sorted((luminance(color), luminance(paper)))
        return (high + 0.05) / (low + 0.05)

    light = style.INK, style.PAPER, style.SERIES
    for ink, paper, series in (light, (style.INK_DARK, style.PAPER_DARK, style.SERIES_DARK)):
        assert contrast(ink, paper) > 7
        assert min(contrast(color, paper) for color in series[:3]) > 3


def test_hostile_names_are_text(tmp_path: Path) -> None:
    """Mathematics, markup and marks that reorder text in a name are shown, never interpreted."""
    result = results.result(parts=(results.part(HOSTILE, around(0.1)), results.part("$", around(0.2))))
    parts = next(each for each in plots.draw(result) if each.name == "parts")
    plots.save_drawings([parts], tmp_path)
    lines = drawn(plots.plot_reliabilities({HOSTILE: results.curve(), "$": results.curve()}))
    root, other = ElementTree.fromstring(parts.svg()), ElementTree.fromstring(lines)
    assert "<script" not in parts.svg() + lines
    for words in ("".join(root.itertext()), root.attrib["aria-label"], "".join(other.itertext())):
        assert "$\\frac{1}{0}$" in words
        assert not {"\u202e", "\x1b"} & set(words)
