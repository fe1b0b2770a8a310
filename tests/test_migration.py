"""Runs that an earlier version made still open, and go on.

``tests/data/runs-format-3.tar.gz`` holds five runs as blindcal wrote them with result schema 2, of 120
questions that a replay answered at a fixed address: three finished ones, one that a limit stopped, and one of
a sample of the items.
"""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import blindcal as bc
from blindcal.items.files import load
from blindcal.items.score_files import read_scores
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import Server, running
from commanding import blindcal
from deciding import TEMPLATE
from fitting import estimates_in

ARCHIVE = Path(__file__).parent / "data" / "runs-format-3.tar.gz"
PORT = 18733
RUNS = ("latent", "blind", "sampling", "stopped", "sample")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder of the old runs, with their questions and the hidden truth."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def server(runs: Path) -> Iterator[Server]:
    """The model that answered them, at the address that they were begun with."""
    loaded = load(runs / "questions.jsonl", settings().prompt)
    asked = list(loaded)
    known = Recording.from_probabilities([item.id for item in asked], read_scores(runs / "scores.csv").p)
    with running(Server(known, asked, port=PORT)) as found:
        yield found


def settings(**options: Any) -> bc.Settings:
    base = {
        "model": "replay",
        "base_url": f"http://127.0.0.1:{PORT}/v1",
        "template": TEMPLATE,
        "resamples": 40,
    }
    return bc.Settings(**{**base, **options})


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_opens(runs: Path, name: str) -> None:
    """Every number of the old result is read back, and each interval now says its level."""
    old = json.loads((runs / name / "result.json").read_text())
    assert old["schema_version"] == 2
    run = bc.open_run(runs / name)
    assert run.result.ece.value == old["ece"]["value"]
    assert (run.result.ece.low, run.result.ece.high) == (old["ece"]["low"], old["ece"]["high"])
    assert run.result.ece.level == (None if old["ece"]["low"] is None else old["level"])
    assert [one.gap.value for one in run.result.bins] == [one["gap"]["value"] for one in old["bins"]]
    assert [row.recall.value for row in run.result.operating] == [
        row["recall"]["value"] for row in old["operating"]
    ]
    assert run.result.settings == old["settings"]


@pytest.mark.parametrize("name", ["latent", "stopped", "sample"])
def test_the_fit_of_an_old_run_is_that_of_its_answers(runs: Path, name: str) -> None:
    """Read from the run file, the answers give the estimates that those in its table give, to rounding.

    The estimates of then lie in the intervals of now: fits have learned to allow for ties.
    """
    run = bc.open_run(runs / name)
    fit = run.fit(resamples=40)
    with (runs / name / "answers.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["answer"]]
    columns = ("id", "label", "shift", "answer")
    ids, labels, shifts, answers = ([row[column] for row in rows] for column in columns)
    apart = bc.latent(
        [int(one) for one in labels],
        [float(one) for one in shifts],
        [one == "positive" for one in answers],
        items=ids,
        resamples=0,
    )
    assert fit.gaps == pytest.approx(apart.gaps, abs=1e-9)
    assert fit.population == pytest.approx(apart.population, abs=1e-9)
    before, today = (estimates_in((one.ece, one.bins, one.operating)) for one in (run.result, fit.findings()))
    for old, new in zip(before, today, strict=True):
        assert old.value is not None
        assert old.value in new


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("command", ["status", "report"])
def test_commands_read_old_runs(runs: Path, name: str, command: str) -> None:
    """An old run has a status and a page."""
    found = blindcal(command, str(runs / name))
    assert found.exit_code == 0, found.output


def test_an_old_run_that_was_stopped_goes_on(
    runs: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same audit asks what is left and nothing twice, and ends where one that was never stopped ended."""
    monkeypatch.chdir(runs)
    before = bc.open_run("stopped")
    result = bc.audit("questions.jsonl", settings(), out="stopped")
    assert result.complete
    assert server.requests == 120 - len(before.answered) + result.spend.control_queries
    assert result.ece == bc.open_run("latent").fit(resamples=40).ece


def test_an_old_sample_grows(runs: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of 60 items, asked by the old version, goes on to all 120."""
    monkeypatch.chdir(runs)
    result = bc.audit("questions.jsonl", settings(sample=120), out="sample")
    assert result.counts.items == 120
    assert server.requests == 60 + result.spend.control_queries


def test_old_answers_are_read_anew(runs: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another estimator, other bins or a breakdown of a finished old run ask nothing."""
    monkeypatch.chdir(runs)
    chosen = settings(method="sampling", queries=3.0, send_seed=True, estimator="latent", by_field="topic")
    result = bc.audit("questions.jsonl", chosen, out="sampling")
    assert result.ece.has_interval
    assert {part.name for part in result.parts} == {"law", "physics"}
    assert server.requests == 0
