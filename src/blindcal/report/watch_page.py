"""A watch in words: the verdict of each alarm, one line per look, and the self-contained page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from markupsafe import Markup

from blindcal.atomic_write import write_file
from blindcal.estimate.streams.alarms import Alarm, AlarmName, Gap
from blindcal.records import level_percent
from blindcal.report.page import environment, style
from blindcal.report.wording import OBSERVED, Numbers, evidence_text, gap_text, wording_of
from blindcal.results.watch_result import WatchResult
from blindcal.text import listed, printable

WATCH_PAGE = "watch.html"
VerdictStatus: TypeAlias = Literal["quiet", "raised", "not tested"]

WATCHED: dict[AlarmName, str] = {
    "endpoint": "a few items whose confidence is known, asked again and again",
    "questions": "the distribution of the confidence, without labels, against that of the reference",
    "calibration": "labelled answers",
}
ADVICE: dict[AlarmName, str] = {
    "endpoint": "Probe the endpoint again (blindcal probe), ask the provider what changed, audit again, and "
    "watch against the new audit.",
    "questions": "Look at what is asked now, and audit a labelled sample of it.",
    "calibration": "Audit again and choose the threshold again (blindcal threshold). Certificates from "
    "before the change no longer hold.",
}
_UNTESTED: dict[AlarmName, str] = {
    "endpoint": "No item has been asked again.",
    "questions": "There is no reference to compare with.",
}


@dataclass(frozen=True, slots=True)
class WatchVerdict:
    """What one alarm says, at length and in short; ``advice`` is what to do if it is raised."""

    name: AlarmName
    status: VerdictStatus
    sentence: str
    brief: str
    advice: str | None = None

    @property
    def raised(self) -> bool:
        return self.status == "raised"


def verdicts(result: WatchResult) -> tuple[WatchVerdict, ...]:
    known = {alarm.name: alarm for alarm in result.state.alarms}
    return tuple(_verdict(result, name, known.get(name)) for name in OBSERVED)


def _verdict(result: WatchResult, name: AlarmName, alarm: Alarm | None) -> WatchVerdict:
    facts = result.facts if name == "endpoint" else ()
    sentences = [printable(fact, 300).rstrip(".") for fact in facts]
    brief = f" {printable(facts[0], 120).rstrip('.')}" if facts else ""
    if alarm is not None and alarm.raised:
        sentences.insert(0, _raised(result, alarm))
        brief = f" since {_since(result, alarm)}"
    if sentences:
        sentence = ". ".join(text[0].upper() + text[1:] for text in sentences) + "."
        return WatchVerdict(name, "raised", sentence, f"{name} RAISED{brief}", ADVICE[name])
    if alarm is None:
        return WatchVerdict(name, "not tested", _UNTESTED[name], f"{name} not tested")
    against = f" against {tested_against(result)}" if name == "calibration" else ""
    evidence = evidence_text(alarm.log_evidence)
    sentence = (
        f"After {_count(alarm.observations, OBSERVED[name])} the evidence{against} is {evidence}; "
        f"{alarm.threshold:,.4g} raises the alarm."
    )
    if not alarm.observations:
        sentence = f"There are no {OBSERVED[name]} yet."
    return WatchVerdict(name, "quiet", sentence, f"{name} quiet ({evidence} of {alarm.threshold:,.4g})")


def _raised(result: WatchResult, alarm: Alarm) -> str:
    sentences = [printable(alarm.finding, 300).rstrip(".")] if alarm.finding else []
    gap = _telling_gap(result.state.gaps) if alarm.name == "calibration" else None
    if gap is not None:
        items = "items with " if gap.name.startswith("confidence") else ""
        level = "" if gap.gap.level is None else f", with {level_percent(gap.gap.level)} confidence"
        sentences.append(
            f"confidence minus the {wording_of(result).share} is {gap_text(gap.gap)}{level}, among {items}"
            f"{printable(gap.name, 80)}"
        )
    when = _since(result, alarm)
    after = _count(alarm.raised_at or 0, OBSERVED[alarm.name])
    parts = [
        f"raised after {after}",
        f"since {when}" if when else "",
        f"by evidence of {evidence_text(alarm.strongest)} at its strongest",
    ]
    return ". ".join(text[0].upper() + text[1:] for text in [*sentences, ", ".join(filter(None, parts))])


def _since(result: WatchResult, alarm: Alarm) -> str:
    seen = result.first_seen.get(alarm.name)
    day = f" ({printable(seen[:10], 10)})" if seen else ""
    if alarm.since is None:
        return day.strip(" ()")
    return f"about {'repeated query' if alarm.name == 'endpoint' else 'item'} {alarm.since + 1:,}{day}"


def _telling_gap(gaps: tuple[Gap, ...]) -> Gap | None:
    """The gap to name: that of all items, or the largest if only that one excludes zero."""
    known = [gap for gap in gaps if gap.gap.value is not None and gap.gap.has_interval]
    shown = [gap for gap in known if 0 not in gap.gap]
    if not shown or shown[0] is gaps[0]:
        return known[0] if known and known[0] is gaps[0] else None
    return max(shown, key=lambda gap: abs(float(gap.gap)))


def tested_against(result: WatchResult) -> str:
    limit = result.state.max_ece
    if limit is None:
        return "the reference audit"
    return f"an ECE of at most {limit:g}" if limit else "perfect calibration"


def _count(number: int, things: str) -> str:
    if number != 1:
        return f"{number:,} {things}"
    return f"1 {things.removesuffix('queries')}query" if things.endswith("queries") else f"1 {things[:-1]}"


def look_line(result: WatchResult) -> str:
    """One look in one line: when, how much, and the state of each alarm."""
    when = printable(result.looked[:16].replace("T", " "), 16)
    counts = [f"{result.answered:,} answers", f"{result.labelled:,} labelled"]
    if result.waiting:
        counts.append(f"{result.waiting:,} waiting")
    alarms = "; ".join(verdict.brief for verdict in verdicts(result))
    return f"{when} look {result.look:,}: {', '.join(counts)}; {alarms}"


# The page


def render_watch(result: WatchResult) -> str:
    """The HTML page of a watch; text from outside is escaped."""
    from blindcal.report.watch_figures import draw_watch  # slow to import, like all plotting code

    templates = environment()
    numbers = Numbers(result)
    templates.globals.update(show=numbers.show, between=numbers.between)
    templates.filters.update(evidence=_with_exponent)
    state, each = result.state, verdicts(result)
    levels = {alarm.level for alarm in state.alarms}
    raised = [verdict.name for verdict in each if verdict.raised]
    return templates.get_template("watch.html").render(
        result=result,
        verdicts=each,
        watched=WATCHED,
        headline=f"Raised: {listed(raised)}." if raised else "No alarm is raised.",
        against=tested_against(result),
        words=wording_of(result),
        figures={figure.name: figure.svg() for figure in draw_watch(result)},
        chance=level_percent(max(levels)) if levels else None,
        gap_level=next((level_percent(gap.gap.level) for gap in state.gaps if gap.gap.level), None),
        css=style("page.css"),
    )


def write_watch_page(result: WatchResult, path: Path | None = None) -> None:
    """Write the page, by default into the folder of the watch."""
    page = render_watch(result)
    write_file(path or Path(result.folder) / WATCH_PAGE, page)


def _with_exponent(log_evidence: float) -> Markup:
    number, caret, exponent = evidence_text(log_evidence).partition("^")
    return Markup("{}<sup>{}</sup>").format(number, exponent) if caret else Markup(number)
