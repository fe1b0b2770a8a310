"""``blindcal report``: the report of a run, its figures and its tables."""

from __future__ import annotations

from pathlib import Path

import click

from blindcal.cli import options
from blindcal.cli.console import print_field
from blindcal.report.page import PAGE_FILE, write_page
from blindcal.report.watch_page import WATCH_PAGE, write_watch_page
from blindcal.results.run import open_result
from blindcal.results.tables import write_tables
from blindcal.results.watch_result import WATCH_FILE, WatchResult


@click.command("report")
@options.run_argument()
@click.option(
    "--out",
    type=options.FILE,
    help=f"HTML file to write.  [default: {PAGE_FILE} or {WATCH_PAGE} in the folder of the run]",
)
@click.option(
    "--figures", type=options.FOLDER, metavar="FOLDER", help="Folder to write each figure to, as PNG and SVG."
)
@click.option(
    "--csv",
    "tables",
    type=options.FOLDER,
    metavar="FOLDER",
    help="Folder to write the numbers behind each figure to, as CSV.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def command(run: Path, out: Path | None, figures: Path | None, tables: Path | None, open_page: bool) -> None:
    """Write the report of RUN, the folder of a finished audit or its result.json, or the folder of a watch.

    The report is one HTML file that needs no network and no script. An audit writes it when it finishes, and
    a watch at each look; this command writes it again or elsewhere, and its figures and tables as separate
    files. A watch has no tables.

    \b
    Example:
      blindcal report runs/boolq-gpt-4o-mini --figures figures --csv tables
    """
    if (run / WATCH_FILE).is_file():
        if tables is not None:
            raise click.UsageError(f"a watch has no tables: its numbers are in {WATCH_FILE}")
        page = _report_watch(WatchResult.load(run), out or run / WATCH_PAGE, figures)
    else:
        page = _report_audit(run, out, figures, tables)
    if open_page:
        click.launch(page.resolve().as_uri())


def _report_audit(run: Path, out: Path | None, figures: Path | None, tables: Path | None) -> Path:
    result = open_result(run)
    page = out or (run if run.is_dir() else run.parent) / PAGE_FILE
    write_page(result, page)
    print_field("page", str(page))
    if figures is not None:
        from blindcal.report.plots import draw, save_drawings  # slow to import

        print_field("figures", ", ".join(str(path) for path in save_drawings(draw(result), figures)))
    if tables is not None:
        written = write_tables(result, result.answers, tables)
        print_field("tables", ", ".join(map(str, written)))
    return page


def _report_watch(result: WatchResult, page: Path, figures: Path | None) -> Path:
    write_watch_page(result, page)
    print_field("page", str(page))
    if figures is not None:
        from blindcal.report.plots import save_drawings
        from blindcal.report.watch_figures import draw_watch

        print_field("figures", ", ".join(str(path) for path in save_drawings(draw_watch(result), figures)))
    return page
