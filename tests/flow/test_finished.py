"""A finished run read back: its items and answers, and one fit from which every command has its numbers."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.estimate.findings import Findings
from blindcal.items.catalogue import open_items
from blindcal.records import INVALID
from blindcal.results.check import check
from blindcal.results.compare import compare
from blindcal.results.merge import merge
from blindcal.results.result import AuditResult
from blindcal.results.run import Run, open_result, open_run
from blindcal.store.run_file import in_use
from finished_runs import FinishedRun, FinishedRuns

pytestmark = pytest.mark.usefixtures("no_page")
REFITS = 20
SURE = 0.975  # each end of a 95% interval holds with this confidence


@pytest.fixture(scope="module")
def made(finished_runs: FinishedRuns) -> FinishedRun:
    return finished_runs.original("groups")


def test_a_run_is_read_back_as_it_was(made: FinishedRun) -> None:
    """Items, labels, groups and settings are the audit's, answers those of the model; nothing is held."""
    run, items = made.opened(), open_items(made.items, made.settings.prompt)
    assert run.ids == tuple(item.id for item in items)
    assert (run.labels == items.labels).all()
    assert run.groups is not None
    assert items.groups is not None
    assert (run.groups == items.groups).all()
    assert len(set(run.digests)) == len(items)
    assert run.settings["model"] == "replay"
    assert run.result == AuditResult.load(made.folder / "result.json")
    assert not in_use(made.folder / "run.sqlite")
    asked = run.answered
    assert (asked.answers != INVALID).all()
    above = made.truth[asked.items] >= 1 / (1 + np.exp(asked.shifts))
    assert (asked.answers == above).mean() > 0.99  # a tie at the threshold may fall either way


@pytest.mark.parametrize("name", ["", "run.sqlite", "result.json"])
def test_a_run_is_named_by_its_folder_or_a_file_in_it(made: FinishedRun, name: str) -> None:
    """The folder, the run file and the result all name the run."""
    assert open_run(made.folder / name).folder == made.folder


