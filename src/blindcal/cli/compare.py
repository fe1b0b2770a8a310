"""``blindcal compare``: how two runs differ."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from blindcal.atomic_write import atomic_write
from blindcal.cli import options
from blindcal.cli.console import print_field, print_stage, print_table, print_warning
from blindcal.json_form import json_line
from blindcal.report.comparison import (
    NAMES,
    OTHER_SEMANTICS,
    comparison_page,
    headline,
    pairing,
    verdict,
)
from blindcal.results.compare import RunComparison, compare
from blindcal.results.run import open_run
from blindcal.text import printable


@click.command("compare")
@options.run_argument("run_a")
@options.run_argument("run_b")
@options.field("bins", help="Number of bins of the ECE. By default that of the runs.")
@options.fields("level", "resamples")
@click.option("--html", type=options.FILE, help="HTML file to write, with the table and the figures.")
@options.json_option()
def command(
    run_a: Path,
    run_b: Path,
    bins: int | None,
    level: float,
    resamples: int,
    html: Path | None,
    as_json: bool,
) -> None:
    """Compare two finished runs: another model, another prompt, before and after a change.

    RUN_A and RUN_B are the folders of the runs. Items that both runs asked about are paired, so that what
    makes an item hard for both does not blur the difference. A difference is shown if its interval excludes
    zero.

    \b
    Example:
      blindcal compare runs/boolq-gpt-4o-mini runs/boolq-gpt-4o --html compared.html

    \b
    Exit status:
      0  compared, whatever was found
      1  a run cannot be read or has no fit
      2  a wrong command line
    """
    runs = open_run(run_a), open_run(run_b)
    for run in runs:
        if not run.result.complete:
            print_warning(f"{run.folder} is not finished")
    if len({run.result.semantics for run in runs}) > 1:
        print_warning(f"{OTHER_SEMANTICS[0].lower()}{OTHER_SEMANTICS[1:]}")
    if sys.stderr.isatty():
        print_stage(f"refitting {2 * resamples:,} times")
    comparison = compare(*runs, bins=bins, level=level, resamples=resamples)
    if html is not None:
        with atomic_write(html) as draft:
            draft.write_text(comparison_page(comparison, runs), encoding="utf-8")
    if as_json:
        click.echo(json_line({**asdict(comparison), "paired": comparison.paired}))
        return
    _print(comparison)
    if html is not None:
        click.echo(f"wrote {html}")


def _print(comparison: RunComparison) -> None:
    folders = comparison.first, comparison.second
    for letter, model, folder in zip("AB", comparison.models, folders, strict=True):
        click.echo(f"{letter}  {printable(model, 100)}  in {printable(folder, 300)}")
    click.echo(pairing(comparison))
    for sentence in headline(comparison):
        print_field("", sentence, width=0)
    table = [["", "A", "B", "B - A", f"{comparison.level:.0%} interval", ""]]
    for row in comparison.differences:
        numbers = [f"{float(row.first):.4f}", f"{float(row.second):.4f}", f"{float(row.difference):+.4f}"]
        interval = f"{row.difference.low:+.4f} to {row.difference.high:+.4f}"
        table.append([NAMES[row.quantity], *numbers, interval, verdict(row)])
    print_table(table, "<>>><<")
