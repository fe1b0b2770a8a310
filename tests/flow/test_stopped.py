"""Stopped runs, over real HTTP: the estimates and all words are about the items with an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

import blindcal as bc
from blindcal.asking.run_context import Limits
from blindcal.cli.result_summary import print_result
from blindcal.estimation import EstimationInput
from blindcal.methods import make_design
from blindcal.records import AnswerTable
from blindcal.report.comparison import comparison_page
from blindcal.report.notebook import html
from blindcal.simulation.replay import Server
from blindcal.simulation.simulate import ask, generate
from commanding import blindcal
from serving import replaying, settings_of, write_items, write_records

N = 600
TOLD = 21


def truth() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A model that is certain, and right as often as it says."""
    p = np.random.default_rng(2).beta(0.05, 0.05, N)
    return np.clip(p, 1e-6, 1 - 1e-6)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = np.random.default_rng(3).random(N) < truth()
    return write_items(tmp_path_factory.mktemp("few") / "items.jsonl", labels, topic="ab")


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with replaying(items, truth()) as one:
        yield one


def audited(
    items: Path, server: Server, out: Path, limits: Limits | None = None, **more: Any
) -> bc.AuditResult:
    settings = settings_of(server, resamples=60, by_field="topic", **more)
    return bc.audit(items, settings, out=out, limits=limits or Limits())


@pytest.fixture(scope="module")
def stopped(items: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after 21 answers."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    whole = audited(items, server, out.with_name("whole"))
    limit, answers = whole.spend.probe_queries + TOLD, 0
    while answers < TOLD:  # some of the queries are controls
        answers = audited(items, server, out, Limits(max_queries=limit)).counts.answers
        limit += TOLD - answers
    return out


def test_a_stopped_run_is_about_the_items_with_an_answer(stopped: Path) -> None:
    """Counts, parts and intervals are those of 21 answers, however many items the file has."""
    result = bc.open_run(stopped).result
    counts = result.counts
    assert (counts.items, counts.unanswered, counts.answers) == (TOLD, N - TOLD, TOLD)
    run = bc.open_run(stopped)
    assert counts.positive_labels == run.labels[run.answered.items].sum()
    assert sum(part.items for part in result.parts) == TOLD
    unseen = 1 - 0.025 ** (1 / TOLD)
    assert 2 * result.overconfidence.half_width >= 1.5 * unseen * 0.99
    assert result.direction == "undecided"
    whole = bc.open_run(stopped.with_name("whole")).result.counts
    assert (whole.items, whole.unanswered) == (N, 0)


def test_every_word_about_a_stopped_run_says_how_many_items_it_is_about(
    stopped: Path, items: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal, the page, a notebook, `status`, `check` and `compare` count the same 21 of 600."""
    result = bc.open_run(stopped).result
    page = " ".join(Markup((stopped / "report.html").read_text()).striptags().split())
    for words in ("21 of 600 yes/no questions", "about the 21 items that have an answer", "only 21 items"):
        assert words in page
    assert "21 of 600" in html(result)
    print_result(result, stopped, verbose=True)
    told = " ".join(capsys.readouterr().out.split())
    for words in ("in 5 bins, 21 of 600 items", "the estimates to these 21", "only 21 items"):
        assert words in told
    assert "21 of 600 items" in blindcal("check", stopped, "--max-ece", 0.9, "--partial").output
    assert "of 21 items" in blindcal("status", stopped).output
    runs = bc.open_run(stopped), bc.open_run(stopped.with_name("whole"))
    both = " ".join(Markup(comparison_page(bc.compare(*runs, resamples=20), runs)).striptags().split())
    assert "Run A has only 21 items" in both
    assert f"21 of 600 from {items}" in both


def test_a_run_stopped_in_a_later_round_has_asked_every_item(
    items: Path, server: Server, tmp_path: Path
) -> None:
    """With two queries per item planned and one and a half asked, no item is left out."""
    found = audited(items, server, tmp_path / "run", Limits(max_queries=900 + 100), queries=2.0)
    assert not found.complete
    assert (found.counts.items, found.counts.unanswered) == (N, 0)
    page = " ".join(Markup((tmp_path / "run" / "report.html").read_text()).striptags().split())
    assert "Every item has an answer, but some queries were not asked." in page


def test_merged_runs_count_the_items_with_an_answer(
    items: Path, server: Server, tmp_path: Path, stopped: Path
) -> None:
    """A stopped run adds its 21 items to a merge, and no more."""
    records = map(json.loads, items.read_text().splitlines())
    renamed = ({**record, "id": f"x{record['id']}"} for record in records)
    other = write_records(tmp_path / "other.jsonl", renamed)
    audited(other, server, tmp_path / "run")
    merged = bc.merge([stopped, tmp_path / "run"], resamples=20)
    assert (merged.counts.items, merged.counts.unanswered) == (N + TOLD, N - TOLD)
    assert sum(part.items for part in merged.parts) == N + TOLD


def test_fewer_queries_than_items_are_about_the_items_that_were_asked() -> None:
    """Half a query per item asks half of the items, and the estimates are about these."""
    labels, p = generate(400, 1)
    design = make_design("latent", labels, queries=0.5)
    evidence = EstimationInput(method="latent", design=design, labels=labels, answers=ask(design, p))
    assert evidence.items.tolist() == sorted(evidence.answers.items.tolist())
    assert evidence.items.size == 200


def test_blind_counts_as_large_a_part_of_the_subset_that_needs_no_query() -> None:
    """All of it if everything was answered; an eighth if an eighth of the others was."""
    labels, p = generate(400, 1)
    design = make_design("blind", labels)
    answers = ask(design, p)

    def about(some: AnswerTable, **more: Any) -> list[int]:
        evidence = EstimationInput(method="blind", design=design, labels=labels, answers=some, **more)
        return [int(item) for item in evidence.items]

    some = about(answers.rows(slice(0, 40)))
    assert len(some) == 40 + 10
    assert set(answers.items[:40]) <= set(some)
    sizes = [len(about(answers)), len(about(AnswerTable.empty())), len(about(answers, estimator="latent"))]
    assert sizes == [400, 0, 320]
