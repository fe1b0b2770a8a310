"""Results of `blindcal check` for CI: JUnit XML, and a Markdown summary and annotations for GitHub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from blindcal.records import Estimate, level_percent
from blindcal.report.sentences import item_count
from blindcal.results.check import CheckOutcome, CheckResult, Verdict
from blindcal.text import printable

_MARKS = {"passed": "✅ passed", "failed": "❌ failed", "undecided": "⚠️ undecided"}
_ANNOTATIONS = {"failed": "error", "undecided": "warning", "passed": "notice"}
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~@:$'\"-]")  # special in Markdown or in GitHub mentions


def junit(runs: Sequence[CheckResult]) -> bytes:
    """A JUnit report: one suite per run, one case per limit; an undecided limit counts as a failure.

    Each part that fails is a case of its own.
    """
    root = ElementTree.Element("testsuites", name="blindcal check")
    for run in runs:
        verdicts = _shown(run)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_plain(_title(run)),
            tests=str(len(verdicts)),
            failures=str(sum(one.outcome != "passed" for one in verdicts)),
            errors="0",
            skipped="0",
            time="0",
            timestamp=_timestamp(run),
        )
        for one in verdicts:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_plain(run.path), name=_plain(_name(one)), time="0"
            )
            if one.outcome == "passed":
                ElementTree.SubElement(case, "system-out").text = _plain(verdict_text(one))
            else:
                message = _plain(verdict_text(one))
                failure = ElementTree.SubElement(case, "failure", type=one.outcome, message=message)
                failure.text = _plain(one.why)
    for name in ("tests", "failures"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode").encode() + b"\n"


def summary(runs: Sequence[CheckResult]) -> str:
    """A Markdown table of all verdicts and of the parts that fail, for the summary of a workflow run."""
    lines = [
        "### Calibration",
        "",
        "| model | items | limit | estimate | bound | |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        for one in _shown(run):
            cells = (
                _quoted(run.model),
                checked_items(run) if one.items is None else f"{one.items:,}",
                ": ".join(map(_quoted, filter(None, (one.part, one.words)))),
                "" if one.estimate is None else str(Estimate(one.estimate)),
                "" if one.estimate is None else str(Estimate(one.bound)),
                f"{_MARKS[one.outcome]}: {_quoted(one.why)}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    sure = {run.confidence for run in runs if run.confidence is not None}
    if sure:
        lines += ["", f"Bounds hold with {', '.join(map(level_percent, sorted(sure)))} confidence."]
    return "\n".join(lines) + "\n"


def workflow_commands(runs: Sequence[CheckResult]) -> list[str]:
    """Workflow commands of GitHub Actions, which annotate a pull request; the worst first.

    Each limit and part that fails is an error, each undecided limit a warning, each run that passes a notice.
    GitHub shows ten of each kind per step.
    """
    annotations: list[tuple[str, str, str]] = []
    for run in runs:
        texts = [(one.outcome, f"{_name(one)}: {verdict_text(one)}") for one in _shown(run)]
        wrong = [one for one in texts if one[0] != "passed"]
        passed: tuple[CheckOutcome, str] = ("passed", "; ".join(text for _, text in texts))
        annotations += [(outcome, _title(run), text) for outcome, text in wrong or [passed]]
    return [
        f"::{kind} title={_property(f'Calibration: {title}')}::{_message(text)}"
        for outcome, kind in _ANNOTATIONS.items()
        for mine, title, text in annotations
        if mine == outcome
    ]


def _message(text: str) -> str:
    """Text in a workflow command, where a percent sign begins an escape."""
    return _plain(text).replace("%", "%25")


def _property(text: str) -> str:
    """Text in a property of a workflow command, which a comma or a colon would end."""
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def verdict_text(one: Verdict) -> str:
    """A verdict's numbers, if it is about any, and its reason, in one line."""
    if one.estimate is None:
        return one.why
    bound = "" if one.bound is None else f", bound {one.bound:.4f}"
    return f"{Estimate(one.estimate)}{bound}: {one.why}"


def checked_items(run: CheckResult) -> str:
    """The number of items behind a run or a certificate."""
    if run.result is not None:
        return item_count(run.result.counts)
    assert run.certificate is not None
    return f"{run.certificate.items:,}"


def _shown(run: CheckResult) -> list[Verdict]:
    """The verdicts on the limits, and on the parts that fail."""
    return [*run.verdicts, *(one for one in run.parts if one.outcome == "failed")]


def _name(one: Verdict) -> str:
    """What must hold, and for which part if it is about one."""
    return one.words if one.part is None else f"{one.part}: {one.words}"


def _title(run: CheckResult) -> str:
    return f"{run.model} on {run.result.items}" if run.result is not None else f"certificate of {run.model}"


def _timestamp(run: CheckResult) -> str:
    if run.result is not None:
        return run.result.created[:19]
    assert run.certificate is not None
    return f"{run.certificate.made}T00:00:00"


def _plain(text: str) -> str:
    return printable(text, 400)


def _quoted(text: str) -> str:
    """Escape text so that Markdown shows it verbatim."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", printable(text))
