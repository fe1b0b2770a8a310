"""`blindcal reproduce`: from files, over HTTP, again, and with wrong names."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from blindcal.cli import app
from blindcal.estimate.face_value import findings_at_face_value
from blindcal.items import files
from blindcal.reproduce import page, sources, table
from blindcal.reproduce.cells import Cell, Measured
from blindcal.reproduce.table import Column, MethodTable, Row
from blindcal.simulation import replay
from blindcal.simulation.recording import RecordedTexts, Recording
from blindcal.simulation.replay import Behaviour, Server
from serving import SHARED


def reproduce(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def ok(*arguments: object) -> Result:
    result = reproduce(*arguments)
    assert result.exit_code == 0, result.output
    return result


def write_recording(folder: Path, n: int = 90) -> Path:
    """Logits of a made-up model: two spellings a side, other words likelier than both now and then."""
    rng = np.random.default_rng(0)
    side = 2.5 * rng.standard_normal(n)
    rows = ["id,label,Yes|11, yes|12,No|13, no|14,lse,argmax"]
    for k in range(n):
        said = [10 + side[k] / 2, 8 + side[k] / 2 + rng.normal(), 10 - side[k] / 2, 8.5 - side[k] / 2]
        other = 10 + rng.normal()
        lse = np.logaddexp.reduce([*said, other])
        best = int(np.argmax([*said, other]))
        label = int(rng.random() < 1 / (1 + np.exp(-0.6 * side[k])))
        rows.append(
            f"q{k},{label}," + ",".join(f"{z:.4f}" for z in [*said, lse]) + f",{[11, 12, 13, 14, 99][best]}"
        )
    path = folder / "model__set__logits.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def write_texts(folder: Path, labels: list[int]) -> Path:
    """What the made-up model says of its confidence; every seventh answer states none."""
    rng = np.random.default_rng(1)
    path = folder / "model__set__verbalized.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label", "text"])
        for k, label in enumerate(labels):
            word = ("Yes", "No")[int(rng.integers(2))]
            stated = "I am sure" if k % 7 == 0 else f"{rng.integers(50, 101)}%"
            table.writerow([f"q{k}", label, f"{word}, {stated}"])
    return path


def write_items(path: Path, ids: list[str], labels: list[int]) -> None:
    lines = [
        json.dumps(
            {"id": one, "label": label, "prompt": f"Is {one} so? Yes or No.", "answer_words": "Yes/No"}
        )
        for one, label in zip(ids, labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


def estimates(folder: Path) -> list[dict[str, str]]:
    with (folder / "estimates.csv").open(newline="") as file:
        return [
            {name: value for name, value in row.items() if name != "model"} for row in csv.DictReader(file)
        ]


def test_over_http_and_from_files_it_is_the_same_table(tmp_path: Path) -> None:
    """Every row at every budget, sampled ones too, is equal to the last digit for the same seed."""
    path = write_recording(tmp_path)
    known = sources.read(path)
    items = tmp_path / "set.jsonl"
    write_items(items, list(known.recording.ids), known.labels.tolist())
    common = ("--budgets", "1-3", "--seeds", 1, "--bins", 4, "--jobs", 1)
    recording = Recording.load(path)
    spoken = RecordedTexts.load(write_texts(tmp_path, known.labels.tolist()), ("Yes", "No"))
    ok(path, *common, "--out", tmp_path / "files")
    questions = files.load(items)
    with replay.running(Server(recording, questions, spoken=spoken)) as server:
        endpoint = ("--model", recording.name, "--base-url", server.base_url, "--data", items, "--send-seed")
        ok(*endpoint, *common, "--out", tmp_path / "http")
        asked = server.requests
        first = (tmp_path / "http" / "index.html").read_bytes()
        ok(*endpoint, *common, "--out", tmp_path / "http")
        assert server.requests == asked  # a second time nothing is asked
    assert estimates(tmp_path / "http") == estimates(tmp_path / "files")
    rows = {(row["method"], row["K"]) for row in estimates(tmp_path / "http")}
    assert {
        ("temperature", "3"),
        ("sampling+latent", "1"),
        ("blind", "1"),
        ("latent", "2"),
        ("verbalized", "1"),
    } <= rows
    ok(*endpoint, *common, "--out", tmp_path / "http")  # nor is anybody needed
    assert (tmp_path / "http" / "index.html").read_bytes() == first


def test_a_recorded_model_over_http_and_from_its_file(tmp_path: Path) -> None:
    """The same for 120 items of a real model, with its logits as the oracle of the endpoint's column."""
    path = SHARED / "logits" / "smollm2__boolq__logits.csv.gz"
    if not path.exists():
        pytest.skip("no recorded logits beside the project")
    import gzip

    with gzip.open(path, "rt") as file:
        head = [next(file) for _ in range(121)]
    few = tmp_path / "smollm2__few__logits.csv"
    few.write_text("".join(head))
    known = sources.read(few)
    items = tmp_path / "few.jsonl"
    write_items(items, list(known.recording.ids), known.labels.tolist())
    words = ("--positive", "True", "--negative", "False")
    ids = ("--positive-ids", known.targets.positive[0].id, "--negative-ids", known.targets.negative[0].id)
    methods = ("blind", "sampling", "sampling+latent", "extraction", "latent", "temperature")  # all but words
    common = (*words, "--budgets", "1,2", "--seeds", 1, "--jobs", 1, *(f"--method={one}" for one in methods))
    ok(few, *common, "--out", tmp_path / "files")
    loaded = Recording.load(few)
    recording = Recording("smollm2", *(getattr(loaded, name) for name in loaded.__slots__[1:]))
    questions = files.load(items)
    with replay.running(Server(recording, questions)) as server:
        endpoint = ("--model", "smollm2", "--base-url", server.base_url, "--data", items, "--send-seed", *ids)
        ok(few, *endpoint, *common, "--out", tmp_path / "http")
    for name in ("estimates.csv", "cells.csv", "table.md", "table.tex"):
        assert (tmp_path / "http" / name).read_text() == (tmp_path / "files" / name).read_text(), name


