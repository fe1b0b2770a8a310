"""Results and fits are drawn by `blindcal.plot` and shown in notebooks."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import results
from blindcal import plot
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.fitting import fit_problem, latent
from blindcal.estimate.problem import Problem
from blindcal.estimate.published.blind import BlindResult, blind
from blindcal.records import Estimate
from blindcal.report import notebook, style
from blindcal.report.style import in_notebook
from blindcal.results.run import Run
from blindcal.simulation.simulate import generate
from paths import ROOT
from reporting import bars, evidence, finished, texts, whiskers


@pytest.fixture(scope="module")
def fit() -> LatentFit:
    y, p = generate(1500, 0)
    return fit_problem(Problem.of_answers(y, evidence("latent", y, p).answers), resamples=100)


@pytest.fixture(scope="module")
def run() -> Run:
    return finished("runs/one", *generate(300, 0))


@pytest.fixture(scope="module")
def published() -> BlindResult:
    return blind([1, 0, 1, 0], [0.0, 0.0, 0.5, 0.5], [1, 1, 1, 0], bins=2)


@pytest.fixture(scope="module")
def undefined() -> BlindResult:
    """A result of `blind` whose gaps rest on no valid answer."""
    return blind([1, 0, 1, 0], [0.0, 0.0, 0.5, 0.5], [1, 1, -1, -1], bins=2)


def shown(page: str) -> str:
    """What a reader sees, without the tags."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", page))


# Figures


def test_a_fit_is_drawn_in_its_bins_and_at_its_level(fit: LatentFit) -> None:
    """Bars, whiskers and words are the fit's bins and ECE; `at` changes both."""
    other = fit.at(bins=4, level=0.9)
    axes = plot.calibration_curve(other)
    assert [bar.get_height() for bar in bars(axes)] == pytest.approx(other.gaps.tolist())
    ends = np.array([(one.gap.low, one.gap.high) for one in other.bins], float)
    assert np.array(whiskers(axes)) == pytest.approx(ends)
    assert f"ECE {other.ece:.3f}" in texts(axes)
    assert "(90%: " in texts(axes)
    assert len(bars(plot.calibration_curve(fit))) == 5


def test_a_fit_is_drawn_from_its_records(fit: LatentFit) -> None:
    """The reliability line is the curve, and the lines of the thresholds are the operating points."""
    line = plot.reliability(fit).lines[-1]
    assert line.get_xdata() == pytest.approx(fit.curve.f)
    assert line.get_ydata() == pytest.approx(fit.curve.value)
    lines = {one.get_label(): one for one in plot.operating(fit).lines}
    assert lines["recall"].get_ydata() == pytest.approx([float(one.recall) for one in fit.operating])
    heights = plot.confidence(fit).patches[0].get_data()[0]  # type: ignore[attr-defined]  # a StepPatch
    assert heights == pytest.approx(fit.confidence.positives)


def test_figures_are_drawn_on_the_axes_given(fit: LatentFit) -> None:
    """Every function draws on ``ax`` and gives it back; a marked threshold is a line there."""
    axes = plot.confidence(fit)
    found = results.result()
    assert plot.calibration_curve(found, axes) is axes
    assert plot.reliability(found, axes) is axes
    assert plot.confidence(found, axes) is axes
    assert plot.cost(found, 1, 5, axes) is axes
    assert plot.parts(found, axes) is axes
    assert plot.operating(fit, axes, threshold=0.5) is axes
    assert axes.lines[-1].get_xdata() == pytest.approx([0.5, 0.5])


def test_the_cost_of_a_fit_has_its_band(fit: LatentFit) -> None:
    """The line and the band are the fit's expected cost, for any pair of costs."""
    costs = fit.expected_cost(2, 7).expected
    axes = plot.cost(fit, 2, 7)
    assert axes.lines[0].get_xdata() == pytest.approx([one.threshold for one in fit.operating])
    assert axes.lines[0].get_ydata() == pytest.approx([float(one) for one in costs])
    band = axes.collections[0].get_datalim(axes.transData)
    ends = min(one.low or 0.0 for one in costs), max(one.high or 0.0 for one in costs)
    assert (band.y0, band.y1) == pytest.approx(ends)


