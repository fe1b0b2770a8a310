"""Every command and every example in README and docs runs, and reference pages are the ones in force.

A page's fenced blocks are run in the order in which they stand: ``sh`` line by line, ``python`` as a whole,
in a folder with ``questions.csv``, two finished runs, and a service that answers (``docs_world``).
``<!-- not run: why -->`` before a block leaves it out; ``<!-- exit N -->`` says how its last command ends.
``<!-- needs: NAME -->`` names optional packages without which it is left out, and the page's test says so.
``<!-- printed -->`` before a ``text`` block says that the ``python`` block before it prints exactly this.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from blindcal.cli import app
from docs_world import World, docs_world
from paths import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
REFITS = 40
BLOCK = re.compile(r"((?:^<!--[^\n]*?-->\n)*)^```(\w*)\n(.*?)^```$", re.M | re.S)

#: Commands that are only parsed here, and why.
PARSED_ONLY = {
    "demo": "tests/test_demo.py runs it",
    "serve": "it serves until it is stopped; tests/flow/test_local.py runs it",
    "pull": "tests/flow/test_models.py runs it",
}
#: Other programs that blocks may call, and why they are not run.
NOT_OURS = {
    "pip": "needs a registry",
    "make": "CI runs the targets",
    "export": "sets what the test's world has set",
    "python": "benchmarks; tests/test_bench_docs.py knows them",
    "cd": "goes into a clone",
    "git": "makes a clone",
    "inspect": "shows a page until it is stopped",
}


#: Other defaults than a user has, so that a page takes seconds: fewer refits behind the intervals.
FEWER_REFITS = {name: {"resamples": REFITS} for name in ("audit", "check", "compare", "merge", "threshold")}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    number: int
    kind: str
    text: str
    remarks: str

    @property
    def skipped(self) -> bool:
        return re.search(r"<!-- not run: \S", self.remarks) is not None

    @property
    def missing(self) -> list[str]:
        """The packages that the block needs and that are not installed."""
        needed = [
            name for named in re.findall(r"<!-- needs: (.*?) -->", self.remarks) for name in named.split(", ")
        ]
        return [name for name in needed if importlib.util.find_spec(name) is None]

    @property
    def printed(self) -> bool:
        return "<!-- printed -->" in self.remarks

    @property
    def status(self) -> int:
        found = re.search(r"<!-- exit (\d+) -->", self.remarks)
        return int(found[1]) if found else 0


def blocks(page: Path) -> Iterator[Block]:
    for number, found in enumerate(BLOCK.finditer(page.read_text()), 1):
        yield Block(page, number, found[2], found[3], found[1])


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, comments and continued lines taken care of."""
    lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def pages_with_blocks() -> list[Path]:
    """The pages with something to run; tests/test_tutorial.py runs the tutorial, in a world of its own."""
    return [
        page
        for page in PAGES
        if page.name != "tutorial.md" and any(one.kind in ("sh", "python") for one in blocks(page))
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The service, and a folder with the questions and two finished audits of them."""
    folder = tmp_path_factory.mktemp("docs")
    with docs_world(folder) as found:
        yield found


@pytest.mark.parametrize("page", pages_with_blocks(), ids=lambda page: page.name)
def test_everything_on_a_page_runs(
    page: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader copies from a page works, from its first block to its last."""
    here = tmp_path / "here"
    shutil.copytree(world.folder, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("OPENAI_BASE_URL", world.base_url)
    names: dict[str, object] = {}
    missing: set[str] = set()
    printed: str | None = None
    for block in blocks(page):
        if block.kind == "text" and block.printed and printed is not None:
            assert plain(printed) == plain(block.text), (
                f"{page.name}, block {block.number}: prints\n{printed}"
            )
        if block.kind in ("sh", "python"):
            missing.update(block.missing)
            printed = None
        if block.skipped or block.missing:
            continue
        if block.kind == "python":
            printed = run_python(block, names, world.base_url)
        elif block.kind == "sh":
            run_shell(block)
    if missing:
        pytest.skip(f"examples that need {', '.join(sorted(missing))} were left out: not installed")


def plain(printed: str) -> list[str]:
    """Lines without the spaces at their ends."""
    return [line.rstrip() for line in printed.strip("\n").splitlines()]


def run_shell(block: Block) -> None:
    where = f"{block.page.name}, block {block.number}"
    every = commands(block)
    for place, words in enumerate(every):
        if words[0] in NOT_OURS:
            continue
        assert words[0] == "blindcal", f"{where}: {words[0]} is no command of ours: {NOT_OURS}"
        if words[1] in PARSED_ONLY:
            parsed(words[1:])
            continue
        done = CliRunner().invoke(app, words[1:], default_map=FEWER_REFITS)
        wanted = block.status if place == len(every) - 1 else 0
        assert done.exit_code == wanted, f"{where}: {shlex.join(words)}\n{done.output}\n{done.exception!r}"


def parsed(words: list[str]) -> None:
    """Have a command line read without carrying it out."""
    context = click.Context(app, help_option_names=["-h", "--help"])
    command = app.get_command(context, words[0])
    assert command is not None
    command.make_context(words[0], list(words[1:]), parent=context)


def run_python(block: Block, names: dict[str, object], base_url: str) -> str:
    """Run an example and return what it prints; settings without a base URL ask the test's own service."""
    text = block.text.replace("bc.Settings(", f"bc.Settings(base_url={base_url!r}, resamples={REFITS}, ")
    # what optional packages warn about is for them to mend
    others = (
        warnings.catch_warnings(action="ignore")
        if "<!-- needs:" in block.remarks
        else contextlib.nullcontext()
    )
    with others, contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, f"{block.page.name}, block {block.number}", "exec"), names)
    return printed.getvalue()


def test_an_example_names_the_packages_that_it_lacks() -> None:
    """Those that are not installed leave it out, and are named in the reason."""
    block = Block(PAGES[0], 1, "python", "import json", "<!-- needs: json, no_such_package -->\n")
    assert block.missing == ["no_such_package"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_use_the_facade_alone(page: Path) -> None:
    """No page imports from deeper than ``blindcal``."""
    deeper = re.findall(
        r"(?:from|import) blindcal\.\S+|\bblindcal\.(?!\w+\b\()[a-z_]+\.[a-z_]\w*\(", page.read_text()
    )
    assert deeper == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page: Path) -> None:
    """Every block names its language, and commands are not hidden in indented ones."""
    assert [one.number for one in blocks(page) if not one.kind] == []
    without = BLOCK.sub("", page.read_text())
    assert re.findall(r"^    (?:blindcal|pip|make|python|export) .*", without, re.M) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Links between pages and to pictures name files that are there, and headings that exist."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in headings(linked), f"{page.name}: {target}#{anchor}"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("script", ["help_pages.py", "answer_examples.py"])
def test_generated_pages_are_the_ones_in_force(script: str) -> None:
    """docs/commands.md holds ``--help`` of every command, and docs/free-text.md the examples of the tests."""
    done = subprocess.run([sys.executable, str(ROOT / "bench" / script), "--check"], check=False)
    assert done.returncode == 0, f"run python bench/{script}"