def test_a_result_alone_can_be_opened_but_is_no_run(made: FinishedRun, tmp_path: Path) -> None:
    """Where only the result was kept it can be read; a run needs its file, and a missing one is named."""
    shutil.copy(made.folder / "result.json", tmp_path / "kept.json")
    assert open_result(tmp_path / "kept.json") == made.result
    with pytest.raises(StoreError, match="no such run"):
        open_run(tmp_path / "kept.json")
    with pytest.raises(StoreError, match=r"nowhere/run\.sqlite: no such run"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no such result"):
        open_result(tmp_path / "nowhere")


def test_a_stopped_run_holds_what_was_answered(finished: Callable[[str], FinishedRun]) -> None:
    """Stopped by a limit, a run has the answers there are; after it went on, it needs its new result."""
    run = finished("stopped")
    cut = run.opened()
    assert not cut.result.complete
    assert 0 < len(cut.answered) < len(cut.labels)
    assert cut.fit(resamples=20).ece == cut.result.ece
    result = run.folder / "result.json"
    before = result.read_bytes()
    with run.serving():
        audit(run.items, run.settings, out=run.folder)
    result.write_bytes(before)
    with pytest.raises(StoreError, match="the run has gone on since"):
        open_run(run.folder)
    result.unlink()
    with pytest.raises(InputError, match="not finished yet"):
        open_run(run.folder)


def test_a_method_without_a_fit_says_which_have_one(finished_runs: FinishedRuns) -> None:
    """`blind` answers can be read back, but have no fit."""
    run = finished_runs.original("blind").opened()
    assert len(run.answered) == run.result.counts.positive + run.result.counts.negative
    with pytest.raises(NotIdentifiedError, match=r"'blind' has no fit.*audit again with estimator='latent'"):
        run.fit()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_answers_are_those_of_the_csv_file(finished_runs: FinishedRuns, library: Any) -> None:
    """A frame has one row per answer with the columns of answers.csv, and the part of its item."""
    pytest.importorskip(library)
    run = finished_runs.original("parts").opened()
    with (run.folder / "answers.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    frame = run.answers(library)
    framed = frame.to_dict("records") if library == "pandas" else frame.to_dicts()
    assert len(framed) == len(written) == run.result.counts.answers
    parts = dict(zip(run.ids, run.parts, strict=True))
    for row, line in zip(framed, written, strict=True):
        for name in ("id", "label", "round", "answer", "text", "seconds"):
            assert str(row[name]) == line[name]
        assert row["group"] is None or row["group"] != row["group"]
        for name in ("threshold", "shift"):
            assert math.isclose(row[name], float(line[name]), rel_tol=1e-8, abs_tol=1e-8)
        assert row["part"] == parts[row["id"]]


def test_items_without_a_value_are_a_part_of_their_own(finished_runs: FinishedRuns) -> None:
    """Their part has a name, by which its items and its fit are found."""
    run = finished_runs.original("parts").opened()
    some = replace(run, parts=(None,) * 100 + run.parts[100:])
    assert some.part_names == ("(none)", "cooking", "law", "physics")
    assert some.members("(none)").tolist() == list(range(100))


# One fit, on an endpoint that flips 4% of its answers


@pytest.fixture(scope="module")
def noisy(finished_runs: FinishedRuns) -> Run:
    """An audit whose controls show the flips."""
    return finished_runs.original("noisy").opened()


def test_the_noise_is_read_back(noisy: Run) -> None:
    """What the run found out about the noise, also which other noise is plausible."""
    assert noisy.result.steadiness is not None
    assert noisy.noise.best.flip_rate == pytest.approx(float(noisy.result.steadiness.flip_rate))
    assert noisy.noise.best.flip_rate > 0
    assert noisy.noise.plausible


def test_the_gate_is_the_result(noisy: Run) -> None:
    """A limit just above the end of the interval in the result holds, and one just below it does not."""
    high = noisy.result.ece.high
    assert high is not None
    assert high > (replace(noisy.fit(resamples=REFITS).smooth, others=()).ece.high or 1.0)
    for limit, outcome in ((high + 1e-6, "passed"), (high - 1e-6, "undecided")):
        checked = check(noisy.folder, max_ece=limit, confidence=SURE, resamples=REFITS)
        assert checked.outcome == outcome


def test_all_numbers_of_a_fit_are_those_of_the_result(noisy: Run) -> None:
    """The fit that is made from the run file gives what the audit gave."""
    findings = noisy.fit(resamples=REFITS).findings()
    for field in fields(Findings):
        if field.name != "parts":
            assert getattr(findings, field.name) == getattr(noisy.result, field.name), field.name


def test_comparisons_thresholds_and_merges_use_the_same_fit(noisy: Run) -> None:
    """So does the check of parts, where there is one part."""
    for row in compare(noisy, noisy, resamples=REFITS).differences:
        assert row.first == row.second == getattr(noisy.result, row.quantity)
    fit, points = noisy.fit(resamples=REFITS), noisy.result.operating
    assert fit.operating_at([point.threshold for point in points]) == points
    wanted = points[20].precision.low
    assert wanted is not None
    chosen = fit.choose_threshold(precision=wanted, confidence=SURE)
    assert chosen.point == fit.operating_at([chosen.point.threshold])[0]
    assert (chosen.point.precision.low or 0.0) >= wanted
    merged = merge([noisy], resamples=REFITS)
    assert (merged.ece, merged.curve, merged.operating) == (noisy.result.ece, noisy.result.curve, points)
    whole = replace(noisy, parts=("all",) * len(noisy.parts), result=replace(noisy.result, by="topic"))
    checked = check(whole, max_ece=1.0, confidence=SURE, resamples=REFITS, by_part=True).parts
    assert {part.part: part.bound for part in checked} == {"all": noisy.result.ece.high}
