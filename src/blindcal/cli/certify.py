"""``blindcal certify``: a threshold whose precision is certified, without any model of the scores."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from blindcal.asking.run_context import Limits, RunOptions
from blindcal.auditing.prepared import AskedSettings
from blindcal.certifying.certify import EXPIRES, FOLDER, certify, planned_certification
from blindcal.certifying.design import CertifyGoal, CertifyPlan
from blindcal.cli import options
from blindcal.cli.console import error_text, print_error, print_field, print_warning
from blindcal.errors import NotCertifiedError, UnfitError
from blindcal.json_form import json_line
from blindcal.prices import Prices
from blindcal.records import Usage, level_percent
from blindcal.results.certificate import CERTIFICATE_FILE, Certificate, CertifiedSide
from blindcal.results.run import Run, open_run
from blindcal.text import printable

STOPPED, UNFIT, NOT_CERTIFIED = 3, 4, 6
_UNLIKELY = 0.2  # warn if the chance of passing is lower


@options.command("certify")
@options.run_argument()
@click.option(
    "--precision", type=options.INNER_SHARE, required=True, help="Precision of positive decisions to certify."
)
@click.option(
    "--negative-precision",
    type=options.INNER_SHARE,
    help="Precision of negative decisions to certify, below a second threshold; between the two, abstain.",
)
@click.option(
    "--confidence",
    type=options.CONFIDENCE,
    default=0.95,
    help="Probability with which the certificate holds; with two thresholds, both of its bounds.",
)
@click.option(
    "--expires",
    type=click.IntRange(1, 3650),
    default=EXPIRES,
    metavar="DAYS",
    help="Number of days that the certificate is valid.",
)
@click.option(
    "--out", type=options.FILE, help=f"File of the certificate.  [default: {CERTIFICATE_FILE} in RUN]"
)
@options.fields("api_key_env", "timeout")
@options.limit_options
@options.flag("--dry-run", "Print how many queries are needed at most, and their cost, and stop.")
@options.output_options("Print the certificate as JSON.")
def command(
    run: Path,
    precision: float,
    negative_precision: float | None,
    confidence: float,
    expires: int,
    out: Path | None,
    given_prices: Prices | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Certify a decision threshold of a finished audit, and write the certificate.

    RUN is the folder of the audit. A quarter of its items chooses which thresholds to test; the others are
    asked at these thresholds, unless their answers in the audit decide them already. Where the endpoint shows
    probabilities (a decision API, or logprobs), those of the audit decide, and nothing is asked. Of the items
    that say yes, the share with a positive label is the precision, so its bound is exact: it assumes nothing
    about how the confidence is distributed. It holds for new items of the same kind, decided by the same
    endpoint.

    The queries are kept in a folder in RUN: if the command is interrupted, the same command continues it and
    asks nothing twice. Attempts on one run are counted, and each is tested more strictly than the one before,
    so that --confidence holds for all of them, even if the audit grows in between.

    \b
    Examples:
      blindcal certify runs/boolq-my-model --precision 0.9 --dry-run
      blindcal certify runs/boolq-my-model --precision 0.9
      blindcal certify runs/boolq-my-model --precision 0.9 --negative-precision 0.8 --out rule.json

    \b
    Exit status:
      0    certified; the certificate is written
      1    an error: the run cannot be certified, a wrong key or address
      2    a wrong command line
      3    stopped by a limit before a threshold was tested; the same command goes on
      4    the endpoint no longer does what the audit saw
      6    no threshold passes; nothing is written
      130  interrupted; nothing is lost
    """
    limits, finished = options.taken(Limits, chosen), open_run(run)
    goal = CertifyGoal(precision, negative_precision, confidence)
    goal.check(finished)
    settings = AskedSettings.of_run(finished, api_key_env=chosen["api_key_env"]).settings
    context = click.get_current_context()
    if dry_run:
        prices = options.prices(given_prices, settings, quiet=quiet)
        _print_plan(finished, planned_certification(finished, goal), prices, as_json)
        return
    if not finished.result.complete:
        print_warning(f"the audit is not finished ({printable(str(finished.result.stopped), 200)})")
    begun = any(finished.folder.glob(f"{FOLDER}-*"))
    try:
        with contextlib.ExitStack() as stack:
            asked: RunOptions = {}
            if not finished.shown:
                asking = options.asking(settings, limits, given_prices, quiet=quiet, begun=begun)
                asked, _ = stack.enter_context(asking)
            made = certify(
                finished,
                precision,
                negative_precision=negative_precision,
                confidence=confidence,
                expires=expires,
                out=out,
                **chosen,
                **asked,
            )
    except NotCertifiedError as error:
        if as_json:
            click.echo(json_line({"certified": False, "stopped": error.stopped, "why": error_text(error)}))
        print_error(error)
        context.exit(STOPPED if error.stopped else NOT_CERTIFIED)
    except UnfitError as error:
        print_error(error)
        context.exit(UNFIT)
    if as_json:
        click.echo(made.to_json(), nl=False)
    elif not quiet:
        _print(made, out or finished.folder / CERTIFICATE_FILE)


