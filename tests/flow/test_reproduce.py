"""`blindcal reproduce`: what is read, measured and written."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.items.catalogue import builtin, open_items
from blindcal.items.record_files import as_line
from blindcal.methods import METHODS
from blindcal.reproduce import page, sources, table
from blindcal.reproduce.sources import RecordedConfidence, Source
from blindcal.reproduce.table import (
    TABLE_METHODS,
    Column,
    Measured,
    MethodTable,
    Row,
    TableRun,
    measure_runs,
    oracle_of,
    table_runs,
)
from blindcal.settings import Settings
from blindcal.simulation import replay
from blindcal.simulation.replay import Server
from blindcal.simulation.simulate import generate, simulate
from commanding import blindcal
from paths import SHARED
from serving import OWN_LOGITS

SCORES = "id,label,p\nx,1,0.9\ny,0,0.2\n"
LOGITS = "id,label,Yes|1, Yes|2,No|3,lse,argmax\nx,1,2.0,1.0,0.5,3.0,1\ny,0,0.1,0.0,0.5,2.0,9\n"


def reproduced(*arguments: object) -> str:
    done = blindcal("reproduce", *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def source(n: int = 300, seed: int = 0) -> Source:
    return sources.from_probabilities("made", "up", *generate(n, seed))


def estimate(method: str, queries: int, ece: float = 0.3, seed: int = 0) -> Measured:
    return Measured(row=Row(method, queries), seed=seed, ece=ece, gaps=(ece, 0.0), queries=10, invalid=0)


def column(model: str, data: str, *measured: Measured) -> Column:
    """A column of ten items with an oracle of 0.1."""
    labels = np.array([1, 1, 0, 0, 0] * 2)
    return Column(sources.from_probabilities(model, data, labels, np.full(10, 0.5)), measured, 2)


def test_over_http_and_from_a_file_it_is_the_same_estimate(tmp_path: Path) -> None:
    """A file is answered as its replay answers an audit: ties, other words and draws are the same."""
    known, items = sources.read(OWN_LOGITS), tmp_path / "items.jsonl"
    items.write_bytes(b"".join(as_line(record) for record in builtin(known.n)))
    with replay.running(Server(known.recording, open_items(items))) as server:
        for method in ("sampling", "latent"):
            settings = Settings(
                model=known.recording.name,
                base_url=server.base_url,
                method=method,
                queries=3.0,
                resamples=20,
            )
            result = audit(items, settings, out=tmp_path / method)
            (cell,) = TableRun(source=known, method=method, budgets=(3,), seed=0).measure()
            assert result.ece.value == cell.ece
            assert (len(known.labels) * 3, result.counts.invalid) == (cell.queries, cell.invalid)


def test_again_it_is_bit_identical(tmp_path: Path) -> None:
    """The same command writes the same bytes, whatever the number of processes."""
    few = (OWN_LOGITS, "--budgets", "1-2", "--seeds", 2, "--method=blind", "--method=sampling")
    written = []
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        reproduced(*few, "--jobs", jobs, "--out", out)
        written.append(
            {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        )
    assert written[0] == written[1]
    names = {path.parts[0] for path in written[0]}
    assert names == {"index.html", "table.md", "cells.csv", "figures"}


def test_the_tables_hold_means_spreads_and_errors() -> None:
    """Means, spreads, errors and dashes in Markdown, CSV and JSON, names escaped in each."""
    estimates = (
        replace(estimate("latent", 1, ece, seed), invalid=1) for seed, ece in enumerate((0.12, 0.10))
    )
    first, second = column("a|b_c", "=x", *estimates), column("d", "y", estimate("blind", 1))
    both = MethodTable((first, second), 2, 2)
    assert first.entries[Row("latent", 1)].error[0] == pytest.approx(0.01)
    text = table.markdown(both)
    assert "| oracle | 0.1000 | 0.1000 |" in text
    assert "| latent, K=1 | 0.1100 ± 0.0141 | \N{EN DASH} |" in text
    assert "a\\|b_c =x" in text
    assert "a|b_c,'=x,10,latent,1,2,pair,0." in table.cells_csv(both)
    assert table.cells(both)[0]["oracle"] == pytest.approx(0.1)
    assert table.cells(both)[-1]["error"] == pytest.approx(0.2)
    assert "Share of answers that are neither word" in text
    assert "| latent | 10.0% | \N{EN DASH} |" in text
    assert "| blind |" not in text  # all its answers were used


def test_what_is_undefined_is_a_dash(tmp_path: Path) -> None:
    """A confidence that no answer states, and bins that no item asks about, are no numbers in any format."""
    (tmp_path / "a__b.csv").write_text("id,label,p\nx,1,0.9\ny,0,0.2\n")
    (tmp_path / "a__b__verbalized.csv").write_text("id,label,text\nx,1,Hm\ny,0,Yes\n")
    rows = ("--method", "verbalized", "--method", "blind", "--method", "extraction", "--seeds", 1)
    printed = reproduced(tmp_path / "a__b.csv", *rows, "--budgets", 1, "--out", tmp_path / "out")
    assert "nan" not in printed
    assert "| verbalized | 100.0% |" in printed
    for name in ("table.md", "cells.csv"):
        assert "nan" not in (tmp_path / "out" / name).read_text()


def test_the_table_has_every_method_and_samples_read_by_latent() -> None:
    """Each method is in it, the published ones before ours; `logprobs` is the oracle."""
    bases = {name.partition("+")[0] for name in TABLE_METHODS}
    assert bases == {name for name, method in METHODS.items() if method.budgets}
    assert set(METHODS) - bases == {"decisions", "logprobs", "given"}
    fitted = [name for name in TABLE_METHODS if table.is_fitted(name)]
    assert fitted == ["latent", "sampling+latent", "temperature", "repeated"]


@pytest.mark.parametrize("name", [name for name in TABLE_METHODS if name not in ("blind", "verbalized")])
def test_the_beginning_of_a_run_is_the_run_with_a_smaller_budget(name: str) -> None:
    """Cells read from one run with four queries per item are, to the last bit, those of runs of their own."""
    known = source(121)  # odd: half a round is no whole number of items
    budgets = tuple(range(METHODS[name.partition("+")[0]].budgets[0], 5))
    run = partial(TableRun, source=known, method=name, seed=3)
    together = run(budgets=budgets).measure()
    assert together == [cell for k in budgets for cell in run(budgets=(k,)).measure()]
    assert [cell.queries for cell in together] == [k * 121 for k in budgets]


def stated_run(stated: RecordedConfidence) -> TableRun:
    known = replace(source(50), stated=stated)
    return TableRun(source=known, method="verbalized", budgets=(1,), seed=0, bins=2)


def test_stated_confidences_are_read_like_any_other_answers() -> None:
    """Confidences in words are taken at their word; answers that state none count as invalid."""
    stated = RecordedConfidence(np.array([1, 0, 1, 0]), np.array([0.9, 0.2, np.nan, 0.6]))
    (cell,) = stated_run(stated).measure()
    assert (cell.queries, cell.invalid) == (4, 1)
    assert cell.gaps == pytest.approx(((0.2 - 0) / 3, (0.9 - 1 + 0.6 - 0) / 3))
    assert cell.ece == pytest.approx(sum(map(abs, cell.gaps)))
    silent = replace(stated, p=np.full(4, np.nan))
    (cell,) = stated_run(silent).measure()
    assert np.isnan([cell.ece, *cell.gaps]).all()
    assert cell.invalid == 4


def test_cells_are_the_estimates_of_simulate() -> None:
    """The same seed in `simulate` gives the same estimates: one way to answer, not two."""
    labels, p = generate(400)
    known = sources.from_probabilities("made", "up", labels, p)
    for method, k in {"blind": 1, "sampling": 2, "extraction": 2, "latent": 2}.items():
        runs = table_runs(known, methods=(method,), budgets=(k,), seeds=(0, 1))
        cells = tuple(cell.ece for run in measure_runs(runs) for cell in run)
        assert cells == simulate(method, labels, p, queries=k, repeats=2).estimates


def test_the_recorded_models_hold_what_they_are_said_to() -> None:
    """The oracles of the recorded cells under the three semantics, as their notes print them."""
    path = SHARED / "logits" / "smollm2__boolq__logits.csv.gz"
    if not path.exists():
        pytest.skip("no recorded logits beside the project")
    here = sources.read(path)
    found = [oracle_of(here, 5, semantics).ece for semantics in ("sum", "max", "pair")]
    assert [round(float(one), 4) for one in found] == [0.0661, 0.0663, 0.0663]


def test_the_page_shows_names_as_text_and_marks_our_rows(tmp_path: Path) -> None:
    """Whatever a model is called, it is text; rows read by `latent` stand on a tint; nothing is fetched."""
    methods = ("sampling", "latent", "sampling+latent", "temperature")
    hostile = column("<script>alert(1)</script>", "latent set", *(estimate(method, 2) for method in methods))
    written = page.write(MethodTable((hostile,), 2, 1), tmp_path).read_text()
    assert "<script" not in written
    assert "http://" not in written.replace("http://www.w3.org/", "")
    assert "https://" not in written
    tinted = re.findall(r'<tr class="ours"><th scope="row">(.*?)</th>', written)
    assert tinted == ["latent, K=2", "sampling+latent, K=2", "temperature, K=2"] * 2  # estimates, errors
    assert (tmp_path / "figures" / "script-alert-1-script__latent-set.svg").exists()


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({}, ["nowhere.csv"], "no such file or folder"),
        ({}, ["x.csv", "--budgets", "9"], "from 1 to 8"),
        ({"a__b.csv": SCORES, "a__b__logits.csv": SCORES}, ["."], "a second file of a b"),
        ({"a__b.csv": "id,logit_A,logit_B,label\na,1,2,0\n"}, ["."], "by 'blindcal simulate'"),
        ({"a__b.csv": LOGITS}, [".", "--answers", "Maybe,Never"], "no columns for Maybe and Never"),
        (
            {"a__b.csv": SCORES, "a__b__verbalized.csv": "id,label,text\nx,maybe,Yes\n"},
            ["."],
            "a__b__verbalized.csv, row 1, label: must be 0 or 1",
        ),
    ],
)
def test_what_cannot_be_in_the_table_is_one_line(
    files: dict[str, str], arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown methods, budgets and words, a second file of one name and broken files are named."""
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = blindcal("reproduce", *arguments, "--out", "out")
    assert result.exit_code != 0
    assert message in result.output or message in str(result.exception)


