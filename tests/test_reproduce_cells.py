"""The cells of the reproduced table: read from one run, kept, shared among processes."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blindcal.errors import InputError
from blindcal.estimate.truth import top_label_ece
from blindcal.evidence import Evidence, estimate
from blindcal.methods import METHODS, make_design
from blindcal.reproduce import sources
from blindcal.reproduce.cells import TABLE_METHODS, Cache, Cell, CellSelection, ask, compute, measure
from blindcal.reproduce.page import CostPoint, pareto_front
from blindcal.reproduce.sources import RecordedConfidence, Source
from blindcal.reproduce.table import Row, oracle_of
from blindcal.simulation.simulate import generate, simulate
from serving import SHARED

SMALL = CellSelection(seeds=(0, 1), budgets=(1, 2))


def source(n: int = 300, seed: int = 0) -> Source:
    return sources.from_probabilities("made", "up", *generate(n, seed))


def test_the_table_has_every_method_and_samples_read_by_latent() -> None:
    """Each method is in it with its own budgets, the published ones before ours; `logprobs` is the oracle."""
    published, ours = ("blind", "verbalized", "sampling", "extraction"), ("latent", "sampling+latent")
    assert tuple(TABLE_METHODS) == (*published, *ours, "temperature", "repeated")
    assert {method.base for method in TABLE_METHODS.values()} == set(METHODS) - {"logprobs", "classwise"}
    assert all(method.budgets() == METHODS[method.base].budgets for method in TABLE_METHODS.values())
    fitted = [name for name, method in TABLE_METHODS.items() if method.fitted]
    assert fitted == [*ours, "temperature", "repeated"]


@pytest.mark.parametrize("name", [name for name in TABLE_METHODS if name not in ("blind", "verbalized")])
def test_the_beginning_of_a_run_is_the_run_with_a_smaller_budget(name: str) -> None:
    """Cells read from one run with four queries per item are, to the last bit, those of runs of their own."""
    n = 121  # odd: half a round is no whole number of items
    here, method = source(n), TABLE_METHODS[name]
    cells = [Cell(name, k, 3, 5) for k in range(method.budgets()[0], 5)]
    together = measure(here, cells)
    for cell in cells:
        design = make_design(method.base, here.labels, queries=cell.queries, seed=3)
        alone = ask(design, here, method.base, 3)
        assert len(alone) == cell.queries * n
        assert together[cell] == measure(here, [cell])[cell]
        evidence = Evidence(method.base, design, here.labels, alone, estimator=method.estimator, resamples=0)
        assert together[cell].ece == estimate(evidence, brief=True).ece.value


def test_what_was_stated_is_read_like_any_other_answers() -> None:
    """Confidences in words are taken at their word; answers that state none count as invalid."""
    stated = RecordedConfidence(np.array([1, 0, 1, 0]), np.array([0.9, 0.2, np.nan, 0.6]))
    cell = Cell("verbalized", 1, 0, 2)
    found = measure(replace(source(50), stated=stated), [cell])[cell]
    assert (found.queries, found.invalid) == (4, 1)
    assert found.gaps == pytest.approx(((0.2 - 0) / 3, (0.9 - 1 + 0.6 - 0) / 3))
    assert found.ece == pytest.approx(sum(map(abs, found.gaps)))
    silent = replace(stated, p=np.full(4, np.nan))
    nothing = measure(replace(source(50), stated=silent), [cell])[cell]
    assert np.isnan([nothing.ece, *nothing.gaps]).all()
    assert nothing.invalid == 4


def test_cells_are_what_simulate_finds(tmp_path: Path) -> None:
    """The same seed in `simulate` gives the same estimates: one way to answer, not two."""
    labels, p = generate(400)
    here = sources.from_probabilities("made", "up", labels, p)
    budgets = {"blind": 1, "sampling": 2, "extraction": 2, "latent": 2}
    (found,) = compute([(here, replace(SMALL, methods=tuple(budgets)))], Cache(tmp_path))
    for method, k in budgets.items():
        same = simulate(method, labels, p, queries=k, repeats=2).estimates
        assert tuple(found[Cell(method, k, seed, 5)].ece for seed in (0, 1)) == same


def test_a_second_computation_is_free_and_bit_identical(tmp_path: Path) -> None:
    """Kept cells are read, not computed, and equal what was computed; two processes make no difference."""
    small = replace(SMALL, methods=("blind", "sampling", "sampling+latent", "extraction"))
    work = [(source(), small), (source(200, 1), small)]
    first = compute(work, Cache(tmp_path), jobs=2)
    told: list[tuple[int, int]] = []
    again = compute(work, Cache(tmp_path), progress=lambda done, total: told.append((done, total)))
    assert again == first
    assert told == [(sum(map(len, first)),) * 2]
    assert compute(work, Cache(tmp_path / "other")) == first


def test_a_broken_cell_is_computed_again(tmp_path: Path) -> None:
    """A file cut short, or of something else, counts as missing."""
    work = [(source(), replace(SMALL, methods=("sampling",)))]
    first = compute(work, Cache(tmp_path))
    for place, text in enumerate(("", "{", "[]", '{"ece": 1}')):
        sorted(tmp_path.rglob("*.json"))[place % 4].write_text(text)
    assert compute(work, Cache(tmp_path)) == first


def test_cells_are_kept_by_what_they_depend_on() -> None:
    """Another source, method, budget, seed or number of bins is another cell."""
    cache, here, cell = Cache(Path()), source(), Cell("sampling", 2, 1, 5)
    others = [
        replace(cell, queries=3),
        replace(cell, seed=2),
        replace(cell, bins=6),
        replace(cell, method="latent"),
    ]
    keys = {cache.key(here, one) for one in (cell, *others)} | {cache.key(source(301), cell)}
    assert len(keys) == 6
    assert cache.key(source(), cell) in keys


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    """After kill -9 nothing is left running, and the same call computes only what is missing."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = (
        "from pathlib import Path\n"
        "from blindcal.reproduce import cells, sources\n"
        "from blindcal.simulation.simulate import generate\n"
        f"measure, gate, kept = cells.measure, Path({str(gate)!r}), Path({str(tmp_path / 'cells')!r})\n"
        "def held(source, which):\n"
        "    if which[0].seed >= 4 and gate.exists():\n"
        "        gate.read_text()  # nobody writes: it is still at work when the end comes\n"
        "    return measure(source, which)\n"
        "cells.measure = held\n"
        "if __name__ == '__main__':\n"
        "    here = sources.from_probabilities('made', 'up', *generate(300, 0))\n"
        "    wanted = cells.CellSelection(('extraction', 'latent'), seeds=tuple(range(8)), budgets=(1,))\n"
        "    tell = lambda done, total: print(done, flush=True)\n"
        "    cells.compute([(here, wanted)], cells.Cache(kept), jobs=2, progress=tell)\n"
    )
    (tmp_path / "work.py").write_text(script)
    child = subprocess.Popen([sys.executable, tmp_path / "work.py"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "0\n"
        assert int(child.stdout.readline()) > 0  # the first cells are there
        child.send_signal(signal.SIGKILL)
        child.stdout.read()  # ends when the last worker that shares it has
    kept = len(list(tmp_path.rglob("*.json")))
    assert 0 < kept < 16
    gate.unlink()
    run = subprocess.run([sys.executable, tmp_path / "work.py"], capture_output=True, text=True, check=True)
    assert int(run.stdout.split()[0]) == kept
    assert len(list(tmp_path.rglob("*.json"))) == 16


def test_an_unknown_method_lists_those_there_are() -> None:
    """A wrong name is answered with the right ones."""
    with pytest.raises(InputError, match=r"must be among blind, verbalized, sampling.*, got 'psychic'"):
        CellSelection(methods=("psychic",))


def test_files_are_found_and_named(tmp_path: Path) -> None:
    """MODEL__DATASET is read off the file's name; what was said in words is found beside it."""
    (tmp_path / "a__b.csv").write_text("id,label,p\nx,1,0.9\ny,0,0.2\n")
    (tmp_path / "a__b__verbalized.csv").write_text('id,label,text\nx,1,"Yes, 80%"\ny,0,perhaps\n')
    (tmp_path / "c__d__logits.csv").write_text(
        "id,label,Yes|1, Yes|2,No|3,lse,argmax\nx,1,2.0,1.0,0.5,3.0,1\ny,0,0.1,0.0,0.5,2.0,9\n"
    )
    scored, logits = map(sources.read, sources.find([tmp_path]))
    assert (scored.model, scored.data, logits.model, logits.data) == ("a", "b", "c", "d")
    assert scored.stated is not None
    assert np.isfinite(scored.stated.p).mean() == 0.5
    assert scored.p is not None
    assert logits.probabilities("pair") == pytest.approx(1 / (1 + np.exp([-1.5, 0.4])))
    assert len(logits.spelled("max").targets.positive) == 2
    (tmp_path / "e__f.csv").write_text(
        "id,label,p,p_max,p_sum,mass,Yes|1,No|2, Yes|3\nx,1,0.5,0.6,0.7,0.8,-1.0,-2.0,-1.5\n"
    )
    scored = sources.read(
        tmp_path / "e__f.csv"
    )  # as `blindcal score` writes it: all three semantics are there
    assert scored.probabilities("pair") == pytest.approx([1 / (1 + np.exp(-1))])
    assert scored.probabilities("sum") == pytest.approx([1 / (1 + np.exp(-np.logaddexp(-1, -1.5) - 2))])
    assert np.exp(scored.recording.rest) == pytest.approx([0.2])
    with pytest.raises(InputError, match=r"no columns for Maybe and Never.*'Yes', ' Yes', 'No'"):
        sources.read(tmp_path / "c__d__logits.csv", positive="Maybe", negative="Never")
    with pytest.raises(InputError, match="no such file"):
        sources.find([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "model", "data"),
    [
        ("meta-llama__Llama-3.1-8B__boolq__logits.csv.gz", "meta-llama__Llama-3.1-8B", "boolq"),
        ("gpt-4o__mmlu.csv", "gpt-4o", "mmlu"),
        ("gpt-4o.csv", "gpt-4o", "items"),
        ("gpt-4o__logits.csv", "gpt-4o", "items"),
    ],
)
def test_the_last_underscores_divide_model_and_set(name: str, model: str, data: str) -> None:
    """A model's own name may hold two underscores, as ORGANISATION__MODEL does."""
    assert sources.names(Path(name)) == (model, data)


def test_what_was_said_is_read_by_the_words_that_were_asked_for(tmp_path: Path) -> None:
    """Words of one's own go for answers in words too; a broken file of them is named, not a traceback."""
    (tmp_path / "a__b.csv").write_text("id,label,p\nx,1,0.9\ny,0,0.2\n")
    beside = tmp_path / "a__b__verbalized.csv"
    beside.write_text('id,label,text\nx,1,"Supported, 80%"\ny,0,"Refuted, 90%"\n')
    found = sources.read(tmp_path / "a__b.csv", positive="Supported", negative="Refuted")
    assert found.stated is not None
    assert found.stated.p == pytest.approx([0.8, 0.1])
    for text, message in (
        ("id,label,text\nx,maybe,Yes\n", "must be 0 or 1"),
        ("id,text\nx,Yes\n", "'label'"),
    ):
        beside.write_text(text)
        with pytest.raises(InputError, match=f"a__b__verbalized.csv: .*{message}"):
            sources.read(tmp_path / "a__b.csv")
    whole = gzip.compress(b"id,label,p,mass,Yes|1,No|2\n" + b"x,1,0.5,0.9,-1.0,-1.0\n" * 9000)
    (tmp_path / "c__d.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"c__d.csv.gz: cannot be read"):
        sources.read(tmp_path / "c__d.csv.gz")


def test_the_recorded_models_hold_what_they_are_said_to() -> None:
    """The oracles of the recorded cells under the three semantics, as their notes print them."""
    path = SHARED / "logits" / "smollm2__boolq__logits.csv.gz"
    if not path.exists():
        pytest.skip("no recorded logits beside the project")
    here = sources.read(path)
    found = [oracle_of(here, 5, semantics).ece for semantics in ("sum", "max", "pair")]
    assert [round(float(one), 4) for one in found] == [0.0661, 0.0663, 0.0663]


def test_what_fits_nothing_can_be_repeated_more_often() -> None:
    """Further seeds go to the published methods alone: they cost little and scatter most."""
    wanted = CellSelection(("sampling", "latent"), budgets=(1,), seeds=(0, 1), plain_seeds=(1, 2, 3))
    cells = list(wanted.cells(stated=False))
    seeds = {name: [cell.seed for cell in cells if cell.method == name] for name in wanted.methods}
    assert seeds == {"sampling": [0, 1, 2, 3], "latent": [0, 1]}


def test_choice_files_have_a_table_too(tmp_path: Path) -> None:
    """The oracle is that of the likeliest answer, and budgets begin with the plain answer and one query."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((400, 3))
    labels = rng.integers(3, size=400)
    path = tmp_path / "model__set.csv"
    rows = (
        f"q{k},{','.join(f'{z:.6f}' for z in row)},{y}"
        for k, (row, y) in enumerate(zip(logits, labels, strict=True))
    )
    path.write_text("\n".join(["id,logit_A,logit_B,logit_C,label", *rows]) + "\n")
    source = sources.read(path)
    wanted = CellSelection(("blind", "sampling", "extraction", "latent", "repeated"), (1, 2, 3), (0,))
    found = compute([(source, wanted)], Cache(tmp_path / "cache"))[0]
    assert {(cell.method, cell.queries) for cell in found} == {
        ("blind", 2),
        ("sampling", 2),
        ("sampling", 3),
        ("latent", 2),
        ("latent", 3),
    }
    alone = measure(source, [cell for cell in found if cell.method == "latent" and cell.queries == 2])
    assert all(found[cell] == one for cell, one in alone.items())
    oracle = oracle_of(source, 5, "pair").ece
    assert float(oracle) == pytest.approx(float(top_label_ece(labels, logits.round(6), 5).ece), abs=1e-6)


def test_the_front_holds_what_nothing_beats() -> None:
    """Of equals one is kept, and what costs more must err less."""
    places = [(3, 4), (1, 9), (2, 9), (3, 5), (1, 9), (4, 4), (5, 1)]
    front = pareto_front([CostPoint(Row("latent", 1), *place) for place in places])
    assert [(point.queries, point.error) for point in front] == [(1, 9), (3, 4), (5, 1)]
    assert pareto_front([]) == []
