"""One look of a watch in one line."""

from __future__ import annotations

from blindcal.results.watch_result import WatchResult
from blindcal.results.watch_verdicts import (
    BRIEF_ADVICE,
    WatchVerdict,
    evidence_text,
    raised_slices,
    since_text,
    verdicts,
)
from blindcal.text import listed, printable

_MOST_SLICES = 3


def look_line(result: WatchResult) -> str:
    """One look in one line: when, how much, and the state of each alarm."""
    when = printable(result.looked[:16].replace("T", " "), 16)
    counts = [f"{result.answered:,} answers", f"{result.labelled:,} labelled"]
    if result.waiting:
        counts.append(f"{result.waiting:,} waiting")
    alarms = "; ".join(_brief(result, one) for one in verdicts(result))
    return f"{when} look {result.look:,}: {', '.join(counts)}; {alarms}"


def _brief(result: WatchResult, verdict: WatchVerdict) -> str:
    if verdict.status == "not tested":
        return f"{verdict.name} not tested"
    alarm = next((one for one in result.state.alarms if one.name == verdict.name), None)
    if not verdict.raised:
        evidence = f" ({evidence_text(alarm.log_evidence)} of {alarm.threshold:,.4g})" if alarm else ""
        return f"{verdict.name} quiet{evidence}"
    what = ""
    if verdict.name == "slices":
        raised = raised_slices(result)
        names = [printable(one.name, 40) for one in raised[:_MOST_SLICES]]
        more = [f"{len(raised) - _MOST_SLICES:,} more"] if len(raised) > _MOST_SLICES else []
        what = f" {listed(names + more)}"
    elif alarm is not None and alarm.raised:
        what = f" since {since_text(result, alarm)}"
    elif result.facts:
        what = f" {printable(result.facts[0], 120).rstrip('.')}"
    return f"{verdict.name} RAISED{what}: {BRIEF_ADVICE[verdict.name]}"
