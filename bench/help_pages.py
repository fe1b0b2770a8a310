"""Write docs/commands.md: the current ``--help``, or ``--help-all``, of every command.

python bench/help_pages.py            # rewrite it
python bench/help_pages.py --check    # end with status 1 if it would change
"""

from __future__ import annotations

from record import ROOT

import sys
from dataclasses import MISSING

from click.testing import CliRunner

from blindcal.cli import COMMANDS, app
from blindcal.endpoints.address import OPENAI
from blindcal.field_rules import FieldRule
from blindcal.settings import SETTINGS
from docs import write_or_check

PAGE = ROOT / "docs" / "commands.md"
INTRODUCTION = """# Commands

Every command with its options, as `--help` prints them, and the [settings](#settings) that Python and
`--set NAME=VALUE` take. This page is written by `python bench/help_pages.py`.

"""
SETTINGS_HEADING = """
## Settings

`blindcal.Settings(NAME=VALUE)` takes every setting; on the command line, `--set NAME=VALUE` sets those
without an option of their own. In `--set`, words are separated by commas, and objects are JSON.

| setting | value | default | sets |
|---|---|---|---|
"""


def text() -> str:
    """The content of the page."""
    parts = [f"- [`{name}`](#{name}): {about}" for name, about in COMMANDS.items()]
    parts += ["", _shown([])]
    for name in COMMANDS:
        parts += ["", f"## {name}", "", _shown([name])]
    rows = [
        f"| `{name}` | {rule.rule} | {_default(rule)} | {rule.about} |"
        for name, rule in sorted(SETTINGS.items())
    ]
    return INTRODUCTION + "\n".join(parts) + "\n" + SETTINGS_HEADING + "\n".join(rows) + "\n"


def _default(rule: FieldRule) -> str:
    if rule.default is MISSING:
        return f"`{OPENAI}`" if rule.name == "base_url" else "required"
    if isinstance(rule.default, bool):
        return str(rule.default).lower()
    return "" if rule.default in (None, (), {}) else f"`{rule.default}`"


def _shown(words: list[str]) -> str:
    asked = "--help"
    printed = CliRunner().invoke(app, [*words, asked], prog_name="blindcal").output.strip()
    if "--help-all" in printed:
        asked = "--help-all"
        printed = CliRunner().invoke(app, [*words, asked], prog_name="blindcal").output.strip()
    return f"```text\n$ {' '.join(['blindcal', *words, asked])}\n{printed}\n```"


def main() -> int:
    """Write the page, unless this is a check."""
    return write_or_check(PAGE, text())


if __name__ == "__main__":
    sys.exit(main())
