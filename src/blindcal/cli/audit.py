"""``blindcal audit``: from a file of labelled questions to a finished audit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit, run_folder
from blindcal.auditing.given import audit_verdicts
from blindcal.cli import options
from blindcal.cli.console import print_error, print_field, print_warning
from blindcal.cli.plan import print_plan, print_plans, print_reasoning
from blindcal.cli.result_summary import print_judge, print_result
from blindcal.errors import UnfitError
from blindcal.items import catalogue
from blindcal.json_form import json_line
from blindcal.methods import METHODS
from blindcal.planning.plan import CHOICE_PROBE_QUERIES, PROBE_QUERIES, Plan, plan_audit
from blindcal.prices import Prices
from blindcal.report.page import PAGE_FILE
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable

FINISHED, NO_ESTIMATE, STOPPED, UNFIT = 0, 1, 3, 4


@options.command("audit")
@click.argument("items", type=options.PATH)
@options.settings(optional=("model",))
@click.option(
    "--out",
    type=options.FOLDER,
    help="Folder of the run; a run in it is continued.  [default: runs/ITEMS-MODEL, or with a number for "
    "another prompt]",
)
@click.option(
    "--name",
    metavar="TEXT",
    help="Name of the run, such as one of the prompt: its default folder is then runs/ITEMS-MODEL-NAME.",
)
@click.option(
    "--oracle",
    type=options.PATH,
    help="File of true probabilities (id,label,p) or logits to compare the result with.",
)
@options.limit_options
@options.flag("--dry-run", "Print the number of queries, the tokens and the cost, and stop.")
@options.flag(
    "--force",
    "Continue although the probe or the run finds the endpoint unfit; the estimates may mean nothing.",
)
@options.verbose_option
@options.output_options("Print the result as JSON.")
def command(
    items: Path,
    out: Path | None,
    name: str | None,
    oracle: Path | None,
    given_prices: Prices | None,
    dry_run: bool,
    force: bool,
    verbose: bool,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Audit how well calibrated a model is on the labelled questions in ITEMS.

    ITEMS is a named set such as boolq, or a file (JSON lines, CSV or Parquet, optionally gzipped) with a
    label and a prompt, messages, or the fields that --template names. The log of an evaluation works too: of
    Inspect (.eval or .json), or the samples of lm-evaluation-harness (--log_samples). With --self-check, the
    model is asked of each scored answer in such a log, in results of promptfoo or in a file, whether it is
    correct: so answers in free text are audited.

    A probe first checks how the endpoint can be audited, and chooses the method unless one is named: logprobs
    if they are shown, else thresholds set by logit_bias, else temperature, else repeated answers. It takes
    about {probe_queries} queries ({choice_queries} with more than two answers), which count as queries of the
    audit. Every answer is kept in the folder of the run: if the audit is interrupted, the same command
    continues it and asks nothing twice.

    \b
    Example:
      blindcal audit boolq.jsonl --model my-model \\
        --template "Passage: {passage}\\nQuestion: {question}?\\nAnswer Yes or No."
      blindcal audit answers.csv --confidence p

    With --confidence, the file gives the confidences, as CSV, JSON lines or Parquet, and nothing is asked: no
    model, no key, no network. The field holds the probability of the positive answer, or with --answer the
    confidence in the answer of that field, or there is a field per answer; percentages are understood.

    \b
    Methods, and their default number K of queries per item:
      {methods}

    \b
    Exit status:
      0    finished
      1    an error: wrong key, model, address or file, another run in the folder, no valid answer at all
      2    a wrong command line
      3    stopped early (a limit was reached, or queries kept failing); the result covers what was asked
      4    the probe or the run finds the endpoint unfit for this method
      130  interrupted; nothing is lost
    """
    limits = options.taken(Limits, chosen)
    _check_named(items, chosen)
    settings = options.chosen_settings(chosen)
    if dry_run and (settings.given or settings.prompt.verdict_field is not None):
        raise click.UsageError("--dry-run: nothing is asked of a file that gives the answers; leave it out")
    if dry_run:
        prices = options.prices(given_prices, settings, quiet=quiet)
        options.check_priced(limits.max_cost, prices, settings.endpoint)
        plans = plan_audit(items, settings, prices=prices, shape=None)
        _print_plans(plans, settings, limits.max_cost, as_json)
        for doubt in catalogue.open_items(items, settings.prompt).doubts:
            print_warning(doubt)
        return
    if name is not None and out is not None:
        raise click.UsageError("--name names the default folder, and --out another: give one of them")
    folder = out or run_folder(items, settings, name)
    if settings.prompt.verdict_field is not None and not settings.given:
        judged = audit_verdicts(items, settings, folder)
        if as_json:
            click.echo(judged.to_json(), nl=False)
        elif not quiet:
            print_judge(judged.judge)
            print_field("report", str(folder / PAGE_FILE))
        return
    context = click.get_current_context()
    catalogue.check_there(items)
    begun = (folder / RUN_FILE).exists()
    try:
        with options.asking(settings, limits, given_prices, quiet=quiet, begun=begun) as (asked, _):
            result = audit(items, settings, out=folder, oracle=oracle, force=force, **asked)
    except UnfitError as error:
        print_error(error)
        context.exit(UNFIT)
    if as_json:
        click.echo(result.to_json(), nl=False)
    elif not quiet:
        print_result(result, folder, verbose=verbose)
    if result.ece.value is None:
        answers = "too few valid answers" if result.counts.valid else "no valid answer"
        click.echo(f"error: {answers} to estimate from; {PAGE_FILE} shows what came back", err=True)
        context.exit(NO_ESTIMATE)
    context.exit(FINISHED if result.complete else STOPPED)


