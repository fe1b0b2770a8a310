"""Puts the tables of bench/results into README.md and docs/.

    python bench/docs.py            # rewrite what differs
    python bench/docs.py --check    # say what differs, and end with status 1 if anything does

A page shows a table between two comments, ``<!-- bench: NAME.TABLE -->`` and ``<!-- /bench -->``. NAME is a
file in bench/results, and TABLE may be left out where the file has one table. This script writes what is
between them: the table, and a line that says how it was made.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from record import RESULTS, ROOT, read

_BLOCK = re.compile(r"(<!-- bench: (?P<name>\S+) -->\n)(?P<body>.*?)(<!-- /bench -->)", re.DOTALL)
_OPENING = re.compile(r"<!-- bench:")


class BlockError(Exception):
    """A block that cannot be filled."""


@dataclass(frozen=True, slots=True)
class Block:
    """A table's place on a page."""

    page: Path
    name: str
    body: str

    @property
    def results(self) -> Path:
        """The file that its table is in."""
        return RESULTS / f"{self.name.partition('.')[0]}.json"


def pages() -> list[Path]:
    """Every page that may show tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page."""
    text = page.read_text()
    found = list(_BLOCK.finditer(text))
    if len(found) != len(_OPENING.findall(text)):
        raise BlockError(f"{page}: a bench comment is not closed, or is not on a line of its own")
    for one in found:
        yield Block(page, one["name"], one["body"])


def rendered(name: str) -> str:
    """What belongs into the block of a table."""
    file, _, wanted = name.partition(".")
    path = RESULTS / f"{file}.json"
    if not path.is_file():
        raise BlockError(f"{name}: there is no {path.relative_to(ROOT)}")
    results = read(path)
    if not wanted and len(results.tables) == 1:
        (wanted,) = results.tables
    if wanted not in results.tables:
        raise BlockError(f"{name}: must be {file} and one of {', '.join(results.tables)}")
    return f"\n{results.tables[wanted].markdown()}\n{results.origin}\n\n"


def updated(page: Path) -> str:
    """A page with every block as it should be."""
    list(blocks(page))
    return _BLOCK.sub(lambda one: one[1] + rendered(one["name"]) + one[4], page.read_text())


def stale() -> list[Block]:
    """The blocks whose content is not that of their file."""
    return [block for page in pages() for block in blocks(page) if block.body != rendered(block.name)]


def main() -> int:
    """Write, or check."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--check", action="store_true", help="write nothing; name what differs")
    check = options.parse_args().check
    try:
        different = stale()
        if not check:
            for page in {block.page for block in different}:
                page.write_text(updated(page))
    except BlockError as error:
        raise SystemExit(str(error)) from None
    for block in different:
        where = block.page.relative_to(ROOT)
        print(f"{where}: {block.name} {'differs' if check else 'written'}")
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())