def _print(made: Certificate, path: Path) -> None:
    by = "the answer given" if made.several else repr(printable(made.request.positive[0].strip(), 40))
    digits = ".7g" if made.shown else ".4f"  # a probability that was rounded may lie at a threshold
    accept = f"from {made.accept.threshold:{digits}}, by {by}"
    print_field("accept", f"{accept}: {_side_text(made.accept, 'accepted' if made.several else 'positive')}")
    if made.reject is not None:
        below = f"below {made.reject.threshold:{digits}}"
        print_field("reject", f"{below}: {_side_text(made.reject, 'negative')}")
        rest = 1 - made.accept.share - made.reject.share
        print_field("abstain", f"between: {rest:.1%} of the items")
    both = "both hold together" if made.reject is not None else "it holds"
    print_field("certified", f"{both} with {level_percent(made.level)} confidence for new items of this kind")
    if made.request.probability is not None:
        print_field("compare", printable(made.request.probability, 400))
    print_field("attempt", _attempt_text(made.attempt, made.accept.level))
    print_field(
        "tested",
        f"{made.candidates:,} thresholds on {made.items:,} items, {made.queries:,} new queries, "
        f"{made.reused:,} answers reused",
    )
    print_field("expires", f"{made.expires}, {(made.expires - made.made).days} days after {made.made}")
    print_field("file", printable(str(path), 400))


def _attempt_text(attempt: int, level: float) -> str:
    return f"{attempt} on this run: each side is tested with an error of at most {100 * (1 - level):.2g}%"


def _side_text(side: CertifiedSide, decisions: str) -> str:
    return (
        f"precision at least {side.bound:.4f}; {side.right:,} of {side.decided:,} {decisions} decisions were "
        f"right, {side.share:.1%} of the items"
    )


def _print_plan(run: Run, plan: CertifyPlan, prices: Prices | None, as_json: bool) -> None:
    spend, first, most = run.result.spend, plan.first_queries, plan.most_queries
    tokens = round(spend.prompt_tokens / max(1, spend.queries) * most)
    used = Usage(queries=most, attempts=most, prompt_tokens=tokens, completion_tokens=most)
    cost = 0.0 if not most else None if prices is None else prices.cost(used)
    if as_json:
        shown: dict[str, Any] = {"attempt": plan.attempt, "choosing": plan.choosing}
        shown |= {"certifying": len(plan.items), "chance": plan.chance, "first_queries": first}
        shown |= {"most_queries": most, "prompt_tokens": tokens}
        click.echo(json_line(shown | {"most_cost": cost, "reuse": plan.reuse}))
        return
    print_field("items", f"{plan.choosing:,} choose the thresholds, {len(plan.items):,} certify")
    print_field("attempt", _attempt_text(plan.attempt, plan.sides[0].level))
    for side in plan.sides:
        print_field(
            side.name,
            f"first {side.first:.4f}, which passes with a chance of about {side.chance:.0%}; "
            f"{len(side.shifts)} thresholds at most",
        )
    print_field("queries", f"{first:,} for the first threshold, at most {most:,}, controls included")
    print_field("tokens", f"at most {tokens:,} in, as the audit's queries had")
    print_field("cost", "unknown: give --prices" if cost is None else f"at most ${cost:.4g}")
    if plan.why:
        print_field("reuse", plan.why)
    if plan.chance < _UNLIKELY:
        print_warning(
            "the audit suggests that no threshold is likely to pass: audit more items, or ask for less"
        )
