"""``blindcal items``: question sets that need no download."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import click

from blindcal.questions import FAMILIES, generate
from blindcal.records import Item


@click.group("items")
def command() -> None:
    """Write a set of labelled questions that blindcal can make by itself."""


@command.command("builtin")
@click.option("--n", type=click.IntRange(1), default=1000, show_default=True, help="How many questions.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Other seeds, other questions."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, one JSON object a line; standard output if not given.",
)
def builtin(n: int, seed: int, out: Path | None) -> None:
    """Write yes/no questions made by code, with sure labels.

    Families: {families}. Half the answers are Yes, in every family; no question comes twice; fewer
    questions are the beginning of more. Each line has id, prompt, label (1 is Yes) and family; the id
    names the family and the level of difficulty, 1 to 4.
    """
    items = generate(n, seed=seed)
    with contextlib.nullcontext(sys.stdout) if out is None else out.open("w", encoding="utf-8") as file:
        for item in items:
            file.write(line(item) + "\n")
    if out is not None:
        click.echo(f"{n} questions in {out}", err=True)


builtin.help = (builtin.help or "").format(families=", ".join(FAMILIES))


def line(item: Item) -> str:
    """One question as a line of JSON."""
    prompt = item.messages[0].content
    # Not "group": an audit takes items of a group for repeats of one thing, and families are not that.
    return json.dumps({"id": item.id, "prompt": prompt, "label": item.label, "family": item.group})
