"""``blindcal watch``: a stream of questions, asked once each, and alarms that say what changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from blindcal.auditing.limits import Limits
from blindcal.auditing.watch import EVERY, INTERVAL, watch, watch_folder
from blindcal.auditing.watch_reference import open_reference
from blindcal.cli import INTERRUPTED, options
from blindcal.cli.console import error_text, print_field
from blindcal.cli.param_types import FiniteRange
from blindcal.errors import BlindcalError
from blindcal.progress_bar import ProgressBar
from blindcal.report.watch_page import WATCH_PAGE, look_line, verdicts, write_watch_page
from blindcal.results.watch_result import WATCH_FILE, WatchResult
from blindcal.store.run_store import RUN_FILE
from blindcal.telemetry.open_telemetry import check_open_telemetry, send_gauges
from blindcal.telemetry.prometheus import check_prometheus, write_prometheus
from blindcal.telemetry.webhook import check_webhook, notify
from blindcal.text import printable

QUIET, STOPPED, RAISED = 0, 3, 4


@click.command("watch")
@click.argument("stream", type=options.PATH, required=False)
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
    "--from-run",
    "from_runs",
    type=options.PATH,
    multiple=True,
    callback=options.existing_runs,
    help="Finished audit whose answers count instead of new queries; can be repeated. Replaces STREAM.",
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
    "--against",
    type=click.Choice(["reference", "perfect"]),
    help="What the calibration is tested against: the reference audit, or perfect calibration.  "
    "[default: reference]",
)
@click.option(
    "--max-ece", type=options.INNER_SHARE, help="Test the calibration against this limit of the ECE instead."
)
@click.option("--by", "by_field", metavar="FIELD", help="Field that defines slices, each with an alarm.")
@click.option("--every", type=click.IntRange(1), default=EVERY, help="Number of new items to ask per look.")
@click.option(
    "--interval",
    type=options.POSITIVE_NUMBER,
    default=INTERVAL,
    metavar="SECONDS",
    help="With --follow, time after which fewer records are looked at too.",
)
@click.option("--follow", is_flag=True, help="Wait for more records until interrupted.")
@click.option(
    "--max-cost-per-day",
    type=options.POSITIVE_NUMBER,
    metavar="DOLLARS",
    help="Maximum cost per day (UTC); items beyond it wait for the next day. Requires prices.",
)
@click.option("--max-queries", type=click.IntRange(1), help="Maximum number of queries of the whole watch.")
@click.option(
    "--max-cost",
    type=options.POSITIVE_NUMBER,
    metavar="DOLLARS",
    help="Maximum cost of the whole watch; requires prices.",
)
@options.live_price_options
@options.concurrency_option()
@options.rate_options
@options.api_key_env_option
@options.timeout_option
@click.option(
    "--notify",
    "notify_url",
    metavar="URL",
    envvar="BLINDCAL_NOTIFY",
    show_envvar=True,
    help="URL that a JSON body is posted to, once per alarm. The URL is not kept.",
)
@click.option(
    "--prometheus",
    "prometheus_file",
    type=options.FILE,
    metavar="FILE.prom",
    help="Prometheus text to write at each look, for node_exporter's textfile collector; needs the extra "
    "prometheus.",
)
@click.option(
    "--otel",
    is_flag=True,
    help="Send gauges to an OpenTelemetry collector at each look, as the OTEL_... variables say; needs the "
    "extra otel.",
)
@click.option(
    "--force", is_flag=True, help="Go on although the endpoint does not follow the bias as in the reference."
)
@options.json_option("Print one JSON object per look, one per line.")
@options.quiet_option
def command(
    stream: Path | None,
    reference: Path,
    labels: Path | None,
    from_runs: tuple[Path, ...],
    out: Path | None,
    max_cost_per_day: float | None,
    price_in: float | None,
    price_out: float | None,
    api_key_env: str,
    timeout: float,
    notify_url: str | None,
    prometheus_file: Path | None,
    otel: bool,
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
    In a crontab, with a message if an alarm is raised:
      OPENAI_API_KEY=...
      BLINDCAL_NOTIFY=https://hooks.example.org/calibration
      */30 * * * * cd /srv && blindcal watch traffic.jsonl --reference runs/base --quiet

    \b
    In CI, a step that fails if an alarm is raised:
      blindcal watch --from-run runs/nightly --reference runs/base --max-ece 0.10

    \b
    Exit status:
      0    no alarm
      1    an error: wrong key, address or file, another watch in the folder
      2    a wrong command line
      3    stopped early (a limit was reached, or queries kept failing), and no alarm
      4    an alarm is raised, now or at an earlier look
      130  interrupted; nothing is lost
    """
    context = click.get_current_context()
    _check_usage(stream, from_runs, labels, **given)
    if notify_url is not None:
        check_webhook(notify_url)
    if prometheus_file is not None:
        check_prometheus()
    if otel:
        check_open_telemetry()
    limits = options.taken(Limits, given)
    asked = open_reference(reference, api_key_env=api_key_env, timeout=timeout, force=given["force"])
    settings = asked.settings
    prices = options.prices(price_in, price_out, 1.0, settings, quiet=quiet)
    options.check_priced(limits.max_cost, prices, settings.endpoint)
    options.check_priced(max_cost_per_day, prices, settings.endpoint, "--max-cost-per-day")
    folder = out or watch_folder(stream or from_runs[0], settings.endpoint.model)
    if not from_runs:
        options.check_key(settings.endpoint, begun=(folder / RUN_FILE).exists())
    try:
        with ProgressBar(disable=quiet or None) as bar:
            outputs = LookOutputs(
                print_line=bar.wrap_print(click.echo),
                print_message=bar.wrap_print(lambda text: click.echo(text, err=True)),
                as_json=as_json,
                quiet=quiet,
                notify_url=notify_url,
                prometheus=prometheus_file,
                otel=otel,
            )
            found = watch(
                stream,
                asked.run,
                from_runs=from_runs,
                labels=labels,
                out=folder,
                limits=limits,
                prices=prices,
                max_cost_per_day=max_cost_per_day,
                api_key_env=api_key_env,
                timeout=timeout,
                progress=bar,
                stage=None if quiet else bar.wrap_print(lambda text: click.echo(f"{text} ...", err=True)),
                on_look=outputs,
                **given,
            )
    except KeyboardInterrupt:
        click.echo("interrupted; everything answered is kept: the same command goes on with it", err=True)
        context.exit(INTERRUPTED)
    if not quiet:
        _print_end(found)
    context.exit(RAISED if found.raised else QUIET if found.complete else STOPPED)


