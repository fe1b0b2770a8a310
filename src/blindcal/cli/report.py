"""``blindcal report``: the page of a run, its figures and the numbers behind them."""

from __future__ import annotations

from pathlib import Path

import click

from blindcal.cli import options
from blindcal.report.page import PAGE_FILE, write
from blindcal.results.run import open_result


@click.command("report", short_help="Make the page of a run, its figures and its tables.")
@click.argument("run", type=click.Path(path_type=Path), callback=options.existing_runs)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Where the page goes.  [default: {PAGE_FILE} in the run's folder]",
)
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also write each figure as PNG and SVG into this folder.",
)
@click.option(
    "--csv",
    "tables",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also write the numbers behind each figure as CSV into this folder.",
)
@click.option("--open", "look", is_flag=True, help="Open the page in a browser.")
def command(run: Path, out: Path | None, figures: Path | None, tables: Path | None, look: bool) -> None:
    """Make the page of RUN, the folder of a finished audit or its result.json.

    The page is one file that needs no network and no script: mail it, print it, open it on a phone. An audit
    writes it by itself at its end; this makes it again, elsewhere, or with figures and tables as files.

    \b
    Example:
      blindcal report runs/boolq-gpt-4o-mini --figures figures --csv tables
    """
    result = open_result(run)
    page = out or (run if run.is_dir() else run.parent) / PAGE_FILE
    page.parent.mkdir(parents=True, exist_ok=True)
    write(result, page)
    click.echo(f"page       {page}")
    if figures is not None:
        from blindcal.report.plots import save_figures

        click.echo(f"figures    {', '.join(str(path) for path in save_figures(result, figures))}")
    if tables is not None:
        from blindcal.report.csv_tables import write_curves

        click.echo(f"tables     {', '.join(str(path) for path in write_curves(result, tables))}")
    if look:
        click.launch(page.resolve().as_uri())
