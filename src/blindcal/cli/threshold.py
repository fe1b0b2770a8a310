"""``blindcal threshold``: the threshold to deploy, and the request that decides by it, ready to run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.special import expit, logit

from blindcal.certifying.decision_request import DecisionRequest, decision_request
from blindcal.certifying.shown_probability import ShownProbability
from blindcal.cli import options
from blindcal.cli.console import error_text, print_field, print_stage, print_table, print_warning
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.findings import OperatingPoint
from blindcal.estimate.latent.operating import GRID_THRESHOLDS, TESTED, ChosenThreshold
from blindcal.estimate.shown import AnswersFit
from blindcal.json_form import json_line
from blindcal.records import Estimate, level_percent
from blindcal.report.wording import Wording, wording_of
from blindcal.results.merge import together
from blindcal.results.recalibration import Recalibration
from blindcal.results.run import Run, open_run
from blindcal.text import printable, spoken

THRESHOLDS = np.arange(1, 20) / 20
MARGINS = np.array([0.01, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10])
_FILL_IN = "Put your question into the message: replace the fields in braces, as the audit did."
FEWER_OPTIONS = "If a question has fewer options, leave the tokens of the others out of logit_bias."
_PROGRAM = """\
{comment}
{imports}

{constants}


def reply_to(body):
    request = urllib.request.Request(
        {url!r},
        json.dumps(body).encode(),
        {{"Content-Type": "application/json", {header!r}: {scheme!r} + os.environ.get("OPENAI_API_KEY", "")}},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


{decision}
"""
_ANSWER_TO = """\
def answer_to(body):
    answer = reply_to(body)["choices"][0]{answer}
    return words.get(answer.strip().casefold())


{decision}"""
_COMPARE = """\
reply = reply_to(ask)
{read}
likeliest = max(probabilities, key=probabilities.get)
print(likeliest if probabilities[likeliest] >= {threshold!r} else {otherwise!r})"""
_RATES = ("precision", "recall", "accuracy", "positive_rate")


@options.command("threshold")
@options.run_argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--precision",
    type=options.INNER_SHARE,
    help="Precision to reach; the lowest threshold that reaches it is chosen.",
)
@click.option(
    "--recall",
    type=options.INNER_SHARE,
    help="Recall to reach; the highest threshold that reaches it is chosen.",
)
@click.option(
    "--cost-fp", type=options.POSITIVE_NUMBER, help="Cost of a wrong positive decision; requires --cost-fn."
)
@click.option(
    "--cost-fn", type=options.POSITIVE_NUMBER, help="Cost of a wrong negative decision; requires --cost-fp."
)
@click.option(
    "--probability",
    type=options.INNER_SHARE,
    help="Share of positive labels at the threshold itself, by the map of 'blindcal recalibrate'.",
)
@click.option(
    "--confidence",
    type=options.CONFIDENCE,
    default=0.95,
    help="Confidence with which the precision or recall must be reached.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Require only that the estimate reaches it; the deployed model falls short about half of the time.",
)
@options.fields("level", "resamples")
@click.option(
    "--snippet",
    type=click.Choice(["curl", "python"]),
    help="Print only the request, ready to run: as a shell command, or as a Python program.",
)
@options.json_option()
def command(
    runs: tuple[Path, ...],
    confidence: float,
    estimate: bool,
    level: float,
    resamples: int,
    snippet: str | None,
    as_json: bool,
    **goal: float | None,
) -> None:
    """Choose a decision threshold from a finished audit, and print the request that applies it.

    RUN is the folder of the audit; if the audit was split, name the folders of all its parts. The request
    carries the threshold in its logit_bias, so that the deployed model decides by itself: one query at
    temperature 0, one token, no probabilities. Where the endpoint shows probabilities, the request is that of
    the audit, and the threshold is compared with the probability in the reply. Without a goal, the command
    prints the precision, recall and accuracy at all thresholds.

    With more than two answers, the decision is to answer or to abstain: the plain question is asked, then
    once more with the logit of the answer given lowered by a margin. If the same answer comes again, it
    counts. The precision is the share of right answers among those that count, and the recall the share of
    all right answers that do. A false positive is a wrong answer that counts, a false negative a right one
    that does not.

    \b
    Examples:
      blindcal threshold runs/boolq-my-model
      blindcal threshold runs/boolq-my-model --precision 0.95
      blindcal threshold runs/boolq-my-model --cost-fp 5 --cost-fn 1 --snippet curl

    \b
    Exit status:
      0  a threshold was found
      1  no threshold reaches the goal, or the run cannot be read
      2  a wrong command line
    """
    _check_options(goal, snippet)
    opened = [open_run(run) for run in runs]
    run = together(opened) if len(opened) > 1 else opened[0]
    _warn_about_run(run)
    if sys.stderr.isatty():
        print_stage(f"refitting {resamples:,} times")
    fit = run.fit(level=level, resamples=resamples).deployable
    if not any(goal.values()):
        points = fit.operating_at(expit(MARGINS) if fit.by_margin else THRESHOLDS)
        _print_all(points, run, level, as_json, by_margin=fit.by_margin)
        return
    sure = None if estimate else confidence
    probability = goal.pop("probability")
    if probability is not None:
        chosen = _by_map(run, fit, probability)
    else:
        chosen = fit.choose_threshold(**goal, confidence=sure, max_shift=run.max_shift)
    if not (run.result.answers or run.shown):
        _warn_about_untested(run, float(chosen.threshold))
    try:
        request: DecisionRequest | NotIdentifiedError = decision_request(run, chosen.point.shift)
    except NotIdentifiedError as error:
        if snippet is not None:
            raise
        request = error
    if snippet is not None and isinstance(request, DecisionRequest) and not request.url:
        raise click.UsageError("--snippet: nothing is asked where a file gives the confidences")
    if as_json:
        click.echo(json_line(_record(chosen, request)))
    elif snippet is not None and isinstance(request, DecisionRequest):
        varies = run.choices is not None and bool((run.choices < len(run.result.answers)).any())
        written = curl_snippet if snippet == "curl" else python_snippet
        click.echo(written(request, varies=varies and request.shown is None), nl=False)
    else:
        _print(chosen, run, goal | {"probability": probability}, request)


def _by_map(run: Run, fit: AnswersFit, probability: float) -> ChosenThreshold:
    """The threshold at the confidence that is a true ``probability``."""
    if fit.by_margin:
        raise NotIdentifiedError(
            "probability: with more than two answers, one query compares margins, not confidences",
            remedy="give a {precision}",
            options={"precision": ...},
        )
    confidence = Recalibration.of_fit(fit, run.result.model).confidence_of(probability)
    (point,) = fit.operating_at(np.clip([float(confidence)], *GRID_THRESHOLDS[[0, -1]]))
    return ChosenThreshold(replace(confidence, value=point.threshold), point, None)


def _check_options(goal: dict[str, float | None], snippet: str | None) -> None:
    if (goal["cost_fp"] is None) != (goal["cost_fn"] is None):
        raise click.UsageError("--cost-fp and --cost-fn go together")
    goals = sum(goal[name] is not None for name in ("precision", "recall", "cost_fp", "probability"))
    wanted = "--precision, --recall, --probability, or --cost-fp with --cost-fn"
    if goals > 1:
        raise click.UsageError(f"give only one of {wanted}")
    if not goals and snippet is not None:
        raise click.UsageError(f"give a goal: {wanted}")


def _warn_about_run(run: Run) -> None:
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
    asked = expit(-run.answered.shifts[run.answered.temperatures == 0])
    beyond = int((asked >= threshold).sum() if threshold > 0.5 else (asked <= threshold).sum())
    if asked.size and beyond < TESTED:
        side = "above" if threshold > 0.5 else "below"
        print_warning(
            f"only {beyond:,} of {asked.size:,} queries tested thresholds {side} this one; its estimates "
            "rest on the smoothness of the fit there: audit more items, or monitor the deployed model"
        )


# All thresholds


def _print_all(
    points: tuple[OperatingPoint, ...], run: Run, level: float, as_json: bool, *, by_margin: bool
) -> None:
    if as_json:
        rows = [
            {"margin" if by_margin else "threshold": -point.shift if by_margin else point.threshold}
            | {"shift": point.shift}
            | {name: asdict(getattr(point, name)) for name in _RATES}
            for point in points
        ]
        click.echo(json_line(rows))
        return
    names = {name: name.replace("_", " ") for name in _RATES}
    if run.result.answers:
        names = {"precision": "precision", "recall": "recall", "positive_rate": "answered"}
    table = [["at", *names.values()]]
    for point in points:
        at = f"{-point.shift:.1f}" if by_margin else f"{point.threshold:.2f}"
        table.append([at, *(_interval(getattr(point, name)) for name in names)])
    print_table(table, "<" * len(table[0]))
    if by_margin:
        click.echo("at: by how much the logit of the answer given is lowered when it is asked for again")
    sure = level_percent(level)
    click.echo(f"expected of new questions like these, with a {sure} interval for each number by itself")


def _interval(estimate: Estimate) -> str:
    return f"{replace(estimate, level=None):.2f}".replace(" to ", "-")  # the level is printed once


# The chosen threshold


def _print(
    chosen: ChosenThreshold,
    run: Run,
    goal: dict[str, float | None],
    request: DecisionRequest | NotIdentifiedError,
) -> None:
    point, several = chosen.point, bool(run.result.answers)
    print_field(*_rule(point, run, request))
    print_field("promise", _promise(chosen, goal, wording_of(run.result)))
    for name in ("precision", "recall") if several else ("precision", "recall", "accuracy"):
        print_field(name, f"{getattr(point, name):.4f}")
    print_field("answered" if several else "positive", f"{point.positive_rate:.4f} of all decisions")
    if chosen.expected_cost is not None:
        print_field("cost", f"{chosen.expected_cost:.4f} per decision")
    if isinstance(request, NotIdentifiedError):
        print_field("request", f"none: {error_text(request)}")
        return
    if request.shown is None:
        print_field("shift", f"{point.shift:+.4f}")
    else:
        print_field("compare", request.shown.words)
    if not request.url:
        return
    if request.shown is None and not request.confirm:
        print_field("logit_bias", json.dumps(request.ask["logit_bias"]))
    print_field("request", f"POST {printable(request.url, 400)}")
    click.echo(json.dumps(request.ask, indent=2))
    for word, body in list(request.confirm.items())[:1]:
        print_field("then", f"the same with another logit_bias; for {printable(word, 40)!r} this one:")
        click.echo(json.dumps(body["logit_bias"]))
    click.echo("(--snippet curl or --snippet python prints it ready to run)")


def _rule(point: OperatingPoint, run: Run, request: DecisionRequest | NotIdentifiedError) -> tuple[str, str]:
    if not run.result.answers:
        positive = printable(run.result.targets.positive[0].text.strip(), 40)
        digits = ".4f" if 0.0005 < point.threshold < 0.9995 else ".7g"
        where = f"the answer is {positive!r} where its probability is at least this"
        return "threshold", f"{point.threshold:{digits}}: {where}"
    if isinstance(request, DecisionRequest) and request.confirm:
        again = "an answer counts if it is given again with its logit lowered by this; otherwise abstain"
        return "margin", f"{-point.shift:.4f}: {again}"
    return "threshold", f"{point.threshold:.4f}: an answer counts where its probability is at least this"


def _promise(chosen: ChosenThreshold, goal: dict[str, float | None], words: Wording) -> str:
    name, value = next((name, value) for name, value in goal.items() if value is not None)
    if name.startswith("cost"):
        wrong, missed = words.errors
        return (
            f"lowest expected cost if a {wrong} costs {goal['cost_fp']:g} and a {missed} {goal['cost_fn']:g}"
        )
    if name == "probability":
        return f"a true {value:g} at the threshold itself, by the recalibration map"
    if chosen.confidence is None:
        return f"{name} {value:g} by the estimate alone: it falls short about half of the time"
    return f"{name} at least {value:g}, {chosen.confidence:.0%} sure"


def _record(chosen: ChosenThreshold, request: DecisionRequest | NotIdentifiedError) -> dict[str, Any]:
    cost = chosen.expected_cost
    record = {
        **asdict(chosen.point),
        "threshold": asdict(chosen.threshold),
        "confidence": chosen.confidence,
        "expected_cost": None if cost is None else asdict(cost),
    }
    if isinstance(request, NotIdentifiedError):
        return record | {"logit_bias": None, "request": None, "why": error_text(request)}
    if request.shown is not None:
        record |= {"logit_bias": None, "probability": request.shown.words}
    elif request.confirm:
        threshold = record.pop("threshold")
        margin = {name: float(logit(threshold[name])) for name in ("value", "low", "high")}
        record["margin"] = {**margin, "level": threshold["level"]}
    else:
        record["logit_bias"] = request.ask["logit_bias"]
    return record | {"url": request.url, "request": request.body}


# Requests ready to run


def curl_snippet(request: DecisionRequest, *, varies: bool = False) -> str:
    """The requests as shell commands; ``varies`` if some questions have fewer options."""
    if not request.confirm:
        about = "" if request.shown is None else f"\n# {_comparison(request, request.shown)}"
        return f"{_comment(varies)}{about}\n{_command(request, request.ask)}\n"
    parts = [_comment(varies), "# Ask:", _command(request, request.ask)]
    for word, body in request.confirm.items():
        shown = "".join(letter if letter.isprintable() else "?" for letter in word)
        parts += [
            f"# If it says {shown}, ask again; abstain unless it says the same:",
            _command(request, body),
        ]
    return "\n".join(parts) + "\n"


def python_snippet(request: DecisionRequest, *, varies: bool = False) -> str:
    """A Python program that prints ``positive`` or ``negative``, or an answer or ``abstain``."""
    header, _, scheme = request.key_header.partition(": ")
    constants, imports = [f"ask = json.loads({json.dumps(request.ask)!r})"], ["json", "os", "urllib.request"]
    if request.shown is not None:
        if "math." in request.shown.python:
            imports.insert(1, "math")
        decision = _COMPARE.format(
            read=request.shown.python, threshold=request.threshold, otherwise=_otherwise(request)
        )
    else:
        if request.confirm:
            constants.append(f"confirm = json.loads({json.dumps(request.confirm)!r})")
            words = _meanings(request.tokens, list(request.confirm))
            decision = (
                "given = answer_to(ask)\n"
                'print(given if given is not None and answer_to(confirm[given]) == given else "abstain")'
            )
        else:
            words = _meanings(request.tokens[:1], ["positive"])
            decision = 'print(answer_to(ask) or "negative")'
        constants.append(f"words = {words!r}")
        answer = '["message"]["content"]' if "messages" in request.ask else '["text"]'
        decision = _ANSWER_TO.format(answer=answer, decision=decision)
    return _PROGRAM.format(
        comment=_comment(varies),
        imports="\n".join(f"import {name}" for name in imports),
        constants="\n".join(constants),
        url=request.url,
        header=header,
        scheme=scheme,
        decision=decision,
    )


def _otherwise(request: DecisionRequest) -> str:
    return "negative" if len(request.tokens) == 2 else "abstain"


def _comparison(request: DecisionRequest, shown: ShownProbability) -> str:
    decides = "The answer is positive" if len(request.tokens) == 2 else "The likeliest answer counts"
    return f"{decides} if this is at least {request.threshold:.12g}: {shown.words}"


def _comment(varies: bool) -> str:
    return f"# {_FILL_IN}" + (f"\n# {FEWER_OPTIONS}" if varies else "")


def _command(request: DecisionRequest, body: dict[str, Any]) -> str:
    return (
        f"curl {shlex.quote(request.url)} \\\n"
        f'  -H "Content-Type: application/json" -H "{request.key_header}$OPENAI_API_KEY" \\\n'
        f"  -d @- <<'JSON'\n{json.dumps(body, indent=2)}\nJSON"
    )


def _meanings(tokens: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, str]:
    return {spoken(text): name for name, texts in zip(names, tokens, strict=True) for text in texts}
