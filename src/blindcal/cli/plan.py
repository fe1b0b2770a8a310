"""``blindcal plan``: what an audit would find out and cost, before anything is paid."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from blindcal.cli import options
from blindcal.cli.param_types import FiniteRange
from blindcal.design import METHODS as ALL
from blindcal.items.catalogue import open_items
from blindcal.methods import FITTED
from blindcal.planning import shapes
from blindcal.planning.forecast import METHODS
from blindcal.planning.plan import (
    DRAWN,
    LADDER,
    Plan,
    PlanGoal,
    PlanInputs,
    Throughput,
    TokenCount,
    choices,
    count_tokens,
    front,
    reach_of,
)
from blindcal.settings import Settings
from blindcal.text import printable

if TYPE_CHECKING:
    from blindcal.results.run import Run

USUAL = 1000  # items, if neither a number nor a file says how many


@click.command("plan", short_help="Say what an audit would find out and cost, before paying.")
@click.argument("items", required=False, type=click.Path(path_type=Path))
@click.option("--items", "number", type=click.IntRange(2), metavar="N", help="So many items (of the file).")
@click.option(
    "--shape",
    "shape_name",
    default=shapes.DEFAULT,
    show_default=True,
    metavar="SHAPE",
    help=f"What is assumed of the model: {', '.join(shapes.PRESETS)}; the folder of a finished run; or a "
    "file of scores (id,label,p) or logits.",
)
@click.option("--ece", type=FiniteRange(0, 1), help="The shape, scaled to have this ECE.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="How to ask and estimate.  [default: latent, or the run's]",
)
@click.option(
    "--queries",
    type=FiniteRange(0, min_open=True),
    metavar="K",
    help="Mean queries an item; 1.5 will do.",
)
@click.option(
    "--half-width", type=float, metavar="W", help="Find the items and queries for an interval of +- W."
)
@click.option(
    "--power", type=float, metavar="P", help="Find the items and queries that find --ece with this chance."
)
@click.option(
    "--bins", type=click.IntRange(1), help="Bins of the ECE.  [default: 5; for blind round(N^(1/5))]"
)
@click.option(
    "--level",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Of the interval.",
)
@click.option("--model", default="", help="Whose tokens are counted and whose list prices are used.")
@click.option("--tokenizer", metavar="SOURCE", help="As for audit: counts tokens instead of guessing them.")
@options.reading_options
@click.option("--label-field", default="label", show_default=True, help="The field that holds the label.")
@click.option("--tokens", type=FiniteRange(1), metavar="T", help="Tokens of one prompt, if there is no file.")
@options.price_options
@click.option("--batch", is_flag=True, help="Count the price of the provider's Batch API.")
@click.option(
    "--latency",
    type=FiniteRange(0, min_open=True),
    help="Seconds a reply.  [default: 0.6, or the run's]",
)
@click.option(
    "--concurrency", type=click.IntRange(1), default=32, show_default=True, help="Queries under way."
)
@click.option("--rpm", type=FiniteRange(0, min_open=True), help="Most requests a minute.")
@click.option("--tpm", type=FiniteRange(0, min_open=True), help="Most tokens a minute.")
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw half-width against cost for all methods (.svg or .png).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    items: Path | None,
    number: int | None,
    shape_name: str,
    ece: float | None,
    method: str | None,
    queries: float | None,
    half_width: float | None,
    power: float | None,
    bins: int | None,
    level: float,
    model: str,
    tokenizer: str | None,
    label_field: str,
    tokens: float | None,
    price_in: float | None,
    price_out: float | None,
    batch_price: float,
    batch: bool,
    latency: float | None,
    concurrency: int,
    rpm: float | None,
    tpm: float | None,
    figure: Path | None,
    as_json: bool,
    **reading: Any,
) -> None:
    """Say what an audit would find out and cost; nothing is asked of any model.

    Give a file of ITEMS as audit takes it, or a number with --items (1,000 are assumed otherwise). How
    wide the interval for the expected calibration error will be depends on what the model is like, so a
    shape is assumed; the folder of an earlier run on a similar model is the best guess, and brings its own
    tokens and seconds a query.

    With --half-width, or --power and --ece, it works the other way round: which numbers of items and of
    queries an item reach it, cheapest first.

    \b
    Examples:
      blindcal plan --items 3000
      blindcal plan boolq.jsonl --model gpt-4o-mini --template "{passage}\\n{question}?"
      blindcal plan --half-width 0.02 --tokens 250 --price-in 0.15 --price-out 0.6
      blindcal plan --ece 0.05 --power 0.9 --shape runs/boolq-gpt-4o-mini
      blindcal plan --items 3000 --figure plan.svg
    """
    if power is not None and ece is None and shape_name == "calibrated":
        raise click.UsageError(
            "--power needs a departure to find: give --ece, or a shape that is not calibrated"
        )
    if items is not None and tokens is not None:
        raise click.UsageError("--tokens is for plans without a file: a file's are counted")
    assumed = _assumed(shape_name)
    shape = assumed.shape if ece is None else assumed.shape.with_ece(ece, bins or 5)
    settings = Settings(model=model or "unknown", tokenizer=tokenizer, label_field=label_field, **reading)
    size, each = _measured(items, settings) if items is not None else (None, None)
    if size is not None and number is not None and number > size:
        raise click.UsageError(f"--items {number:,}: the file holds {size:,}")
    means = PlanInputs(
        shape,
        bins,
        level,
        each or (TokenCount(tokens) if tokens is not None else assumed.tokens),
        options.prices(price_in, price_out, batch_price, settings),
        Throughput(latency or assumed.latency or Throughput().latency, concurrency, rpm, tpm),
        batch,
    )
    chosen = method or assumed.method
    n = number or size or assumed.items or USUAL
    if half_width is not None or power is not None:
        limit = {} if number is None and size is None else {"most": n}
        found = choices(
            means, PlanGoal(half_width, power), [chosen], None if queries is None else [queries], **limit
        )
        if not found:
            best = means.plan(chosen, n, queries or LADDER[chosen][-1])
            raise click.ClickException(_out_of_reach(best, half_width))
        _tell_choices(found, means, as_json)
        best = found[0]
    else:
        best = means.plan(chosen, n, queries or ALL[chosen].queries)
        guessed = "" if number or size else _guessed(assumed)
        _tell_plan(best, means, latency or assumed.latency, guessed, as_json)
    if figure is not None:
        _draw(means, number or size, best, figure, as_json)


@dataclass(frozen=True, slots=True)
class _Assumed:
    """What a shape's source tells beside the shape."""

    shape: shapes.Shape
    method: str = "latent"
    items: int | None = None
    tokens: TokenCount | None = None
    latency: float | None = None


