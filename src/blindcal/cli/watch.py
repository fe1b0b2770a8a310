"""``blindcal watch``: a stream of questions, asked once each, and alarms that say what changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from blindcal.asking.run_context import Limits
from blindcal.auditing.prepared import AskedSettings
from blindcal.cli import options
from blindcal.cli.console import error_text, print_field, print_spend, print_stopped
from blindcal.errors import BlindcalError
from blindcal.prices import Prices
from blindcal.progress_bar import ProgressBar
from blindcal.report.watch_page import WATCH_PAGE, look_line, verdicts, write_watch_page
from blindcal.results.run import open_run
from blindcal.results.watch_result import WATCH_FILE, WatchResult
from blindcal.store.run_store import RUN_FILE
from blindcal.watching.watch import EVERY, MOST_EVERY, watch, watch_folder

QUIET, STOPPED, RAISED = 0, 3, 4
TIME_LIMIT = 60.0
"""Seconds after which the command is killed."""
_STANDARD_ERROR = 2  # where the command prints: looks go to standard output


@options.command("watch")
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
    type=options.FiniteRange(0, 1, min_open=True),
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
    type=options.FiniteRange(0, 1, max_open=True),
    help="Test the calibration against this limit of the ECE; 0 for perfect calibration.  "
    "[default: compare with the reference]",
)
@click.option(
    "--every", type=click.IntRange(1, MOST_EVERY), default=EVERY, help="Number of new items to ask per look."
)
@options.flag("--follow", "Wait for more records until interrupted.")
@options.prices_option
@options.fields("concurrency", "rpm", "max_cost", "api_key_env")
@click.option(
    "--on-alarm",
    "alarm_command",
    metavar="COMMAND",
    help="Shell command to run once per alarm, with the look as JSON on its standard input.",
)
@options.flag("--force", "Go on although the endpoint does not follow the bias as in the reference.")
@options.output_options("Print one JSON object per look, one per line.")
def command(
    stream: Path,
    reference: Path,
    out: Path | None,
    given_prices: Prices | None,
    alarm_command: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Watch a model in production: ask each item of STREAM once, and raise an alarm if something changed.

    STREAM is a file of JSON lines that grows, a CSV or Parquet file, a folder of such files, or - for
    standard input. A record has the fields that the template of the reference audit names, an id, and a label
    if it is known. Labels that come later are in a file named by --labels, or in a later record with the same
    id. Each item is asked one query: at a threshold that follows from its id, or for its probability if the
    audit read those that the endpoint shows.

    There are three alarms. The endpoint alarm asks a few items again and again, whose confidence is
    known: is it still the same model? The questions alarm compares the confidence with that of the
    reference, without labels: is the model asked something else? The calibration alarm needs labels: is the
    confidence still right? Each is raised for nothing with a chance of at most --alpha, however long the
    watch and however often you look.

    Everything is kept in the folder of the watch: the same command continues it and asks nothing twice, so
    it can be run by cron. Without --follow it reads what is there, asks, prints a line per look and ends. The
    folder has a page, watch.html, and the same numbers in watch.json.

    \b
    Examples:
      blindcal watch traffic.jsonl --reference runs/questions-my-model
      blindcal watch traffic.jsonl --reference runs/questions-my-model --labels labels.csv --rate 0.05
      tail -f app.log | blindcal watch - --reference runs/questions-my-model --follow

    \b
    In a crontab, with a script that is run when an alarm is raised:
      OPENAI_API_KEY=...
      */30 * * * * cd /srv && blindcal watch in.jsonl --reference runs/base --quiet --on-alarm ./post.sh

    \b
    Exit status:
      0    no alarm
      1    an error: wrong key, address or file, another watch in the folder
      2    a wrong command line
      3    stopped early (--max-cost was reached, or queries kept failing), and no alarm
      4    an alarm is raised, now or at an earlier look
      130  interrupted; nothing is lost
    """
    limits, run = options.taken(Limits, given), open_run(reference)
    settings = AskedSettings.of_run(run, api_key_env=given["api_key_env"]).settings
    folder = out or watch_folder(stream, settings.endpoint.model)
    begun = (folder / RUN_FILE).exists()
    with options.asking(settings, limits, given_prices, quiet=quiet, begun=begun) as (asked, bar):
        outputs = LookOutputs(bar, as_json=as_json, quiet=quiet)
        on_alarm = None if alarm_command is None else AlarmCommand(alarm_command, outputs.warn)
        try:
            result = watch(stream, run, out=folder, on_look=outputs, on_alarm=on_alarm, **given, **asked)
        finally:
            if on_alarm is not None:
                on_alarm.kill()
    if not quiet:
        _print_end(result)
    click.get_current_context().exit(RAISED if result.raised else QUIET if result.complete else STOPPED)


