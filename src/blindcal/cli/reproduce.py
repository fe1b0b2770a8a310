"""``blindcal reproduce``: the published table and figures for any models, with blindcal's methods added."""

from __future__ import annotations

import os
from pathlib import Path

import click
from tqdm import tqdm

from blindcal.cli import INTERRUPTED, options
from blindcal.errors import InputError
from blindcal.json_form import json_line
from blindcal.reproduce import table
from blindcal.reproduce.sources import Source, find, read
from blindcal.reproduce.table import TABLE_METHODS, Column, Measured, MethodTable
from blindcal.text import file_name, printable

MOST_JOBS = 8
MOST_BUDGET = 8


def _budgets(text: str) -> tuple[int, ...]:
    try:
        low, dash, high = text.partition("-")
        budgets = set(range(int(low), int(high) + 1) if dash else map(int, text.split(",")))
    except ValueError:
        budgets = set()
    if not budgets or not all(1 <= k <= MOST_BUDGET for k in budgets):
        raise InputError(
            f"{printable(text, 40)!r} is neither a range such as 1-8 nor a list such as 1,2,4, "
            f"from 1 to {MOST_BUDGET}"
        )
    return tuple(sorted(budgets))


@options.command("reproduce")
@click.argument("files", nargs=-1, required=True, type=options.PATH)
@options.answer_pair_option
@click.option(
    "--semantics",
    type=click.Choice(["pair", "max"]),
    default="pair",
    help="Spellings that count as an answer: the one that the model prefers, or the likeliest of all.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(TABLE_METHODS),
    help="Method to include; repeat for more.  [default: all]",
)
@click.option(
    "--budgets",
    type=options.Parsed("K-K|K,K", _budgets),
    default="1-8",
    help="Numbers of queries per item to include.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    default=20,
    metavar="N",
    help="Number of repeats, with seeds from 0 up.",
)
@options.field("bins", default=5, help="Number of bins of the ECE.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help=f"Number of processes that compute.  [default: one per core, at most {MOST_JOBS}]",
)
@click.option("--out", type=options.FOLDER, default=Path("reproduced"), help="Output folder.")
@options.output_options("Print the cells as JSON lines instead of the table.")
def command(
    files: tuple[Path, ...],
    answers: tuple[str, str] | None,
    semantics: str,
    methods: tuple[str, ...],
    budgets: tuple[int, ...],
    seeds: int,
    bins: int,
    jobs: int | None,
    out: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Reproduce the published table (Plaud et al. 2026) and its figures for any models and data sets.

    The table holds every method of the paper and ours at every budget, and their errors against the oracle
    over several seeds. The folder --out gets index.html with everything, table.md, cells.csv and the figures:
    cost against error, and the calibration curves of each model beside its white-box reliability.

    FILES are scores (id,label,p), as 'blindcal score' writes them, or logits (id,label,'text|token
    id',...,lse,argmax), or folders of them, named MODEL__DATASET.csv. The last two underscores separate the
    names, so that MODEL may contain some.

    \b
    Examples:
      blindcal reproduce logits/ scores/
      blindcal reproduce scores/ --method blind --method latent --budgets 1-2 --seeds 5
    """
    sources: dict[str, Source] = {}
    for path in find(files):
        source = read(path, answers)
        name = file_name(source.model, source.data)
        if name in sources:
            raise InputError(
                f"{path}: a second file of {source.name}; files are named MODEL__DATASET.csv, and the last "
                "two underscores separate the names"
            )
        sources[name] = source.spelled("max") if semantics == "max" else source
    chosen = methods or TABLE_METHODS
    runs = [
        run
        for source in sources.values()
        for run in table.table_runs(source, methods=chosen, budgets=budgets, seeds=range(seeds), bins=bins)
    ]
    measured: dict[int, list[Measured]] = {}
    try:
        results = table.measure_runs(runs, jobs=jobs or min(MOST_JOBS, os.cpu_count() or 1))
        shown = tqdm(results, total=len(runs), unit="run", leave=False, delay=2, disable=quiet or None)
        for run, estimates in zip(runs, shown, strict=True):
            measured.setdefault(id(run.source), []).extend(estimates)
    except KeyboardInterrupt:
        click.get_current_context().exit(INTERRUPTED)
    columns = (Column(source, tuple(measured.get(id(source), ())), bins) for source in sources.values())
    comparison = MethodTable(tuple(columns), bins, seeds)
    from blindcal.reproduce import page  # slow to import

    written = page.write(comparison, out)
    if as_json:
        for cell in table.cells(comparison):
            click.echo(json_line(cell))
    elif not quiet:
        click.echo(table.markdown(comparison))
        click.echo(f"everything is in {written}", err=True)
