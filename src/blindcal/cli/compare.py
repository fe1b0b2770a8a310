"""``blindcal compare``: how two runs differ."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from blindcal.cli import options
from blindcal.cli.console import fact
from blindcal.results.compare import (
    NAMES,
    OTHER_SEMANTICS,
    RunComparison,
    compare,
    headline,
    pairing,
    verdict,
)
from blindcal.results.run import Run, open_run
from blindcal.text import printable

NARROW = 8


@click.command("compare", short_help="Show how two runs differ.")
@click.argument("run_a", type=click.Path(path_type=Path), callback=options.existing_runs)
@click.argument("run_b", type=click.Path(path_type=Path), callback=options.existing_runs)
@click.option("--bins", type=click.IntRange(1), help="Bins of the ECE.  [default: the runs' own]")
@options.level_option
@options.resamples_option
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with table and figures."
)
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the overlaid curves as PNG and SVG.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    """Show how two finished runs differ: another model, another prompt, before and after.

    RUN_A and RUN_B are the runs' folders. Where both asked about the same items the comparison is paired:
    what makes an item hard for both does not blur the difference. A difference is shown if its interval
    does not hold zero.

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
            click.echo(f"warning: {run.folder} is not finished", err=True)
    if len({run.result.semantics for run in runs}) > 1:
        click.echo(f"warning: {OTHER_SEMANTICS[0].lower()}{OTHER_SEMANTICS[1:]}", err=True)
    if sys.stderr.isatty():
        click.echo(f"refitting {2 * resamples:,} times ...", err=True)
    found = compare(*runs, bins=bins, level=level, resamples=resamples)
    written = _draw(found, runs, html, figures)
    if as_json:
        click.echo(json.dumps({**asdict(found), "paired": found.paired}))
        return
    _show(found)
    for path in written:
        click.echo(f"wrote {path}")


def _draw(found: RunComparison, runs: tuple[Run, Run], html: Path | None, figures: Path | None) -> list[Path]:
    if html is None and figures is None:
        return []
    from blindcal.report.comparison import comparison_page, draw_comparison, labels_of, save_comparison

    drawn = draw_comparison([run.result for run in runs], labels_of(found))
    written = [] if figures is None else save_comparison(drawn, figures)
    if html is not None:
        html.write_text(comparison_page(found, drawn, runs), encoding="utf-8")
        written.append(html)
    return written


def _show(found: RunComparison) -> None:
    for letter, model, folder in zip("AB", found.models, (found.first, found.second), strict=True):
        click.echo(f"{letter}  {printable(model, 100)}  in {printable(folder, 300)}")
    click.echo(pairing(found))
    for sentence in headline(found):
        fact("", sentence, width=0)
    click.echo(f"{'':<12} {'A':>{NARROW}} {'B':>{NARROW}} {'B - A':>{NARROW}}  {found.level:.0%} interval")
    for one in found.differences:
        click.echo(
            f"{NAMES[one.quantity]:<12} {one.first:>{NARROW}.4f} {one.second:>{NARROW}.4f} "
            f"{one.value:>+{NARROW}.4f}  {one.low:+.4f} to {one.high:+.4f}  {verdict(one)}"
        )
