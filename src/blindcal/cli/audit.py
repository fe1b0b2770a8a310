"""``blindcal audit``: from a file of labelled questions to a finished audit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from blindcal.auditing.audit import audit, default_folder
from blindcal.auditing.batch_sender import Polling
from blindcal.auditing.job import Limits
from blindcal.cli import options
from blindcal.cli.console import WIDTH, fact
from blindcal.cli.param_types import FiniteRange
from blindcal.cli.status import described
from blindcal.design import ESTIMATORS, METHODS
from blindcal.errors import PendingError, UnfitError
from blindcal.items import catalogue
from blindcal.planning.plan import Plan, plan
from blindcal.progress_bar import ProgressBar
from blindcal.report.page import PAGE_FILE, write
from blindcal.results.result import ANSWERS_FILE, FEW, RESULT_FILE, AuditResult, Estimate
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import printable

DONE, NOTHING, STOPPED, UNFIT, PENDING, INTERRUPTED = 0, 1, 3, 4, 5, 130
MOST_PARTS = 12
ALPHA = 0.05
LONGEST_POLL = 60.0  # seconds between looks at a batch


@click.command("audit", short_help="Audit how well calibrated a model is.")
@click.argument("items", type=click.Path(path_type=Path))
@options.endpoint_options
@options.answer_options
@options.reading_options
@options.field_options
@click.option(
    "--by",
    "by_field",
    metavar="FIELD",
    help="Break the result down by this field of the items; a finished run may be broken down anew.",
)
@click.option(
    "--method",
    type=click.Choice(list(METHODS)),
    default="latent",
    show_default=True,
    help="What to ask, and how to estimate from it: see below.",
)
@click.option(
    "--estimator",
    type=click.Choice(ESTIMATORS),
    default="own",
    show_default=True,
    help="Read the answers as the method does, or by the likelihood of latent; a finished run may be read "
    "anew.",
)
@click.option(
    "--instruction",
    callback=options.with_line_breaks,
    help="verbalized: how the confidence is asked for, with {positive} and {negative} for the words.",
)
@click.option(
    "--items",
    "subset",
    type=click.IntRange(1),
    metavar="N",
    help="Ask so many of the items: a random part with the file's shares of labels and parts, groups whole. "
    "The same command with more goes on from there.  [default: all]",
)
@click.option(
    "--queries",
    type=FiniteRange(0, min_open=True),
    metavar="K",
    help="Mean queries K an item.  [default: as its method has it, below]",
)
@click.option(
    "--bins", type=click.IntRange(1), help="Bins of the ECE.  [default: 5; for blind round(N^(1/5))]"
)
@options.level_option
@options.resamples_option
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the design; the same asks the same.",
)
@click.option(
    "--send-seed",
    is_flag=True,
    help="Send a seed with each sampled query, so that an endpoint that heeds it repeats itself.",
)
@click.option(
    "--offset",
    type=float,
    default=50.0,
    show_default=True,
    help="The bias added to both answers, so that nothing else is said.",
)
@click.option(
    "--limit", type=float, default=100.0, show_default=True, help="The largest bias the service takes."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The run's folder. The same command again goes on with it.  [default: runs/ITEMS-MODEL]",
)
@click.option("--no-prompts", is_flag=True, help="Keep only hashes of the questions in the run file.")
@click.option(
    "--oracle",
    type=click.Path(path_type=Path),
    help="Scores (id,label,p) or logits to compare the result with.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Most queries under way; fewer if the endpoint is better off with fewer.",
)
@click.option("--rpm", type=FiniteRange(0, min_open=True), help="Most requests a minute.")
@click.option("--tpm", type=FiniteRange(0, min_open=True), help="Most tokens a minute.")
@click.option(
    "--max-queries", type=click.IntRange(1), help="Stop before more than so many, the probe's included."
)
@click.option(
    "--max-cost",
    type=FiniteRange(0, min_open=True),
    metavar="DOLLARS",
    help="Spend no more; needs prices. Without --queries, latent asks as much as this pays for; other "
    "methods ask as many of the items.",
)
@options.price_options
@click.option(
    "--batch",
    is_flag=True,
    help="Ask through the provider's Batch API, usually at half the price and within a day: submits and "
    "returns; the same command again collects the answers.",
)
@click.option("--wait", is_flag=True, help="With --batch: stay until the batches are finished.")
@click.option(
    "--cancel",
    is_flag=True,
    help="With --batch: have the provider end the run's batches, and keep what they answered and cost. The "
    "same command without it submits the rest.",
)
@click.option(
    "--poll",
    type=FiniteRange(0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How soon to look at a batch again while waiting; less and less often later.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only say how many queries and tokens it takes and what they cost."
)
@click.option(
    "--force",
    is_flag=True,
    help="Go on although the probe finds the endpoint unfit; the figures may mean nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="No progress and no headline; errors only (and --json).")
def command(
    items: Path,
    out: Path | None,
    no_prompts: bool,
    oracle: Path | None,
    concurrency: int,
    rpm: float | None,
    tpm: float | None,
    max_queries: int | None,
    max_cost: float | None,
    price_in: float | None,
    price_out: float | None,
    wait: bool,
    cancel: bool,
    poll: float,
    batch_price: float,
    dry_run: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Audit how well calibrated a model is on the labelled questions in ITEMS.

    ITEMS is JSON lines, CSV or Parquet (.gz too) with a label and a prompt, messages, or the fields that
    --template names. First a probe of a few dozen queries finds out whether the endpoint can be audited.
    Everything is kept in the run's folder; if it is interrupted, the same command goes on with it and
    asks nothing twice.

    \b
    Example:
      blindcal audit boolq.jsonl --model gpt-4o-mini \\
        --template "Passage: {passage}\\nQuestion: {question}?\\nAnswer Yes or No."

    \b
    Methods, and K by default:
      {methods}

    \b
    Exit status:
      0    finished
      1    an error: wrong key, model, address or file, another run in the folder, no valid answer at all
      2    a wrong command line
      3    stopped early (a limit was reached, or queries kept failing); the result covers what was asked
      4    the probe finds the endpoint unfit for this method
      5    batches are with the provider; the same command collects them
      130  interrupted; nothing is lost
    """
    settings = Settings(keep_prompts=not no_prompts, **chosen)
    if wait and not settings.batch:
        raise click.UsageError("--wait goes with --batch")
    if cancel and not settings.batch:
        raise click.UsageError("--cancel goes with --batch")
    prices = options.prices(price_in, price_out, batch_price, settings)
    if max_cost is not None and prices is None:
        named = printable(settings.model, 60)
        raise click.UsageError(f"--max-cost needs --price-in and --price-out: none are known for {named!r}")
    if dry_run:
        _show_plan(asyncio.run(plan(items, settings, prices=prices)), settings, max_cost, as_json)
        return
    limits = Limits(concurrency, rpm, tpm, max_queries, max_cost)
    folder = out or default_folder(items, settings.model)
    if cancel and not (folder / RUN_FILE).is_file():
        raise click.UsageError(f"--cancel: there is no run in {printable(str(folder), 200)}")
    say = (lambda _: None) if quiet else _say
    context = click.get_current_context()
    catalogue.check_there(items)
    endpoint = options.open_endpoint(settings.address, begun=(folder / RUN_FILE).exists())
    try:
        with ProgressBar(disable=quiet or None) as bar:
            result = audit(
                items,
                settings,
                out=folder,
                limits=limits,
                prices=prices,
                oracle=oracle,
                force=force,
                endpoint=endpoint,
                polling=Polling(wait or cancel or not settings.batch, poll, max(poll, LONGEST_POLL), cancel),
                progress=bar,
                stage=bar.giving_way(say),
            )
        say("drawing the report")
        write(result, folder / PAGE_FILE)
    except UnfitError as error:
        click.echo(f"error: {error}", err=True)
        context.exit(UNFIT)
    except PendingError as error:
        _show_pending(error, folder, as_json, quiet)
        context.exit(PENDING)
    except KeyboardInterrupt:
        click.echo("interrupted; everything answered is kept: the same command goes on with it", err=True)
        context.exit(INTERRUPTED)
    if as_json:
        click.echo(result.to_json(), nl=False)
    elif not quiet:
        show(result, folder)
    if result.ece.value is None:
        valid = result.counts.positive + result.counts.negative
        what = "too few valid answers" if valid else "no valid answer"
        click.echo(f"error: {what} to rest a figure on; {PAGE_FILE} says what came back", err=True)
        context.exit(NOTHING)
    context.exit(DONE if result.complete else STOPPED)


