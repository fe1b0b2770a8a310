"""``blindcal check``: check finished audits and certificates, for CI."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

from blindcal.atomic_write import write_file, writing
from blindcal.cli import options
from blindcal.cli.console import command_line_option, print_field, print_stage
from blindcal.json_form import json_line
from blindcal.progress_bar import count_bar
from blindcal.records import Estimate, level_percent
from blindcal.report.wording import item_count
from blindcal.results.certificate import is_certificate
from blindcal.results.check import CheckResult, Verdict, check
from blindcal.results.result import AuditResult
from blindcal.text import printable

_MARKS = {"passed": "✅ passed", "failed": "❌ failed", "undecided": "⚠️ undecided"}
_ANNOTATIONS = {"failed": "error", "undecided": "warning", "passed": "notice"}
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~@:$'\"-]")  # special in Markdown or in GitHub mentions
EXIT = {"failed": 3, "undecided": 4, "passed": 0}  # the worst first


@options.command("check")
@options.run_argument("runs", nargs=-1, required=True)
@click.option("--max-ece", type=options.SHARE, help="Maximum expected calibration error.")
@click.option("--max-smece", type=options.SHARE, help="Maximum smooth ECE.")
@click.option("--max-brier", type=options.SHARE, help="Maximum Brier score.")
@click.option("--min-accuracy", type=options.SHARE, help="Minimum accuracy.")
@click.option("--min-auroc", type=options.SHARE, help="Minimum AUROC.")
@click.option("--max-aurc", type=options.SHARE, help="Maximum area under the risk-coverage curve.")
@click.option(
    "--min-coverage", type=options.SHARE, help="Minimum share of items to accept with at most 5% errors."
)
@click.option("--max-invalid", type=options.SHARE, help="Maximum share of invalid answers.")
@click.option(
    "--certificate",
    type=options.FILE,
    help="Certificate that the runs must still fit: same model, prompt and endpoint, and no contradiction.",
)
@click.option(
    "--min-precision",
    type=options.SHARE,
    help="Minimum precision that a certificate promises of accepted items.  [default: what it was made for]",
)
@click.option("--model", metavar="NAME", help="Model that a certificate must be about.")
@click.option(
    "--confidence",
    type=options.CONFIDENCE,
    default=0.95,
    help="Confidence with which a limit must hold.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Compare the estimate itself with the limit; close to the limit, chance then decides.",
)
@click.option(
    "--by",
    "by_part",
    is_flag=True,
    help="Check each part of the audit's breakdown too: fails if a part is shown to be beyond a limit.",
)
@options.flag("--strict", "Fail if an estimate is beyond its limit, even if that may be chance.")
@click.option("--partial", is_flag=True, help="Let an audit pass that was stopped early.")
@options.field("resamples")
@click.option("--junit", "junit_file", type=options.FILE, help="JUnit report to write.")
@click.option(
    "--summary",
    "summary_file",
    type=options.FILE,
    envvar="GITHUB_STEP_SUMMARY",
    help="File to append a Markdown table to.  [default: the job summary of GitHub Actions]",
)
@click.option(
    "--annotate",
    is_flag=True,
    help="Print annotations for GitHub Actions too, which its pull requests show.",
)
@options.json_option("Print one JSON object per run, one per line.")
def command(
    runs: tuple[Path, ...],
    certificate: Path | None,
    min_precision: float | None,
    model: str | None,
    confidence: float,
    estimate: bool,
    by_part: bool,
    strict: bool,
    partial: bool,
    resamples: int,
    junit_file: Path | None,
    summary_file: Path | None,
    annotate: bool,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Check finished audits against limits. RUNS are their folders, result.json files, or certificates.

    A limit holds if the whole interval is within it, and fails if the whole interval is beyond it: at
    --confidence 0.95, a model that is just beyond the limit passes at most one time in twenty, and one just
    within it fails as seldom. Otherwise the outcome is undecided, and auditing more items decides it. A
    result.json file is checked by the intervals in it.

    A certificate of 'blindcal certify' passes if it has not expired, and if its confidence and its bounds are
    as high as required. With --certificate, a newer audit is held against one: it fails if the model, the
    prompt or the endpoint is another one, or if its own interval of the precision at the certified threshold
    is below what was promised.

    With --by, a part fails only if its interval is beyond the limit as a whole. The intervals allow for the
    number of parts: if all parts are within their limits, at most one audit in twenty raises any alarm (at
    --confidence 0.95). Parts that are undecided change nothing.

    \b
    Examples:
      blindcal check runs/boolq-my-model --max-ece 0.10
      blindcal check runs/* --max-ece 0.10 --min-accuracy 0.8 --junit calibration.xml
      blindcal check runs/boolq-my-model --max-ece 0.10 --by
      blindcal check certificate.json --min-precision 0.95 --model my-model
      blindcal check runs/this-week --certificate certificate.json

    \b
    Exit status:
      0  every limit holds
      1  a run or a certificate cannot be read
      2  a wrong command line
      3  a limit is broken, a certificate has expired, or a run does not fit it
      4  a limit is neither shown to hold nor to be broken
    """
    certificates = [run for run in runs if is_certificate(run)]
    limited = certificate is not None or any(value is not None for value in limits.values())
    if len(certificates) < len(runs) and not limited:
        flags = ", ".join(command_line_option(name, ...) for name in (*limits, "certificate"))
        raise click.UsageError(f"give at least one limit: {flags}")
    for flag, given in (("--min-precision", min_precision), ("--model", model)):
        if given is not None and not certificates:
            raise click.UsageError(f"{flag} is about certificates, and none is given")
    if by_part and estimate:
        raise click.UsageError("--by needs intervals, and --estimate ignores them")
    if annotate and as_json:
        raise click.UsageError("--annotate and --json both print to standard output; give one of them")
    checked = []
    for run in runs:
        if not estimate and run not in certificates and sys.stderr.isatty():
            print_stage(f"{run}: refitting {resamples:,} times")
        with count_bar(unit="part", delay=2, disable=None) as progress:
            result = check(
                run,
                **limits,
                min_precision=min_precision,
                model=model,
                certificate=certificate,
                confidence=None if estimate else confidence,
                resamples=resamples,
                strict=strict,
                partial=partial,
                by_part=by_part,
                progress=progress,
            )
        checked.append(result)
        if as_json:
            click.echo(json_line(_record(result)))
        else:
            _print(result, partial)
    if junit_file is not None:
        write_file(junit_file, junit(checked))
    if summary_file is not None:
        with writing(summary_file), summary_file.open("a", encoding="utf-8") as file:
            file.write(summary(checked))
    if annotate:
        for line in workflow_commands(checked):
            click.echo(line)
    outcomes = {run.outcome for run in checked}
    click.get_current_context().exit(next(status for outcome, status in EXIT.items() if outcome in outcomes))