def _assumed(name: str) -> _Assumed:
    path = Path(name)
    if name in shapes.PRESETS:
        return _Assumed(shapes.preset(name))
    if path.is_dir():
        from blindcal.results.run import open_run

        return _of_run(open_run(path))
    if not path.is_file():
        known = ", ".join(shapes.PRESETS)
        raise click.UsageError(
            f"--shape {printable(name, 80)!r} is none of {known}, and no run or file either"
        )
    from blindcal.items.score_files import read_scores

    scores = read_scores(path)
    return _Assumed(
        shapes.of_scores(printable(path.name, 80), scores.labels, scores.p), items=scores.labels.size
    )


def _of_run(run: Run) -> _Assumed:
    from blindcal.store.run_store import RUN_FILE, Store

    spend = run.result.spend
    with Store.read(run.folder / RUN_FILE) as store:
        seconds = [row[3] for row in store.texts()]
    return _Assumed(
        shapes.Shape(printable(str(run.folder), 80), run.fit().population),
        run.result.method,
        run.labels.size,
        TokenCount(
            spend.prompt_tokens / spend.queries, spend.completion_tokens / spend.queries, counted=True
        ),
        sum(seconds) / len(seconds) or None,
    )


def _measured(path: Path, settings: Settings) -> tuple[int, TokenCount]:
    with open_items(path, settings.reading, data_dir=settings.data_dir) as loaded:
        return len(loaded), asyncio.run(count_tokens(loaded, settings))


def _out_of_reach(best: Plan, half_width: float | None) -> str:
    assert best.promise is not None
    reached = (
        f"a half-width of {best.promise.half_width:.4f}"
        if half_width is not None
        else f"a power of {best.promise.power:.2f}"
    )
    return (
        f"{best.items:,} items do not suffice: with {best.promise.queries:g} queries each "
        f"they reach {reached}; take more (--items)"
    )


