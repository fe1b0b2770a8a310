"""``blindcal decide``: from a certificate and unlabelled questions to decisions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from blindcal.asking.run_context import Limits
from blindcal.auditing.prepared import AskedSettings
from blindcal.certifying.decide import decide, decision_folder
from blindcal.cli import options
from blindcal.cli.console import print_error, print_field, print_spend, print_stopped
from blindcal.errors import NotCertifiedError, UnfitError
from blindcal.items import catalogue
from blindcal.prices import Prices
from blindcal.report.sentences import control_words
from blindcal.results.certificate import Certificate
from blindcal.results.decisions import DECISIONS_LINES, DECISIONS_TABLE, SUMMARY_FILE, DecisionResult
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable

DECIDED, STOPPED, NOT_CERTIFIED, NOT_PROMISED = 0, 3, 4, 5
_AGAIN = "find out what changed at the provider, certify again, and decide in another folder with --out"


@options.command("decide")
@click.argument("certificate", type=options.FILE)
@click.argument("items", type=options.PATH)
@click.option(
    "--out",
    type=options.FOLDER,
    help="Folder of the run; a run in it is continued.  [default: decisions/ITEMS-MODEL]",
)
@click.option("--id-field", help="Field that holds the id of an item.  [default: that of the audit]")
@click.option(
    "--confidence",
    "confidence_field",
    help="Field that holds the confidence, for the certificate of a file.  [default: that of the audit]",
)
@click.option(
    "--recalibration",
    type=options.FILE,
    help="Map of 'blindcal recalibrate': decisions by a shown probability then have the one to show instead.",
)
@options.fields("api_key_env", "timeout")
@options.limit_options
@options.flag(
    "--force",
    "Decide although the certificate has expired or the endpoint is not as it was certified; nothing is "
    "promised then.",
)
@options.output_options("Print one JSON object per item, one per line, and the summary on standard error.")
def command(
    certificate: Path,
    items: Path,
    out: Path | None,
    id_field: str | None,
    confidence_field: str | None,
    recalibration: Path | None,
    given_prices: Prices | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Decide about the questions in ITEMS by CERTIFICATE, a file of 'blindcal certify'.

    ITEMS is a file as for 'blindcal audit', with the fields that the audit's template names. It needs no
    labels, and any that it has are not read. The certificate holds the endpoint, the prompt and the
    thresholds. Each item is asked once, with the threshold in the logit_bias: accept if the answer is
    positive, otherwise reject. With two thresholds, items that are not accepted are asked once more: reject
    if the answer is negative there too, otherwise abstain. If there is no valid answer the decision is to
    abstain, never a guess. Where the endpoint shows probabilities, each item is asked once as in the audit,
    and the probability in the reply is compared with the thresholds; with more than two answers, that of the
    answer given, which is accepted or not. Where a file gave the confidences, ITEMS is such a file too, and
    nothing is asked.

    A few forced queries first check that the endpoint still follows logit_bias and names the same model and
    system as when it was certified, and control queries check all along that its answers are as steady, or
    that probabilities move no more than in the audit.
    Every answer is kept in the folder of the run: if it is interrupted, the same command continues it and
    asks nothing twice. decisions.csv and decisions.jsonl are written there.

    \b
    Examples:
      blindcal decide certificate.json questions.csv
      blindcal decide certificate.json questions.csv --json | jq -r 'select(.decision == "accept").id'

    \b
    Exit status:
      0    every item has its decision
      1    an error: wrong key, address or file, another run in the folder
      2    a wrong command line
      3    stopped early (a limit was reached, or queries kept failing); the files hold what was decided
      4    the certificate does not hold: it has expired, or the endpoint is not as it was certified
      5    decided, but nothing is promised: answers were noisier than when certified, changed, or forced
      130  interrupted; nothing is lost
    """
    context = click.get_current_context()
    limits, certified = options.taken(Limits, chosen), Certificate.load(certificate)
    settings = AskedSettings.of_certificate(certified, api_key_env=chosen["api_key_env"]).settings
    folder = out or decision_folder(items, certified)
    catalogue.check_there(items)
    begun = (folder / RUN_FILE).exists()
    try:
        with options.asking(settings, limits, given_prices, quiet=quiet, begun=begun) as (asked, _):
            chosen |= {"id_field": id_field, "confidence_field": confidence_field}
            chosen |= {"recalibration": recalibration}
            result = decide(certified, items, out=folder, force=force, **chosen, **asked)
    except (NotCertifiedError, UnfitError) as error:
        print_error(error)
        context.exit(NOT_CERTIFIED)
    if as_json:
        click.echo((folder / DECISIONS_LINES).read_text(encoding="utf-8"), nl=False)
    if not quiet:
        _print(result, err=as_json)
    denied = bool(result.doubts) and not force
    if denied:
        print_error(NotCertifiedError(printable(result.promise("accept"), 800), remedy=_AGAIN))
    context.exit(STOPPED if not result.complete else NOT_PROMISED if denied else DECIDED)


def _print(result: DecisionResult, *, err: bool) -> None:
    field = partial(print_field, err=err)
    if result.labels_ignored:
        field("labels", "the items have labels, which were not read")
    if result.audited:
        which = f"{result.audited:,} of the items were in the certified audit"
        field("WARNING", f"{which}, and the promise is about new ones; 'audited' marks them in the files")
    decided = f"{result.accepted:,} accept, {result.rejected:,} reject, {result.abstained:,} abstain"
    field("decisions", f"{result.items - result.undecided:,} of {result.items:,} items: {decided}")
    field("accept", result.promise("accept"))
    field("reject", result.promise("reject"))
    if result.reasons:
        field("abstain", ", ".join(f"{printable(why, 200)} {n:,}" for why, n in result.reasons.items()))
    field("expires", f"{result.expires}")
    counts, spend = result.controls, result.spend
    if counts.failed or counts.disagreed:
        field("note", f"the answers are noisy: {control_words(counts)}")
    print_spend(spend, f"{spend.probe_queries} to check, {spend.control_queries} to control", err=err)
    print_stopped(result.stopped, err=err)
    field("files", f"{result.folder}: {DECISIONS_TABLE}, {DECISIONS_LINES}, {SUMMARY_FILE}, {RUN_FILE}")