def _print(run: CheckResult, partial: bool) -> None:
    click.echo(f"{printable(run.path)}: {printable(run.model)}, {_items(run)} items")
    for each in run.verdicts:
        _line(each.outcome, f"{each.words}: {each.text}")
    if (result := run.result) is None:
        return
    if not result.complete:
        allowed = "" if partial else "; --partial lets it pass"
        _line("note", f"the audit is not finished ({printable(str(result.stopped))}){allowed}")
    if run.confidence is not None and result.estimator != "latent" and run.outcome == "undecided":
        _line("note", f"{result.method} gives no intervals; --estimate checks the estimates themselves")
    if result.counts.invalid:
        low, high = result.ece_if_invalid
        between = f"the ECE is between {low:.4f} and {high:.4f}"
        _line("note", f"whatever the invalid answers would have been, {between}")
    if run.by is None:
        return
    count = Counter(part.outcome for part in run.parts)
    _line(
        "parts",
        f"by {printable(run.by, 40)}: {count['failed']:,} shown to be beyond a limit, "
        f"{count['passed']:,} within, {count['undecided']:,} undecided; if all are within, any fails in at "
        f"most {level_percent(1 - (run.confidence or 0.0))} of audits",
    )
    for part in run.parts:
        if part.outcome == "failed":
            name = printable(str(part.part), 40)
            _line(part.outcome, f"{name}, {part.items:,} items: {part.words}: {part.text}")


