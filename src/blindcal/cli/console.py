"""How commands print: named fields on standard output; stages, warnings and errors on standard error."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from blindcal.errors import BlindcalError
from blindcal.text import printable

if TYPE_CHECKING:  # slow to import
    from blindcal.results.result import Spend

WIDTH = 11
"""Width of the column of names."""
_COLORS = {
    **dict.fromkeys(("WARNING", "warning:", "  undecided"), "yellow"),
    **dict.fromkeys(("error:", "  failed"), "red"),
    "  passed": "green",
}
_LEAST = 40  # columns; text is not wrapped to fewer

#: Settings with an option of their own in every command that asks questions of an endpoint.
QUESTION_SETTINGS = (
    "model",
    "base_url",
    "api",
    "api_key_env",
    "extra_body",
    "self_check",
    "template",
    "instructions",
    "answers",
    "label_field",
)
#: And in ``blindcal audit``.
AUDIT_SETTINGS = (
    *("confidence_field", "answer_field", "verdict_field", "strata_field"),
    *(*QUESTION_SETTINGS, "by_field", "method", "sample", "queries", "seed"),
)
#: Options that are not named like their fields.
FLAGS = {
    "by_field": "--by",
    **{f"{name}_field": f"--{name}" for name in ("confidence", "answer", "verdict", "strata")},
}


def print_field(name: str, text: str, *, width: int = WIDTH, err: bool = False) -> None:
    """Print a name and its text: wrapped on a terminal, on one line in a pipe, for grep and cut."""
    line = f"{name:<{width}}{text}"
    if (sys.stderr if err else sys.stdout).isatty():
        columns = max(_LEAST, shutil.get_terminal_size().columns)
        line = textwrap.fill(
            line, columns, subsequent_indent=" " * width, break_long_words=False, break_on_hyphens=False
        )
    if name in _COLORS:
        line = colored(name, _COLORS[name]) + line[len(name) :]
    click.echo(line, err=err)


def colored(text: str, color: str) -> str:
    return text if "NO_COLOR" in os.environ else click.style(text, fg=color, bold=True)


def print_table(rows: Sequence[Sequence[str]], align: str, *, indent: int = 0) -> None:
    """Print rows in columns aligned by ``align`` (< or >); text may overflow into empty cells after it."""
    filled = [
        [cell if any(row[k + 1 :]) or k + 1 == len(row) else "" for k, cell in enumerate(row)] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    for row in rows:
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True))
        click.echo((" " * indent + "  ".join(cells)).rstrip())


def print_spend(spend: Spend, asides: str, *, err: bool = False) -> None:
    """Print the queries of a run, of which ``asides`` were about no item, their tokens and their cost."""
    cost = "" if spend.cost is None else f", ${spend.cost:,.4f}"
    tokens = f"{spend.prompt_tokens:,} tokens in, {spend.completion_tokens:,} out"
    print_field("queries", f"{spend.queries:,} ({asides}), {tokens}{cost}", err=err)
    if spend.tokens_estimated:
        note = "in part estimated: the endpoint reports none, or impossible numbers"
        print_field("tokens", note, err=err)


def print_stopped(why: str | None, *, err: bool = False) -> None:
    """Print why a run was stopped, if it was."""
    if why is not None:
        print_field("stopped", f"{printable(why, 400)}; the same command goes on", err=err)


def print_stage(stage: str) -> None:
    print_field("", f"{with_flags(stage)} ...", width=0, err=True)


def with_flags(text: str) -> str:
    """A text with the reasoning effort, as Python sets it, in the form of the command line."""
    effort = re.compile(r"\b(reasoning_effort)='(\w+)'")
    return effort.sub(lambda match: command_line_option(*match.groups()), text)


def print_warning(text: str) -> None:
    print_field("warning:", text, width=9, err=True)


def print_error(error: BlindcalError) -> None:
    print_field("error:", error_text(error), width=7, err=True)


def error_text(error: BlindcalError) -> str:
    return error.render(command_line_option)


def command_line_option(name: str, value: object) -> str:
    """An option as on the command line; ``None`` and an ellipsis stand for a value that the user chooses."""
    from blindcal.settings import SETTINGS  # slow to import, and an error is rare

    if name in SETTINGS.keys() - AUDIT_SETTINGS:
        text = "VALUE" if value is None or value is ... else _text(value)
        return f"--set {shlex.quote(f'{name}={text}')}"
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is None or value is ... or isinstance(value, bool):
        return flag
    return f"{flag} {shlex.quote(_text(value))}"


def _text(value: object) -> str:
    if isinstance(value, Mapping | bool):
        return json.dumps(value)
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