def _check_usage(
    stream: Path | None,
    from_runs: tuple[Path, ...],
    labels: Path | None,
    *,
    against: str | None,
    max_ece: float | None,
    follow: bool,
    **_: Any,
) -> None:
    if (stream is None) == (not from_runs):
        raise click.UsageError("give either STREAM or --from-run: one of them says what to watch")
    if from_runs and (follow or labels is not None):
        raise click.UsageError("--from-run takes finished audits, which have labels and do not grow")
    if against is not None and max_ece is not None:
        raise click.UsageError("--against and --max-ece exclude each other: give one of them")


@dataclass
class LookOutputs:
    """What is printed, written and sent at each look.

    Whatever cannot be written or delivered is a warning: the watch goes on, and the next look tries again.
    """

    print_line: Callable[[str], None]
    print_message: Callable[[str], None]
    as_json: bool = False
    quiet: bool = False
    notify_url: str | None = None
    prometheus: Path | None = None
    otel: bool = False
    _known: set[str] = field(default_factory=set)

    def __call__(self, result: WatchResult) -> None:
        """Tell what one look has found."""
        if self.as_json:
            self.print_line(result.to_json().decode())
        elif not self.quiet:
            self.print_line(look_line(result))
        if not self.quiet:
            self._print_new(result)
        for failed in self._written(result):
            self.print_message(f"warning: {failed}; the next look tries again")

    def _print_new(self, result: WatchResult) -> None:
        """What is raised for the first time in this process, and what to do."""
        for one in verdicts(result):
            if one.raised and one.name not in self._known:
                self._known.add(one.name)
                self.print_message(f"ALARM {one.name}: {one.sentence} What to do: {one.advice}")

    def _written(self, result: WatchResult) -> list[str]:
        """Write and send everything; returns what failed."""
        failed: list[str] = []

        def page() -> None:
            write_watch_page(result)

        def prometheus() -> None:
            if self.prometheus is not None:
                write_prometheus(result, self.prometheus)

        def webhook() -> None:
            if self.notify_url is not None:
                failed.extend(notify(result, self.notify_url))

        def gauges() -> None:
            if self.otel and not send_gauges(result):
                failed.append("the OpenTelemetry collector did not take the gauges")

        for output in (page, prometheus, webhook, gauges):
            try:
                output()
            except BlindcalError as error:
                failed.append(error_text(error))
        return failed


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
