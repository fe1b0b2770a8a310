"""Pages of the documentation with their fenced blocks, and how the blocks are run.

A page's blocks are run in the order in which they stand: ``sh`` line by line, ``python`` as a whole, in a
folder with ``questions.csv``, finished runs, and a service that answers (``docs_world``).
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
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from blindcal.cli import app
from docs_world import World
from paths import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
REFITS = 20
BLOCK = re.compile(r"((?:^<!--[^\n]*?-->\n)*)^```(\w*)\n(.*?)^```$", re.M | re.S)

#: Commands that are only parsed, and what runs them.
PARSED_ONLY = {
    "demo": "tests/flow/test_demo.py runs it",
    "serve": "it serves until it is stopped; tests/flow/test_local.py runs it",
    "pull": "tests/flow/test_models.py runs it",
    "score": "it loads a model; tests/slow/test_score_hf.py runs it",
}
#: Other programs that blocks may call, and why they are not run.
NOT_OURS = {
    "pip": "needs a registry",
    "make": "CI runs the targets",
    "export": "sets what the test's world has set",
    "python": "benchmarks; tests/unit/test_docs.py knows them",
    "cd": "goes into a clone",
    "git": "makes a clone",
    "inspect": "shows a page until it is stopped",
}
#: Other defaults than a user has, so that a page takes seconds: fewer refits behind the intervals.
FEWER_REFITS: dict[str, dict[str, Any]] = {
    "audit": {"changed": [f"resamples={REFITS}"]},
    **{name: {"resamples": REFITS} for name in ("check", "compare", "merge", "threshold")},
}


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
        lists = re.findall(r"<!-- needs: (.*?) -->", self.remarks)
        needed = [name for names in lists for name in names.split(", ")]
        return [name for name in needed if importlib.util.find_spec(name) is None]

    @property
    def status(self) -> int:
        wanted = re.search(r"<!-- exit (\d+) -->", self.remarks)
        return int(wanted[1]) if wanted else 0


def blocks(page: Path) -> Iterator[Block]:
    for number, match in enumerate(BLOCK.finditer(page.read_text()), 1):
        yield Block(page, number, match[2], match[3], match[1])


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in lines)
    return {heading.strip().replace(" ", "-") for heading in plain}


def parse(words: list[str]) -> None:
    """Have a command line of blindcal read, without carrying it out."""
    context = click.Context(app, help_option_names=["-h", "--help"])
    command = app.get_command(context, words[0])
    assert command is not None
    command.make_context(words[0], list(words[1:]), parent=context)


def run_page(page: Path, world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's blocks from first to last; skips the test if some need packages that are missing."""
    shutil.copytree(world.folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OPENAI_BASE_URL", world.base_url)
    names: dict[str, object] = {}
    missing: set[str] = set()
    printed: str | None = None
    for block in blocks(page):
        if block.kind == "text" and "<!-- printed -->" in block.remarks and printed is not None:
            wanted = f"{page.name}, block {block.number}: prints\n{printed}"
            assert _stripped(printed) == _stripped(block.text), wanted
        if block.kind in ("sh", "python"):
            missing.update(block.missing)
            printed = None
        if block.skipped or block.missing:
            continue
        if block.kind == "python":
            printed = _run_python(block, names, world.base_url)
        elif block.kind == "sh":
            _run_shell(block)
    if missing:
        pytest.skip(f"examples that need {', '.join(sorted(missing))} were left out: not installed")


def _stripped(printed: str) -> list[str]:
    return [line.rstrip() for line in printed.strip("\n").splitlines()]


def _run_shell(block: Block) -> None:
    where = f"{block.page.name}, block {block.number}"
    lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    for place, words in enumerate(commands):
        if words[0] in NOT_OURS:
            continue
        assert words[0] == "blindcal", f"{where}: {words[0]} is no command of ours: {NOT_OURS}"
        if words[1] in PARSED_ONLY:
            parse(words[1:])
            continue
        done = CliRunner().invoke(app, words[1:], default_map=FEWER_REFITS)
        wanted = block.status if place == len(commands) - 1 else 0
        assert done.exit_code == wanted, f"{where}: {shlex.join(words)}\n{done.output}\n{done.exception!r}"


def _run_python(block: Block, names: dict[str, object], base_url: str) -> str:
    """Run an example and return what it prints; settings without a base URL ask the test's own service."""
    text = block.text.replace("bc.Settings(", f"bc.Settings(base_url={base_url!r}, resamples={REFITS}, ")
    # what optional packages warn about is for them to mend
    optional = "<!-- needs:" in block.remarks
    others = warnings.catch_warnings(action="ignore") if optional else contextlib.nullcontext()
    with others, contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, f"{block.page.name}, block {block.number}", "exec"), names)
    return printed.getvalue()
