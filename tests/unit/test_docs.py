"""Pages name what exists and use the facade alone; tables and generated pages are the ones in force."""

from __future__ import annotations

import record

import json
import re
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import answer_examples
import blindcal
import docs
import help_pages
from doc_pages import BLOCK, PAGES, blocks, headings
from paths import ROOT


def test_examples_use_the_facade_alone() -> None:
    """No page imports from deeper than ``blindcal``."""
    deeper = r"(?:from|import) blindcal\.\S+|\bblindcal\.(?!\w+\b\()[a-z_]+\.[a-z_]\w*\("
    for page in PAGES:
        assert re.findall(deeper, page.read_text()) == [], page.name


def test_blocks_say_what_they_are() -> None:
    """Every block names its language, and commands are not hidden in indented ones."""
    for page in PAGES:
        assert [block.number for block in blocks(page) if not block.kind] == [], page.name
        without = BLOCK.sub("", page.read_text())
        assert re.findall(r"^    (?:blindcal|pip|make|python|export) .*", without, re.M) == [], page.name


def test_links_lead_somewhere() -> None:
    """Links between pages and to pictures name files that are there, and headings that exist."""
    pages = {PAGES[0], *(ROOT / "docs").rglob("*.md")}
    anchors = {page: headings(page) for page in pages}
    for page in anchors:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            linked = (page.parent / target).resolve() if target else page
            assert linked.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors[linked], f"{page.name}: {target}#{anchor}"


def test_files_that_pages_name_exist() -> None:
    """Tests and scripts that a page, the Makefile or a script names are there."""
    pages = [*PAGES, *(ROOT / "docs" / "decisions").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    for path in (*pages, *(ROOT / "bench").glob("*.py"), *(ROOT / "tests").rglob("*.py")):
        for name in re.findall(r"\b(?:tests|bench)/[\w/]+\.py\b", path.read_text()):
            assert (ROOT / name).is_file(), f"{path.name}: {name}"


def test_the_code_refers_to_what_exists() -> None:
    """Sections of docs/method.md and modules that the code names are there."""
    sections = set(re.findall(r"^## (\d+) ", (ROOT / "docs" / "method.md").read_text(), re.M))
    for path in (
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "bench").glob("*.py"),
    ):
        text = path.read_text()
        assert set(re.findall(r"\bMETHOD (\d+)", text)) <= sections, path
        for name in re.findall(r"`blindcal((?:\.[a-z_]+)+)`", text):
            module = ROOT / "src" / "blindcal" / name[1:].replace(".", "/")
            exists = module.is_dir() or module.with_suffix(".py").is_file()
            assert exists or hasattr(blindcal, name[1:].split(".")[0]), f"{path.name}: blindcal{name}"


@pytest.mark.parametrize("script", [help_pages, answer_examples])
def test_generated_pages_are_the_ones_in_force(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/commands.md holds ``--help`` of every command, and docs/free-text.md the examples of the tests."""
    monkeypatch.setattr("sys.argv", ["bench", "--check"])
    assert script.main() == 0, f"run python bench/{script.__name__}.py"


# Tables, which come from bench/results, where benchmarks record what they measured

RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


def shown() -> list[docs.Block]:
    """Every block of every page."""
    return [block for page in docs.pages() for block in docs.blocks(page)]


def test_tables_on_the_pages_are_the_recorded_ones() -> None:
    """No page shows anything else."""
    assert [line for page in docs.pages() for line in docs.problems(page)] == []


def test_every_recorded_file_is_shown() -> None:
    """No results without a page, and nothing on the front page without results."""
    assert RESULTS
    assert {block.results for block in shown()} >= set(RESULTS)
    assert {block.results for block in docs.blocks(ROOT / "README.md")} <= set(RESULTS)


def test_recorded_files_say_how_they_were_made() -> None:
    """Each names a script that exists, its repeats, blindcal's version and the date."""
    for path in RESULTS:
        results = record.read(path)
        assert results.script.is_file(), path.name
        assert results.script.parent == ROOT / "bench"
        repeats = [results.repeats] if isinstance(results.repeats, int) else [*results.repeats.values()]
        assert min(repeats) >= 1, path.name
        assert results.version
        assert results.date
        assert results.tables, path.name
        assert all(len(row) == len(table.columns) for table in results.tables.values() for row in table.rows)


def test_a_table_is_written_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers keep their full precision in the file, and the page shows them as each column is formatted."""
    columns = {"method": "{}", "K": "{:g}", "error": "{:.2f} ± {:.2f}"}
    made = record.table(columns, [["latent", 1.5, (1 / 3, 0.01)], ["a|b", None, None]])
    record.record("small", {"errors": made}, Namespace(results=tmp_path, repeats=3))
    content: dict[str, Any] = json.loads((tmp_path / "small.json").read_text())
    assert content["tables"]["errors"]["rows"][0] == ["latent", 1.5, [1 / 3, 0.01]]
    again = record.read(tmp_path / "small.json").tables["errors"]
    assert again.markdown() == made.markdown()
    lines = again.markdown().splitlines()
    assert lines[0] == "| method | K | error |"
    assert lines[2:] == ["| latent | 1.5 | 0.33 ± 0.01 |", r"| a\|b |  |  |"]
    assert "3 repeats" in capsys.readouterr().out


def test_a_block_without_an_end_is_refused(tmp_path: Path) -> None:
    """A comment that is not closed would swallow the rest of the page."""
    page = tmp_path / "page.md"
    page.write_text("<!-- bench: accuracy -->\n\nAnd on.\n")
    with pytest.raises(docs.BlockError, match="not closed"):
        list(docs.blocks(page))


#: Models of OpenAI's whose end is announced, by date; those of January are the last that take ``logit_bias``.
#: https://developers.openai.com/api/docs/deprecations, as of November 2026
ENDING = {
    "2026-10-23": "gpt-3.5-turbo gpt-4 gpt-4-turbo gpt-4.1-nano o1 o1-pro o3-mini o4-mini",
    "2026-12-11": "gpt-5 gpt-5-mini gpt-5-nano gpt-5-pro o3 o3-pro",
    "2027-01-14": "gpt-4o gpt-4o-mini gpt-4.1 gpt-4.1-mini",
}


def test_examples_name_no_model_that_ends() -> None:
    """What a reader copies or sees printed goes on working; tables may name the models that were recorded."""
    ends = {model: date for date, models in ENDING.items() for model in models.split()}
    longest_first = "|".join(map(re.escape, sorted(ends, key=len, reverse=True)))
    named = re.compile(rf"(?<![\w.])({longest_first})(?!\w|\.\d)")
    examples = {page: "".join(block.text for block in blocks(page)) for page in PAGES}
    for path in (ROOT / "docs" / "example.ipynb", *(ROOT / "src" / "blindcal" / "cli").glob("*.py")):
        examples[path] = path.read_text()
    for path, text in examples.items():
        assert {model: ends[model] for model in named.findall(text)} == {}, path.name
