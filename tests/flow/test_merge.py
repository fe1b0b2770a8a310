"""Runs on different items put together are one run on all of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from blindcal.errors import InputError, StoreError
from blindcal.estimate.latent.estimator import latent
from blindcal.results.answer_counts import read_counts
from blindcal.results.merge import merge, together
from blindcal.results.run import Run, open_result, open_run
from commanding import blindcal
from deciding import audited, model, serving, write_items
from finished_runs import without_page

N = 240


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs on three parts of one file of questions; groups of seven reach over the parts' ends."""
    base = tmp_path_factory.mktemp("merge")
    labels, p = model(N, 4)
    items = write_items(base / "items.jsonl", labels, group=[f"g{k // 7}" for k in range(N)])
    lines = items.read_text().splitlines(keepends=True)
    made = []
    with serving(items, p) as server, without_page():
        for part in range(3):
            path = base / f"part{part}.jsonl"
            path.write_text("".join(lines[part * 80 : part * 80 + 80]))
            made.append(audited(path, server, base / f"run{part}", seed=part))
    return made


@pytest.fixture(scope="module")
def runs(folders: list[Path]) -> list[Run]:
    return [open_run(folder) for folder in folders]


def test_the_result_is_that_of_all_answers_together(runs: list[Run]) -> None:
    """It is that of one fit of all rows, groups of one name being one, in whatever order the runs come."""
    merged = merge(runs, resamples=20)
    columns = [
        (run.labels[one.items], one.shifts, one.answers, one.items + 80 * k)
        for k, run in enumerate(runs)
        for one in [run.answered]
    ]
    labels, shifts, answers, items = (np.concatenate(each) for each in zip(*columns, strict=True))
    fit = latent(labels, shifts, answers, items=items, groups=items // 7, resamples=20)
    assert merged.ece == fit.ece
    assert merged.calibrated_pvalue == fit.calibrated_pvalue
    assert merged.counts.items == N
    assert merged.spend.queries == sum(run.result.spend.queries for run in runs)
    assert merged.complete
    assert merge(runs[::-1], resamples=20).ece.value == pytest.approx(merged.ece.value)


def test_runs_that_do_not_belong_together_are_refused(runs: list[Run]) -> None:
    """The same items twice, another model, a method without a fit: each is named."""
    with pytest.raises(InputError, match=r"item 'q0' is in more than one run, and 79 others"):
        merge([runs[0], runs[1], runs[0]])
    other = replace(runs[1], settings={**runs[1].settings, "model": "another"})
    with pytest.raises(InputError, match=r"model is 'another' there and 'replay' here"):
        merge([runs[0], other])
    blind = replace(runs[0], result=replace(runs[0].result, method="blind", estimator="blind"))
    with pytest.raises(InputError, match="runs of method 'blind' cannot be merged"):
        merge([blind, runs[1]])


def test_the_command_writes_a_result_and_counts(folders: list[Path], tmp_path: Path) -> None:
    """A result to read back and a table of counts that holds every item, and no other claim of files."""
    out, table = tmp_path / "all", tmp_path / "counts.parquet"
    done = blindcal("merge", *folders, "--out", out, "--counts", table)
    assert done.exit_code == 0, done.output
    assert "ECE" in done.output
    assert "run.sqlite" not in done.output
    assert "part0.jsonl" in (out / "report.html").read_text()
    assert open_result(out).counts.items == N
    assert read_counts(table).items == N
    assert "holds a run of its own" in str(blindcal("merge", *folders, "--out", folders[0]).exception)
    with pytest.raises(StoreError, match="has a result but no answers, as a merged one has"):
        open_run(out)


def test_a_threshold_is_chosen_from_all_shards(folders: list[Path], runs: list[Run]) -> None:
    """The threshold to deploy is that of one fit of all runs' answers, and runs that overlap are refused."""
    goal = ("--recall", 0.6, "--estimate", "--resamples", 20, "--json")
    done = blindcal("threshold", *folders, *goal)
    assert done.exit_code == 0, done.output
    chosen = together(runs).fit(resamples=20).choose_threshold(recall=0.6, confidence=None)
    record = json.loads(done.stdout)
    assert record["threshold"] == asdict(chosen.threshold)
    assert record["recall"] == asdict(chosen.point.recall)
    assert record["logit_bias"] is not None
    assert together(runs).result.counts.items == N
    assert isinstance(blindcal("threshold", folders[0], folders[0], *goal).exception, InputError)
