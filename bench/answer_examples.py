"""Write the examples of docs/free-text.md: what the tests say that texts are read as.

python bench/answer_examples.py            # rewrite them
python bench/answer_examples.py --check    # end with status 1 if they would change
"""

from __future__ import annotations

from record import ROOT

import re
import sys

from test_free_text import OTHERS, UNREADABLE, YES_OR_NO  # the one table of examples

from docs import write_or_check

PAGE = ROOT / "docs" / "free-text.md"
_BLOCK = re.compile(r"(?<=<!-- examples -->\n).*?(?=<!-- /examples -->)", re.DOTALL)


def text() -> str:
    """The table of examples."""
    rows = [(said, "Yes, No", answer) for said, answer in YES_OR_NO]
    rows += [(said, ", ".join(answers), answer) for said, answers, answer in OTHERS]
    rows += [(said, "Yes, No", f"*{reason}*") for said, reason in UNREADABLE]
    lines = ["", "| text | answer words | read as |", "|---|---|---|"]
    lines += [f"| {_cell(said)} | {words} | {answer} |" for said, words, answer in rows]
    return "\n".join([*lines, "", ""])


def _cell(said: str) -> str:
    """A text as code in a table: on one line, and safe from the table's own marks."""
    shown = said.replace("|", "\\|").replace("\n", " ⏎ ")
    fence = "``" if "`" in shown else "`"
    padding = " " if "`" in shown or shown != shown.strip() or not shown else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


def main() -> int:
    """Write the tables, unless this is a check."""
    return write_or_check(PAGE, _BLOCK.sub(lambda _: text(), PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())
