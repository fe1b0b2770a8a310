"""Put the tables of bench/results into README.md and docs/.

    python bench/docs.py            # rewrite what differs
    python bench/docs.py --check    # say what differs, and end with status 1 if anything does

A page shows a table between two comments, ``<!-- bench: NAME.TABLE -->`` and ``<!-- /bench -->``. NAME is a
file in bench/results, and TABLE can be left out if the file has one table. This script writes what is between
them: the table, and a line that says how it was made. If there is no such file, it names the script that
makes the table.
"""

from __future__ import annotations

from record import RESULTS, ROOT, read

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
        """The file with its table."""
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
    """The content of the block of a table."""
    file, _, wanted = name.partition(".")
    path = RESULTS / f"{file}.json"
    if not path.is_file():
        script = ROOT / "bench" / f"{file.partition('-')[0]}.py"
        if not script.is_file():
            raise BlockError(f"{name}: there is neither {path.relative_to(ROOT)} nor a script to make it")
        return f"\n*Not recorded yet: run `python {script.relative_to(ROOT)}`.*\n\n"
    results = read(path)
    if not wanted and len(results.tables) == 1:
        (wanted,) = results.tables
    if wanted not in results.tables:
        raise BlockError(f"{name}: must be {file} and one of {', '.join(results.tables)}")
    return f"\n{results.tables[wanted].markdown()}\n{results.origin}\n\n"


def problems(page: Path) -> Iterator[str]:
    """The problems of a page's blocks, one line each."""
    try:
        for block in blocks(page):
            try:
                if block.body != rendered(block.name):
                    yield f"{page.relative_to(ROOT)}: {block.name} is not what {block.results.name} holds"
            except BlockError as error:
                yield f"{page.relative_to(ROOT)}: {error}"
    except BlockError as error:
        yield str(error)


def rewrite(page: Path) -> None:
    """Fill every block of a page that can be filled."""

    def fill(block: re.Match[str]) -> str:
        try:
            return block[1] + rendered(block["name"]) + block[4]
        except BlockError:
            return block[0]

    text = page.read_text()
    filled = _BLOCK.sub(fill, text)
    if filled != text:
        page.write_text(filled)


def write_or_check(page: Path, wanted: str) -> int:
    """Write a page or, with ``--check``, see whether it is as wanted; the exit status."""
    if "--check" in sys.argv[1:]:
        return 0 if page.read_text() == wanted else 1
    page.write_text(wanted)
    return 0


def main() -> int:
    """Write the tables, unless this is a check, and print the problems."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--check", action="store_true", help="write nothing")
    if not options.parse_args().check:
        for page in pages():
            rewrite(page)
    wrong = [line for page in pages() for line in problems(page)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
