"""What each alarm of a watch says, in words: quiet, or raised since when, about how much, and what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from blindcal.estimate.streams.alarms import Alarm, AlarmName, Gap, SliceAlarm
from blindcal.records import Estimate, level_percent
from blindcal.results.watch_result import WatchResult
from blindcal.text import listed, printable

VerdictName: TypeAlias = Literal["endpoint", "questions", "calibration", "slices"]
VerdictStatus: TypeAlias = Literal["quiet", "raised", "not tested"]

ALARMS: tuple[AlarmName, ...] = ("endpoint", "questions", "calibration")
WATCHED: dict[VerdictName, str] = {
    "endpoint": "answers to a few items, asked again and again where they were known to flip",
    "questions": "answers at random thresholds, without labels, against those of the reference",
    "calibration": "labelled answers",
    "slices": "labelled answers of each slice",
}
"""What each alarm looks at."""
ADVICE: dict[VerdictName, str] = {
    "endpoint": "Probe the endpoint again (blindcal probe), ask the provider what changed, audit again, and "
    "watch against the new audit.",
    "questions": "Look at what is asked now, and audit a labelled sample of it.",
    "calibration": "Audit again and choose the threshold again (blindcal threshold). Certificates from "
    "before the change no longer hold.",
    "slices": "Look at the items of these slices, and audit them again before relying on their confidence.",
}
"""What to do after each alarm."""
BRIEF_ADVICE: dict[VerdictName, str] = {
    "endpoint": "probe and audit again",
    "questions": "audit a sample of what is asked now",
    "calibration": "audit again, choose the threshold again",
    "slices": "audit these again",
}
"""The same in a few words."""
_COUNTED: dict[AlarmName, str] = {
    "endpoint": "repeated queries",
    "questions": "answers",
    "calibration": "labelled answers",
}
_UNTESTED: dict[AlarmName, str] = {
    "endpoint": "No item has been asked again.",
    "questions": "There is no reference to compare with.",
    "calibration": "There is nothing to test.",
}
_MOST_SLICES = 5
_PLAIN = math.log(1e6)  # evidence above this is written as a power of ten


@dataclass(frozen=True, slots=True)
class WatchVerdict:
    """What one alarm says; ``advice`` is what to do, if it is raised."""

    name: VerdictName
    status: VerdictStatus
    sentence: str
    advice: str | None = None

    @property
    def raised(self) -> bool:
        """Whether the alarm is raised."""
        return self.status == "raised"


def verdicts(result: WatchResult) -> tuple[WatchVerdict, ...]:
    """The verdict of each of the three alarms, and of the slices if there are any."""
    known = {alarm.name: alarm for alarm in result.state.alarms}
    found = [_verdict(result, name, known.get(name)) for name in ALARMS]
    return (*found, _of_slices(result)) if result.state.slices else tuple(found)


def evidence_text(log_evidence: float) -> str:
    """An e-value, given its natural logarithm: ``0.37``, ``25.1``, ``10^12``."""
    if log_evidence > _PLAIN:
        return f"10^{log_evidence / math.log(10):.0f}"
    value = math.exp(log_evidence)
    return "below 0.001" if value < 0.001 else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def since_text(result: WatchResult, alarm: Alarm) -> str:
    """Since when the evidence of a raised alarm speaks; empty if that is not known."""
    seen = result.first_seen.get(alarm.name)
    day = f" ({printable(seen[:10], 10)})" if seen else ""
    if alarm.since is None:
        return day.strip(" ()")
    return f"about {'repeated query' if alarm.name == 'endpoint' else 'item'} {alarm.since + 1:,}{day}"


def gap_text(gap: Estimate) -> str:
    """A gap in percentage points, with its interval: ``+8.1 points (+2.0 to +14.2)``."""
    if gap.value is None:
        return "not known yet"
    between = f" ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})" if gap.has_interval else ""  # type: ignore[operator]
    return f"{100 * gap.value:+.1f} points{between}"


def telling_gap(gaps: tuple[Gap, ...]) -> Gap | None:
    """The gap to name: that of all items, or the largest one if only its interval excludes zero."""
    known = [one for one in gaps if one.gap.value is not None and one.gap.has_interval]
    shown = [one for one in known if 0 not in one.gap]
    if not shown or shown[0] is gaps[0]:
        return known[0] if known and known[0] is gaps[0] else None
    return max(shown, key=lambda one: abs(float(one.gap)))


def tested_against(result: WatchResult) -> str:
    """What calibration is tested against, in words."""
    limit = result.state.max_ece
    if limit is not None:
        return f"an ECE of at most {limit:g}"
    return "the reference audit" if result.state.against == "reference" else "perfect calibration"


def raised_slices(result: WatchResult) -> tuple[SliceAlarm, ...]:
    """The slices that are raised, the strongest evidence first."""
    found = [one for one in result.state.slices if one.raised_at is not None]
    return tuple(sorted(found, key=lambda one: -one.log_evidence))


def _verdict(result: WatchResult, name: AlarmName, alarm: Alarm | None) -> WatchVerdict:
    facts = result.facts if name == "endpoint" else ()
    said = [printable(fact, 300).rstrip(".") for fact in facts]
    if alarm is not None and alarm.raised:
        said.insert(0, _raised(result, alarm))
    if said:
        sentence = ". ".join(text[0].upper() + text[1:] for text in said) + "."
        return WatchVerdict(name, "raised", sentence, ADVICE[name])
    if alarm is None:
        return WatchVerdict(name, "not tested", _UNTESTED[name])
    counted = _count(alarm.observations, _COUNTED[name])
    if not alarm.observations:
        return WatchVerdict(name, "quiet", f"There are no {_COUNTED[name]} yet.")
    against = f" against {tested_against(result)}" if name == "calibration" else ""
    sentence = (
        f"After {counted} the evidence{against} is {evidence_text(alarm.log_evidence)}; "
        f"{alarm.threshold:,.4g} raises the alarm."
    )
    return WatchVerdict(name, "quiet", sentence)


def _raised(result: WatchResult, alarm: Alarm) -> str:
    when = since_text(result, alarm)
    parts = [
        f"raised after {_count(alarm.raised_at or 0, _COUNTED[alarm.name])}",
        f"since {when}" if when else "",
        f"with evidence of {evidence_text(alarm.strongest)} at its strongest",
    ]
    sentence = ", ".join(filter(None, parts))
    if alarm.finding:
        sentence += f": {printable(alarm.finding, 300).rstrip('.')}"
    gap = telling_gap(result.state.gaps) if alarm.name == "calibration" else None
    if gap is not None:
        sentence += (
            f". {_among(gap.name)}, confidence minus the share of positive labels is {gap_text(gap.gap)}"
        )
        if gap.gap.level is not None:
            sentence += f", at all times at once with {level_percent(gap.gap.level)} confidence"
    return sentence


def _of_slices(result: WatchResult) -> WatchVerdict:
    every, found = result.state.slices, raised_slices(result)
    if not found:
        return WatchVerdict("slices", "quiet", f"None of {len(every):,} slices is raised.")
    named = [f"{printable(one.name, 40)} {gap_text(one.gap)}" for one in found[:_MOST_SLICES]]
    if len(found) > _MOST_SLICES:
        named.append(f"{len(found) - _MOST_SLICES:,} more")
    sentence = f"{len(found):,} of {len(every):,} raised: {listed(named)}."
    return WatchVerdict("slices", "raised", sentence, ADVICE["slices"])


def _among(name: str) -> str:
    """Items of a range: "Among all items", "Among items with confidence above 0.5"."""
    shown = printable(name, 80)
    return f"Among {'items with ' if shown.startswith('confidence') else ''}{shown}"


def _count(number: int, things: str) -> str:
    if number != 1:
        return f"{number:,} {things}"
    return f"1 {things.removesuffix('queries')}query" if things.endswith("queries") else f"1 {things[:-1]}"
