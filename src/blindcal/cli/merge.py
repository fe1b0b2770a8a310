"""``blindcal merge``: one result from runs on different items."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from blindcal.cli import options
from blindcal.cli.console import print_stage
from blindcal.cli.result_summary import print_result
from blindcal.errors import InputError
from blindcal.report.page import PAGE_FILE, write_page
from blindcal.results.merge import merge
from blindcal.results.result import RESULT_FILE
from blindcal.results.run import open_run
from blindcal.store.run_store import RUN_FILE


@click.command("merge")
@options.run_argument("runs", nargs=-1, required=True)
@click.option("--out", type=options.FOLDER, required=True, help="Folder to write the merged result to.")
@options.field("resamples")
@click.option(
    "--counts",
    type=options.FILE,
    help="Parquet file to write the counted answers to, for blindcal.read_counts.",
)
@options.json_option("Print the result as JSON.")
def command(runs: tuple[Path, ...], out: Path, resamples: int, counts: Path | None, as_json: bool) -> None:
    """Merge finished RUNS of one model on different items into one result.

    A large file of questions can be split and its parts audited on different machines. The answers of all
    runs are then estimated together, as if one run had asked them all. No query is sent.

    \b
    Example:
      blindcal merge runs/part-1 runs/part-2 runs/part-3 --out runs/all
    """
    opened = [open_run(run) for run in runs]
    if (out / RUN_FILE).exists():
        raise InputError(f"--out {out}: holds a run of its own", remedy="choose a new folder")
    if sys.stderr.isatty():
        print_stage(f"estimating from {len(opened)} runs")
    result = merge(opened, resamples=resamples)
    result.save(out / RESULT_FILE)
    write_page(result, out / PAGE_FILE)
    if counts is not None:
        from blindcal.estimate.counts import Counts
        from blindcal.results.answer_counts import of_run, write_counts

        write_counts(Counts.total(of_run(run) for run in opened), counts)
    if as_json:
        click.echo(result.to_json(), nl=False)
    else:
        print_result(result, out)