def test_again_it_is_free_and_bit_identical(tmp_path: Path) -> None:
    """The same command reads its cells and writes the same bytes."""
    path = write_recording(tmp_path)
    arguments = (
        path,
        "--budgets",
        "1-2",
        "--seeds",
        2,
        "--jobs",
        1,
        "--method",
        "blind",
        "--method",
        "sampling",
    )
    ok(*arguments, "--out", tmp_path / "one")
    made = {
        one.relative_to(tmp_path / "one"): (one.read_bytes(), one.stat().st_mtime_ns)
        for one in (tmp_path / "one").rglob("*")
        if one.is_file()
    }
    ok(*arguments, "--out", tmp_path / "one")
    for name, (content, changed) in made.items():
        assert (tmp_path / "one" / name).read_bytes() == content, name
        if name.parts[0] == "cache":
            assert (tmp_path / "one" / name).stat().st_mtime_ns == changed
    assert {"index.html", "table.md", "table.tex", "cells.csv", "estimates.csv", "cache", "figures"} == {
        name.parts[0] for name in made
    }


def test_an_endpoint_that_ignores_the_bias_fills_the_rows_it_can(tmp_path: Path) -> None:
    """Methods that the probe refuses are dashes with a reason; temperature needs no bias and is there."""
    known = sources.read(write_recording(tmp_path))
    items = tmp_path / "set.jsonl"
    write_items(items, list(known.recording.ids), known.labels.tolist())
    questions = files.load(items)
    with replay.running(Server(known.recording, questions, Behaviour(bias="ignored"))) as server:
        run = _asked(server, items, tmp_path / "out")
    methods = {json.loads(line)["method"] for line in run.stdout.splitlines()}
    assert methods == {"temperature"}
    assert "latent: this endpoint cannot be audited by latent" in run.stderr


