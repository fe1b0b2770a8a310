"""``blindcal probe``: can this endpoint be audited, and how?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from blindcal.auditing.probe_endpoint import EndpointProbe, probe
from blindcal.cli import options
from blindcal.cli.console import command_line_option, error_text, print_stage
from blindcal.errors import UnfitError
from blindcal.items import catalogue
from blindcal.json_form import json_line
from blindcal.planning.plan import CHOICE_PROBE_QUERIES, PROBE_QUERIES
from blindcal.progress_bar import ProgressBar
from blindcal.records import Targets
from blindcal.text import printable

EXIT = {
    "logprobs": 0,
    "thresholds": 0,
    "temperature": 3,
    "repeated answers": 3,
    "stated confidence": 3,
    "not auditable": 4,
}
_MARKS = {"good": "ok", "caution": "caution", "bad": "BAD", "unknown": "unknown"}


@click.command("probe")
@click.argument("items", type=options.PATH)
@options.settings(
    "model",
    "base_url",
    "api",
    "api_key_env",
    "extra_body",
    "template",
    "system",
    "answers",
    "label_field",
    "label_map",
    "seed",
    "max_tokens",
)
@options.json_option("Print the findings as one JSON object.")
def command(items: Path, as_json: bool, **chosen: Any) -> None:
    """Check how an endpoint can be audited, in about {probe_queries} queries.

    ITEMS is the file of questions that the audit would ask; the probe asks 16 of them. With
    more than two answers it takes about {choice_queries} queries. It looks for logprobs, forces the answers
    both ways with logit_bias, looks for the bias at which they flip, repeats some of them to see how much
    they vary, and tries temperature and repeated answers if nothing better is usable.
    'blindcal audit' does the same before its first question, and then uses the best method.

    \b
    Example:
      blindcal probe boolq.jsonl --model gpt-4o-mini \\
        --template "Passage: {passage}\\nQuestion: {question}?\\nAnswer Yes or No."

    \b
    Exit status:
      0  logprobs are shown, or thresholds are usable: logit_bias acts as it should
      3  only temperature, repeated answers or a confidence in words are usable
      4  the endpoint is not auditable
      1  an error: wrong key, model, address or file
      2  a wrong command line
    """
    settings = options.chosen_settings(chosen)
    catalogue.check_there(items)
    options.check_key(settings.endpoint)
    with ProgressBar(disable=None) as bar:
        found = probe(items, settings, progress=bar, stage=bar.wrap_print(print_stage))
    if as_json:
        findings: dict[str, Any] = msgspec.to_builtins(found.probe)
        click.echo(json_line({**findings, "votes": found.choice.votes}))
    else:
        _print(found)
    click.get_current_context().exit(EXIT[found.verdict])


options.fill_help(command, probe_queries=PROBE_QUERIES, choice_queries=CHOICE_PROBE_QUERIES)


def _print(found: EndpointProbe) -> None:
    choice, result = found.choice, found.probe
    click.echo(f"answers   {_token_names(choice.targets)}")
    if choice.queries:
        votes = ", ".join(f"{printable(text)!r} {count}" for text, count in choice.votes.items())
        click.echo(f"          chosen by {choice.queries} pilot queries: {votes or 'no answer recognised'}")
    width = max(len(finding.question) for finding in result.findings)
    for finding in result.findings:
        mark = _MARKS[finding.outcome]
        click.echo(f"{mark:<10}{finding.question:<{width}}  {printable(finding.answer, 400)}")
    _print_methods(found)
    click.echo(f"verdict   {found.verdict}: {printable(found.reason, 400)}")
    click.echo(f"          {_advice(found)}")
    tokens = f"{result.prompt_tokens:,} input and {result.completion_tokens:,} output tokens"
    took = f"the probe took {tokens}" if result.prompt_tokens else "the endpoint reports no tokens"
    click.echo(f"cost      {found.queries} queries; {took}")


def _print_methods(found: EndpointProbe) -> None:
    """Print a table of the methods: what is expected of each, and whether the endpoint allows it."""
    if found.methods is None:
        return
    for one in found.methods.table(found.probe):
        allowed = {None: "not needed", "": "usable"}.get(one.trouble, f"no: {one.trouble}")
        expected = f"{one.times}, {one.expected}"
        click.echo(f"{'method':<10}{one.method:<12} {expected:<37} {printable(allowed, 200)}")


def _advice(found: EndpointProbe) -> str:
    """What to do next."""
    result = found.probe
    if result.remedy:
        return printable(error_text(UnfitError(result.remedy, options=result.remedy_options)), 400)
    if within := result.within_clamp:
        return f"try again with {' and '.join(command_line_option(*one) for one in within.items())}"
    best = None if found.methods is None else found.methods.best(result)
    if best is None:
        return "do not audit this endpoint as it is"
    return f"audit it with --method {best.method}, which 'blindcal audit' chooses by itself"


def _token_names(targets: Targets) -> str:
    sides = targets.answers or (targets.positive, targets.negative)
    return " / ".join(", ".join(f"{printable(t.text)!r} ({t.id})" for t in side) for side in sides)