command.help = (command.help or "").replace(
    "{methods}",
    "\n      ".join(f"{name:11}  K={method.queries:g}  {method.answers}" for name, method in METHODS.items()),
)


def _say(stage: str) -> None:
    click.echo(f"{stage} ...", err=True)


def _show_pending(pending: PendingError, folder: Path, as_json: bool, quiet: bool) -> None:
    """Say what is with the provider, and what to do next."""
    if as_json:
        with Store.read(folder / RUN_FILE) as store:
            shown = {"pending": str(pending), "batches": [described(one) for one in store.batches()]}
        click.echo(msgspec.json.encode(shown))
    elif not quiet:
        click.echo(f"batches    {pending}")
        click.echo(
            "next       a batch takes up to 24 hours; then the same command collects it "
            "(with --wait it stays until then)"
        )
        click.echo(f"files      {folder}: {RUN_FILE}; blindcal status {folder} shows where it is")


def _show_plan(planned: Plan, settings: Settings, max_cost: float | None, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(planned))
        return
    about = "" if planned.counted else "about "
    click.echo(f"items      {planned.items:,}")
    how = ", through batches" if settings.batch else ""
    probe = f", and about {planned.probe_queries} for the probe" if planned.probe_queries else ""
    probe += ", always live" if probe and settings.batch else ""
    click.echo(f"queries    {planned.queries:,} by {settings.method}{how}{probe}")
    click.echo(f"tokens     {about}{planned.prompt_tokens:,} in, {planned.completion_tokens:,} out")
    cost = (
        "unknown: give --price-in and --price-out" if planned.cost is None else f"{about}${planned.cost:,.4f}"
    )
    click.echo(f"cost       {cost}")
    if max_cost is not None and planned.cost:
        click.echo(f"budget     ${max_cost:g} {_paid_for(planned, settings, max_cost)}")


