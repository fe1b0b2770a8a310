"""Runs on different items put together are one run on all of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from blindcal.auditing.audit import audit
from blindcal.cli import app
from blindcal.errors import InputError, StoreError
from blindcal.estimate.latent.fitting import latent
from blindcal.results.answer_counts import read_counts
from blindcal.results.merge import merge, together
from blindcal.results.run import Run, open_result, open_run
from blindcal.settings import Settings
from serving import replaying

N = 240


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs on three parts of one file of questions; groups of seven reach over the parts' ends."""
    base = tmp_path_factory.mktemp("merge")
    rng = np.random.default_rng(4)
    p = rng.beta(0.7, 0.6, N)
    rows = [
        {
            "id": f"q{k}",
            "prompt": f"Is {k} so?",
            "label": int(rng.random() < p[k] ** 2),
            "group": f"g{k // 7}",
        }
        for k in range(N)
    ]
    whole = base / "items.jsonl"
    whole.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = []
    with replaying(whole, p) as server:
        for part in range(3):
            path = base / f"part{part}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows[part * 80 : part * 80 + 80]))
            settings = Settings(model="replay", base_url=server.base_url, resamples=40, seed=part)
            audit(path, settings, out=base / f"run{part}")
            found.append(base / f"run{part}")
    return found


@pytest.fixture(scope="module")
def runs(folders: list[Path]) -> list[Run]:
    return [open_run(folder) for folder in folders]


def test_the_result_is_that_of_all_answers_together(runs: list[Run]) -> None:
    """Estimate, interval and p-value are those of one fit of all rows, groups of one name being one."""
    merged = merge(runs, resamples=60)
    columns = [
        (run.labels[one.items], one.shifts, one.answers, one.items + 80 * k)
        for k, run in enumerate(runs)
        for one in [run.answered]
    ]
    labels, shifts, answers, items = (np.concatenate(each) for each in zip(*columns, strict=True))
    fit = latent(labels, shifts, answers, items=items, groups=items // 7, resamples=60)
    assert merged.ece == fit.ece
    assert merged.calibrated_pvalue == fit.calibrated_pvalue
    assert merged.counts.items == N
    assert merged.spend.queries == sum(run.result.spend.queries for run in runs)
    assert merged.complete


def test_the_order_of_runs_does_not_matter(runs: list[Run]) -> None:
    """Whichever run comes first, the estimate is the same."""
    assert merge(runs[::-1], resamples=20).ece.value == pytest.approx(merge(runs, resamples=20).ece.value)


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
    named = [str(folder) for folder in folders]
    done = CliRunner().invoke(app, ["merge", *named, "--out", str(out), "--counts", str(table)])
    assert done.exit_code == 0, done.output
    assert "ECE" in done.output
    assert "run.sqlite" not in done.output
    assert "part0.jsonl" in (out / "report.html").read_text()
    assert open_result(out).counts.items == N
    assert read_counts(table).items == N
    again = CliRunner().invoke(app, ["merge", *named, "--out", named[0]])
    assert isinstance(again.exception, InputError)
    assert "holds a run of its own" in str(again.exception)
    with pytest.raises(StoreError, match="has a result but no answers, as a merged one has"):
        open_run(out)


def test_a_threshold_is_found_from_all_shards(folders: list[Path], runs: list[Run]) -> None:
    """The threshold to deploy is that of one fit of all runs' answers, and runs that overlap are refused."""
    named = [str(folder) for folder in folders]
    wish = ["--recall", "0.6", "--estimate", "--resamples", "40", "--json"]
    said = CliRunner().invoke(app, ["threshold", *named, *wish])
    assert said.exit_code == 0, said.output
    point = together(runs).fit(resamples=40).choose_threshold(recall=0.6, confidence=None)
    found = json.loads(said.stdout)
    assert found["threshold"] == asdict(point.threshold)
    assert found["recall"] == asdict(point.point.recall)
    assert found["logit_bias"] is not None
    assert together(runs).result.counts.items == N
    twice = CliRunner().invoke(app, ["threshold", named[0], named[0], *wish])
    assert isinstance(twice.exception, InputError)