def test_the_cost_of_a_result_has_a_band_where_the_proportion_is_known(fit: LatentFit) -> None:
    """A pair in the same proportion is scaled; of other pairs only the line follows from the points."""
    expected = [float(one) for one in fit.expected_cost(1, 5).expected]
    scaled = results.result(operating=fit.operating, costs=(fit.expected_cost(2, 10),))
    axes = plot.cost(scaled, 1, 5)
    assert axes.lines[0].get_ydata() == pytest.approx(expected)
    ends = fit.expected_cost(1, 5).expected
    band = axes.collections[0].get_datalim(axes.transData)
    assert band.y0 == pytest.approx(min(one.low or 0.0 for one in ends))
    assert band.y1 == pytest.approx(max(one.high or 0.0 for one in ends))
    bare = plot.cost(replace(scaled, costs=()), 1, 5)
    assert bare.lines[0].get_ydata() == pytest.approx(expected)
    assert not np.isfinite(bare.collections[0].get_datalim(bare.transData).y0)


def test_costs_follow_from_the_operating_points() -> None:
    """False positives and false negatives at their prices, by the definitions of the rates."""
    rows = results.operating()
    axes = plot.cost(results.result(costs=()), 1, 3)
    expected = [float(row.false_positive) + 3 * float(row.false_negative) for row in rows]
    assert axes.lines[0].get_ydata() == pytest.approx(expected)
    no_precision = replace(rows[-1], precision=results.NOTHING, false_positive=Estimate(0.0))
    silent = plot.cost(results.result(costs=(), operating=(*rows, no_precision)), 1, 3)
    # never saying yes costs what all missed positives cost
    missed = 3 * float(rows[-1].false_negative)
    assert np.asarray(silent.lines[0].get_ydata())[-1] == pytest.approx(missed)


@pytest.mark.parametrize("costs", [(0, 1), (1, -1), (np.inf, 1), (1, np.nan)])
def test_costs_must_be_positive(costs: tuple[float, float], fit: LatentFit) -> None:
    """A cost that is no positive number is refused, for results as for fits."""
    for found in (results.result(), fit):
        with pytest.raises(InputError, match="cost_fp, cost_fn: must be positive"):
            plot.cost(found, *costs)


def test_the_published_estimate_is_drawn(published: BlindResult, undefined: BlindResult) -> None:
    """The Blind Calibration Curve, with a question mark where a gap is unknown."""
    axes = plot.calibration_curve(published)
    assert [bar.get_height() for bar in bars(axes)] == pytest.approx([0.125, -0.125])
    assert "ECE 0.250" in texts(axes)
    with pytest.raises(NotIdentifiedError):
        _ = undefined.ece
    assert "?" in texts(plot.calibration_curve(undefined))
    assert "ECE unknown" in texts(plot.calibration_curve(undefined))


def test_a_run_is_drawn_as_its_result(run: Run) -> None:
    """Every figure of a run is that of its result."""
    drawn: list[Any] = [plot.calibration_curve, plot.reliability, plot.confidence, plot.operating]
    for draw in drawn:
        assert plot.svg(draw(run)) == plot.svg(draw(run.result))
    assert plot.svg(plot.cost(run, 1, 5)) == plot.svg(plot.cost(run.result, 1, 5))


def test_a_result_is_drawn_from_what_it_holds() -> None:
    """Each figure shows the records of the result; dots alone where there are bins and no curve."""
    found = results.result()
    assert [bar.get_height() for bar in bars(plot.calibration_curve(found))] == pytest.approx(results.GAPS)
    assert "ECE 0.125 (95%: 0.105 to 0.145)" in texts(plot.calibration_curve(found))
    assert "law" in [text.get_text().split()[0] for text in plot.parts(found).get_yticklabels()]
    dots = plot.reliability(replace(found, curve=None))
    assert len(dots.lines) == 1  # the diagonal
    assert "bins, by share of items" in texts(dots)