def _paid_for(planned: Plan, settings: Settings, max_cost: float) -> str:
    assert planned.cost is not None
    each = planned.cost / (planned.queries + planned.probe_queries)
    queries = max_cost / each - planned.probe_queries
    if queries <= 0:
        return "does not pay for the probe"
    if settings.method == "latent" and settings.queries is None:
        return f"pays for about {queries / planned.items:.2f} queries an item"
    if max_cost >= planned.cost:
        return "pays for all of it"
    if settings.method == "latent" or settings.reads == "stated" or settings.subset is not None:
        return f"pays for about {queries / planned.queries:.0%} of the queries: the run stops there"
    return f"pays for about {planned.items * queries / planned.queries:,.0f} of the items"


def show(result: AuditResult, folder: Path) -> None:
    """Print the headline of a result."""
    level = f"{result.level:.0%}"
    if result.probe is not None and result.probe.get("forced"):
        why = printable(str(result.probe.get("objection") or result.probe.get("reason")), 400)
        fact("WARNING", f"forced: {why}; these figures may measure nothing")
    counts, spend = result.counts, result.spend
    fact("ECE", f"{_number(result.ece, level)}  in {len(result.bins)} bins, of {counts.items:,} items")
    fact("direction", _direction(result, level))
    fact("AUROC", _auroc(result, level))
    fact("accuracy", _number(result.accuracy, level))
    if result.calibrated_pvalue is not None:
        fact("p-value", f"{result.calibrated_pvalue:.3g} for perfect calibration")
    if result.ece.low is not None:
        fact(
            "ranges",
            f"{level} intervals, for all questions like these; the figures are of these {counts.items:,}",
        )
    if counts.items < FEW:
        read = "read the interval, not the figure"
        fact("note", f"few items: {'the figure says little' if result.ece.low is None else read}")
    _show_parts(result)
    fact("measures", result.measures)
    if counts.invalid:
        total = counts.positive + counts.negative + counts.invalid
        low, high = result.ece_if_invalid
        fact(
            "invalid",
            f"{counts.invalid:,} of {total:,} answers; whatever they would have been, "
            f"the ECE is between {low:.4f} and {high:.4f}",
        )
    if result.invalid_reasons:
        fact("unread", ", ".join(f"{reason} {count:,}" for reason, count in result.invalid_reasons.items()))
    cost = "" if spend.cost is None else f", ${spend.cost:,.4f}"
    through = f", the rest in {spend.batches} batch{'es' * (spend.batches > 1)}" if spend.batches else ""
    fact(
        "queries",
        f"{spend.queries:,} ({spend.probe_queries} to probe{through}), "
        f"{spend.prompt_tokens:,} tokens in, {spend.completion_tokens:,} out{cost}",
    )
    if result.next_dollar is not None and result.ece.low is not None and result.ece.high is not None:
        half = (result.ece.high - result.ece.low) / 2
        fact(
            "next $1",
            f"would pay for {result.next_dollar.queries:,} more queries, and narrow the ECE's interval from "
            f"+- {half:.4f} to about +- {result.next_dollar.half_width:.4f}",
        )
    if result.oracle is not None:
        off = result.oracle.difference
        inside = {True: ", inside the interval", False: ", OUTSIDE the interval", None: ""}
        fact(
            "oracle",
            f"ECE {result.oracle.ece:.4f}{inside[result.oracle.inside_interval]}"
            + ("" if off is None else f"; the estimate is off by {off:+.4f}"),
        )
    if result.stopped is not None:
        fact("stopped", f"{printable(result.stopped, 400)}; the same command goes on")
    written = [name for name in (RESULT_FILE, ANSWERS_FILE, RUN_FILE) if (folder / name).exists()]
    fact("files", f"{folder}: {', '.join(written)}")
    if (folder / PAGE_FILE).exists():
        fact("report", str(folder / PAGE_FILE))


