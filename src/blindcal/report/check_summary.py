"""Results of `blindcal check` for CI: JUnit XML, and a Markdown summary for GitHub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from blindcal.records import Estimate, level_percent
from blindcal.report.sentences import item_count
from blindcal.results.check import CheckResult, LimitVerdict
from blindcal.text import printable

_MARKS = {"passed": "✅ passed", "failed": "❌ failed", "undecided": "⚠️ undecided"}
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~@:$'\"-]")  # special in Markdown or in GitHub mentions


def junit(runs: Sequence[CheckResult]) -> bytes:
    """A JUnit report: one suite per run, one case per limit; an undecided limit counts as a failure."""
    root = ElementTree.Element("testsuites", name="blindcal check")
    for run in runs:
        failed = sum(one.outcome != "passed" for one in run.verdicts)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_plain(f"{run.result.model} on {run.result.items}"),
            tests=str(len(run.verdicts)),
            failures=str(failed),
            errors="0",
            skipped="0",
            time="0",
            timestamp=run.result.created[:19],
        )
        for one in run.verdicts:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_plain(run.path), name=one.limit.words, time="0"
            )
            if one.outcome != "passed":
                ElementTree.SubElement(
                    case, "failure", type=one.outcome, message=_plain(verdict_text(one))
                ).text = _plain(one.why)
            else:
                ElementTree.SubElement(case, "system-out").text = _plain(verdict_text(one))
    for name in ("tests", "failures"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode").encode() + b"\n"


def summary(runs: Sequence[CheckResult]) -> str:
    """A Markdown table of all verdicts, for the summary of a GitHub workflow run."""
    lines = [
        "### Calibration",
        "",
        "| model | items | limit | estimate | bound | |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        for one in run.verdicts:
            cells = (
                _quoted(run.result.model),
                item_count(run.result.counts),
                one.limit.words,
                str(Estimate(one.estimate)),
                str(Estimate(one.bound)),
                f"{_MARKS[one.outcome]}: {_quoted(one.why)}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    sure = {run.confidence for run in runs if run.confidence is not None}
    if sure:
        lines += ["", f"Bounds hold with {', '.join(map(level_percent, sorted(sure)))} confidence."]
    return "\n".join(lines) + "\n"


def verdict_text(one: LimitVerdict) -> str:
    """A verdict's numbers and reason, in one line."""
    bound = "" if one.bound is None else f", bound {one.bound:.4f}"
    return f"{Estimate(one.estimate)}{bound}: {one.why}"


def _plain(text: str) -> str:
    return printable(text, 400)


def _quoted(text: str) -> str:
    """Escape text so that Markdown shows it verbatim."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", printable(text))
