"""``blindcal threshold``: the threshold to deploy, and the request that decides by it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from scipy.special import expit

from blindcal.cli import options
from blindcal.cli.param_types import FiniteRange
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.latent import LatentFit
from blindcal.estimate.operating import TESTED, OperatingPoint
from blindcal.estimate.uncertainty import Interval
from blindcal.results.deployment import Deployment, deployment
from blindcal.results.merge import together
from blindcal.results.run import Run, open_run
from blindcal.text import printable

SHARE = FiniteRange(0, 1, min_open=True, max_open=True)
COST = FiniteRange(0, min_open=True)
WIDE = 103  # columns that a table with three digits takes


@click.command("threshold", short_help="Choose the threshold to deploy.")
@click.argument(
    "runs",
    nargs=-1,
    required=True,
    metavar="RUN...",
    type=click.Path(path_type=Path),
    callback=options.existing_runs,
)
@click.option(
    "--precision", type=SHARE, help="The lowest threshold whose positive decisions are so often right."
)
@click.option("--recall", type=SHARE, help="The highest threshold that finds such a share of the positives.")
@click.option("--cost-fp", type=COST, help="What a wrong positive decision costs; with --cost-fn.")
@click.option("--cost-fn", type=COST, help="What a wrong negative decision costs; with --cost-fp.")
@click.option(
    "--confidence",
    type=FiniteRange(0.5, 1, max_open=True),
    default=0.95,
    show_default=True,
    help="How sure it must be that the precision or recall is reached.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Be content if the estimate reaches it: the deployed model then falls short about half of the time.",
)
@click.option(
    "--decisions",
    type=click.IntRange(1),
    metavar="M",
    help="Also say how many of the next M positive decisions will be right: what to monitor against.",
)
@options.level_option
@options.resamples_option
@click.option(
    "--snippet",
    type=click.Choice(["body", "curl", "python"]),
    help="Print only this, ready to paste: the request as JSON, a shell command, a program.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    runs: tuple[Path, ...],
    precision: float | None,
    recall: float | None,
    cost_fp: float | None,
    cost_fn: float | None,
    confidence: float,
    estimate: bool,
    decisions: int | None,
    level: float,
    resamples: int,
    snippet: str | None,
    as_json: bool,
) -> None:
    """Choose the threshold to deploy from a finished audit, and print the request that decides by it.

    RUN is the audit's folder; of an audit in shards, name all of them. The request carries the threshold in
    its logit_bias, so the deployed model takes the decision itself: one query at temperature 0, one token,
    no probabilities needed. Without a wish, the precision, recall and accuracy of all thresholds are shown.

    \b
    Examples:
      blindcal threshold runs/boolq-gpt-4o-mini
      blindcal threshold runs/boolq-gpt-4o-mini --precision 0.95
      blindcal threshold runs/boolq-gpt-4o-mini --cost-fp 5 --cost-fn 1 --snippet curl

    \b
    Exit status:
      0  a threshold was found
      1  none does what was asked for, or the run cannot be read
      2  a wrong command line
    """
    wishes = {"precision": precision, "recall": recall, "cost_fp": cost_fp, "cost_fn": cost_fn}
    if (cost_fp is None) != (cost_fn is None):
        raise click.UsageError("--cost-fp and --cost-fn go together")
    wanted = sum(value is not None for value in (precision, recall, cost_fp))
    if wanted > 1:
        raise click.UsageError("give one of --precision, --recall, or --cost-fp and --cost-fn")
    if not wanted and (snippet is not None or decisions is not None):
        raise click.UsageError("say what is wanted: --precision, --recall, or --cost-fp and --cost-fn")
    opened = [open_run(run) for run in runs]
    read = together(opened) if len(opened) > 1 else opened[0]
    _caution(read)
    fit = read.fit(resamples)
    if sys.stderr.isatty():
        click.echo(f"refitting {resamples:,} times ...", err=True)
    if not wanted:
        _all_thresholds(fit, level, as_json)
        return
    point = fit.operating_point(
        **wishes,
        confidence=None if estimate else confidence,
        level=level,
        max_shift=read.max_shift,
    )
    _caution_thin(read, point.threshold)
    following = None if decisions is None else fit.next_right(point.threshold, decisions, level)
    try:
        request: Deployment | str = deployment(read, point.shift)
    except NotIdentifiedError as error:
        request = str(error)
    if as_json:
        click.echo(json.dumps(_record(point, request, decisions, following)))
    elif snippet is None:
        _show(point, read, wishes, decisions, following, request)
    elif isinstance(request, str):
        raise NotIdentifiedError(request)
    else:
        makers = {"curl": request.curl, "python": request.python}
        made = makers[snippet]() if snippet in makers else json.dumps(request.body, indent=2) + "\n"
        click.echo(made, nl=False)


def _caution(run: Run) -> None:
    """Say on standard error what makes a threshold of this run worth less."""
    result = run.result
    if not result.complete:
        click.echo(f"warning: the audit is not finished ({printable(str(result.stopped), 200)})", err=True)
    if (result.probe or {}).get("forced"):
        click.echo("warning: the probe found this endpoint unfit; a threshold may do nothing there", err=True)
    if result.counts.invalid:
        total = result.counts.positive + result.counts.negative + result.counts.invalid
        click.echo(
            f"warning: {result.counts.invalid:,} of {total:,} answers were neither word; expect such answers "
            "when deployed too, and decide what they mean",
            err=True,
        )


def _caution_thin(run: Run, threshold: float) -> None:
    """Say so where hardly a query tested what lies beyond a threshold, so that smoothness has to speak."""
    asked = expit(-run.answered.shifts[run.answered.temperatures == 0])
    beyond = int((asked >= threshold).sum() if threshold > 0.5 else (asked <= threshold).sum())
    if asked.size and beyond < TESTED:
        side = "above" if threshold > 0.5 else "below"
        click.echo(
            f"warning: only {beyond:,} of {asked.size:,} queries tested thresholds {side} this one; what it "
            "does rests on the smoothness of the fit there: audit more items, or watch it when deployed",
            err=True,
        )


def _all_thresholds(fit: LatentFit, level: float, as_json: bool) -> None:
    curve = fit.operating_curve(level=level)
    names = ("precision", "recall", "accuracy", "positive_rate")
    bands = [getattr(curve, name) for name in names]
    if as_json:
        rows = [
            {"threshold": float(t), "shift": float(shift)}
            | {
                name: {"value": float(band.value[k]), "low": float(band.low[k]), "high": float(band.high[k])}
                for name, band in zip(names, bands, strict=True)
            }
            for k, (t, shift) in enumerate(zip(curve.thresholds, curve.shifts, strict=True))
        ]
        click.echo(json.dumps(rows))
        return
    narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE
    digits, to, width = (2, "-", 16) if narrow else (3, " to ", 22)
    click.echo("at    " + "  ".join(f"{name.replace('_', ' '):<{width}}" for name in names).rstrip())
    for k, t in enumerate(curve.thresholds):
        cells = [f"{b.value[k]:.{digits}f} ({b.low[k]:.{digits}f}{to}{b.high[k]:.{digits}f})" for b in bands]
        click.echo(f"{t:.2f}  " + "  ".join(cells))
    click.echo(f"what to expect of new questions like these; intervals: {level:.0%}, each for itself")


def _show(
    point: OperatingPoint,
    run: Run,
    wishes: dict[str, float | None],
    decisions: int | None,
    following: Interval | None,
    request: Deployment | str,
) -> None:
    positive = printable(run.result.targets.positive[0].text.strip(), 40)
    click.echo(
        f"threshold  {point.threshold:.4f}: the answer is {positive!r} where its probability is at least this"
    )
    click.echo(f"promise    {_promise(point, wishes)}")
    click.echo(f"precision  {_between(point.precision, point.precision_interval)}")
    click.echo(f"recall     {_between(point.recall, point.recall_interval)}")
    click.echo(f"accuracy   {_between(point.accuracy, point.accuracy_interval)}")
    click.echo(f"positive   {_between(point.positive_rate, point.positive_rate_interval)}  of all decisions")
    if point.expected_cost is not None and point.expected_cost_interval is not None:
        click.echo(f"cost       {_between(point.expected_cost, point.expected_cost_interval)}  a decision")
    if following is not None:
        click.echo(
            f"expect     of the next {decisions:,} positive decisions {following.low:.1%} to "
            f"{following.high:.1%} are right ({following.level:.0%})"
        )
    if isinstance(request, str):
        click.echo(f"request    none: {request}")
        return
    click.echo(f"shift      {point.shift:+.4f}")
    click.echo(f"logit_bias {json.dumps(request.logit_bias)}")
    click.echo(f"request    POST {printable(request.url, 400)}")
    click.echo(json.dumps(request.body, indent=2))
    click.echo("(--snippet curl or python prints it ready to run)")


def _promise(point: OperatingPoint, wishes: dict[str, float | None]) -> str:
    name, goal = next((name, value) for name, value in wishes.items() if value is not None)
    if name.startswith("cost"):
        cost_fp, cost_fn = wishes["cost_fp"], wishes["cost_fn"]
        return f"the least expected cost; a wrong positive costs {cost_fp:g}, a wrong negative {cost_fn:g}"
    if point.confidence is None:
        return f"{name} {goal:g} by the estimate alone: it falls short about half of the time"
    return f"{name} at least {goal:g}, {point.confidence:.0%} sure"


def _between(value: float, interval: Interval) -> str:
    return f"{value:.4f}  ({interval.level:.0%}: {interval.low:.4f} to {interval.high:.4f})"


def _record(
    point: OperatingPoint, request: Deployment | str, decisions: int | None, following: Interval | None
) -> dict[str, Any]:
    found = asdict(point)
    if following is not None:
        found["next"] = {"decisions": decisions, **asdict(following)}
    if isinstance(request, str):
        return found | {"logit_bias": None, "request": None, "why": request}
    return found | {"logit_bias": request.logit_bias, "url": request.url, "request": request.body}
