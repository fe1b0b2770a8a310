"""``blindcal recalibrate``: the probability to show instead of each confidence."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from blindcal.cli import options
from blindcal.cli.console import print_field, print_stage, print_table
from blindcal.json_form import json_line
from blindcal.records import level_percent
from blindcal.results.recalibration import RECALIBRATION_FILE
from blindcal.results.run import open_run

_SHOWN = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@options.command("recalibrate")
@options.run_argument()
@click.option("--out", type=options.FILE, help=f"File to write.  [default: RUN/{RECALIBRATION_FILE}]")
@options.fields("level", "resamples")
@options.json_option("Print the map as one JSON object.")
def command(run: Path, out: Path | None, level: float, resamples: int, as_json: bool) -> None:
    """Write the recalibration map of RUN, the folder of a finished audit.

    The map has the share of positive labels at each confidence (with more than two answers, of right ones),
    which is the probability to show instead. It never falls, and is linear between the knots in the file;
    each has an interval. 'blindcal threshold --probability' finds the confidence of a true 90%.

    \b
    Examples:
      blindcal recalibrate runs/boolq-my-model
      blindcal recalibrate runs/boolq-my-model --out map.json

    \b
    Exit status:
      0  the map was written
      1  the run cannot be read, or does not tell one
      2  a wrong command line
    """
    opened = open_run(run)
    if sys.stderr.isatty():
        print_stage(f"refitting {resamples:,} times")
    made = opened.recalibration_map(level=level, resamples=resamples)
    path = out or opened.folder / RECALIBRATION_FILE
    made.save(path)
    if as_json:
        click.echo(json_line(made))
        return
    rows = [["confidence", "probability to show"]]
    rows += [[f"{confidence:g}", f"{made.at(confidence):.3f}"] for confidence in _SHOWN]
    print_table(rows, "<<")
    first, last = made.knots.f[0], made.knots.f[-1]
    if first > _SHOWN[0] or last < _SHOWN[-1]:
        click.echo(f"hardly any item lies below {first:.3g} or above {last:.3g}: little is known there")
    click.echo(f"each interval holds by itself, with a level of {level_percent(level)}")
    print_field("file", str(path))
