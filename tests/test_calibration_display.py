"""An audit as a ``CalibrationDisplay`` of scikit-learn."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import blindcal as bc
import results
from blindcal.records import FloatArray, IntArray

N = 3000
calibration = pytest.importorskip("sklearn.calibration")


@pytest.fixture(scope="module")
def known() -> tuple[IntArray, FloatArray]:
    """Labels and hidden probabilities of a model that is too sure."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.7, 0.7, N)
    return (rng.random(N) < 0.2 + 0.6 * p).astype(np.int64), p


@pytest.fixture(scope="module")
def fit(known: tuple[IntArray, FloatArray]) -> bc.LatentFit:
    """What one answer per item tells."""
    labels, p = known
    shifts = np.random.default_rng(1).logistic(size=N)
    return bc.latent(labels, shifts, p >= 1 / (1 + np.exp(shifts)), resamples=0)


def test_it_is_what_scikit_learn_computes_from_the_hidden_probabilities(
    known: tuple[IntArray, FloatArray], fit: bc.LatentFit
) -> None:
    """The dots of a fit lie near those of ``calibration_curve``, which sees every probability."""
    labels, p = known
    true, predicted = calibration.calibration_curve(labels, p, n_bins=5)
    display = bc.plot.calibration_display(fit, name="hidden")
    assert isinstance(display, calibration.CalibrationDisplay)
    # about 600 items per bin: the standard error of a share is 0.02, of the two together less than 0.03
    assert np.abs(display.prob_true - true).max() < 0.1
    assert np.abs(display.prob_pred - predicted).max() < 0.05
    assert np.abs(np.sort(p) - display.y_prob).mean() < 0.03
    assert display.y_prob.shape == (N,)


def test_it_is_drawn_and_can_be_drawn_again(fit: bc.LatentFit) -> None:
    """On axes of ours that pyplot does not know, and then by scikit-learn's own ``plot``."""
    display = bc.plot.calibration_display(fit, name="hidden")
    (line,) = [one for one in display.ax_.lines if one.get_label() == "hidden"]
    assert np.array_equal(line.get_ydata(), display.prob_true)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    other = bc.plot.reliability(fit)
    again = display.plot(ax=other, name="again", ref_line=False)
    assert again.ax_ is other
    bc.plot.svg(display.ax_)


def test_a_result_brings_its_bins_and_the_name_of_its_model() -> None:
    """A name is plain text, also if it looks like a formula."""
    found = results.result(model="$\\frac{1}{0}$")
    display = bc.plot.calibration_display(found)
    assert display.prob_true.tolist() == [one.observed for one in found.bins]
    assert display.prob_pred.tolist() == [one.predicted for one in found.bins]
    assert display.y_prob.size == found.counts.items
    assert "frac" in bc.plot.svg(display.ax_)
    assert display.ax_.get_xlabel() == "Mean predicted probability (Positive class: 1)"


def test_what_has_no_confidence_is_refused() -> None:
    """The estimator of the paper knows gaps only, and says what can be drawn of it."""
    found = bc.blind([1, 0, 1, 0], [0.0, 0.0, 0.5, 0.5], [1, 1, 1, 0], bins=2)
    with pytest.raises(
        bc.InputError, match="no distribution of the confidence; it can be drawn by calibration_curve"
    ):
        bc.plot.calibration_display(found)  # type: ignore[arg-type]  # the error is what is tested


def test_without_scikit_learn_the_error_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not required."""
    monkeypatch.setitem(sys.modules, "sklearn.calibration", None)
    with pytest.raises(bc.MissingExtraError, match=r"needs scikit-learn: pip install scikit-learn$"):
        bc.plot.calibration_display(results.result())
