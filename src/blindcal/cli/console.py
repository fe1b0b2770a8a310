"""How a command prints what it found: a name, then what there is to say, a line each."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click

WIDTH = 11
"""Columns of the names."""
_LEAST = 40  # columns, below which wrapping would help nobody


def fact(name: str, text: str, *, width: int = WIDTH) -> None:
    """Print one fact; on a terminal it is wrapped to its width, with what goes on indented.

    In a pipe a fact stays on one line, so that it can be searched for and cut.
    """
    line = f"{name:<{width}}{text}"
    if sys.stdout.isatty():
        columns = max(_LEAST, shutil.get_terminal_size().columns)
        line = textwrap.fill(
            line, columns, subsequent_indent=" " * width, break_long_words=False, break_on_hyphens=False
        )
    click.echo(line)
