"""A watch in words: what each alarm says, one look in one line, and the self-contained page of a watch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from markupsafe import Markup

from blindcal.atomic_write import atomic_write
from blindcal.estimate.streams.alarms import Alarm, AlarmName, Gap, SliceAlarm
from blindcal.records import level_percent
from blindcal.report.page import environment, style
from blindcal.report.sentences import Numbers, evidence_text, gap_text
from blindcal.results.watch_result import WatchResult
from blindcal.text import listed, printable

WATCH_PAGE = "watch.html"
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
_MOST_SLICES, _FEW_SLICES = 5, 3  # named in a sentence and in a line


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


def since_text(result: WatchResult, alarm: Alarm) -> str:
    """Since when the evidence of a raised alarm speaks; empty if that is not known."""
    seen = result.first_seen.get(alarm.name)
    day = f" ({printable(seen[:10], 10)})" if seen else ""
    if alarm.since is None:
        return day.strip(" ()")
    return f"about {'repeated query' if alarm.name == 'endpoint' else 'item'} {alarm.since + 1:,}{day}"


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
    if limit is None:
        return "the reference audit"
    return f"an ECE of at most {limit:g}" if limit else "perfect calibration"


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


# One look


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
        names = [printable(one.name, 40) for one in raised[:_FEW_SLICES]]
        more = [f"{len(raised) - _FEW_SLICES:,} more"] if len(raised) > _FEW_SLICES else []
        what = f" {listed(names + more)}"
    elif alarm is not None and alarm.raised:
        what = f" since {since_text(result, alarm)}"
    elif result.facts:
        what = f" {printable(result.facts[0], 120).rstrip('.')}"
    return f"{verdict.name} RAISED{what}: {BRIEF_ADVICE[verdict.name]}"


# The page


def render_watch(result: WatchResult) -> str:
    """The page of a watch; text from outside is escaped, as on the page of an audit."""
    from blindcal.report.watch_figures import draw_watch  # slow to import, like all plotting code

    templates = environment()
    numbers = Numbers(result)
    templates.globals.update(show=numbers.show, between=numbers.between)
    templates.filters.update(evidence=_with_exponent)
    state, found = result.state, verdicts(result)
    levels = {alarm.level for alarm in state.alarms}
    return templates.get_template("watch.html").render(
        result=result,
        verdicts=found,
        watched=WATCHED,
        headline=_headline([one.name for one in found if one.raised]),
        against=tested_against(result),
        figures={one.name: one.svg() for one in draw_watch(result)},
        chance=level_percent(max(levels)) if levels else None,
        gap_level=next((level_percent(one.gap.level) for one in state.gaps if one.gap.level), None),
        css=style("page.css", "watch.css"),
    )


def write_watch_page(result: WatchResult, path: Path | None = None) -> None:
    """Write the page, by default into the folder of the watch."""
    page = render_watch(result)
    with atomic_write(path or Path(result.folder) / WATCH_PAGE) as draft:
        draft.write_text(page, encoding="utf-8")


def _with_exponent(log_evidence: float) -> Markup:
    """An e-value with its exponent raised."""
    number, caret, exponent = evidence_text(log_evidence).partition("^")
    return Markup("{}<sup>{}</sup>").format(number, exponent) if caret else Markup(number)


def _headline(raised: list[str]) -> str:
    if not raised:
        return "No alarm is raised."
    if raised == ["slices"]:
        return "Some slices are raised."
    alarms = [name for name in raised if name != "slices"]
    slices = ", and so are some slices" if "slices" in raised else ""
    plural = "alarms are raised" if len(alarms) > 1 else "alarm is raised"
    return f"The {listed(alarms)} {plural}{slices}."
