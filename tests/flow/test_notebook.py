"""Results and fits are drawn by `blindcal.plot` and shown in notebooks."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blindcal as bc
import results
from blindcal import plot
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.latent.estimator import latent
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.published import blind
from blindcal.records import Estimate
from blindcal.report import plots, style
from blindcal.report.notebook import html
from blindcal.results.run import Run
from finished_runs import FinishedRuns
from paths import ROOT
from reporting import bars, texts


@pytest.fixture(scope="module")
def run(finished_runs: FinishedRuns) -> Run:
    return finished_runs.original("plain").opened()


@pytest.fixture(scope="module")
def fit(run: Run) -> LatentFit:
    return run.fit(resamples=40).smooth


def shown(page: str) -> str:
    """What a reader sees, without the tags."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", page))


# Figures


def test_figures_are_drawn_from_the_records(fit: LatentFit, run: Run) -> None:
    """Of a fit, whose bins and level ``at`` changes, of a result, and of a run, on the axes given."""
    other = fit.at(bins=4, level=0.9)
    assert "(90%: " in texts(plot.calibration_curve(other))
    axes = plot.confidence(fit)
    for source in (fit, other, run.result, run):
        records: Any = run.result if source is run else source
        for ours, theirs in (
            (plot.calibration_curve(source), plots.plot_calibration_curve(records.bins, ece=records.ece)),
            (plot.reliability(source), plots.plot_reliability(records.curve, bins=records.bins)),
            (plot.confidence(source), plots.plot_confidence(records.confidence)),
            (plot.operating(source, threshold=0.5), plots.plot_operating(records.operating, threshold=0.5)),
        ):
            assert plot.svg(ours) == plot.svg(theirs)
        assert plot.reliability(source, axes) is axes
    assert plot.cost(run, 1, 5, axes) is axes
    with plot.style(dark=True):
        dark = plot.calibration_curve(run)
    assert 'aria-label="the gaps"' in plot.svg(dark, "the gaps")
    assert plot.svg(dark) == plot.svg(style.root_figure(dark))
    dots = plot.reliability(replace(run.result, curve=None))
    assert len(dots.lines) == 1  # the diagonal
    assert "bins, by share of items" in texts(dots)


def test_a_cost_has_a_band_where_the_proportion_is_known(fit: LatentFit) -> None:
    """A fit knows it for any pair, a result for its own pairs and those in the same proportion."""
    costs = fit.expected_cost(1, 5).expected
    result = results.result(operating=fit.operating, costs=(fit.expected_cost(2, 10),))
    for axes in (plot.cost(fit, 1, 5), plot.cost(result, 1, 5)):
        assert axes.lines[0].get_xdata() == pytest.approx([point.threshold for point in fit.operating])
        assert axes.lines[0].get_ydata() == pytest.approx([float(cost) for cost in costs])
        band = axes.collections[0].get_datalim(axes.transData)
        ends = min(cost.low or 0.0 for cost in costs), max(cost.high or 0.0 for cost in costs)
        assert (band.y0, band.y1) == pytest.approx(ends)
    bare = plot.cost(replace(result, costs=()), 1, 5)
    assert bare.lines[0].get_ydata() == pytest.approx([float(cost) for cost in costs])
    assert not np.isfinite(bare.collections[0].get_datalim(bare.transData).y0)


@pytest.mark.parametrize("costs", [(0, 1), (1, -1), (np.inf, 1), (1, np.nan)])
def test_costs_must_be_positive(costs: tuple[float, float], fit: LatentFit) -> None:
    """A cost that is no positive number is refused, for results as for fits."""
    for found in (results.result(), fit):
        with pytest.raises(InputError, match="cost_fp, cost_fn: must be positive"):
            plot.cost(found, *costs)


def test_the_published_estimate_is_shown() -> None:
    """The Blind Calibration Curve and the ECE; both are unknown where a gap rests on no valid answer."""
    answers = [1, 0, 1, 0], [0.0, 0.0, 0.5, 0.5]
    published = blind(*answers, [1, 1, 1, 0], bins=2)
    undefined = blind(*answers, [1, 1, -1, -1], bins=2)
    axes = plot.calibration_curve(published)
    assert [bar.get_height() for bar in bars(axes)] == pytest.approx([0.125, -0.125])
    assert "ECE 0.250" in texts(axes)
    assert "ECE, 2 bins 0.2500 items 4" in shown(html(published))
    with pytest.raises(NotIdentifiedError):
        _ = undefined.ece
    assert {"?", "ECE unknown"} <= set(texts(plot.calibration_curve(undefined)).splitlines())
    words = shown(html(undefined))
    assert "ECE, 2 bins unknown" in words
    assert "2 invalid answer(s)" in words
    with pytest.raises(
        InputError, match=r"this BlindResult has no reliability curve; .* by calibration_curve$"
    ):
        plot.reliability(published)


