"""``blindcal plan``: the cost and the precision of an audit, before anything is paid."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blindcal.cli import options
from blindcal.cli.console import print_field
from blindcal.cli.param_types import FiniteRange
from blindcal.items.catalogue import open_items
from blindcal.json_form import json_line
from blindcal.methods import METHODS, SIMULABLE, count_queries
from blindcal.planning import shapes
from blindcal.planning.plan import (
    LATENCY,
    Plan,
    PlanInputs,
    Throughput,
    TokenCount,
    choices,
    count_tokens,
)
from blindcal.prices import Prices
from blindcal.settings import DEFAULT_BINS, Settings
from blindcal.text import printable

if TYPE_CHECKING:
    from blindcal.results.run import Run

USUAL_ITEMS = 1000
WIDTH = 12


@click.command("plan")
@click.argument("items", required=False, type=options.PATH)
@click.option(
    "--sample",
    type=click.IntRange(2),
    metavar="N",
    help=f"Number of items to plan for.  [default: those of the file, else of the shape, else {USUAL_ITEMS}]",
)
@click.option(
    "--shape",
    "shape_name",
    default=shapes.DEFAULT,
    metavar="SHAPE",
    help=f"What is assumed about the model: {', '.join(shapes.PRESETS)}; the folder of a finished run; or a "
    "file of scores (id,label,p) or logits.",
)
@click.option("--ece", type=options.SHARE, help="ECE to scale the shape to.")
@click.option(
    "--method",
    type=click.Choice(SIMULABLE),
    help="Method that asks and estimates.  [default: latent, or the run's]",
)
@options.field("queries")
@click.option(
    "--half-width",
    type=options.INNER_SHARE,
    metavar="W",
    help="Half-width of the interval to reach: finds the numbers of items and queries.",
)
@click.option("--model", help="Model whose tokens are counted and whose list prices are used.")
@options.fields("template", "system", "answers", "label_field", "label_map")
@options.set_option(
    "method", "queries", "sample", "model", "template", "system", "answers", "label_field", "label_map"
)
@click.option(
    "--tokens",
    type=FiniteRange(1),
    metavar="T",
    help="Mean number of tokens per prompt, for plans without a file.",
)
@options.prices_option
@click.option(
    "--latency",
    type=options.POSITIVE_NUMBER,
    metavar="SECONDS",
    help="Time per reply.  [default: the run's, else 0.6]",
)
@options.fields("concurrency", "rpm", "tpm")
@options.json_option()
def command(
    items: Path | None,
    sample: int | None,
    shape_name: str,
    ece: float | None,
    method: str | None,
    queries: float | None,
    half_width: float | None,
    model: str | None,
    tokens: float | None,
    given_prices: Prices | None,
    latency: float | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Predict the cost and the precision of an audit; no query is sent.

    ITEMS is the file or the named set that the audit would ask. The width of the interval depends on what the
    model is like, so a shape is assumed; the folder of an earlier run on a similar model is the best guess,
    and brings its own tokens and seconds per query.

    With --half-width, the command finds the numbers of items and of queries per item that reach it, cheapest
    first.

    \b
    Examples:
      blindcal plan --sample 3000
      blindcal plan boolq.jsonl --model gpt-4o-mini --template "{passage}\\n{question}?"
      blindcal plan --half-width 0.02 --tokens 250 --prices 0.15,0.6
      blindcal plan --half-width 0.02 --shape runs/boolq-gpt-4o-mini
    """
    if items is not None and tokens is not None:
        raise click.UsageError("--tokens is for plans without a file: those of a file are counted")
    assumed = _assumed(shape_name)
    seconds = latency or assumed.latency
    throughput = replace(options.taken(Throughput, chosen), latency=seconds or LATENCY)
    settings = options.chosen_settings(chosen, model=model or "unknown")
    bins, level = settings.estimation.bins, settings.estimation.level
    wanted = method or assumed.method
    size, counted, audit = (None, None, None) if items is None else _measure(items, settings, wanted, queries)
    if audit is not None and (half_width, ece) != (None, None):
        raise click.UsageError(
            "--half-width and --ece are for two answers: how precise an audit of more is cannot be forecast"
        )
    if size is not None and sample is not None and sample > size:
        raise click.UsageError(f"--sample {sample:,}: the file holds {size:,}")
    inputs = PlanInputs(
        assumed.shape if ece is None else assumed.shape.with_ece(ece, bins or DEFAULT_BINS),
        bins,
        level,
        counted or (assumed.tokens if tokens is None else TokenCount(tokens)),
        options.prices(given_prices, settings),
        throughput,
    )
    given = sample or size
    n = given or assumed.items or USUAL_ITEMS
    if audit is not None:
        asked = count_queries(wanted, n, audit.queries, bins or audit.bins)
        best = inputs.priced(wanted, n, asked)
        _print_several(best, inputs, audit, as_json, latency_known=bool(seconds))
        return
    if half_width is not None:
        most = {} if given is None else {"most": n}
        budgets = None if queries is None else [queries]
        found = choices(inputs, half_width, wanted, budgets, **most)
        if not found:
            best = inputs.plan(wanted, n, queries or METHODS[wanted].plan_budgets[-1])
            raise click.ClickException(_out_of_reach(best))
        _print_choices(found, inputs, as_json)
        return
    best = inputs.plan(wanted, n, queries or METHODS[wanted].queries)
    guess = "" if given else _guess(assumed)
    _print_plan(best, inputs, guess, as_json, latency_known=bool(seconds))


