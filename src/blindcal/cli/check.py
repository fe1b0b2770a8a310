"""``blindcal check``: check finished audits against limits, for CI."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from blindcal.atomic_write import atomic_write, writing
from blindcal.cli import options
from blindcal.cli.console import command_line_option, print_stage
from blindcal.cli.param_types import FiniteRange
from blindcal.report import check_summary
from blindcal.report.sentences import item_count
from blindcal.results.check import CheckResult, check
from blindcal.text import printable

EXIT = {"failed": 3, "undecided": 4, "passed": 0}  # the worst first


@click.command("check")
@options.run_argument("runs", nargs=-1, required=True)
@click.option("--max-ece", type=options.SHARE, help="Maximum expected calibration error.")
@click.option("--max-brier", type=options.SHARE, help="Maximum Brier score.")
@click.option("--min-accuracy", type=options.SHARE, help="Minimum accuracy.")
@click.option("--min-auroc", type=options.SHARE, help="Minimum AUROC.")
@click.option("--max-invalid", type=options.SHARE, help="Maximum share of invalid answers.")
@click.option(
    "--confidence",
    type=FiniteRange(0.5, 1, min_open=True, max_open=True),
    default=0.95,
    help="Confidence with which a limit must hold.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Compare the estimate itself with the limit; close to the limit, chance then decides.",
)
@click.option("--partial", is_flag=True, help="Let an audit pass that was stopped early.")
@options.resamples_option
@click.option("--junit", "junit_file", type=options.FILE, help="JUnit report to write.")
@click.option(
    "--summary",
    "summary_file",
    type=options.FILE,
    envvar="GITHUB_STEP_SUMMARY",
    help="File to append a Markdown table to.  [default: the job summary of GitHub Actions]",
)
@options.json_option("Print one JSON object per run, one per line.")
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
    """Check finished audits against limits. RUNS are their folders, or result.json files.

    A limit holds if the end of the interval is within it, not only the estimate: at --confidence 0.95, a
    model that is just beyond the limit passes at most one time in twenty. If only the estimate is within the
    limit, the outcome is undecided, and auditing more items decides it. A result.json file is checked by the
    intervals in it.

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
      4  every estimate is within its limit, but not with the confidence required
    """
    if all(value is None for value in limits.values()):
        flags = ", ".join(command_line_option(name, ...) for name in limits)
        raise click.UsageError(f"give at least one limit: {flags}")
    required = None if estimate else confidence
    checked = []
    for run in runs:
        if not estimate and sys.stderr.isatty():
            print_stage(f"{run}: refitting {resamples:,} times")
        found = check(run, **limits, confidence=required, resamples=resamples, partial=partial)
        checked.append(found)
        if as_json:
            click.echo(json.dumps(_record(found)))
        else:
            _print(found, partial)
    if junit_file is not None:
        with atomic_write(junit_file) as draft:
            draft.write_bytes(check_summary.junit(checked))
    if summary_file is not None:
        with writing(summary_file), summary_file.open("a", encoding="utf-8") as file:
            file.write(check_summary.summary(checked))
    outcomes = [run.outcome for run in checked]
    click.get_current_context().exit(next(status for one, status in EXIT.items() if one in outcomes))


def _print(run: CheckResult, partial: bool) -> None:
    result = run.result
    click.echo(f"{printable(run.path)}: {printable(result.model)}, {item_count(result.counts)} items")
    for one in run.verdicts:
        click.echo(f"  {one.outcome:<10} {one.limit.words}: {check_summary.verdict_text(one)}")
    notes = []
    if not result.complete:
        allowed = "" if partial else "; --partial lets it pass"
        notes.append(f"the audit is not finished ({printable(str(result.stopped))}){allowed}")
    if run.confidence is not None and result.estimator != "latent" and run.outcome == "undecided":
        notes.append(f"{result.method} gives no intervals; --estimate checks the estimates themselves")
    if result.counts.invalid:
        low, high = result.ece_if_invalid
        notes.append(
            f"whatever the invalid answers would have been, the ECE is between {low:.4f} and {high:.4f}"
        )
    for note in notes:
        click.echo(f"  {'note':<10} {note}")


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