class LookOutputs:
    """Prints and writes each look; a page that cannot be written is a warning."""

    def __init__(self, bar: ProgressBar, *, as_json: bool, quiet: bool) -> None:
        self._print = bar.wrap_print(click.echo)
        self._message = bar.wrap_print(lambda text: click.echo(text, err=True))
        self._as_json, self._quiet = as_json, quiet
        self._known: set[str] = set()  # alarms already printed

    def __call__(self, result: WatchResult) -> None:
        if self._as_json:
            self._print(result.to_json().decode())
        elif not self._quiet:
            self._print(look_line(result))
        for verdict in () if self._quiet else verdicts(result):
            if verdict.raised and verdict.name not in self._known:
                self._known.add(verdict.name)
                self._message(f"ALARM {verdict.name}: {verdict.sentence} What to do: {verdict.advice}")
        try:
            write_watch_page(result)
        except BlindcalError as error:
            self.warn(f"{error_text(error)}; the next look tries again")

    def warn(self, text: str) -> None:
        """Print a warning, even if ``quiet``."""
        self._message(f"warning: {text}")


class AlarmCommand:
    """Runs a shell command with a look as JSON on its standard input, and warns if it fails."""

    def __init__(self, command: str, warn: Callable[[str], None]) -> None:
        self._command, self._warn = command, warn
        self._running: Process | None = None
        self._killed = False

    async def __call__(self, result: WatchResult) -> bool:
        """Run the command, and return whether it succeeded."""
        problem = await self._problem(result.to_json() + b"\n")
        if problem is not None:
            self._warn(f"the command of --on-alarm {problem}; the next look runs it again")
        return problem is None

    async def _problem(self, look: bytes) -> str | None:
        self._killed = False
        try:
            process = await asyncio.create_subprocess_shell(
                self._command, stdin=PIPE, stdout=_STANDARD_ERROR, start_new_session=True
            )
        except OSError as error:
            return f"could not be run ({error.strerror})"
        self._running = process
        if self._killed:  # while it was being started
            self.kill()
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await process.communicate(look)
        except TimeoutError:
            self.kill()
            await process.wait()
            return f"was killed after {TIME_LIMIT:g} s"
        finally:
            self._running = None
        status = process.returncode or 0
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"failed with exit status {status}" if status else None

    def kill(self) -> None:
        """Kill the command and all processes in its group, if it is running."""
        self._killed = True
        if self._running is not None and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)


def _print_end(result: WatchResult) -> None:
    field, spend = partial(print_field, err=True), result.spend
    print_spend(spend, f"{spend.control_queries:,} to check the endpoint", err=True)
    ignored = {
        "duplicates": result.duplicates,
        "conflicts": result.conflicts,
        "unreadable": result.unreadable,
        "early labels": result.labels_without_item,
    }
    if any(ignored.values()):
        field("ignored", ", ".join(f"{name} {count:,}" for name, count in ignored.items() if count))
    print_stopped(result.stopped, err=True)
    field("files", f"{result.folder}: {WATCH_FILE}, {RUN_FILE}, {WATCH_PAGE}")
