"""``blindcal merge``: runs on different items, put together."""

from __future__ import annotations

from pathlib import Path

import click

from blindcal.cli import options
from blindcal.cli.audit import show
from blindcal.errors import ConfigError
from blindcal.report.page import PAGE_FILE, write
from blindcal.results.merge import merge
from blindcal.results.result import RESULT_FILE
from blindcal.results.run import open_run
from blindcal.store.run_store import RUN_FILE


@click.command("merge", short_help="Put runs on different items of one model together.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder for the result of all of them.",
)
@options.resamples_option
@click.option(
    "--counts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the counted answers, as a Parquet table for blindcal.results.answer_counts.read_counts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(runs: tuple[Path, ...], out: Path, resamples: int, counts: Path | None, as_json: bool) -> None:
    """Put finished RUNS of one model on different items together: one fit, one result.

    Split a large file of questions, audit the parts wherever there is room, and merge: the answers of all
    runs are estimated together, as if one run had asked them all. Nothing is asked.

    \b
    Example:
      blindcal merge runs/part-1 runs/part-2 runs/part-3 --out runs/all
    """
    opened = [open_run(run) for run in runs]
    if (out / RUN_FILE).exists():
        raise ConfigError(f"--out {out}: holds a run of its own; choose a new folder")
    result = merge(opened, resamples=resamples)
    out.mkdir(parents=True, exist_ok=True)
    result.save(out / RESULT_FILE)
    write(result, out / PAGE_FILE)
    if counts is not None:
        from blindcal.estimate.counts import Counts
        from blindcal.results.answer_counts import of_run, write_counts

        write_counts(Counts.total(of_run(run) for run in opened), counts)
    if as_json:
        click.echo(result.to_json(), nl=False)
    else:
        show(result, out)
