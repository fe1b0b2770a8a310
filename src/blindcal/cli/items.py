"""``blindcal items``: a named set of labelled questions as a file."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click
from tqdm import tqdm

from blindcal.atomic_write import atomic_write
from blindcal.cli import options
from blindcal.errors import ConfigError
from blindcal.items import catalogue, files
from blindcal.items.families import FAMILIES
from blindcal.text import printable


@click.command("items", short_help="Write a named set of labelled questions.")
@click.argument("name", required=False)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, one JSON object a line; standard output if not given.",
)
@options.record_options
@click.option("--label-field", default="label", show_default=True, help="The field that holds the label.")
@click.option(
    "--n", type=click.IntRange(1), help=f"builtin: how many questions.  [default: {catalogue.BUILTIN_SIZE}]"
)
@click.option("--seed", type=click.IntRange(0), help="builtin: other seeds, other questions.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Without NAME: list the sets as JSON.")
def command(
    name: str | None,
    out: Path | None,
    template: str | None,
    label_map: Mapping[str, int] | None,
    data_dir: str | None,
    label_field: str,
    n: int | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Write the questions of the set NAME with their labels; without NAME, list the sets.

    \b
      boolq, mmlu    the paper's sets, from the Hugging Face Hub or from --data-dir
      builtin        yes/no questions made by code, with sure labels
      hf:NAME[:CONFIG][@SPLIT]    any set on the Hub, or a folder in its layout, with --template

    Each line has id, label, prompt, and what else the set tells: group (items that belong together),
    answer_words, and fields to break a result down by (--by subject for mmlu). 'blindcal audit' takes the
    file, or NAME itself.

    builtin has the families {families}. Half the answers are Yes, in every family; no question comes twice;
    fewer questions are the beginning of more.

    \b
    Examples:
      blindcal items boolq --out boolq.jsonl
      blindcal items hf:nyu-mll/glue:rte@validation --out rte.jsonl \\
        --template "{{sentence1}}\\nDoes it follow that: {{sentence2}} Answer Yes or No." \\
        --label-map '{{"entailment": 1, "not_entailment": 0}}'
    """
    if name is None:
        _list(as_json)
        return
    if name != catalogue.BUILTIN and (n is not None or seed is not None):
        raise ConfigError(f"--n and --seed are for {catalogue.BUILTIN}: {name} is written whole")
    reading = files.RecordFormat(template=template, labels=label_map, label_field=label_field)
    if name == catalogue.BUILTIN:
        made = catalogue.builtin(n or catalogue.BUILTIN_SIZE, seed or 0)
        opened = files.collect(name, made, reading)
    else:
        if catalogue.is_name(name) and data_dir is None:
            click.echo(f"fetching {printable(name)} from the Hugging Face Hub ...", err=True)
        opened = catalogue.open_items(name, reading, data_dir=data_dir)
    with opened as items:
        with _written(out) as file:
            for line in tqdm(
                items.lines(), total=len(items), unit="item", leave=False, delay=2, disable=None
            ):
                file.write(line)
        if out is not None:
            words = "" if items.words is None else f"; the answers are {' and '.join(items.words)}"
            click.echo(f"{len(items):,} questions in {out}{words}", err=True)


command.help = (command.help or "").format(families=", ".join(FAMILIES))


@contextlib.contextmanager
def _written(out: Path | None) -> Iterator[BinaryIO]:
    """A file that is there whole or not at all."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft, draft.open("wb") as file:
        yield file


def _list(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_described(one) for one in catalogue.SETS.values()]))
        return
    for one in catalogue.SETS.values():
        click.echo(f"{one.name:8} {one.about}")
        click.echo(f"{'':8} from {one.hosted}, or --data-dir FOLDER; answers {'/'.join(one.words)}")
    click.echo(f"{catalogue.BUILTIN:8} yes/no questions made by code: {', '.join(FAMILIES)}")
    click.echo(f"{'hf:...':8} any other: hf:NAME[:CONFIG][@SPLIT] with --template and --label-map")


def _described(one: catalogue.DataSet) -> dict[str, Any]:
    return {
        "name": one.name,
        "about": one.about,
        "source": str(one.hosted),
        "template": one.template,
        "positive": one.words[0],
        "negative": one.words[1],
    }
