"""Results of `blindcal check` for CI: JUnit XML, and a Markdown summary and annotations for GitHub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from blindcal.records import Estimate, level_percent
from blindcal.report.sentences import item_count
from blindcal.results.check import CheckResult
from blindcal.results.part_check import PartsCheck, PartVerdict
from blindcal.results.verdicts import Condition, LimitVerdict
from blindcal.text import printable

_MARKS = {"passed": "✅ passed", "failed": "❌ failed", "undecided": "⚠️ undecided"}
_ANNOTATIONS = {"failed": "error", "undecided": "warning", "passed": "notice"}
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|&~@:$'\"-]")  # special in Markdown or in GitHub mentions


def junit(runs: Sequence[CheckResult], parts: Mapping[str, PartsCheck] | None = None) -> bytes:
    """A JUnit report: one suite per run, one case per limit; an undecided limit counts as a failure.

    ``parts`` are the checks of parts by the path of their run. Each part that fails is a case of its own.
    """
    root = ElementTree.Element("testsuites", name="blindcal check")
    for run in runs:
        alarms = _alarms(run, parts)
        failed = sum(one.outcome != "passed" for one in run.verdicts) + len(alarms)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_plain(_title(run)),
            tests=str(len(run.verdicts) + len(alarms)),
            failures=str(failed),
            errors="0",
            skipped="0",
            time="0",
            timestamp=_timestamp(run),
        )
        named = [(one.limit.words, one) for one in run.verdicts]
        named += [(f"{one.part}: {one.verdict.limit.words}", one.verdict) for one in alarms]
        for name, one in named:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_plain(run.path), name=_plain(name), time="0"
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


def summary(runs: Sequence[CheckResult], parts: Mapping[str, PartsCheck] | None = None) -> str:
    """A Markdown table of all verdicts and of the parts that fail, for the summary of a workflow run."""
    lines = [
        "### Calibration",
        "",
        "| model | items | limit | estimate | bound | |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        rows = [(checked_items(run), _quoted(one.limit.words), one) for one in run.verdicts]
        for part in _alarms(run, parts):
            limit = f"{_quoted(part.part)}: {_quoted(part.verdict.limit.words)}"
            rows.append((f"{part.items:,}", limit, part.verdict))
        for items, limit, one in rows:
            cells = (
                _quoted(run.model),
                items,
                limit,
                *(
                    ("", "")
                    if _without_number(one)
                    else (str(Estimate(one.estimate)), str(Estimate(one.bound)))
                ),
                f"{_MARKS[one.outcome]}: {_quoted(one.why)}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    sure = {run.confidence for run in runs if run.confidence is not None}
    if sure:
        lines += ["", f"Bounds hold with {', '.join(map(level_percent, sorted(sure)))} confidence."]
    return "\n".join(lines) + "\n"


def workflow_commands(
    runs: Sequence[CheckResult], parts: Mapping[str, PartsCheck] | None = None
) -> list[str]:
    """Workflow commands of GitHub Actions, which annotate a pull request; the worst first.

    Each limit and part that fails is an error, each undecided limit a warning, each run that passes a notice.
    GitHub shows ten of each kind per step.
    """
    found: list[tuple[str, str, str]] = []
    for run in runs:
        said = [(one.outcome, f"{one.limit.words}: {verdict_text(one)}") for one in run.verdicts]
        said += [
            ("failed", f"{one.part}: {one.verdict.limit.words}: {verdict_text(one.verdict)}")
            for one in _alarms(run, parts)
        ]
        wrong = [one for one in said if one[0] != "passed"]
        shown = wrong or [("passed", "; ".join(text for _, text in said))]
        found += [(outcome, _title(run), text) for outcome, text in shown]
    return [
        f"::{kind} title={_property(f'Calibration: {title}')}::{_message(text)}"
        for outcome, kind in _ANNOTATIONS.items()
        for mine, title, text in found
        if mine == outcome
    ]


def _message(text: str) -> str:
    """Text in a workflow command, where a percent sign begins an escape."""
    return _plain(text).replace("%", "%25")


def _property(text: str) -> str:
    """Text in a property of a workflow command, which a comma or a colon would end."""
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _alarms(run: CheckResult, parts: Mapping[str, PartsCheck] | None) -> tuple[PartVerdict, ...]:
    """The parts of a run that fail."""
    found = (parts or {}).get(run.path)
    return () if found is None else found.of("failed")


def verdict_text(one: LimitVerdict) -> str:
    """A verdict's numbers, if it is about any, and its reason, in one line."""
    if _without_number(one):
        return one.why
    bound = "" if one.bound is None else f", bound {one.bound:.4f}"
    return f"{Estimate(one.estimate)}{bound}: {one.why}"


def checked_items(run: CheckResult) -> str:
    """The number of items behind a run or a certificate."""
    if run.result is not None:
        return item_count(run.result.counts)
    assert run.certificate is not None
    return f"{run.certificate.items:,}"


def _title(run: CheckResult) -> str:
    return f"{run.model} on {run.result.items}" if run.result is not None else f"certificate of {run.model}"


def _timestamp(run: CheckResult) -> str:
    if run.result is not None:
        return run.result.created[:19]
    assert run.certificate is not None
    return f"{run.certificate.made}T00:00:00"


def _without_number(one: LimitVerdict) -> bool:
    """Whether a verdict is about no number."""
    return isinstance(one.limit, Condition) and one.estimate is None


def _plain(text: str) -> str:
    return printable(text, 400)


def _quoted(text: str) -> str:
    """Escape text so that Markdown shows it verbatim."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", printable(text))