def test_what_cannot_be_drawn_is_refused_with_what_can(published: BlindResult, fit: LatentFit) -> None:
    """The error names the figure, what is missing, and the functions that can draw it."""
    draw: Any = plot.reliability
    with pytest.raises(
        InputError, match=r"^reliability: this BlindResult has no reliability curve; .* by calibration_curve$"
    ):
        draw(published)
    draw = plot.parts
    by = "calibration_curve, reliability, confidence, operating, cost"
    with pytest.raises(InputError, match=f"^parts: this LatentFit has no parts; it can be drawn by {by}$"):
        draw(fit)
    bare = results.result(curve=None, confidence=None, operating=(), costs=(), parts=())
    for name in ("confidence", "operating", "parts"):
        draw = getattr(plot, name)
        with pytest.raises(
            InputError, match=rf"^{name}: this AuditResult has no .* by calibration_curve, rel"
        ):
            draw(bare)
    with pytest.raises(InputError, match=r"^cost: this AuditResult has no operating points; it"):
        plot.cost(bare, 1, 5)
    draw = plot.confidence
    with pytest.raises(InputError, match=r"^confidence: found must be a result, a run or a fit, got dict"):
        draw({})


def test_a_figure_of_axes_is_an_element_of_a_page() -> None:
    """`svg` takes axes or their figure, and a title for screen readers; `style` is that of all figures."""
    with plot.style(dark=True):
        axes = plot.calibration_curve(results.result())
    assert plot.svg(axes) == plot.svg(style.root_figure(axes))
    assert 'aria-label="the gaps"' in plot.svg(axes, "the gaps")


# Notebooks


def test_a_notebook_shows_a_fit(fit: LatentFit) -> None:
    """The headline numbers with intervals, and the curve beside them."""
    page = notebook.html(fit)
    words = shown(page)
    for line in (f"AUROC {fit.auroc:.4f}", f"ECE, 5 bins {fit.ece:.4f}", f"accuracy {fit.accuracy:.4f}"):
        assert line in words
    assert "(95%: " in words
    assert f"p-value of “calibrated” {fit.calibrated_pvalue:.3g}" in words
    assert "items 1,500" in words
    assert page.count("<svg") == 1
    assert len(page) < 50_000
    assert f"ECE, 10 bins {fit.at(bins=10).ece:.4f}" in shown(notebook.html(fit.at(bins=10)))


def test_a_fit_of_one_class_is_shown_too() -> None:
    """What one class alone cannot give is said, not raised."""
    only = latent([1, 1, 1, 1], [0.0, 1.0, -1.0, 0.5], [1, 1, 0, 1], resamples=20)
    assert "AUROC needs items of both labels" in shown(notebook.html(only))


def test_a_notebook_shows_the_published_estimate(published: BlindResult, undefined: BlindResult) -> None:
    """The ECE, which may be unknown, and the notes."""
    assert "ECE, 2 bins 0.2500 items 4" in shown(notebook.html(published))
    words = shown(notebook.html(undefined))
    assert "ECE, 2 bins unknown" in words
    assert "2 invalid answer(s)" in words


def test_a_notebook_shows_a_result() -> None:
    """An audit's headline; a stop, a forced probe and what was not estimated are not passed over."""
    found = results.result(stopped="limit of 10 queries", objection="no")
    words = shown(notebook.html(found))
    assert "ECE, 5 bins 0.1250 (95%: 0.1050 to 0.1450)" in words
    assert "AUROC 0.8000 (95%: 0.7800 to 0.8200)" in words
    assert "limit of 10 queries" in words
    assert "may be meaningless" in words
    bare = results.result(ece=results.NOTHING, auroc=results.NOTHING, calibrated_pvalue=None)
    words = shown(notebook.html(bare))
    assert "ECE, 5 bins unknown" in words
    assert "AUROC" not in words
    assert "p-value" not in words


