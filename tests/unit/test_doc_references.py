"""Pages name what exists, use the facade alone, and generated ones are the ones in force."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

import answer_examples
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


@pytest.mark.parametrize("script", [help_pages, answer_examples])
def test_generated_pages_are_the_ones_in_force(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/commands.md holds ``--help`` of every command, and docs/free-text.md the examples of the tests."""
    monkeypatch.setattr("sys.argv", ["bench", "--check"])
    assert script.main() == 0, f"run python bench/{script.__name__}.py"
