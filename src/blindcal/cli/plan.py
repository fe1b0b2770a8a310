"""``blindcal plan``: the cost and the precision of an audit, before anything is paid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from blindcal.asking.run_context import Limits
from blindcal.cli import options
from blindcal.cli.console import print_field, print_table
from blindcal.endpoints.query_format import REASONING_TOKENS
from blindcal.items.catalogue import open_items
from blindcal.json_form import json_line
from blindcal.methods import METHODS, SIMULABLE
from blindcal.planning.forecast import OVERCONFIDENT, Shape, shape_of_scores
from blindcal.planning.plan import (
    LATENCY,
    Plan,
    PlanInputs,
    TokenCount,
    count_tokens,
    items_needed,
    methods_to_try,
    queries_per_item,
    reasoning,
)
from blindcal.prices import Prices
from blindcal.settings import DEFAULT_BINS, Settings
from blindcal.text import printable

USUAL_ITEMS = 1000


@options.command("plan")
@click.argument("items", required=False, type=options.PATH)
@click.option(
    "--sample",
    type=click.IntRange(2, 10**12),
    metavar="N",
    help=f"Number of items to plan for.  [default: those of the file, else of the shape, else {USUAL_ITEMS}]",
)
@click.option(
    "--shape",
    type=options.PATH,
    metavar="PATH",
    help="Folder of a finished run, or file of scores (id,label,p) or logits, of a similar model.  "
    "[default: an overconfident model]",
)
@click.option(
    "--method",
    type=click.Choice(SIMULABLE),
    help="Method that asks and estimates.  [default: the run's, or each that an audit tries]",
)
@options.field("queries")
@click.option(
    "--half-width",
    "width",
    type=options.FiniteRange(1e-4, 0.5),
    metavar="W",
    help="Half-width of the interval to reach; the number of items is then found, at most --sample.",
)
@click.option("--model", help="Model whose tokens are counted and whose list prices are used.")
@options.fields("template", "answers", "label_field")
@options.set_option("method", "queries", "sample", "model", "template", "answers", "label_field")
@click.option(
    "--tokens",
    type=options.FiniteRange(1, 1e9),
    metavar="T",
    help="Mean number of tokens per prompt, for plans without a file.",
)
@options.prices_option
@options.fields("concurrency", "rpm", "tpm")
@options.json_option()
def command(
    items: Path | None,
    sample: int | None,
    shape: Path | None,
    method: str | None,
    queries: float | None,
    width: float | None,
    model: str | None,
    tokens: float | None,
    given_prices: Prices | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Predict the cost and the precision of an audit; no query is sent.

    ITEMS is the file or the named set that the audit would ask. The width of the interval depends on what the
    model is like, so a shape is assumed; the folder of an earlier run on a similar model is the best guess,
    and brings its own tokens and seconds per query.

    With --half-width, the command finds the number of items that reaches it.

    \b
    Examples:
      blindcal plan --sample 3000
      blindcal plan boolq.jsonl --model my-model --template "{passage}\\n{question}?"
      blindcal plan --half-width 0.02 --tokens 250 --prices 0.15,0.6
      blindcal plan --half-width 0.02 --shape runs/boolq-my-model
    """
    if items is not None and tokens is not None:
        raise click.UsageError("--tokens is for plans without a file: those of a file are counted")
    source = _Source() if shape is None else _source(shape)
    limits = options.taken(Limits, chosen)
    settings = options.chosen_settings(chosen, model=model or "unknown", queries=queries)
    settings = settings.replace(method=method or source.method or settings.design.method)
    loaded = None if items is None else open_items(items, settings.prompt)
    several = loaded is not None and bool(loaded.answers)
    if several and width is not None:
        raise click.UsageError("--half-width: an interval for more than two answers cannot be forecast")
    if loaded is not None:
        if sample is not None and sample > len(loaded):
            raise click.UsageError(f"--sample {sample:,}: the file holds {len(loaded):,}")
        settings = settings.resolved(len(loaded), loaded.words)
    about: dict[str, Any] = {
        "shape": source.shape.name,
        "ece": source.shape.ece(settings.estimation.bins or DEFAULT_BINS),
    }
    inputs = PlanInputs(
        shape=None if several else source.shape,
        bins=settings.estimation.bins,
        level=settings.estimation.level,
        tokens=count_tokens(loaded, settings) if loaded else TokenCount(tokens) if tokens else source.tokens,
        prices=options.prices(given_prices, settings),
        limits=limits,
        latency=source.latency or LATENCY,
    )
    given = sample or (loaded and len(loaded))
    n = given or source.items or USUAL_ITEMS
    methods, most = methods_to_try(settings), () if given is None else (n,)
    plans = {}
    for method in methods:
        asked = queries_per_item(settings, method)
        needed = n if width is None else items_needed(inputs, width, method, asked, *most)
        if needed is not None:
            plans[method] = inputs.of_settings(settings, method, needed)
    if not plans:
        reached = min(inputs.of_settings(settings, method, n).half_width or 1.0 for method in methods)
        raise click.ClickException(
            f"{n:,} items do not suffice: they reach a half-width of {reached:.4f} at best; plan for more "
            "with --sample"
        )
    if as_json:
        about = {"answers": settings.answer_words} if several else about
        shown = {name: asdict(plan) for name, plan in plans.items()}
        click.echo(json_line({**about, **(shown if settings.auto else shown[methods[0]])}))
        return
    words = f", with the answers {printable(', '.join(settings.answer_words), 80)}" if several else ""
    if not (given or width):
        words = ", assumed: give a file of items or --sample N"
        if source.items:
            words = ", as many as the shape's; give a file of items or --sample N to plan for another number"
    plan = next(iter(plans.values()))
    if len(plans) > 1:
        print_plans(plans)
    else:
        print_field("items", f"{plan.items:,}{words}")
        print_plan(plan, methods[0])
        known = "" if source.latency else ", assumed"
        print_field(
            "time",
            f"about {_duration(plan.seconds)} ({limits.concurrency} concurrent requests, "
            f"{inputs.latency:.2g} s per reply{known})",
        )
    print_reasoning(settings)
    if several:
        print_field("interval", "cannot be forecast for more than two answers; see 'blindcal simulate'")
        return
    print_field("if it is", f"{about['shape']}: ECE {about['ece']:.4f}")
    if len(plans) == 1:
        none = "none by this method; latent gives one"
        width = plan.half_width
        print_field("interval", none if width is None else f"+- {width:.4f} at {inputs.level:.0%}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """An assumed shape, and what its run or score file adds to a plan."""

    shape: Shape = OVERCONFIDENT
    method: str = ""
    items: int | None = None
    tokens: TokenCount | None = None
    latency: float | None = None


def _source(path: Path) -> _Source:
    shown = printable(str(path), 80)
    if path.is_file():
        from blindcal.items.score_files import read_scores

        scores = read_scores(path)
        shape = shape_of_scores(printable(path.name, 80), scores.labels, scores.p)
        return _Source(shape=shape, items=scores.labels.size)
    if not path.is_dir():
        raise click.UsageError(f"--shape {shown!r}: no run and no file")
    from blindcal.results.run import open_run
    from blindcal.store.run_store import RUN_FILE, Store

    run = open_run(path)
    if run.result.answers:
        raise click.UsageError(f"--shape {shown!r}: has more than two answers, and shapes have two")
    with Store.read(run.folder / RUN_FILE) as store:
        seconds = [row[3] for row in store.texts()]
    spend = run.result.spend
    each = spend.prompt_tokens / spend.queries, spend.completion_tokens / spend.queries
    return _Source(
        shape=Shape(shown, run.fit().smooth.population),
        method=run.result.method,
        items=run.labels.size,
        tokens=TokenCount(*each, counted=True),
        latency=sum(seconds) / len(seconds) or None,
    )


def print_plan(plan: Plan, method: str) -> None:
    """Print the queries, tokens and cost of a plan, or the options that make them known."""
    controls = f", {plan.control_queries:,} controls" if plan.control_queries else ""
    probe = f", and about {plan.probe_queries} for the probe" if plan.probe_queries else ""
    print_field("queries", f"{plan.queries:,} by {method}{controls}{probe}")
    about = "" if plan.counted else "about "
    if plan.prompt_tokens is not None:
        print_field("tokens", f"{about}{plan.prompt_tokens:,} in, {plan.completion_tokens:,} out")
    if plan.cost is not None:
        print_field("cost", f"{about}${plan.cost:,.4f}")
    _print_dearest({method: plan})
    _print_unknown(plan)


def print_plans(plans: Mapping[str, Plan]) -> None:
    """Print what an audit takes by each method that an endpoint may allow, one row per method."""
    rows = [["by", "items", "queries", "to probe", "tokens in", "out", "cost", "ECE"]]
    for method, plan in plans.items():
        about = "" if plan.counted else "~"
        cells = [f"{plan.items:,}", f"{plan.queries + plan.control_queries:,}", f"~{plan.probe_queries}"]
        tokens = (plan.prompt_tokens, plan.completion_tokens)
        cells += ["?" if count is None else f"{about}{count:,}" for count in tokens]
        cells += ["?" if plan.cost is None else f"{about}${plan.cost:,.4f}"]
        rows.append([method, *cells, "?" if plan.half_width is None else f"+- {plan.half_width:.4f}"])
    print_table(rows, "<" + ">" * 7)
    print_field("method", "the first of these that the endpoint allows: 'blindcal probe' finds out which")
    _print_dearest(plans)
    _print_unknown(plan)


def print_reasoning(settings: Settings) -> None:
    """Print what is known of a model that reasons, and what this means for its audit."""
    known, method = reasoning(settings), settings.design.method
    if known in (None, "never") or not settings.probed:
        return
    longest = settings.max_tokens(settings.prompt.answer_format or "sentence")
    reads = f"its answers are read as text of up to {longest:,} tokens, of which all are counted here"
    if not settings.auto and not METHODS[method].free_text:
        reads = f"{method} reads answers of one token: leave --method out"
    elif longest < REASONING_TOKENS and settings.prompt.max_tokens is None:
        reads += f"; --set max_tokens={REASONING_TOKENS} if they are cut short"
    unless = " (not with --set reasoning_effort=none)" if known == "unless none" else ""
    model = printable(settings.endpoint.model, 80)
    print_field("model", f"{model} reasons before it answers{unless}, and {reads}")


def _print_dearest(plans: Mapping[str, Plan]) -> None:
    texts = {method: plan.in_text for method, plan in plans.items() if plan.in_text is not None}
    if texts:
        method, most = max(texts.items(), key=lambda pair: pair[1].completion_tokens or 0)
        cost = "" if most.cost is None else f", ${most.cost:,.4f}"
        first = f"up to {most.completion_tokens:,} tokens out by {method}{cost}"
        print_field("dearest", f"{first}, if the model reasons or explains itself: the probe finds out")


def _print_unknown(plan: Plan) -> None:
    cost = "unknown: give --prices"
    if plan.prompt_tokens is None:
        print_field("tokens", "unknown: give a file of items, or --tokens for one prompt")
        cost += ", and the tokens"
    if plan.cost is None:
        print_field("cost", cost)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
