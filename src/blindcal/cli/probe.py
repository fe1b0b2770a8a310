"""``blindcal probe``: can this endpoint be audited, and how?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from blindcal.auditing.method_choice import UNREASONED, MethodOption, best_option
from blindcal.auditing.prepare import EndpointProbe, probe
from blindcal.cli import options
from blindcal.cli.console import (
    QUESTION_SETTINGS,
    command_line_option,
    error_text,
    print_field,
    print_stage,
    print_table,
    with_flags,
)
from blindcal.errors import UnfitError
from blindcal.items import catalogue
from blindcal.json_form import json_line
from blindcal.planning.plan import CHOICE_PROBE_QUERIES, PROBE_QUERIES
from blindcal.progress_bar import ProgressBar
from blindcal.records import Targets
from blindcal.text import printable

EXIT = {
    "decisions": 0,
    "logprobs": 0,
    "thresholds": 0,
    "temperature": 3,
    "repeated answers": 3,
    "stated confidence": 3,
    "not auditable": 4,
}
WIDTH = 10  # of the column of names
_MARKS = {"good": "ok", "caution": "caution", "bad": "BAD", "unknown": "unknown"}


@options.command("probe")
@click.argument("items", type=options.PATH)
@options.settings(*QUESTION_SETTINGS, "seed")
@options.json_option("Print the findings as one JSON object.")
def command(items: Path, as_json: bool, **chosen: Any) -> None:
    """Check how an endpoint can be audited, in about {probe_queries} queries.

    ITEMS is the file of questions that the audit would ask; the probe asks 16 of them. With more than two
    answers it takes about {choice_queries} queries. It looks for logprobs, forces the answers both ways with
    logit_bias, searches for the bias at which they flip, and repeats some to see how much they vary. If
    nothing better is usable, it tries temperature and repeated answers. 'blindcal audit' does the same before
    its first question, and then uses the best method.

    \b
    Example:
      blindcal probe boolq.jsonl --model my-model \\
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
        endpoint = probe(items, settings, progress=bar, stage=bar.wrap_print(print_stage))
    if as_json:
        findings: dict[str, Any] = msgspec.to_builtins(endpoint.probe)
        click.echo(json_line({**findings, "votes": endpoint.choice.votes}))
    else:
        _print(endpoint)
    click.get_current_context().exit(EXIT[endpoint.verdict])


options.fill_help(command, probe_queries=PROBE_QUERIES, choice_queries=CHOICE_PROBE_QUERIES)


def _print(endpoint: EndpointProbe) -> None:
    choice, probed = endpoint.choice, endpoint.probe
    print_field("answers", _token_names(choice.targets), width=WIDTH)
    if choice.queries:
        votes = ", ".join(f"{printable(text)!r} {count}" for text, count in choice.votes.items())
        chosen = f"chosen by {choice.queries} pilot queries: {votes or 'no answer recognised'}"
        print_field("", chosen, width=WIDTH)
    findings = [[_MARKS[row.outcome], row.question, printable(row.answer, 400)] for row in probed.findings]
    print_table([[f"{mark:{WIDTH - 2}}", *row] for mark, *row in findings], "<<<")
    if endpoint.options:
        print_table([_method_row(option) for option in endpoint.options], "<<<<")
    print_field("verdict", f"{endpoint.verdict}: {printable(endpoint.reason, 400)}", width=WIDTH)
    print_field("", _advice(endpoint), width=WIDTH)
    tokens = f"{probed.prompt_tokens:,} input and {probed.completion_tokens:,} output tokens"
    used = f"the probe took {tokens}" if probed.prompt_tokens else "the endpoint reports no tokens"
    print_field("cost", f"{endpoint.queries} queries; {used}", width=WIDTH)


def _method_row(option: MethodOption) -> list[str]:
    allowed = {None: "not needed", "": "usable"}.get(option.trouble, f"no: {option.trouble}")
    expected = f"{option.times}, {option.expected}"
    return [f"{'method':{WIDTH - 2}}", option.method, expected, printable(allowed, 200)]


def _advice(endpoint: EndpointProbe) -> str:
    result = endpoint.probe
    if result.remedy:
        return printable(error_text(UnfitError(result.remedy, options=result.remedy_options)), 400)
    if within := result.within_clamp:
        return f"try again with {' and '.join(command_line_option(*option) for option in within.items())}"
    best, unreasoned = (
        best_option(endpoint.options),
        f"; {with_flags(UNREASONED)}" if endpoint.unreasoned else "",
    )
    if best is None:
        return f"do not audit this endpoint as it is{unreasoned}"
    return f"audit it with --method {best.method}, which 'blindcal audit' chooses by itself{unreasoned}"


def _token_names(targets: Targets) -> str:
    sides = targets.answers or (targets.positive, targets.negative)
    return " / ".join(", ".join(f"{printable(t.text)!r} ({t.id})" for t in side) for side in sides)
