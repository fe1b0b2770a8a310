"""``blindcal watch``: a stream of questions, asked once each, and alarms that say what changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from blindcal.asking.limits import Limits
from blindcal.cli import INTERRUPTED, options
from blindcal.cli.alarm_command import AlarmCommand
from blindcal.cli.console import error_text, print_field
from blindcal.cli.param_types import FiniteRange
from blindcal.errors import BlindcalError
from blindcal.prices import Prices
from blindcal.progress_bar import ProgressBar
from blindcal.report.watch_page import WATCH_PAGE, look_line, verdicts, write_watch_page
from blindcal.results.watch_result import WATCH_FILE, WatchResult
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable
from blindcal.watching.reference import open_reference
from blindcal.watching.watch import EVERY, watch, watch_folder

QUIET, STOPPED, RAISED = 0, 3, 4


@click.command("watch")
@click.argument("stream", type=options.PATH)
@click.option(
    "--reference",
    type=options.PATH,
    required=True,
    callback=options.existing_runs,
    help="Run of 'blindcal audit' to compare with. It says how to ask: model, prompt, answer tokens.",
)
@click.option(
    "--labels",
    type=options.PATH,
    help="File or folder of labels that come later, keyed by the id of the item.",
)
@click.option(
    "--out",
    type=options.FOLDER,
    help="Folder of the watch; a watch in it is continued.  [default: watches/STREAM-MODEL]",
)
@click.option(
    "--rate",
    type=FiniteRange(0, 1, min_open=True),
    default=1.0,
    help="Share of the items that is asked, chosen at random by their ids.",
)
@click.option(
    "--alpha",
    "level",
    type=options.INNER_SHARE,
    default=0.05,
    help="Highest chance of each alarm ever to be raised for nothing.",
)
@click.option(
    "--max-ece",
    type=FiniteRange(0, 1, max_open=True),
    help="Test the calibration against this limit of the ECE; 0 for perfect calibration.  "
    "[default: compare with the reference]",
)
@click.option("--by", "by_field", metavar="FIELD", help="Field that defines slices, each with an alarm.")
@click.option("--every", type=click.IntRange(1), default=EVERY, help="Number of new items to ask per look.")
@click.option("--follow", is_flag=True, help="Wait for more records until interrupted.")
@click.option(
    "--max-cost-per-day",
    type=options.POSITIVE_NUMBER,
    metavar="DOLLARS",
    help="Maximum cost per day (UTC); items beyond it wait for the next day. Requires prices.",
)
@options.prices_option
@options.fields("concurrency", "rpm", "api_key_env")
@click.option(
    "--on-alarm",
    "alarm_command",
    metavar="COMMAND",
    help="Shell command to run once per alarm, with the look as JSON on its standard input.",
)
@click.option(
    "--force", is_flag=True, help="Go on although the endpoint does not follow the bias as in the reference."
)
@options.json_option("Print one JSON object per look, one per line.")
@options.quiet_option
def command(
    stream: Path,
    reference: Path,
    out: Path | None,
    max_cost_per_day: float | None,
    given_prices: Prices | None,
    api_key_env: str,
    alarm_command: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Watch a model in production: ask each item of STREAM once, and raise an alarm if something changed.

    STREAM is a file of JSON lines that grows, a CSV or Parquet file, a folder of such files, or - for
    standard input. A record has the fields that the template of the reference audit names, an id, and a label
    if it is known. Labels that come later are in a file named by --labels, or in a later record with the same
    id. Each item is asked one query, at a threshold that follows from its id.

    There are three alarms. The endpoint alarm asks a few items again and again where their answers were
    known to flip: is it still the same model? The questions alarm compares the answers with those of the
    reference, without labels: is the model asked something else? The calibration alarm needs labels: is the
    confidence still right? Each is raised for nothing with a chance of at most --alpha, however long the
    watch and however often you look.

    Everything is kept in the folder of the watch: the same command continues it and asks nothing twice, so
    it can be run by cron. Without --follow it reads what is there, asks, prints a line per look and ends. The
    folder has a page, watch.html, and the same numbers in watch.json.

    \b
    Examples:
      blindcal watch traffic.jsonl --reference runs/questions-gpt-4o-mini
      blindcal watch traffic.jsonl --reference runs/questions-gpt-4o-mini --labels labels.csv --rate 0.05
      tail -f app.log | blindcal watch - --reference runs/questions-gpt-4o-mini --follow

    \b
    In a crontab, with a script that is run when an alarm is raised:
      OPENAI_API_KEY=...
      */30 * * * * cd /srv && blindcal watch in.jsonl --reference runs/base --quiet --on-alarm ./post.sh

    \b
    Exit status:
      0    no alarm
      1    an error: wrong key, address or file, another watch in the folder
      2    a wrong command line
      3    stopped early (queries kept failing), and no alarm
      4    an alarm is raised, now or at an earlier look
      130  interrupted; nothing is lost
    """
    context = click.get_current_context()
    limits = options.taken(Limits, given)
    asked = open_reference(reference, api_key_env=api_key_env, force=given["force"])
    settings = asked.settings
    prices = options.prices(given_prices, settings, quiet=quiet)
    options.check_priced(max_cost_per_day, prices, settings.endpoint, "--max-cost-per-day")
    folder = out or watch_folder(stream, settings.endpoint.model)
    options.check_key(settings.endpoint, begun=(folder / RUN_FILE).exists())
    on_alarm: AlarmCommand | None = None
    try:
        with ProgressBar(disable=quiet or None) as bar:
            outputs = LookOutputs(
                print_line=bar.wrap_print(click.echo),
                print_message=bar.wrap_print(lambda text: click.echo(text, err=True)),
                as_json=as_json,
                quiet=quiet,
            )
            if alarm_command is not None:
                on_alarm = AlarmCommand(alarm_command, outputs.print_warning)
            found = watch(
                stream,
                asked.run,
                out=folder,
                limits=limits,
                prices=prices,
                max_cost_per_day=max_cost_per_day,
                api_key_env=api_key_env,
                progress=bar,
                stage=None if quiet else bar.wrap_print(lambda text: click.echo(f"{text} ...", err=True)),
                on_look=outputs,
                on_alarm=on_alarm,
                **given,
            )
    except KeyboardInterrupt:
        click.echo("interrupted; everything answered is kept: the same command goes on with it", err=True)
        context.exit(INTERRUPTED)
    finally:
        if on_alarm is not None:
            on_alarm.kill()
    if not quiet:
        _print_end(found)
    context.exit(RAISED if found.raised else QUIET if found.complete else STOPPED)


