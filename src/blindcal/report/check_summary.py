"""Results of `blindcal check` for CI: JUnit XML, and Markdown and annotations for GitHub."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from blindcal.records import Estimate, level_percent
from blindcal.report.wording import item_count
from blindcal.results.check import CheckOutcome, CheckResult, Verdict
from blindcal.results.result import AuditResult
from blindcal.text import printable

_MARKS = {"passed": "✅ passed", "failed": "❌ failed", "undecided": "⚠️ undecided"}
_ANNOTATIONS = {"failed": "error", "undecided": "warning", "passed": "notice"}
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~@:$'\"-]")  # special in Markdown or in GitHub mentions


def junit(runs: Sequence[CheckResult]) -> bytes:
    """A JUnit report: one case per limit and per failed part; an undecided limit counts as a failure."""
    root = ElementTree.Element("testsuites", name="blindcal check")
    total = Counter(tests=0, failures=0)
    for run in runs:
        verdicts = _shown(run)
        counts = {
            "tests": len(verdicts),
            "failures": sum(verdict.outcome != "passed" for verdict in verdicts),
            "errors": 0,
            "skipped": 0,
            "time": 0,
        }
        total.update(counts)
        checked = run.checked
        made = checked.created[:19] if isinstance(checked, AuditResult) else f"{checked.made}T00:00:00"
        about = {name: str(count) for name, count in counts.items()}
        suite = ElementTree.SubElement(
            root, "testsuite", about, name=_plain(_title(run)), timestamp=made[:19]
        )
        for verdict in verdicts:
            name, text = _plain(_name(verdict)), _plain(verdict_text(verdict))
            case = ElementTree.SubElement(suite, "testcase", classname=_plain(run.path), name=name, time="0")
            if verdict.outcome == "passed":
                ElementTree.SubElement(case, "system-out").text = text
            else:
                failure = ElementTree.SubElement(case, "failure", type=verdict.outcome, message=text)
                failure.text = _plain(verdict.why)
    for name in ("tests", "failures"):
        root.set(name, str(total[name]))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode").encode() + b"\n"


def summary(runs: Sequence[CheckResult]) -> str:
    """A Markdown table for the summary of a workflow run."""
    lines = ["### Calibration", "", "| model | items | limit | estimate | bound | |"]
    lines.append("|---|---|---|---|---|---|")
    for run in runs:
        for verdict in _shown(run):
            known = verdict.estimate is not None
            cells = (
                _quoted(run.model),
                checked_items(run) if verdict.items is None else f"{verdict.items:,}",
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
    annotations: list[tuple[CheckOutcome, str, str]] = []
    for run in runs:
        texts = [(each.outcome, _title(run), f"{_name(each)}: {verdict_text(each)}") for each in _shown(run)]
        passed = "; ".join(text for _, _, text in texts)
        wrong = [each for each in texts if each[0] != "passed"]
        annotations += wrong or [("passed", _title(run), passed)]
    return [
        f"::{kind} title={_property(f'Calibration: {title}')}::{_message(text)}"
        for wanted, kind in _ANNOTATIONS.items()
        for outcome, title, text in annotations
        if outcome == wanted
    ]


def _message(text: str) -> str:
    """A percent sign would begin an escape."""
    return _plain(text).replace("%", "%25")


def _property(text: str) -> str:
    """A comma or a colon would end the property."""
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def verdict_text(verdict: Verdict) -> str:
    if verdict.estimate is None:
        return verdict.why
    bound = "" if verdict.bound is None else f", bound {verdict.bound:.4f}"
    return f"{Estimate(verdict.estimate)}{bound}: {verdict.why}"


def checked_items(run: CheckResult) -> str:
    checked = run.checked
    return item_count(checked.counts) if isinstance(checked, AuditResult) else f"{checked.items:,}"


def _shown(run: CheckResult) -> list[Verdict]:
    return [*run.verdicts, *run.failed_parts]


def _name(verdict: Verdict) -> str:
    return verdict.words if verdict.part is None else f"{verdict.part}: {verdict.words}"


def _title(run: CheckResult) -> str:
    return f"{run.model} on {run.result.items}" if run.result else f"certificate of {run.model}"


def _plain(text: str) -> str:
    return printable(text, 400)


def _quoted(text: str) -> str:
    return _MARKUP.sub(lambda special: f"&#{ord(special[0])};", printable(text))