@dataclass(frozen=True, slots=True)
class _Assumed:
    """The assumed shape of a model, and what else is known from its source, such as a run."""

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

        return _assumed_from_run(open_run(path))
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


def _assumed_from_run(run: Run) -> _Assumed:
    from blindcal.store.run_store import RUN_FILE, Store

    spend = run.result.spend
    if run.result.answers:
        raise click.UsageError(
            f"--shape {printable(str(run.folder), 80)!r}: has more than two answers, and shapes have two"
        )
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


def _measure(
    path: Path, settings: Settings, method: str, queries: float | None
) -> tuple[int, TokenCount, Settings | None]:
    """The number of items in a file, the tokens of its prompts, and the audit if it has several answers."""
    loaded = open_items(path, settings.prompt)
    audit = settings.replace(method=method, queries=queries).resolved(len(loaded), loaded.words)
    return len(loaded), count_tokens(loaded, settings), audit if loaded.answers else None


def _out_of_reach(best: Plan) -> str:
    expected = best.forecast
    assert expected is not None
    return (
        f"{best.items:,} items do not suffice: with {expected.queries:g} queries per item they reach a "
        f"half-width of {expected.half_width:.4f}; plan for more with --sample"
    )


def _guess(assumed: _Assumed) -> str:
    """Where the number of items comes from if none was given."""
    if assumed.items:
        return ", as many as the shape's; give a file of items or --sample N to plan for another number"
    return ", assumed: give a file of items or --sample N"


def _print_plan(plan: Plan, inputs: PlanInputs, guess: str, as_json: bool, *, latency_known: bool) -> None:
    if as_json:
        click.echo(json_line({"shape": inputs.shape.name, **asdict(plan)}))
        return
    expected = plan.forecast
    assert expected is not None
    fields = {
        "items": f"{plan.items:,}{guess}",
        "queries": _queries_text(plan, expected.method),
        **_effort(plan, inputs, latency_known=latency_known),
        "if it is": f"{inputs.shape.name}: ECE {expected.ece:.4f}",
        "interval": "none by this method; latent gives one"
        if expected.half_width is None
        else f"+- {expected.half_width:.4f} at {inputs.level:.0%}",
        "error": f"{expected.error:.4f} on average, below {expected.error_95:.4f} in 19 of 20 audits",
    }
    for name, text in fields.items():
        print_field(name, text, width=WIDTH)


def _print_several(
    plan: Plan, inputs: PlanInputs, audit: Settings, as_json: bool, *, latency_known: bool
) -> None:
    """Print the plan of an audit with more than two answers, whose precision is not forecast."""
    if as_json:
        click.echo(json_line({"answers": audit.prompt.answers, **asdict(plan)}))
        return
    words = printable(", ".join(audit.prompt.answers), 80)
    fields = {
        "items": f"{plan.items:,}, with the answers {words}",
        "queries": _queries_text(plan, audit.design.method),
        **_effort(plan, inputs, latency_known=latency_known),
        "interval": "cannot be forecast for more than two answers; 'blindcal simulate' on a file of logits "
        "shows the error of such audits",
    }
    for name, text in fields.items():
        print_field(name, text, width=WIDTH)


def _queries_text(plan: Plan, method: str) -> str:
    controls = f", {plan.control_queries:,} controls" if plan.control_queries else ""
    return f"{plan.queries:,} by {method}{controls}, and about {plan.probe_queries} for the probe"


def _effort(plan: Plan, inputs: PlanInputs, *, latency_known: bool) -> dict[str, str]:
    """The tokens, cost and time of a plan, in words."""
    latency = f"{inputs.throughput.latency:.2g} s per reply{'' if latency_known else ', assumed'}"
    return {
        "tokens": tokens_text(plan),
        "cost": cost_text(plan),
        "time": f"about {_duration(plan.seconds)} "
        f"({inputs.throughput.concurrency} concurrent requests, {latency})",
    }


def _print_choices(found: tuple[Plan, ...], inputs: PlanInputs, as_json: bool) -> None:
    if as_json:
        plans = [asdict(one) for one in found]
        click.echo(json_line({"shape": inputs.shape.name, "choices": plans}))
        return
    ece = inputs.shape.ece(inputs.bins or DEFAULT_BINS)
    print_field("if it is", f"{inputs.shape.name}: ECE {ece:.4f}", width=WIDTH)
    click.echo("     items  queries/item     queries          cost      time  half-width")
    for one in found:
        expected = one.forecast
        assert expected is not None
        cost = "?" if one.cost is None else f"${one.cost:,.4f}"
        click.echo(
            f"{one.items:10,}  {expected.queries:12g}  {one.queries:10,}  {cost:>12}  "
            f"{_duration(one.seconds):>8}  {expected.half_width:10.4f}"
        )
    if inputs.prices is None or inputs.tokens is None:
        click.echo("cost unknown: give --prices, and a file of items or --tokens")


def tokens_text(plan: Plan) -> str:
    """The number of tokens of a plan in words, or how to find it out."""
    if plan.prompt_tokens is None:
        return "unknown: give a file of items, or --tokens for one prompt"
    about = "" if plan.counted else "about "
    return f"{about}{plan.prompt_tokens:,} in, {plan.completion_tokens:,} out"


def cost_text(plan: Plan) -> str:
    """The cost of a plan in words, or how to find it out."""
    if plan.cost is not None:
        return f"{'' if plan.counted else 'about '}${plan.cost:,.4f}"
    return "unknown: give --prices" + ("" if plan.prompt_tokens else ", and the tokens")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
