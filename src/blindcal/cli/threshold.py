"""``blindcal threshold``: the threshold to deploy, and the request that decides by it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import expit, logit

from blindcal.certifying.decision_request import DecisionRequest, decision_request
from blindcal.cli import options, snippets
from blindcal.cli.console import error_text, print_field, print_stage, print_warning
from blindcal.cli.param_types import FiniteRange
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.findings import OperatingPoint
from blindcal.estimate.latent.operating import TESTED, ChosenThreshold
from blindcal.json_form import json_line
from blindcal.progress_bar import count_bar
from blindcal.records import Estimate, level_percent
from blindcal.results.merge import together
from blindcal.results.run import PartThreshold, Run, open_run
from blindcal.text import printable

THRESHOLDS = np.arange(1, 20) / 20
WIDE = 103  # columns of a table with three digits
_COLUMNS = ("precision", "recall", "accuracy", "positive_rate")
_ANSWER_COLUMNS = {"precision": "precision", "recall": "recall", "positive_rate": "answered"}
MARGINS = np.array([0.01, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10])


@click.command("threshold")
@options.run_argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--precision",
    type=options.INNER_SHARE,
    help="Precision to reach: chooses the lowest threshold that reaches it.",
)
@click.option(
    "--recall",
    type=options.INNER_SHARE,
    help="Recall to reach: chooses the highest threshold that reaches it.",
)
@click.option(
    "--cost-fp", type=options.POSITIVE_NUMBER, help="Cost of a wrong positive decision; requires --cost-fn."
)
@click.option(
    "--cost-fn", type=options.POSITIVE_NUMBER, help="Cost of a wrong negative decision; requires --cost-fp."
)
@click.option(
    "--confidence",
    type=FiniteRange(0.5, 1, max_open=True),
    default=0.95,
    help="Confidence with which the precision or recall must be reached.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Require only that the estimate reaches it: the deployed model then falls short about half of the "
    "time.",
)
@click.option(
    "--decisions",
    type=click.IntRange(1),
    metavar="M",
    help="Number of positive decisions to predict the precision of, for monitoring.",
)
@click.option(
    "--by", "by_part", is_flag=True, help="Choose a threshold for each part of the audit's breakdown."
)
@options.field(
    "simultaneous", help="With --by: let the promises of all parts hold together with the confidence."
)
@options.fields("level", "resamples")
@click.option(
    "--snippet",
    type=click.Choice(["body", "curl", "python"]),
    help="Print only the request, ready to use: its JSON body, a shell command, or a Python program.",
)
@options.json_option()
def command(
    runs: tuple[Path, ...],
    confidence: float,
    estimate: bool,
    decisions: int | None,
    by_part: bool,
    simultaneous: bool,
    level: float,
    resamples: int,
    snippet: str | None,
    as_json: bool,
    **goal: float | None,
) -> None:
    """Choose a decision threshold from a finished audit, and print the request that applies it.

    RUN is the folder of the audit; if the audit was split, name the folders of all its parts. The request
    carries the threshold in its logit_bias, so that the deployed model decides by itself: one query at
    temperature 0, one token, no probabilities. Without a goal, the command prints the precision, recall and
    accuracy at all thresholds.

    With more than two answers, the decision is to answer or to abstain: the plain question is asked, then
    once more with the logit of the answer given lowered by a margin. If the same answer comes again, it
    counts. The precision is the share of right answers among those that count, and the recall the share of
    all right answers that do. A false positive is a wrong answer that counts, a false negative a right one
    that does not.

    With --by, each part of the audit's breakdown has a threshold of its own, from its own answers. Each
    promise then holds by itself: of 20 parts, one may fall short. With --simultaneous all hold together.

    \b
    Examples:
      blindcal threshold runs/boolq-gpt-4o-mini
      blindcal threshold runs/boolq-gpt-4o-mini --precision 0.95
      blindcal threshold runs/boolq-gpt-4o-mini --cost-fp 5 --cost-fn 1 --snippet curl
      blindcal threshold runs/mmlu-gpt-4o-mini --precision 0.9 --by --simultaneous

    \b
    Exit status:
      0  a threshold was found
      1  no threshold reaches the goal (with --by: in no part), or the run cannot be read
      2  a wrong command line
    """
    if (goal["cost_fp"] is None) != (goal["cost_fn"] is None):
        raise click.UsageError("--cost-fp and --cost-fn go together")
    goals = sum(goal[name] is not None for name in ("precision", "recall", "cost_fp"))
    if goals > 1:
        raise click.UsageError("give only one of --precision, --recall, or --cost-fp with --cost-fn")
    if not goals and (snippet is not None or decisions is not None):
        raise click.UsageError("give a goal: --precision, --recall, or --cost-fp with --cost-fn")
    if by_part and (not goals or snippet is not None or decisions is not None):
        raise click.UsageError("--by needs a goal, and prints no --snippet and no --decisions")
    if simultaneous and not by_part:
        raise click.UsageError("--simultaneous is about the parts: add --by")
    opened = [open_run(run) for run in runs]
    run = together(opened) if len(opened) > 1 else opened[0]
    _warn_about_run(run)
    if by_part:
        wanted = None if estimate else confidence
        with count_bar(unit="part", delay=2, disable=None) as progress:
            found = run.part_thresholds(
                **goal,
                confidence=wanted,
                simultaneous=simultaneous,
                level=level,
                resamples=resamples,
                progress=progress,
            )
        if all(one.chosen is None for one in found):
            raise NotIdentifiedError(f"no part has such a threshold: {found[0].why}")
        if as_json:
            click.echo(json_line([_part_record(one) for one in found]))
        else:
            _print_parts(found, run, goal, wanted, simultaneous=simultaneous)
        return
    if sys.stderr.isatty():
        print_stage(f"refitting {resamples:,} times")
    fit = run.fit(level=level, resamples=resamples).deployable
    if not goals:
        at = expit(MARGINS) if fit.by_margin else THRESHOLDS
        _print_all(fit.operating_at(at), run, level, as_json, by_margin=fit.by_margin)
        return
    chosen = fit.choose_threshold(
        **goal, confidence=None if estimate else confidence, max_shift=run.max_shift
    )
    threshold = float(chosen.threshold)
    if not run.result.answers:
        _warn_about_untested(run, threshold)
    following = None if decisions is None else fit.next_precision(threshold, decisions)
    try:
        request: DecisionRequest | NotIdentifiedError = decision_request(run, chosen.point.shift)
    except NotIdentifiedError as error:
        request = error
    if as_json:
        click.echo(json_line(_record(chosen, request, decisions, following)))
    elif snippet is None:
        _print(chosen, run, goal, decisions, following, request)
    elif isinstance(request, NotIdentifiedError):
        raise request
    elif snippet == "body":
        click.echo(json.dumps(request.body, indent=2))
    else:
        answers = len(run.result.answers)
        varies = run.choices is not None and bool((run.choices < answers).any())
        click.echo(getattr(snippets, snippet)(request, varies=varies), nl=False)


def _warn_about_run(run: Run) -> None:
    """Warn about everything that makes thresholds from this run less reliable."""
    result = run.result
    if not result.complete:
        print_warning(f"the audit is not finished ({printable(str(result.stopped), 200)})")
    if result.objection is not None:
        print_warning("the probe found this endpoint unfit; a threshold may have no effect there")
    for text in result.warnings:
        print_warning(printable(text, 600))
    if result.counts.invalid:
        print_warning(
            f"{result.counts.invalid:,} of {result.counts.answers:,} answers were invalid; expect such "
            "answers in production too, and decide what they mean"
        )


def _warn_about_untested(run: Run, threshold: float) -> None:
    """Warn if hardly any query tested thresholds beyond this one."""
    asked = expit(-run.answered.shifts[run.answered.temperatures == 0])
    beyond = int((asked >= threshold).sum() if threshold > 0.5 else (asked <= threshold).sum())
    if asked.size and beyond < TESTED:
        side = "above" if threshold > 0.5 else "below"
        print_warning(
            f"only {beyond:,} of {asked.size:,} queries tested thresholds {side} this one; its estimates "
            "rest on the smoothness of the fit there: audit more items, or monitor the deployed model"
        )


def _print_all(
    points: tuple[OperatingPoint, ...], run: Run, level: float, as_json: bool, *, by_margin: bool
) -> None:
    if as_json:
        rows = [
            {"margin" if by_margin else "threshold": -one.shift if by_margin else one.threshold}
            | {"shift": one.shift}
            | {name: asdict(getattr(one, name)) for name in _COLUMNS}
            for one in points
        ]
        click.echo(json_line(rows))
        return
    columns = _ANSWER_COLUMNS if run.result.answers else {name: name.replace("_", " ") for name in _COLUMNS}
    narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE
    digits, width = (2, 16) if narrow else (3, 22)
    click.echo("at    " + "  ".join(f"{name:<{width}}" for name in columns.values()).rstrip())
    for one in points:
        # the level is the same for all, and is printed below the table
        cells = [f"{replace(getattr(one, name), level=None):.{digits}f}" for name in columns]
        row = "  ".join(f"{cell.replace(' to ', '-') if narrow else cell:<{width}}" for cell in cells)
        at = f"{-one.shift:<4.1f}" if by_margin else f"{one.threshold:.2f}"
        click.echo(f"{at}  {row.rstrip()}")
    if by_margin:
        click.echo("at: by how much the logit of the answer given is lowered when it is asked for again")
    click.echo(f"expected of new questions like these, with a {level:.0%} interval for each number by itself")


def _print(
    chosen: ChosenThreshold,
    run: Run,
    goal: dict[str, float | None],
    decisions: int | None,
    following: Estimate | None,
    request: DecisionRequest | NotIdentifiedError,
) -> None:
    point, several = chosen.point, bool(run.result.answers)
    print_field(*_rule(point, run, request))
    print_field("promise", _promise(chosen, goal, several=several))
    for name in ("precision", "recall") if several else ("precision", "recall", "accuracy"):
        print_field(name, f"{getattr(point, name):.4f}")
    print_field("answered" if several else "positive", f"{point.positive_rate:.4f} of all decisions")
    if chosen.expected_cost is not None:
        print_field("cost", f"{chosen.expected_cost:.4f} per decision")
    if following is not None:
        print_field(
            "expect",
            f"of the next {decisions:,} {'answers' if several else 'positive decisions'}, "
            f"{following.low:.1%} to {following.high:.1%} are right ({following.level:.0%})",
        )
    if isinstance(request, NotIdentifiedError):
        print_field("request", f"none: {error_text(request)}")
        return
    print_field("shift", f"{point.shift:+.4f}")
    if not request.confirm:
        print_field("logit_bias", json.dumps(request.ask["logit_bias"]))
    print_field("request", f"POST {printable(request.url, 400)}")
    click.echo(json.dumps(request.ask, indent=2))
    for word, body in list(request.confirm.items())[:1]:
        print_field("then", f"the same with another logit_bias; for {printable(word, 40)!r} this one:")
        click.echo(json.dumps(body["logit_bias"]))
    click.echo("(--snippet curl or --snippet python prints it ready to run)")


def _threshold(threshold: float) -> str:
    """A threshold with as many digits as it needs near 0 and 1."""
    return f"{threshold:.4f}" if 0.0005 < threshold < 0.9995 else f"{threshold:.7g}"


def _rule(point: OperatingPoint, run: Run, request: DecisionRequest | NotIdentifiedError) -> tuple[str, str]:
    """The name and the value of what decides, in words."""
    if not run.result.answers:
        positive = printable(run.result.targets.positive[0].text.strip(), 40)
        where = f"the answer is {positive!r} where its probability is at least this"
        return "threshold", f"{_threshold(point.threshold)}: {where}"
    if isinstance(request, DecisionRequest):
        again = "an answer counts if it is given again with its logit lowered by this; otherwise abstain"
        return "margin", f"{-point.shift:.4f}: {again}"
    return "threshold", f"{point.threshold:.4f}: an answer counts where its probability is at least this"


def _promise(chosen: ChosenThreshold, goal: dict[str, float | None], *, several: bool) -> str:
    name, value = next((name, value) for name, value in goal.items() if value is not None)
    if name.startswith("cost"):
        cost_fp, cost_fn = goal["cost_fp"], goal["cost_fn"]
        wrong, missed = ("answer", "right one withheld") if several else ("positive", "wrong negative")
        return f"lowest expected cost if a wrong {wrong} costs {cost_fp:g} and a {missed} {cost_fn:g}"
    if chosen.confidence is None:
        return f"{name} {value:g} by the estimate alone: it falls short about half of the time"
    return f"{name} at least {value:g}, {chosen.confidence:.0%} sure"


def _record(
    chosen: ChosenThreshold,
    request: DecisionRequest | NotIdentifiedError,
    decisions: int | None,
    following: Estimate | None,
) -> dict[str, Any]:
    record = _chosen_record(chosen)
    if following is not None:
        record["next"] = {"decisions": decisions, **asdict(following)}
    if isinstance(request, NotIdentifiedError):
        return record | {"logit_bias": None, "request": None, "why": error_text(request)}
    if request.confirm:
        threshold = record.pop("threshold")
        margin = {name: float(logit(threshold[name])) for name in ("value", "low", "high")}
        record["margin"] = {**margin, "level": threshold["level"]}
    else:
        record["logit_bias"] = request.ask["logit_bias"]
    return record | {"url": request.url, "request": request.body}


def _chosen_record(chosen: ChosenThreshold) -> dict[str, Any]:
    return {
        **asdict(chosen.point),
        "threshold": asdict(chosen.threshold),
        "confidence": chosen.confidence,
        "expected_cost": None if chosen.expected_cost is None else asdict(chosen.expected_cost),
    }


def _part_record(one: PartThreshold) -> dict[str, Any]:
    chosen = {"threshold": None} if one.chosen is None else _chosen_record(one.chosen)
    return {"part": one.part, "items": one.items, "why": one.why, **chosen}


def _print_parts(
    thresholds: Sequence[PartThreshold],
    run: Run,
    goal: dict[str, float | None],
    confidence: float | None,
    *,
    simultaneous: bool,
) -> None:
    """Print a line per part, and what is promised for them."""
    wanted = ", ".join(
        f"{name.replace('_', ' ')} {value:g}" for name, value in goal.items() if value is not None
    )
    print_field("goal", f"{wanted}, in each part by {printable(str(run.result.by), 40)}")
    print_field("promise", _promise_of_parts(thresholds, confidence, simultaneous=simultaneous))
    names = [printable(one.part, 30) for one in thresholds]
    width = max(len(name) for name in [*names, "part"])
    click.echo(f"{'part':{width}}    items  threshold    shift  {'precision':<22}  recall")
    for name, one in zip(names, thresholds, strict=True):
        if one.chosen is None:
            why = printable(str(one.why).partition(";")[0], 200)
            click.echo(f"{name:{width}}  {one.items:>7,}  none: {why}")
            continue
        point = one.chosen.point
        # the level is the same for all, and is printed below the table
        cells = [f"{replace(each, level=None):.3f}" for each in (point.precision, point.recall)]
        where = f"{one.items:>7,}  {point.threshold:>9.4f}  {point.shift:>+7.3f}"
        click.echo(f"{name:{width}}  {where}  {cells[0]:<22}  {cells[1]}")
    level = next(one.chosen.threshold.level or 0.0 for one in thresholds if one.chosen is not None)
    what = "expected of new questions like these"
    click.echo(f"{what}, with a {level_percent(level)} interval for each number by itself")


def _promise_of_parts(
    thresholds: Sequence[PartThreshold], confidence: float | None, *, simultaneous: bool
) -> str:
    chosen = [one.chosen for one in thresholds if one.chosen is not None]
    parts = f"{len(chosen):,} parts (of {len(thresholds):,})"
    if confidence is None or all(one.confidence is None for one in chosen):
        return f"a threshold for {len(chosen):,} of {len(thresholds):,} parts, by the estimate alone"
    sure = level_percent(confidence)
    if simultaneous:
        return f"all of {parts} together reach it, {sure} sure"
    return f"each of {parts} reaches it, {sure} sure of each by itself"