def test_a_notebook_shows_a_run_as_its_result(run: Run) -> None:
    """A run has nothing to show but its result; other things are refused."""
    assert notebook.html(run) == notebook.html(run.result)
    with pytest.raises(InputError, match="must be a result, a run or a fit, got int"):
        notebook.html(1)


def test_hostile_names_do_not_leave_their_cell() -> None:
    """A model's name is text in the page, in the table and in the figure's description."""
    page = notebook.html(results.result(model='<script>x</script>"><img src=x onerror=y>\u202e'))
    assert "&lt;script&gt;x" in page
    assert "<script" not in page
    assert "<img" not in page
    assert "\u202e" not in page


def test_the_theme_of_a_notebook_is_followed() -> None:
    """Ink is the notebook's own text colour, and the series colours suit its dark theme."""
    page = notebook.html(results.result())
    assert "var(--bc-ink,currentColor)" in page
    assert "data-jp-theme-light=false" in in_notebook("")
    assert in_notebook("").partition('<div class="blindcal">')[0] in page


def test_a_real_notebook_shows_results_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of Jupyter all four are HTML once registered, and drawing is imported when one is shown."""
    cells = [
        "import sys; import blindcal; from blindcal.report import show_in_notebooks; show_in_notebooks()\n"
        "assert 'matplotlib' not in sys.modules and 'numpy' not in sys.modules",
        f"sys.path.insert(0, {str(ROOT / 'tests')!r}); import results; results.result()",
        "from blindcal.estimate.published.blind import blind; blind([1, 0], [0.0, 0.5], [1, 1], bins=2)",
        "from blindcal.estimate.latent.fitting import latent\n"
        "latent([1, 0, 1], [0.0, 1.0, -1.0], [1, 1, 0], resamples=20)",
        "from reporting import finished, population; finished('runs/one', *population(60))",
        "42",
    ]
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))  # neither the user's start-up files nor kernels
    code: list[Any] = [nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    book: Any = nbformat.v4.new_notebook(cells=code)  # type: ignore[no-untyped-call]  # nbformat does not say
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=None, kernel_name="python3", resources=where).execute()
    pages = [cell.outputs[0].data.get("text/html", "") for cell in book.cells[1:]]
    captions = ["gpt-4o-mini, latent", "blind", "latent fit", "org/model-7b-instruct, latent"]
    for page, caption in zip(pages[:4], captions, strict=True):
        assert f"<b>{caption}</b>" in page
        assert "<svg" in page
    assert pages[4] == ""


@pytest.mark.parametrize(
    "before",
    [
        "",
        "kernel = types.ModuleType('IPython'); kernel.get_ipython = lambda: None\n",
        "kernel = types.ModuleType('IPython'); kernel.get_ipython = lambda: object()\n",
    ],
)
def test_registering_outside_a_notebook_does_nothing(before: str) -> None:
    """Without IPython, without a running shell, or in a shell that displays nothing, nothing is imported."""
    script = (
        f"import sys, types\n{before}"
        "if 'kernel' in globals(): sys.modules['IPython'] = kernel\n"
        "from blindcal.report import show_in_notebooks; show_in_notebooks()\n"
        "assert ('IPython' in sys.modules) == ('kernel' in globals())\n"
        "assert 'matplotlib' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_notebook_without_widgets_has_a_bar_and_no_warning() -> None:
    """Where ipywidgets is not installed progress is a line of text, without tqdm's advice to install it."""
    script = (
        "import sys, types, warnings; warnings.simplefilter('error')\n"
        "sys.modules['ipywidgets'] = None\n"
        "sys.modules['ipykernel.zmqshell'] = types.ModuleType('ipykernel.zmqshell')\n"
        "kernel = types.ModuleType('IPython'); kernel.get_ipython = lambda: object()\n"
        "sys.modules['IPython'] = kernel\n"
        "from blindcal.progress_bar import ProgressBar\n"
        "from blindcal.records import Progress, Usage\n"
        "with ProgressBar() as bar: bar(Progress(3, 10, Usage(3, 3, 3, 3), None, 1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    )
    assert "3/10" in done.stderr