def _asked(server: Server, items: Path, out: Path) -> Result:
    name = server.recording.name
    endpoint = ("--model", name, "--base-url", server.base_url, "--data", items)
    methods = ("--method", "latent", "--method", "temperature")
    return ok(*endpoint, *methods, "--budgets", "2", "--out", out, "--json", "--quiet")


def test_models_behind_several_servers_are_one_table(tmp_path: Path) -> None:
    """NAME@URL names a server of its own; one name at two addresses is refused."""
    known = sources.read(write_recording(tmp_path, 40))
    items = tmp_path / "set.jsonl"
    write_items(items, list(known.recording.ids), known.labels.tolist())
    other = replace(known.recording, name="other", logits=known.recording.logits[::-1].copy())
    few = ("--data", items, "--method", "extraction", "--budgets", 1, "--out", tmp_path / "out")
    questions = files.load(items)
    with (
        replay.running(Server(known.recording, questions)) as here,
        replay.running(Server(other, questions)) as there,
    ):
        first = ("--model", f"{known.recording.name}@{here.base_url}")
        ok(*first, "--model", "other", "--base-url", there.base_url, *few)
        assert here.requests > 40
        assert there.requests > 40
        lines = list(csv.DictReader((tmp_path / "out" / "cells.csv").read_text().splitlines()))
        assert [line["model"] for line in lines] == [known.recording.name, "other"]
        assert lines[0]["ece"] != lines[1]["ece"]
        twice = reproduce(*first, "--model", known.recording.name, "--base-url", there.base_url, *few)
        assert "one name at two addresses" in str(twice.exception)


def test_a_dry_run_says_what_would_be_asked(tmp_path: Path) -> None:
    """Eight queries per item by five methods and one in five less by blind: one run holds all its budgets."""
    items = tmp_path / "set.jsonl"
    write_items(items, [f"q{k}" for k in range(10)], [k % 2 for k in range(10)])
    said = ok("--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--data", items, "--dry-run")
    assert (
        "10 items, 408 queries in 6 audits" in said.output
        or "10 items, 418 queries in 7 audits" in said.output
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give score or logit files"),
        (["--model", "m"], "give the data sets to ask with --data: boolq, mmlu"),
        (["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--data", "boolqq"], "no set of this name"),
        (["nowhere.csv"], "no such file or folder"),
        (["x.csv", "--method", "psychic"], "'latent'"),
        (["x.csv", "--budgets", "9"], "from 1 to 8"),
    ],
)
def test_wrong_names_are_answered_with_the_right_ones(arguments: list[str], said: str) -> None:
    """An unknown set, method, budget or file gets one line that lists what there is."""
    result = reproduce(*arguments)
    assert result.exit_code != 0
    assert said in result.output or said in str(result.exception)


def test_the_tables_say_what_was_found() -> None:
    """Means, spreads, errors and dashes in Markdown, LaTeX and CSV, names escaped in each."""
    oracle = findings_at_face_value(np.array([1, 1, 0, 0, 0]), np.array([0.5] * 5), 2)  # an ECE of 0.1
    found = {
        Cell("latent", 1, seed, 2): Measured(ece, (ece, 0.0), 10, 1) for seed, ece in enumerate((0.12, 0.10))
    }
    one = Column("a|b_c", "=x", 10, "pair", {"pair": oracle}, found)
    other = Column("d", "y", 10, "pair", {}, {Cell("blind", 1, 0, 2): Measured(0.3, (0.3, 0.0), 5, 0)})
    both = MethodTable((one, other), 2, (0, 1))
    assert one.entries[Row("latent", 1)].error == pytest.approx(0.01)
    text = table.markdown(both)
    assert "| oracle | 0.1000 | \N{EN DASH} |" in text
    assert "| latent, K=1 | 0.1100 ± 0.0141 | \N{EN DASH} |" in text
    assert "a\\|b_c =x" in text
    assert r"a|b\_c =x & d y \\" in table.latex(both)
    assert r"0.1100 $\pm$ 0.0141" in table.latex(both)
    assert "a|b_c,'=x,10,latent,1,2,pair,0.1,0.11" in table.cells_csv(both)
    assert json.loads(table.cells_json(both).splitlines()[-1])["oracle"] is None
    assert "Share of answers that are neither word" in text
    assert "| latent | 10.0% | \N{EN DASH} |" in text
    assert "| blind |" not in text  # all its answers were used