def _guessed(assumed: _Assumed) -> str:
    """Where a number of items comes from that nobody gave."""
    if assumed.items:
        return ", as many as the shape's; --items N or a file of items plans for others"
    return ", a mere assumption: give a file of items, or --items N"


def _tell_plan(plan: Plan, means: PlanInputs, latency: float | None, guessed: str, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"shape": means.shape.name, **asdict(plan)}))
        return
    promised = plan.promise
    assert promised is not None
    about = "" if plan.counted else "about "
    click.echo(f"items       {plan.items:,}{guessed}")
    click.echo(
        f"queries     {plan.queries:,} by {promised.method}, and about {plan.probe_queries} for the probe"
    )
    if plan.prompt_tokens is None or plan.completion_tokens is None:
        click.echo("tokens      unknown: give a file of items, or --tokens for one prompt's")
    else:
        click.echo(f"tokens      {about}{plan.prompt_tokens:,} in, {plan.completion_tokens:,} out")
    click.echo(f"cost        {_cost(plan, about)}")
    assumed = "" if latency else ", assumed"
    click.echo(
        f"time        about {_duration(plan.seconds)} "
        f"({means.pace.concurrency} under way, {means.pace.latency:.2g} s a reply{assumed})"
    )
    click.echo(f"if it is    {means.shape.name}: ECE {promised.ece:.4f}")
    if promised.half_width is None:
        click.echo("interval    none by this method; latent gives one")
    else:
        click.echo(f"interval    +- {promised.half_width:.4f} at {means.level:.0%}")
    click.echo(
        f"error       {promised.error:.4f} on average, below {promised.error_95:.4f} in 19 of 20 audits"
    )
    if promised.power is not None:
        click.echo(f"power       {promised.power:.0%} to find that it is not calibrated (p < 0.05)")


def _tell_choices(found: tuple[Plan, ...], means: PlanInputs, as_json: bool) -> None:
    if as_json:
        click.echo(
            msgspec.json.encode({"shape": means.shape.name, "choices": [asdict(one) for one in found]})
        )
        return
    click.echo(f"if it is    {means.shape.name}: ECE {means.shape.ece(means.bins or 5):.4f}")
    click.echo("     items  queries/item     queries          cost      time  half-width  power")
    for one in found:
        promised = one.promise
        assert promised is not None
        power = "" if promised.power is None else f"{promised.power:.0%}"
        cost = "?" if one.cost is None else f"${one.cost:,.4f}"
        click.echo(
            f"{one.items:10,}  {promised.queries:12g}  {one.queries:10,}  {cost:>12}  "
            f"{_duration(one.seconds):>8}  {promised.half_width:10.4f}  {power:>5}"
        )
    if means.prices is None or means.tokens is None:
        click.echo("cost unknown: give --price-in and --price-out, and a file of items or --tokens")


def _cost(plan: Plan, about: str) -> str:
    if plan.cost is not None:
        return f"{about}${plan.cost:,.4f}"
    return "unknown: give --price-in and --price-out" + ("" if plan.prompt_tokens else ", and the tokens")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _draw(means: PlanInputs, most: int | None, chosen: Plan, path: Path, as_json: bool) -> None:
    from tqdm import tqdm

    from blindcal.report.plan_figure import save_plan_figure

    top = most or 4 * chosen.items
    sizes = sorted({max(20, round(top / 4**k)) for k in range(4)})
    wanted = [(m, n, k) for m in METHODS for k in DRAWN[m] for n in sizes]
    with tqdm(wanted, unit="plan", leave=False, delay=1, disable=None) as bar:
        plans = [means.plan(*one, tested=False) for one in bar]
    save_plan_figure(path, plans, front(plans), chosen)
    if not as_json:
        click.echo(f"figure      {printable(str(path), 200)}")
        best = [one for one in front(plans) if one.promise and one.promise.method in FITTED]
        click.echo(f"front       {', '.join(_short(one) for one in best[-4:])}")


def _short(plan: Plan) -> str:
    assert plan.promise is not None
    return f"{plan.promise.method} {plan.items:,} x {plan.promise.queries:g} (+- {reach_of(plan):.4f})"
