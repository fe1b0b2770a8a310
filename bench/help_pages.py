"""Write docs/commands.md: the current ``--help`` of every command.

python bench/help_pages.py            # rewrite it
python bench/help_pages.py --check    # end with status 1 if it would change
"""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner

from blindcal.cli import COMMANDS, app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
INTRODUCTION = """# Commands

Every command with its options, as `--help` prints them. This page is written by `python bench/help_pages.py`.

"""


def main() -> int:
    """Write the page, unless this is a check."""
    wanted = text()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text() == wanted else 1
    PAGE.write_text(wanted)
    return 0


def text() -> str:
    """The content of the page."""
    parts = [f"- [`{name}`](#{name}): {about}" for name, about in COMMANDS.items()]
    parts += ["", _shown([])]
    for name in COMMANDS:
        parts += ["", f"## {name}", "", _shown([name])]
    return INTRODUCTION + "\n".join(parts) + "\n"


def _shown(words: list[str]) -> str:
    said = CliRunner().invoke(app, [*words, "--help"], prog_name="blindcal").output.strip()
    return f"```text\n$ {' '.join(['blindcal', *words])} --help\n{said}\n```"


if __name__ == "__main__":
    sys.exit(main())