def test_files_are_found_and_read(tmp_path: Path) -> None:
    """Probabilities, logits, and the spellings of `blindcal score`; what was said in words lies beside."""
    (tmp_path / "a__b.csv").write_text(SCORES)
    (tmp_path / "a__b__verbalized.csv").write_text('id,label,text\nx,1,"Yes, 80%"\ny,0,perhaps\n')
    (tmp_path / "c__d__logits.csv").write_text(LOGITS)
    # a model's own name may hold two underscores, as ORGANISATION__MODEL does
    assert sources.names(Path("meta__Llama__boolq__logits.csv.gz")) == ("meta__Llama", "boolq")
    assert sources.names(Path("gpt-4o__logits.csv")) == ("gpt-4o", "items")
    scored, logits = map(sources.read, sources.find([tmp_path]))
    assert (scored.name, logits.name) == ("a b", "c d")
    assert scored.stated is not None
    assert scored.stated.p == pytest.approx([0.8, np.nan], nan_ok=True)
    assert scored.p is not None
    assert logits.probabilities("pair") == pytest.approx(1 / (1 + np.exp([-1.5, 0.4])))
    assert len(logits.spelled("max").targets.positive) == 2
    (tmp_path / "e__f.csv").write_text(
        "id,label,p,p_max,p_sum,mass,Yes|1,No|2, Yes|3\nx,1,0.5,0.6,0.7,0.8,-1.0,-2.0,-1.5\n"
    )
    scored = sources.read(tmp_path / "e__f.csv")
    assert scored.probabilities("pair") == pytest.approx([1 / (1 + np.exp(-1))])
    assert scored.probabilities("sum") == pytest.approx([1 / (1 + np.exp(-np.logaddexp(-1, -1.5) - 2))])
    assert np.exp(scored.recording.rest) == pytest.approx([0.2])
