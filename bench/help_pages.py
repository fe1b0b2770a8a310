"""Write docs/commands.md: ``--help`` of every command, as it is now.

python bench/help_pages.py
"""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from blindcal.cli import COMMANDS, app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
INTRODUCTION = """# Commands

Every command with its options, as `--help` prints them. This page is written by `python bench/help_pages.py`.

"""


def main() -> None:
    """Write the page."""
    parts = [f"- [`{name}`](#{name}): {about}" for name, about in COMMANDS.items()]
    parts += ["", _shown([])]
    for name in COMMANDS:
        parts += ["", f"## {name}", "", _shown([name])]
    PAGE.write_text(INTRODUCTION + "\n".join(parts) + "\n")


def _shown(words: list[str]) -> str:
    said = CliRunner().invoke(app, [*words, "--help"]).output.strip()
    return f"```text\n$ {' '.join(['blindcal', *words])} --help\n{said}\n```"


if __name__ == "__main__":
    main()
