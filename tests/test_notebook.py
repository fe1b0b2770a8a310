"""Fits and results draw themselves and show themselves in a notebook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import blindcal as bc
import results
from blindcal import design
from blindcal.errors import NotIdentifiedError
from blindcal.report import notebook
from blindcal.report.style import in_notebook
from blindcal.results import figures
from blindcal.results.result import Estimate
from blindcal.simulation import simulate
from test_plots import bars, texts, whiskers


@pytest.fixture(scope="module")
def fit() -> bc.LatentFit:
    y, p = simulate.generate(1500, 0)
    asked = simulate.ask(design.make("latent", y, queries=1.0, bins=5, seed=0), y, p)
    return bc.latent(
        y[asked.items], asked.shifts, asked.answers, asked.temperatures, asked.items, resamples=100
    )


def shown(page: str) -> str:
    """What a reader sees, tables and all, without the tags."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", page))


def test_a_fit_draws_its_gaps(fit: bc.LatentFit) -> None:
    """Bars, whiskers and words are what gaps, gap_intervals and ece say."""
    axes = fit.plot_curve(bins=4, level=0.9)
    found = fit.gap_intervals(4, 0.9)
    assert [bar.get_height() for bar in bars(axes)] == pytest.approx(found.value.tolist())
    assert np.array(whiskers(axes)) == pytest.approx(np.column_stack([found.low, found.high]))
    between = fit.interval("ece", 0.9, bins=4)
    assert f"ECE {fit.ece(4):.3f}  (90%: {between.low:.3f} to {between.high:.3f})" in texts(axes)


def test_a_fit_draws_its_curves(fit: bc.LatentFit) -> None:
    """The reliability line is the curve, the thresholds are those of the rows, on the axes given."""
    line = fit.plot_reliability().lines[-1]
    f, value = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert value[np.isin(np.round(f * 100, 9), np.arange(1, 100))] == pytest.approx(fit.curve().value)
    axes = fit.plot_confidence()
    assert fit.plot_operating(axes, threshold=0.5) is axes
    rows = figures.operating_of(fit, 0.95)
    assert axes.lines[-1].get_xdata() == pytest.approx([0.5, 0.5])
    line = fit.plot_cost(1, 5).lines[0]
    assert line.get_xdata() == pytest.approx([row.threshold for row in rows])
    cost = fit.operating_curve([row.threshold for row in rows], cost_fp=1, cost_fn=5).expected_cost
    assert cost is not None
    assert line.get_ydata() == pytest.approx(cost.value)
    for costs in ((), (figures.cost_of(fit, 0.95, 2, 10),)):  # without, and in the same proportion
        drawn = results.result(operating=rows, costs=costs).plot_cost(1, 5)
        assert drawn.lines[0].get_ydata() == pytest.approx(cost.value)
    band = drawn.collections[0].get_datalim(drawn.transData)
    assert (band.y0, band.y1) == pytest.approx((cost.low.min(), cost.high.max()))


def test_the_published_estimate_draws_its_gaps() -> None:
    """The Blind Calibration Curve, and a question mark where a gap is not known."""
    found = bc.blind([1, 0, 1, 0], [0.0, 0.0, 0.5, 0.5], [1, 1, 1, 0], bins=2)
    assert [bar.get_height() for bar in bars(found.plot_curve())] == pytest.approx([0.125, -0.125])
    unknown = bc.blind([1, 0, 1, 0], [0.0, 0.0, 0.5, 0.5], [1, 1, -1, -1], bins=2)
    with pytest.raises(NotIdentifiedError):
        assert unknown.ece
    assert "?" in texts(unknown.plot_curve())
    assert "not known" in shown(notebook.blind_html(unknown))


def test_a_result_draws_what_it_holds() -> None:
    """Each figure of a result is that of its record; what a method does not tell is said."""
    found = results.result()
    assert [bar.get_height() for bar in bars(found.plot_curve())] == pytest.approx(results.GAPS)
    for axes in (
        found.plot_reliability(),
        found.plot_operating(threshold=0.4),
        found.plot_confidence(),
        found.plot_parts(),
        found.plot_cost(1, 2),
    ):
        assert "not told" not in texts(axes)
    bare = results.result(curve=None, confidence=None, operating=(), bins=())
    for axes in (bare.plot_reliability(), bare.plot_confidence(), bare.plot_operating()):
        assert "not told" in texts(axes)


def test_a_notebook_shows_a_fit(fit: bc.LatentFit) -> None:
    """The headline's numbers with intervals, and the curve beside them."""
    page = notebook.fit_html(fit)
    words = shown(page)
    between = fit.interval("auroc")
    assert f"AUROC {fit.auroc():.4f} ({between.low:.4f} to {between.high:.4f})" in words
    assert f"ECE, 5 bins {fit.ece():.4f}" in words
    assert "1,500" in words
    assert page.count("<svg") == 1
    assert len(page) < 50_000


def test_a_fit_of_one_class_is_shown_too() -> None:
    """What cannot be told of one class is said, not raised."""
    only = bc.latent([1, 1, 1, 1], [0.0, 1.0, -1.0, 0.5], [1, 1, 0, 1], resamples=20)
    assert "AUROC needs items of both labels" in shown(notebook.fit_html(only))


def test_a_notebook_shows_a_result() -> None:
    """An audit's headline; invalid answers, a stop and a forced probe are not passed over."""
    found = results.result(stopped="limit of 10 queries", probe={"forced": True, "objection": "no"})
    words = shown(notebook.result_html(found))
    assert "ECE 0.1250 (0.1050 to 0.1450)" in words
    assert "limit of 10 queries" in words
    assert "may mean nothing" in words
    bare = results.result(ece=Estimate(0.1), auroc=results.NOTHING, calibrated_pvalue=None)
    assert "AUROC" not in shown(notebook.result_html(bare))


def test_hostile_names_do_not_leave_their_cell() -> None:
    """A model's name is text in the page, in the table and in the figure's description."""
    page = notebook.result_html(results.result(model='<script>x</script>"><img src=x onerror=y>\u202e'))
    assert "<script" not in page
    assert "<img" not in page
    assert "\u202e" not in page


def test_the_theme_of_a_notebook_is_followed() -> None:
    """Without any page's help ink is the notebook's own text colour, and the colours suit its dark theme."""
    page = notebook.result_html(results.result())
    assert "var(--bc-ink,currentColor)" in page
    assert "data-jp-theme-light=false" in in_notebook("")


def test_a_notebook_without_widgets_has_a_bar_and_no_warning() -> None:
    """Where ipywidgets is not installed progress is a line of text, without tqdm's advice to install it."""
    script = (
        "import sys, types, warnings; warnings.simplefilter('error')\n"
        "sys.modules['ipywidgets'] = None\n"
        "sys.modules['ipykernel.zmqshell'] = types.ModuleType('ipykernel.zmqshell')\n"
        "kernel = types.ModuleType('IPython'); kernel.get_ipython = lambda: object()\n"
        "sys.modules['IPython'] = kernel\n"
        "from blindcal.progress_bar import ProgressBar\n"
        "from blindcal.auditing.job import Progress\n"
        "from blindcal.records import Usage\n"
        "with ProgressBar() as bar: bar(Progress(3, 10, Usage(3, 3, 3, 3), None, 1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert "3/10" in done.stderr
