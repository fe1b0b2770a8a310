"""A watch as one self-contained HTML page: what each alarm says, and the numbers and figures behind it."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from blindcal.atomic_write import atomic_write
from blindcal.records import level_percent
from blindcal.report.number_format import Numbers
from blindcal.report.page import environment, style
from blindcal.results.watch_result import WatchResult
from blindcal.results.watch_verdicts import WATCHED, evidence_text, tested_against, verdicts
from blindcal.text import listed

WATCH_PAGE = "watch.html"


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