def test_what_cannot_be_drawn_is_refused_with_what_can(fit: LatentFit) -> None:
    """The error names the figure, what is missing, and the functions that can draw it."""
    bare = results.result(curve=None, confidence=None, operating=(), costs=(), parts=())
    by = "calibration_curve, reliability, confidence, risk, operating, cost"
    wrong: list[tuple[str, Any, str]] = [
        ("parts", fit, f"this LatentFit has no parts; it can be drawn by {by}$"),
        ("confidence", {}, "estimates must be a result, a run or a fit, got dict"),
        ("operating", bare, "this AuditResult has no .* by calibration_curve, rel"),
    ]
    for name, source, message in wrong:
        with pytest.raises(InputError, match=f"^{name}: {message}"):
            getattr(plot, name)(source)
    with pytest.raises(InputError, match=r"^cost: this AuditResult has no operating points; it"):
        plot.cost(bare, 1, 5)


def test_files_are_the_same_bytes_again(tmp_path: Path) -> None:
    """Two processes write identical PNG and SVG files, without a date and without pyplot."""
    script = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy(); import results\n"
        "from blindcal.report.plots import draw, save_drawings\n"
        "save_drawings(draw(results.result()), sys.argv[1])\n"
        "assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "other")]
    subprocess.run(command, check=True, cwd=ROOT / "tests")
    paths = plots.save_drawings(plots.draw(results.result()), tmp_path / "mine")
    assert len(paths) == 12
    for path in paths:
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()
    assert "date" not in paths[1].read_text().lower()


# Notebooks


def test_a_notebook_shows_a_fit(fit: LatentFit) -> None:
    """The main numbers with intervals, and the curve beside them; what one class cannot give is named."""
    page = html(fit)
    words = shown(page)
    for line in (f"AUROC {fit.auroc:.4f}", f"ECE, 5 bins {fit.ece:.4f}", f"accuracy {fit.accuracy:.4f}"):
        assert line in words
    assert "(95%: " in words
    assert f"p-value of “calibrated” {fit.calibrated_pvalue:.3g}" in words
    assert "items 400" in words
    assert page.count("<svg") == 1
    assert len(page) < 50_000
    assert f"ECE, 10 bins {fit.at(bins=10).ece:.4f}" in shown(html(fit.at(bins=10)))
    only = latent([1, 1, 1, 1], [0.0, 1.0, -1.0, 0.5], [1, 1, 0, 1], resamples=20)
    assert "AUROC needs items of both labels" in shown(html(only))


def test_a_notebook_shows_a_result() -> None:
    """An audit's main numbers; a stop, a forced probe and what was not estimated are not passed over."""
    words = shown(html(results.result(stopped="limit of 10 queries", objection="no")))
    assert "ECE, 5 bins 0.1250 (95%: 0.1050 to 0.1450)" in words
    assert "AUROC 0.8000 (95%: 0.7800 to 0.8200)" in words
    assert "limit of 10 queries" in words
    assert "may be meaningless" in words
    nothing = {"ece": results.NOTHING, "auroc": results.NOTHING, "calibrated_pvalue": None}
    words = shown(html(results.result(**nothing)))
    assert "ECE, 5 bins unknown" in words
    assert "AUROC" not in words
    assert "p-value" not in words


def test_a_notebook_shows_checks_comparisons_and_thresholds(run: Run, fit: LatentFit) -> None:
    """Each is a small table, what it is about first; an estimate is short, and ordered as its number."""
    checked = bc.check(run, min_accuracy=0.5, resamples=20)
    assert "passed accuracy at least 0.5: " in shown(html(checked))
    compared = bc.compare(run, run, resamples=20)
    assert "A replay and B replay ECE 0." in shown(html(compared))
    assert "no difference shown" in shown(html(compared))
    chosen = fit.choose_threshold(precision=0.7)
    words = shown(html(chosen))
    assert words.strip().startswith(f"threshold {chosen.threshold:.4f} goal 95% sure precision 0.")
    ece = Estimate(0.0341, 0.0179, 0.0512, 0.95)
    assert repr(ece) == "0.034 (95%: 0.018 to 0.051)"
    assert 0.01 < ece < 0.05 <= Estimate(0.05)
    assert ece >= 0.0341
    assert max(ece, Estimate(0.1), key=float).value == sorted([Estimate(0.1), ece])[1].value == 0.1
    assert not Estimate(None) < 0.5
    assert not Estimate(None) >= 0.5


def test_a_page_in_a_notebook_is_tame(run: Run) -> None:
    """A model's name is text in the table and in the figure's description; colours are the notebook's."""
    page = html(results.result(model='<script>x</script>"><img src=x onerror=y>\u202e'))
    assert "&lt;script&gt;x" in page
    assert not [word for word in ("<script", "<img", "\u202e") if word in page]
    assert "var(--bc-ink,currentColor)" in page
    assert "data-jp-theme-light=false" in page
    assert html(run) == html(run.result)
    with pytest.raises(InputError, match="must be a result, a run or a fit, got int"):
        html(1)


@pytest.mark.parametrize("kernel", [None, "lambda: None", "lambda: object()"])
def test_registering_outside_a_notebook_does_nothing(kernel: str | None) -> None:
    """Without IPython, without a running shell, or in a shell that displays nothing, nothing is imported."""
    script = (
        "import sys, types\n"
        + ("" if kernel is None else f"fake = types.ModuleType('IPython'); fake.get_ipython = {kernel}\n")
        + "if 'fake' in globals(): sys.modules['IPython'] = fake\n"
        "from blindcal.report import show_in_notebooks; show_in_notebooks()\n"
        "assert ('IPython' in sys.modules) == ('fake' in globals())\n"
        "assert 'matplotlib' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
