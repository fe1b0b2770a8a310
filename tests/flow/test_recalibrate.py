"""`blindcal recalibrate`: the probability to show instead of a confidence, where it is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

import blindcal as bc
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, IntArray
from blindcal.results.recalibration import Recalibration
from commanding import blindcal, refusal
from finished_runs import FinishedRun, FinishedRuns
from fitting import asked, ends, fitted


def population(n: int, seed: int, spread: float = 2.0) -> tuple[IntArray, FloatArray, FloatArray]:
    """Labels, confidences and the true share of positive labels, of a model that is too sure of itself."""
    rng = np.random.default_rng(seed)
    s = spread * rng.standard_normal(n)
    share = expit(0.5 * s + 0.3)
    return (rng.random(n) < share).astype(np.int64), expit(s), share


@pytest.mark.parametrize("method", ["latent", "logprobs"])
def test_new_items_are_calibrated_after_the_map(method: str) -> None:
    """Their calibration error falls to a third, and the band holds the true share nearly everywhere."""
    labels, p, _ = population(2000, 1)
    made = Recalibration.of_fit(fitted(labels, asked(labels, p, method=method), resamples=60), "m")
    labels, p, share = population(20_000, 2)
    before, after = (float(binned_ece(labels, f, 10).ece) for f in (p, made(p)))
    assert after < before / 3
    held = [truth in made.at(f) for f, truth in zip(p[:300], share[:300], strict=True)]
    assert np.mean(held) > 0.85
    for column in (made.knots.value, made.knots.low, made.knots.high):
        assert (np.diff(np.array(column, float)) >= 0).all()
    for probability in (0.2, 0.5, 0.8):
        confidence = made.confidence_of(probability)
        assert made.at(float(confidence)).value == pytest.approx(probability)
        low, high = ends(confidence)
        assert low <= expit((np.log(probability / (1 - probability)) - 0.3) / 0.5) <= high


def test_what_no_item_shows_is_not_known() -> None:
    """Beyond the items, the interval is all that a curve that never falls allows."""
    labels, p, _ = population(400, 3, spread=0.4)
    made = Recalibration.of_fit(fitted(labels, asked(labels, p, method="logprobs"), resamples=20), "m")
    first, last = made.knots.f[0], made.knots.f[-1]
    assert 0.2 < first < last < 0.8
    assert (made.at(0.01).low, made.at(0.01).high) == (0.0, made.at(first).high)
    assert (made.at(0.99).low, made.at(0.99).high) == (made.at(last).low, 1.0)
    with pytest.raises(NotIdentifiedError, match=r"no confidence is a true 0\.95: at .*, beyond which"):
        made.confidence_of(0.95)
    assert np.isnan(made(np.array([np.nan]))).all()
    for wrong in (np.nan, -0.1, 1.1):
        with pytest.raises(InputError, match="confidence: must lie between 0 and 1"):
            made.at(wrong)
    labels, p = np.arange(400) % 2, np.full(400, 0.52)
    same = fitted(labels, asked(labels, p, method="logprobs"), resamples=20)
    with pytest.raises(NotIdentifiedError, match="nearly all of these 400 items have the same confidence"):
        Recalibration.of_fit(same, "m")


@pytest.mark.parametrize("name", ["plain", "logprobs", "choices"])
def test_a_run_writes_its_map(finished: Callable[[str], FinishedRun], name: str, tmp_path: Path) -> None:
    """As a file of knots that reads back, as a table, and in Python."""
    run = finished(name)
    shown = blindcal("recalibrate", run.folder, "--resamples", 20)
    assert shown.exit_code == 0, shown.output
    made = Recalibration.load(run.folder / "recalibration.json")
    assert f"0.75        {made.at(0.75):.3f}" in shown.stdout
    assert float(run.opened().recalibration(0.75)) == pytest.approx(float(made.at(0.75)))
    out = tmp_path / "map.json"
    printed = blindcal("recalibrate", run.folder, "--resamples", 20, "--out", out, "--json")
    assert json.loads(printed.stdout) == json.loads(out.read_text())
    out.write_text(out.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="is a recalibration in format 2"):
        Recalibration.load(out)


@pytest.mark.parametrize("name", ["plain", "logprobs"])
def test_a_threshold_is_that_of_a_true_probability(finished_runs: FinishedRuns, name: str) -> None:
    """The request that it prints decides at the confidence whose share this is."""
    run = finished_runs.original(name)
    made = run.opened().recalibration_map(resamples=20)
    wish = ("--probability", 0.7, "--resamples", 20)
    found = json.loads(blindcal("threshold", run.folder, *wish, "--json").stdout)
    assert found["threshold"]["value"] == pytest.approx(float(made.confidence_of(0.7)), abs=0.002)
    assert found["request"] is not None
    text = blindcal("threshold", run.folder, *wish).stdout
    assert "a true 0.7 at the threshold itself, by the recalibration map" in text


def test_margins_have_no_such_threshold(finished_runs: FinishedRuns) -> None:
    """And a method without a fit has no map."""
    several = blindcal("threshold", finished_runs.original("choices").folder, "--probability", 0.7)
    assert "compares margins, not confidences: give a --precision" in refusal(several)
    assert "has no fit" in refusal(blindcal("recalibrate", finished_runs.original("blind").folder))


def test_decisions_by_a_shown_probability_have_the_one_to_show(tmp_path: Path) -> None:
    """In their files, beside the probability that was shown; never by the map of another model."""
    labels, p, _ = population(600, 4)
    rows = [f"{k},{label},{f:.6f}" for k, (label, f) in enumerate(zip(labels, p, strict=True))]
    items, run, out = tmp_path / "items.csv", tmp_path / "run", tmp_path / "map.json"
    items.write_text("\n".join(["id,label,p", *rows]) + "\n")
    bc.audit(items, bc.Settings(confidence_field="p", resamples=20), out=run)
    certificate = bc.certify(run, 0.6, confidence=0.9)
    made = bc.open_run(run).recalibration_map(resamples=20)
    made.save(out)
    command = ("decide", run / "certificate.json", items, "--out", tmp_path / "d", "--json", "--quiet")
    done = blindcal(*command, "--recalibration", out)
    decided = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(decided) == 600
    for row in decided:
        assert row["recalibrated"] == pytest.approx(made.at(row["probability"]).value)
    replace(made, model="another").save(out)
    assert "is that of another" in refusal(blindcal(*command, "--recalibration", out))
    hidden = replace(certificate, request=replace(certificate.request, probability=None))
    with pytest.raises(InputError, match="shows no probability that it could be applied to"):
        bc.decide(hidden, items, out=tmp_path / "e", recalibration=made)
