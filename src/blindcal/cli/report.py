"""``blindcal report``: the report of a run and its figures."""

from __future__ import annotations

from pathlib import Path

import click

from blindcal.cli import options
from blindcal.cli.console import print_field
from blindcal.report.page import PAGE_FILE, write_page
from blindcal.report.watch_page import WATCH_PAGE, write_watch_page
from blindcal.results.run import open_result
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
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def command(run: Path, out: Path | None, figures: Path | None, open_page: bool) -> None:
    """Write the report of RUN, the folder of a finished audit or its result.json, or the folder of a watch.

    The report is one HTML file that needs no network and no script. An audit writes it when it finishes, and
    a watch at each look; this command writes it again or elsewhere, and its figures as separate files.

    \b
    Example:
      blindcal report runs/boolq-gpt-4o-mini --figures figures
    """
    from blindcal.report.plots import draw, save_drawings  # slow to import
    from blindcal.report.watch_figures import draw_watch

    if (run / WATCH_FILE).is_file():
        watched = WatchResult.load(run)
        page = out or run / WATCH_PAGE
        write_watch_page(watched, page)
        drawings = () if figures is None else draw_watch(watched)
    else:
        result = open_result(run)
        page = out or (run if run.is_dir() else run.parent) / PAGE_FILE
        write_page(result, page)
        drawings = () if figures is None else draw(result)
    print_field("page", str(page))
    if figures is not None:
        print_field("figures", ", ".join(map(str, save_drawings(drawings, figures))))
    if open_page:
        click.launch(page.resolve().as_uri())