_methods = [f"{name:11}  K={method.queries:g}  {method.answers}" for name, method in METHODS.items()]
options.fill_help(
    command,
    methods="\n      ".join(_methods),
    probe_queries=PROBE_QUERIES,
    choice_queries=CHOICE_PROBE_QUERIES,
)


def _check_named(items: Path, chosen: Mapping[str, Any]) -> None:
    """Raise an error if neither a model nor confidences are named, that says what the file holds."""
    if any(chosen[name] is not None for name in ("model", "confidence_field", "verdict_field")):
        return
    catalogue.check_there(items)
    if chosen["self_check"]:
        raise click.UsageError("Missing option '--model'.")
    if likely := catalogue.likely_confidences(items, chosen["label_field"]):
        named = "; ".join(f"{printable(name, 40)!r} {words}" for name, words in likely.items())
        flag, field, held = "--confidence", next(iter(likely)), f"confidences: {named}. "
    elif verdict := catalogue.likely_verdict(items):
        flag, field, held = "--verdict", verdict, "verdicts of a judge: "
    else:
        raise click.UsageError("Missing option '--model'.")
    raise click.UsageError(
        f"Missing option '--model' or '{flag}'. The file seems to hold {held}{flag} "
        f"{shlex.quote(printable(field, 80))} audits them, and nothing is asked; --model asks a model."
    )


def _print_plans(
    plans: Mapping[str, Plan], settings: Settings, max_cost: float | None, as_json: bool
) -> None:
    if as_json:
        click.echo(json_line(plans if settings.auto else next(iter(plans.values()))))
        return
    if len(plans) > 1:
        print_plans(plans)
    for method, plan in plans.items():
        if len(plans) == 1:
            print_field("items", f"{plan.items:,}")
            print_plan(plan, method)
        if max_cost is not None and plan.cost:
            by = f" by {method}" if len(plans) > 1 else ""
            print_field("limit", f"${max_cost:g} {_limit_effect(plan, plan.cost, max_cost)}{by}")
    print_reasoning(settings)


def _limit_effect(plan: Plan, cost: float, max_cost: float) -> str:
    if max_cost >= cost:
        return "pays for all of it"
    run = plan.queries + plan.control_queries
    share = (max_cost * (run + plan.probe_queries) / cost - plan.probe_queries) / run
    if share <= 0:
        return "does not pay for the probe"
    return f"pays for about {share:.0%} of the queries: the run stops there"