def test_what_is_undefined_is_a_dash(tmp_path: Path) -> None:
    """A confidence that no answer states, and bins that no item asks about, are no numbers in any format."""
    (tmp_path / "a__b.csv").write_text("id,label,p\nx,1,0.9\ny,0,0.2\n")
    (tmp_path / "a__b__verbalized.csv").write_text("id,label,text\nx,1,Hm\ny,0,Yes\n")
    rows = ("--method", "verbalized", "--method", "blind", "--method", "extraction", "--seeds", 1)
    said = ok(tmp_path / "a__b.csv", *rows, "--budgets", 1, "--out", tmp_path / "out").output
    assert "nan" not in said
    assert "| verbalized | 100.0% |" in said
    for name in ("table.md", "table.tex", "cells.csv"):
        assert "nan" not in (tmp_path / "out" / name).read_text()


def test_tables_and_sources_show_themselves_in_one_line() -> None:
    """What they hold is counted, not listed."""
    column = Column("a", "x", 10, "pair", {}, {Cell("latent", 1, 0, 2): Measured(0.1, (0.1, 0.0), 10, 0)})
    source = sources.from_probabilities("a", "x", np.array([0, 1]), np.array([0.2, 0.9]))
    assert repr(column) == "Column('a x', 10 items, 1 cells)"
    assert repr(MethodTable((column,), 2, (0,))) == "MethodTable(1 columns, 1 rows, 1 seeds)"
    assert repr(source) == "Source('a x', 2 items)"
    assert repr(source.recording) == "Recording('a', 2 items, 2 tokens)"


def test_one_repeat_has_no_spread_to_draw() -> None:
    """A standard deviation takes two seeds: the bars of one have no whiskers, not whiskers of no length."""
    cells = [Cell("latent", 1, seed, 2) for seed in (0, 1)]
    once = Column("a", "x", 10, "pair", {}, {cells[0]: Measured(0.1, (0.1, 0.0), 10, 0)})
    twice = Column("a", "x", 10, "pair", {}, {cell: Measured(0.1, (0.1, 0.0), 10, 0) for cell in cells})
    for column, low in ((once, None), (twice, 0.1)):
        (drawn,) = page.gap_bins(column, [Row("latent", 1)]).values()
        assert (drawn[0].gap.value, drawn[0].gap.low) == (0.1, low)


def test_the_page_shows_names_as_text(tmp_path: Path) -> None:
    """Whatever a model is called, it is text on the page; nothing is fetched from anywhere."""
    found = {Cell("blind", 1, 0, 2): Measured(0.3, (0.3, 0.0), 5, 0)}
    column = Column("<script>alert(1)</script>", "y", 10, "pair", {}, found)
    written = page.write(MethodTable((column,), 2, (0,)), tmp_path, ["<b>unfit</b>"]).read_text()
    assert "<script" not in written
    assert "&lt;b&gt;unfit" in written
    assert "http://" not in written.replace("http://www.w3.org/", "")
    assert "https://" not in written


def test_rows_that_are_fitted_are_told_from_the_published_ones(tmp_path: Path) -> None:
    """Rows read by `latent` stand on a tint, whatever their name; figures lie beside the page."""
    found = {
        Cell(method, 2, 0, 2): Measured(0.3, (0.3, 0.0), 5, 0)
        for method in ("sampling", "latent", "sampling+latent", "temperature")
    }
    column = Column("m", "latent questions", 10, "pair", {}, found)
    written = page.write(MethodTable((column,), 2, (0,)), tmp_path).read_text()
    tinted = re.findall(r'<tr class="ours"><th scope="row">(.*?)</th>', written)
    assert tinted == ["latent, K=2", "sampling+latent, K=2", "temperature, K=2"]
    assert (tmp_path / "figures" / "m__latent-questions.svg").exists()
