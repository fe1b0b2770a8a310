"""``blindcal compare``: how two runs differ."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from blindcal.atomic_write import atomic_write
from blindcal.cli import options
from blindcal.cli.console import print_field, print_stage, print_warning
from blindcal.json_form import json_line
from blindcal.report.comparison import (
    NAMES,
    OTHER_SEMANTICS,
    comparison_page,
    draw_comparison,
    headline,
    labels_of,
    pairing,
    verdict,
)
from blindcal.results.compare import RunComparison, compare
from blindcal.results.run import Run, open_run
from blindcal.text import printable

COLUMN = 8


@click.command("compare")
@options.run_argument("run_a")
@options.run_argument("run_b")
@options.field("bins", help="Number of bins of the ECE. By default that of the runs.")
@options.fields("level", "resamples")
@click.option("--html", type=options.FILE, help="HTML file to write, with the table and the figures.")
@click.option(
    "--figures",
    type=options.FOLDER,
    metavar="FOLDER",
    help="Folder to write the curves of both runs to, as PNG and SVG.",
)
@options.json_option()
def command(
    run_a: Path,
    run_b: Path,
    bins: int | None,
    level: float,
    resamples: int,
    html: Path | None,
    figures: Path | None,
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
    found = compare(*runs, bins=bins, level=level, resamples=resamples)
    written = _write(found, runs, html, figures)
    if as_json:
        click.echo(json_line({**asdict(found), "paired": found.paired}))
        return
    _print(found)
    for path in written:
        click.echo(f"wrote {path}")


def _write(
    found: RunComparison, runs: tuple[Run, Run], html: Path | None, figures: Path | None
) -> list[Path]:
    """Write the page and the figures, and list the files."""
    if html is None and figures is None:
        return []
    from blindcal.report.plots import save_drawings

    drawings = draw_comparison([run.result for run in runs], labels_of(found))
    written = [] if figures is None else save_drawings(drawings, figures)
    if html is not None:
        with atomic_write(html) as draft:
            draft.write_text(comparison_page(found, drawings, runs), encoding="utf-8")
        written.append(html)
    return written


def _print(found: RunComparison) -> None:
    for letter, model, folder in zip("AB", found.models, (found.first, found.second), strict=True):
        click.echo(f"{letter}  {printable(model, 100)}  in {printable(folder, 300)}")
    click.echo(pairing(found))
    for sentence in headline(found):
        print_field("", sentence, width=0)
    click.echo(f"{'':<12} {'A':>{COLUMN}} {'B':>{COLUMN}} {'B - A':>{COLUMN}}  {found.level:.0%} interval")
    for one in found.differences:
        first, second, between = float(one.first), float(one.second), one.difference
        click.echo(
            f"{NAMES[one.quantity]:<12} {first:>{COLUMN}.4f} {second:>{COLUMN}.4f} "
            f"{float(between):>+{COLUMN}.4f}  {between.low:+.4f} to {between.high:+.4f}  {verdict(one)}"
        )
