"""The page of a watch: verdicts, figures and numbers, looked at in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from blindcal.errors import InputError
from blindcal.report.watch_figures import plot_evidence
from blindcal.report.watch_page import ADVICE, WATCH_PAGE, look_line, verdicts, write_watch_page
from blindcal.results.watch_result import WATCH_FILE, WatchResult
from browsing import CONTRAST, Seen, check_numbers, chromium
from watching import overconfident_result, quiet_result

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<script>alert(1)</script>\u202e\n\x1b[31m&amp;{{ 7*7 }}$x^2$"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> WatchResult:
    """A watch whose calibration is raised, with everything that a page can show."""
    result = overconfident_result(tmp_path_factory.mktemp("raised"))
    result.save()
    write_watch_page(result)
    return result


def page_of(result: WatchResult) -> Path:
    return Path(result.folder) / WATCH_PAGE


def by_name(result: WatchResult) -> dict[str, Any]:
    return {verdict.name: verdict for verdict in verdicts(result)}


def test_a_result_is_read_back(raised: WatchResult, tmp_path: Path) -> None:
    """watch.json holds the whole result; another format, another file and a missing one are refused."""
    assert WatchResult.load(raised.folder) == raised
    for text, why in (
        ('{"format": 9}', "in format 9"),
        ("[]", "not a watch"),
        ('{"format": 1}', "not a watch"),
    ):
        (tmp_path / WATCH_FILE).write_text(text)
        with pytest.raises(InputError, match=why):
            WatchResult.load(tmp_path)
    with pytest.raises(InputError, match="no such watch"):
        WatchResult.load(tmp_path / "missing")


def test_an_alarm_says_since_when_how_much_and_what_to_do(raised: WatchResult) -> None:
    """A raised calibration alarm has its date, its gap with an interval, and advice; the others don't."""
    each, alarm = by_name(raised), raised.state.alarm("calibration")
    assert alarm is not None
    assert alarm.since is not None
    sentence = each["calibration"].sentence
    assert f"Raised after {alarm.raised_at:,} labelled answers" in sentence
    assert f"since about item {alarm.since + 1:,} (2026-11-14)" in sentence
    assert re.search(r"share of positive labels is \+\d+\.\d points \(\+\d+\.\d to \+\d+\.\d\)", sentence)
    assert each["calibration"].advice == ADVICE["calibration"]
    assert each["endpoint"].status == each["questions"].status == "quiet"
    assert each["endpoint"].advice is None


def test_what_is_not_tested_is_not_called_quiet(tmp_path: Path) -> None:
    """No observation is no evidence; facts alone raise the endpoint, also where it has no e-process yet."""
    result = quiet_result(tmp_path)
    each = by_name(result)
    assert [each[name].status for name in ("endpoint", "questions")] == ["not tested"] * 2
    assert each["calibration"].sentence == "There are no labelled answers yet."
    changed = replace(result, facts=("replies name another model",))
    assert changed.raised
    verdict = by_name(changed)["endpoint"]
    assert (verdict.status, verdict.sentence) == ("raised", "Replies name another model.")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (320, "dark")])
def test_the_page_opens_on_every_screen(
    width: int, scheme: Any, raised: WatchResult, browser: Browser
) -> None:
    """It fetches nothing, complains of nothing, does not scroll sideways, and can be read."""
    with Seen(browser, page_of(raised), color_scheme=scheme) as seen:
        seen.page.set_viewport_size({"width": width, "height": 900})
        assert seen.is_quiet()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        faintest, where = seen.page.evaluate(CONTRAST)[0]
        assert faintest >= 4.5, where


def test_the_page_begins_with_the_verdicts(raised: WatchResult, browser: Browser) -> None:
    """Headline first, then a verdict per alarm, raised ones first with what to do; figures have alt texts."""
    with Seen(browser, page_of(raised)) as seen:
        assert seen.text(".lead") == "Raised: calibration."
        cards = [card.inner_text() for card in seen.page.locator("article.verdict").all()]
        titles = seen.page.evaluate(
            "[...document.querySelectorAll('svg')].map(e => e.getAttribute('aria-label'))"
        )
        sections = seen.page.evaluate("[...document.querySelectorAll('section[id]')].map(e => e.id)")
        assert seen.page.title().startswith("Alarm: gpt-4o-mini")
    assert [card.split()[:2] for card in cards] == [
        ["Calibration", "raised"],
        ["Endpoint", "quiet"],
        ["Questions", "quiet"],
    ]
    assert "What to do: Audit again" in cards[0]
    assert sections == ["evidence", "gaps", "window", "counts", "limits"]
    assert len(titles) == 5
    assert "It was never raised" in titles[0]
    assert "It was raised after" in titles[2]
    assert "The last 500 labelled items:" in titles[4]


def test_every_number_is_the_one_in_the_file(raised: WatchResult, browser: Browser) -> None:
    """Numbers are those of watch.json, and there are no others outside words that are checked above."""
    tree = json.loads((Path(raised.folder) / WATCH_FILE).read_text())
    with Seen(browser, page_of(raised)) as seen:
        assert check_numbers(seen, tree) > 60


def test_a_watch_that_has_just_begun(tmp_path: Path, browser: Browser) -> None:
    """Before the first answer the page says so, and claims nothing."""
    result = quiet_result(tmp_path)
    write_watch_page(result)
    with Seen(browser, page_of(result)) as seen:
        assert seen.is_quiet()
        assert seen.text(".lead") == "No alarm is raised."
        assert "There is nothing to draw yet." in seen.text("#evidence")
        assert seen.page.locator("#window").count() == 0


def test_hostile_texts_are_shown_as_texts(raised: WatchResult, tmp_path: Path, browser: Browser) -> None:
    """Texts from outside are neither run nor hidden nor taken for a template, and stay on the look's line."""
    result = replace(
        raised,
        model=HOSTILE,
        stream=HOSTILE,
        reference=HOSTILE,
        stopped=HOSTILE,
        folder=str(tmp_path),
        facts=(HOSTILE,),
        first_seen={"calibration": HOSTILE},
    )
    write_watch_page(result)
    with Seen(browser, page_of(result)) as seen:
        assert seen.is_quiet()
        assert "<script>alert(1)</script>\\u202e" in seen.text()
        assert "\u202e" not in seen.page.content()
    assert look_line(result).isprintable()


def test_evidence_beyond_any_float_is_drawn(raised: WatchResult) -> None:
    """Evidence of e^5000 or e^-5000 does not break the figure."""
    alarm = raised.state.alarm("endpoint")
    assert alarm is not None
    for sign in (1, -1):
        path = replace(raised.state.paths["endpoint"], log_evidence=(sign * 5000.0,) * 60)
        axes = plot_evidence(path, alarm)
        axes.figure.canvas.draw()
        assert np.isfinite(axes.get_ylim()).all()