def _show_parts(result: AuditResult) -> None:
    """A line a part, the largest ones if there are many, and whether they differ by more than chance."""
    if not result.parts:
        return
    most = sorted(result.parts, key=lambda part: part.items, reverse=True)[:MOST_PARTS]
    shown = [part for part in result.parts if part in most]
    left = len(result.parts) - len(shown)
    what = f"by {printable(result.by or '', 40)}"
    if left:
        what += f", the {len(shown)} largest of {left + len(shown)}"
    if result.parts_pvalue is None:
        verdict = "whether they differ by more than chance cannot be told"
    elif result.parts_pvalue < ALPHA:
        verdict = f"they differ by more than chance (p-value {result.parts_pvalue:.3g})"
    else:
        verdict = f"they differ no more than by chance (p-value {result.parts_pvalue:.3g})"
    fact("parts", f"{what}; {verdict}")
    names = [printable(part.name, 30) for part in shown]
    width = max(len(name) for name in names)
    for name, part in zip(names, shown, strict=True):
        few = "  few items" if part.few else ""
        right = "" if part.accuracy.value is None else f"  accuracy {part.accuracy.value:.3f}"
        click.echo(f"{'':{WIDTH}}{name:{width}}  {part.items:>7,} items  ECE {_short(part.ece)}{right}{few}")


def _short(estimate: Estimate) -> str:
    if estimate.value is None:
        return "unknown"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _number(estimate: Estimate, level: str) -> str:
    if estimate.value is None:
        return "not to be had from these answers"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4f}"
    return f"{estimate.value:.4f}  ({level}: {estimate.low:.4f} to {estimate.high:.4f})"


def _auroc(result: AuditResult, level: str) -> str:
    one_class = result.counts.positive_labels in (0, result.counts.items)
    if one_class and result.auroc.value is None and result.estimator == "latent":
        return "needs items of both labels"
    return _number(result.auroc, level)


def _direction(result: AuditResult, level: str) -> str:
    over, lean = result.overconfidence, result.leaning
    words = {"undecided": "neither over- nor underconfident for sure"}.get(result.direction, result.direction)
    if over.low is None or over.high is None:
        words = "no interval by this method"
    shown = "" if over.value is None else f": confidence minus accuracy {_number(over, level)}"
    leans = "" if lean.value is None else f"; P(positive) minus its share {lean.value:+.4f}"
    return f"{words}{shown}{leans}"
