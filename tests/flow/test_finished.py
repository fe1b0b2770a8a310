"""A finished run read back: the items, answers and fit that the audit had."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.items.question_files import load
from blindcal.records import INVALID
from blindcal.results.result import AuditResult
from blindcal.results.run import open_result, open_run
from blindcal.store.run_file import in_use
from finished_runs import FinishedRun, FinishedRuns

pytestmark = pytest.mark.usefixtures("no_page")


@pytest.fixture(scope="module")
def made(finished_runs: FinishedRuns) -> FinishedRun:
    return finished_runs.original("groups")


def test_a_run_is_read_back_as_it_was(made: FinishedRun) -> None:
    """Items, labels, groups and settings are the audit's, answers those of the model; nothing is held."""
    run, items = made.opened(), load(made.items, made.settings.prompt)
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


def test_the_fit_is_the_one_behind_the_result(made: FinishedRun) -> None:
    """Refitted from the run file, estimates equal the result's to the last digit, intervals too."""
    run = made.opened()
    fit = run.fit(resamples=20)
    assert (fit.ece, fit.auroc, fit.accuracy) == (run.result.ece, run.result.auroc, run.result.accuracy)
    assert run.fit().resampling.size == 1000


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