@dataclass
class LookOutputs:
    """What is printed and written at each look; a page that cannot be written is a warning."""

    print_line: Callable[[str], None]
    print_message: Callable[[str], None]
    as_json: bool = False
    quiet: bool = False
    _known: set[str] = field(default_factory=set)

    def __call__(self, result: WatchResult) -> None:
        """Print and write what one look has found."""
        if self.as_json:
            self.print_line(result.to_json().decode())
        elif not self.quiet:
            self.print_line(look_line(result))
        if not self.quiet:
            self._print_new(result)
        try:
            write_watch_page(result)
        except BlindcalError as error:
            self.print_warning(f"{error_text(error)}; the next look tries again")

    def print_warning(self, text: str) -> None:
        """Print a warning, also with ``quiet``."""
        self.print_message(f"warning: {text}")

    def _print_new(self, result: WatchResult) -> None:
        """What is raised for the first time in this process, and what to do."""
        for one in verdicts(result):
            if one.raised and one.name not in self._known:
                self._known.add(one.name)
                self.print_message(f"ALARM {one.name}: {one.sentence} What to do: {one.advice}")


def _print_end(found: WatchResult) -> None:
    """What the watch cost and where its files are, on standard error."""
    spend = found.spend
    cost = "" if spend.cost is None else f", ${spend.cost:,.4f}"
    if found.cost_today is not None:
        limit = "" if found.max_cost_per_day is None else f" of ${found.max_cost_per_day:,.4f}"
        cost += f" (${found.cost_today:,.4f}{limit} today)"
    print_field(
        "queries",
        f"{spend.queries:,} ({spend.probe_queries + spend.control_queries:,} to check the endpoint), "
        f"{spend.prompt_tokens:,} tokens in, {spend.completion_tokens:,} out{cost}",
        err=True,
    )
    ignored = {
        "duplicates": found.duplicates,
        "conflicts": found.conflicts,
        "unreadable": found.unreadable,
        "early labels": found.labels_without_item,
    }
    if any(ignored.values()):
        words = ", ".join(
            f"{count:,} {name.removesuffix('s') if count == 1 else name}"
            for name, count in ignored.items()
            if count
        )
        print_field("ignored", words, err=True)
    if found.stopped is not None:
        print_field("stopped", f"{printable(found.stopped, 400)}; the same command goes on", err=True)
    print_field("files", f"{found.folder}: {WATCH_FILE}, {RUN_FILE}", err=True)
    print_field("page", f"{Path(found.folder) / WATCH_PAGE}", err=True)
