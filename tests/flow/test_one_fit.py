"""Every command gets its numbers from the same fit: on an endpoint that flips 4% of its answers, too."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from blindcal.estimate.findings import Findings
from blindcal.results.check import check
from blindcal.results.compare import compare
from blindcal.results.merge import merge
from blindcal.results.run import Run
from finished_runs import FinishedRuns

REFITS = 20
SURE = 0.975  # each end of a 95% interval holds with this confidence


@pytest.fixture(scope="module")
def run(finished_runs: FinishedRuns) -> Run:
    """An audit whose controls show the flips."""
    return finished_runs.original("noisy").opened()


def test_the_noise_is_read_back(run: Run) -> None:
    """What the run found out about the noise, also which other noise is plausible."""
    assert run.result.steadiness is not None
    assert run.noise.best.flip_rate == pytest.approx(float(run.result.steadiness.flip_rate))
    assert run.noise.best.flip_rate > 0
    assert run.noise.plausible


def test_the_gate_is_the_result(run: Run) -> None:
    """A limit just above the end of the interval in the result holds, and one just below it does not."""
    high = run.result.ece.high
    assert high is not None
    assert high > (replace(run.fit(resamples=REFITS), others=()).ece.high or 1.0)
    for limit, outcome in ((high + 1e-6, "passed"), (high - 1e-6, "undecided")):
        checked = check(run.folder, max_ece=limit, confidence=SURE, resamples=REFITS)
        assert checked.outcome == outcome


def test_all_numbers_of_a_fit_are_those_of_the_result(run: Run) -> None:
    """The fit that is made from the run file gives what the audit gave."""
    findings = run.fit(resamples=REFITS).findings()
    for field in fields(Findings):
        if field.name != "parts":
            assert getattr(findings, field.name) == getattr(run.result, field.name), field.name


def test_comparisons_thresholds_and_merges_use_the_same_fit(run: Run) -> None:
    """So does the check of parts, where there is one part."""
    for row in compare(run, run, resamples=REFITS).differences:
        assert row.first == row.second == getattr(run.result, row.quantity)
    fit, points = run.fit(resamples=REFITS), run.result.operating
    assert fit.operating_at([point.threshold for point in points]) == points
    wanted = points[20].precision.low
    assert wanted is not None
    chosen = fit.choose_threshold(precision=wanted, confidence=SURE)
    assert chosen.point == fit.operating_at([chosen.point.threshold])[0]
    assert (chosen.point.precision.low or 0.0) >= wanted
    merged = merge([run], resamples=REFITS)
    assert (merged.ece, merged.curve, merged.operating) == (run.result.ece, run.result.curve, points)
    whole = replace(run, parts=("all",) * len(run.parts), result=replace(run.result, by="topic"))
    checked = check(whole, max_ece=1.0, confidence=SURE, resamples=REFITS, by_part=True).parts
    assert {part.part: part.bound for part in checked} == {"all": run.result.ece.high}
