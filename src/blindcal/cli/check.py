"""``blindcal check``: hold finished audits to limits, for a gate in CI."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from blindcal.cli import options
from blindcal.cli.param_types import FiniteRange
from blindcal.report.check_summary import junit, said, summary
from blindcal.results.check import CheckResult, Limit, LimitedQuantity, check
from blindcal.text import printable

PASSED, FAILED, UNDECIDED = 0, 3, 4
SHARE = FiniteRange(0, 1)
OPTIONS: dict[str, LimitedQuantity] = {
    "max_ece": "ece",
    "max_brier": "brier",
    "min_accuracy": "accuracy",
    "min_auroc": "auroc",
    "max_invalid": "invalid",
}


@click.command("check", short_help="Hold finished audits to limits.")
@click.argument(
    "runs", nargs=-1, required=True, type=click.Path(path_type=Path), callback=options.existing_runs
)
@click.option("--max-ece", type=SHARE, help="The largest calibration error that will do.")
@click.option("--max-brier", type=SHARE, help="The largest Brier score.")
@click.option("--min-accuracy", type=SHARE, help="The smallest accuracy.")
@click.option("--min-auroc", type=SHARE, help="The smallest AUROC.")
@click.option("--max-invalid", type=SHARE, help="The largest share of answers that are neither word.")
@click.option(
    "--confidence",
    type=FiniteRange(0.5, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="How sure it must be that a limit holds.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Be content if the estimate holds it: chance then decides near the limit.",
)
@click.option("--partial", is_flag=True, help="Let an audit pass that was stopped early.")
@click.option(
    "--resamples",
    type=click.IntRange(20),
    default=1000,
    show_default=True,
    help="Refits behind the bounds.",
)
@click.option(
    "--junit",
    "junit_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a JUnit report here.",
)
@click.option(
    "--summary",
    "summary_file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GITHUB_STEP_SUMMARY",
    help="Append a Markdown table here.  [default: where GitHub Actions wants it, if that is running]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run, a line each.")
def command(
    runs: tuple[Path, ...],
    confidence: float,
    estimate: bool,
    partial: bool,
    resamples: int,
    junit_file: Path | None,
    summary_file: Path | None,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Hold RUNS, the folders of finished audits, to limits.

    A limit holds if the figure's bound is within it: at --confidence 0.95 a model that is just beyond the
    limit passes at most one time in twenty. An estimate within its limit whose bound is not is undecided:
    audit more items. RUNS may also be result.json files, whose own intervals then bound them.

    \b
    Examples:
      blindcal check runs/boolq-gpt-4o-mini --max-ece 0.10
      blindcal check runs/* --max-ece 0.10 --min-accuracy 0.8 --junit calibration.xml

    \b
    Exit status:
      0  every limit holds
      1  a run cannot be read
      2  a wrong command line
      3  an estimate is beyond its limit
      4  no estimate is, but not all limits surely hold
    """
    wanted = [Limit(OPTIONS[name], value) for name, value in limits.items() if value is not None]
    if not wanted:
        raise click.UsageError(
            f"give a limit: {', '.join('--' + name.replace('_', '-') for name in OPTIONS)}"
        )
    sure = None if estimate else confidence
    checked = []
    for run in runs:
        if sure is not None and sys.stderr.isatty():
            click.echo(f"{run}: refitting {resamples:,} times ...", err=True)
        checked.append(check(run, wanted, confidence=sure, resamples=resamples, partial=partial))
        _show(checked[-1], as_json)
    if junit_file is not None:
        junit_file.write_bytes(junit(checked))
    if summary_file is not None and os.fspath(summary_file):
        with summary_file.open("a", encoding="utf-8") as file:
            file.write(summary(checked))
    outcomes = {run.outcome for run in checked}
    status = FAILED if "failed" in outcomes else UNDECIDED if "undecided" in outcomes else PASSED
    click.get_current_context().exit(status)


def _show(run: CheckResult, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_record(run)))
        return
    click.echo(f"{printable(run.path)}: {printable(run.result.model)}, {run.result.counts.items:,} items")
    for one in run.verdicts:
        click.echo(f"  {one.outcome:<10} {one.limit.words}: {said(one)}")
    if not run.result.complete:
        click.echo(f"  note       the audit is not finished ({printable(str(run.result.stopped))})")
    if run.result.counts.invalid:
        low, high = run.result.ece_if_invalid
        click.echo(f"  note       whatever the invalid answers were, the ECE is {low:.4f} to {high:.4f}")


def _record(run: CheckResult) -> dict[str, Any]:
    return {
        "run": run.path,
        "model": run.result.model,
        "items": run.result.counts.items,
        "outcome": run.outcome,
        "confidence": run.confidence,
        "limits": [
            {
                "quantity": one.limit.quantity,
                "limit": one.limit.value,
                "outcome": one.outcome,
                "estimate": one.estimate,
                "bound": one.bound,
                "why": one.why,
            }
            for one in run.verdicts
        ],
    }