def _line(kind: str, text: str) -> None:
    print_field(f"  {kind}", text, width=13)


def _record(run: CheckResult) -> dict[str, Any]:
    counted = run.checked.counts if isinstance(run.checked, AuditResult) else run.checked
    parts = [{"part": part.part, "items": part.items, **_limit(part)} for part in run.parts]
    return {
        "run": run.path,
        "model": run.model,
        "items": counted.items,
        "outcome": run.outcome,
        "confidence": run.confidence,
        "limits": [_limit(verdict) for verdict in run.verdicts],
        **({} if run.by is None else {"by": run.by, "parts": parts}),
    }


def _limit(verdict: Verdict) -> dict[str, Any]:
    return {
        name: getattr(verdict, name) for name in ("quantity", "limit", "outcome", "estimate", "bound", "why")
    }


# Reports for CI: JUnit XML, and Markdown and annotations for GitHub


def junit(runs: Sequence[CheckResult]) -> bytes:
    """A JUnit report: one case per row; an undecided limit counts as a failure."""
    root = ElementTree.Element("testsuites", name="blindcal check")
    for run in runs:
        suite = ElementTree.SubElement(root, "testsuite", name=_plain(_title(run)))
        for each in run.rows:
            name, text = _plain(each.name), _plain(each.text)
            case = ElementTree.SubElement(suite, "testcase", classname=_plain(run.path), name=name)
            if each.outcome == "passed":
                ElementTree.SubElement(case, "system-out").text = text
            else:
                failure = ElementTree.SubElement(case, "failure", type=each.outcome, message=text)
                failure.text = _plain(each.why)
    for element in (root, *root):
        element.set("tests", str(sum(1 for _ in element.iter("testcase"))))
        element.set("failures", str(sum(1 for _ in element.iter("failure"))))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode").encode() + b"\n"


def summary(runs: Sequence[CheckResult]) -> str:
    """A Markdown table for the summary of a workflow run."""
    lines = ["### Calibration", "", "| model | items | limit | estimate | bound | |"]
    lines.append("|---|---|---|---|---|---|")
    for run in runs:
        for verdict in run.rows:
            known = verdict.estimate is not None
            cells = (
                _quoted(run.model),
                _items(run) if verdict.items is None else f"{verdict.items:,}",
                ": ".join(map(_quoted, filter(None, (verdict.part, verdict.words)))),
                str(Estimate(verdict.estimate)) if known else "",
                str(Estimate(verdict.bound)) if known else "",
                f"{_MARKS[verdict.outcome]}: {_quoted(verdict.why)}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    sure = {run.confidence for run in runs if run.confidence is not None}
    if sure:
        lines += ["", f"Bounds hold with {', '.join(map(level_percent, sorted(sure)))} confidence."]
    return "\n".join(lines) + "\n"


def workflow_commands(runs: Sequence[CheckResult]) -> list[str]:
    """GitHub Actions commands that annotate a pull request, the worst first: GitHub shows ten per kind."""
    annotations = []
    for run in runs:
        texts = [(each.outcome, f"{each.name}: {each.text}") for each in run.rows]
        wrong = [text for text in texts if text[0] != "passed"]
        title = _property(f"Calibration: {_title(run)}")
        for outcome, text in wrong or [("passed", "; ".join(text for _, text in texts))]:
            annotations.append((outcome, f"title={title}::{_message(text)}"))
    return [
        f"::{kind} {text}"
        for wanted, kind in _ANNOTATIONS.items()
        for outcome, text in annotations
        if outcome == wanted
    ]


def _message(text: str) -> str:
    """A percent sign would begin an escape."""
    return _plain(text).replace("%", "%25")


def _property(text: str) -> str:
    """A comma or a colon would end the property."""
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _items(run: CheckResult) -> str:
    checked = run.checked
    return item_count(checked.counts) if isinstance(checked, AuditResult) else f"{checked.items:,}"


def _title(run: CheckResult) -> str:
    return f"{run.model} on {run.result.items}" if run.result else f"certificate of {run.model}"


def _plain(text: str) -> str:
    return printable(text, 400)


def _quoted(text: str) -> str:
    return _MARKUP.sub(lambda special: f"&#{ord(special[0])};", printable(text))
