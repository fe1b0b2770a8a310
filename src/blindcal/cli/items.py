"""``blindcal items``: a named set of labelled questions, or those of a log, as a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click
from tqdm import tqdm

from blindcal.atomic_write import atomic_write
from blindcal.cli import options
from blindcal.cli.console import print_stage, print_table
from blindcal.errors import InputError
from blindcal.field_rules import rules_of
from blindcal.items import catalogue
from blindcal.items.question_files import Items
from blindcal.items.record_format import RecordFormat
from blindcal.text import listed, printable


@options.command("items")
@click.argument("name", required=False)
@click.option(
    "--out", type=options.FILE, help="Output file, one JSON object per line.  [default: standard output]"
)
@options.fields("self_check", "template", "answers", "label_field")
@options.set_option("self_check", "template", "answers", "label_field", accepted=rules_of(RecordFormat))
@click.option(
    "--n",
    type=click.IntRange(1, catalogue.BUILTIN_SIZE),
    help="Number of built-in questions.  [default: all]",
)
def command(name: str | None, out: Path | None, n: int | None, **chosen: Any) -> None:
    """Write the labelled questions of the set NAME to a file; without NAME, list the sets.

    \b
      boolq, mmlu               the paper's sets, from the Hugging Face Hub or --set data_dir=FOLDER
      mmlu-choices              MMLU with four options per question
      builtin                   {size} yes/no questions that ship with blindcal
      hf:NAME[:CONFIG][@SPLIT]  any set on the Hub, or a folder in its layout, with --template
      LOG                       questions of an evaluation: a log of Inspect (.eval, .json), or the samples
                                of lm-evaluation-harness (--log_samples)

    Each line has the fields id, label and prompt. Depending on the set it also has group (items that belong
    together), answer_words, answers or choices, and fields to break a result down by (--by subject for mmlu).
    'blindcal audit' accepts the file as well as NAME itself.

    The families of builtin are {families}. In each of them half the labels are positive, and --n takes the
    first N questions.

    \b
    Examples:
      blindcal items boolq --out boolq.jsonl
      blindcal items hf:nyu-mll/glue:rte@validation --out rte.jsonl \\
        --template "{sentence1}\\nDoes it follow that: {sentence2} Answer Yes or No." \\
        --set 'label_map={"entailment": 1, "not_entailment": 0}'
    """
    if name is None:
        _list()
        return
    if name != catalogue.BUILTIN and n is not None:
        raise InputError(f"--n is for {catalogue.BUILTIN} only, not for {printable(name)}")
    reading: RecordFormat = options.chosen_settings(chosen, model="unknown").prompt
    if catalogue.is_name(name) and name != catalogue.BUILTIN and reading.data_dir is None:
        print_stage(f"downloading {printable(name)} from the Hugging Face Hub")
    numbered, reading = catalogue.open_records(name, reading)
    records = list(islice(numbered, n))
    items = Items(Path(name), reading, records)
    with _output(out) as file:
        for number, item in enumerate(tqdm(items, unit="item", leave=False, delay=2, disable=None)):
            file.write(reading.line(item, records[number][1], number))
    if out is not None:
        answers = "" if items.words is None else f"; the answers are {printable(listed(items.words))}"
        click.echo(f"{len(items):,} questions in {out}{answers}", err=True)


options.fill_help(command, size=f"{catalogue.BUILTIN_SIZE:,}", families=", ".join(catalogue.FAMILIES))


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[BinaryIO]:
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    with atomic_write(out) as draft, draft.open("wb") as file:
        yield file


def _list() -> None:
    rows = []
    for dataset in catalogue.SETS.values():
        origin = f"from {dataset.hosted}, or --set data_dir=FOLDER; answers {'/'.join(dataset.words)}"
        rows += [[dataset.name, dataset.about], ["", origin]]
    families = ", ".join(catalogue.FAMILIES)
    rows.append([catalogue.BUILTIN, f"{catalogue.BUILTIN_SIZE:,} yes/no questions: {families}"])
    rows.append(["hf:...", "any other set: hf:NAME[:CONFIG][@SPLIT] with --template and --set label_map"])
    print_table(rows, "<<")
