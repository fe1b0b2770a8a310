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
from blindcal.estimate.streams.alarms import SliceAlarm
from blindcal.records import Estimate
from blindcal.report.sentences import evidence_text
from blindcal.report.watch_figures import plot_evidence
from blindcal.report.watch_page import (
    ADVICE,
    WATCH_PAGE,
    render_watch,
    verdicts,
    write_watch_page,
)
from blindcal.results.watch_result import WATCH_FILE, WatchResult
from browsing import CONTRAST, Seen, check_numbers, chromium
from watched_streams import quiet_result, watch_result

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<script>alert(1)</script>\u202e&amp;{{ 7*7 }}$x^2$"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> WatchResult:
    """A watch whose calibration and slices are raised, with everything that a page can show."""
    return saved(watch_result(tmp_path_factory.mktemp("raised"), overconfident=True, window=True))


@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> WatchResult:
    """A watch whose endpoint answers as another model does, and says so."""
    folder = tmp_path_factory.mktemp("swapped")
    facts = ("replies name gpt-4o-mini-2026-10 instead of gpt-4o-mini-2025-07",)
    return saved(watch_result(folder, swapped=True, shifted=True, facts=facts, window=True))


def saved(result: WatchResult) -> WatchResult:
    result.save()
    write_watch_page(result)
    return result


def page_of(result: WatchResult) -> Path:
    return Path(result.folder) / WATCH_PAGE


def by_name(result: WatchResult) -> dict[str, Any]:
    return {one.name: one for one in verdicts(result)}


def test_a_result_is_read_back(raised: WatchResult, tmp_path: Path) -> None:
    """watch.json holds the whole result; another format, another file and a missing one are refused."""
    assert WatchResult.load(raised.folder) == raised
    content = json.loads((Path(raised.folder) / WATCH_FILE).read_text())
    assert content["format"] == 1
    for text, said in (
        ('{"format": 9}', "in format 9"),
        ("[]", "not a watch"),
        ('{"format": 1}', "not a watch"),
    ):
        (tmp_path / WATCH_FILE).write_text(text)
        with pytest.raises(InputError, match=said):
            WatchResult.load(tmp_path)
    with pytest.raises(InputError, match="no such watch"):
        WatchResult.load(tmp_path / "missing")


class TestVerdicts:
    def test_an_alarm_says_since_when_how_much_and_what_to_do(self, raised: WatchResult) -> None:
        """A raised calibration alarm has its date, its gap with an interval, and advice; the others don't."""
        found = by_name(raised)
        alarm, gap = raised.state.alarm("calibration"), raised.state.gaps[0]
        assert alarm is not None
        assert alarm.since is not None
        said = found["calibration"].sentence
        assert f"Raised after {alarm.raised_at:,} labelled answers" in said
        assert f"since about item {alarm.since + 1:,} (2026-11-14)" in said
        assert re.search(r"share of positive labels is \+\d+\.\d points \(\+\d+\.\d to \+\d+\.\d\)", said)
        assert found["calibration"].advice == ADVICE["calibration"]
        assert found["endpoint"].status == found["questions"].status == "quiet"
        assert found["endpoint"].advice is None
        assert gap.gap.low is not None

    def test_changed_facts_raise_the_endpoint(self, tmp_path: Path) -> None:
        """Facts alone raise the endpoint alarm, also where there is no e-process yet."""
        result = replace(quiet_result(tmp_path), facts=("replies name another model",))
        assert result.raised
        found = by_name(result)["endpoint"]
        assert (found.status, found.sentence) == ("raised", "Replies name another model.")

    def test_what_is_not_tested_is_not_called_quiet(self, tmp_path: Path) -> None:
        """Without a reference, endpoint and questions are not tested, and no observation is no evidence."""
        found = by_name(quiet_result(tmp_path))
        assert [found[name].status for name in ("endpoint", "questions")] == ["not tested"] * 2
        assert found["calibration"].sentence == "There are no labelled answers yet."

    @pytest.mark.parametrize(
        ("log", "text"),
        [
            (0.0, "1"),
            (np.log(0.375), "0.375"),
            (np.log(25.13), "25.1"),
            (np.log(12345), "12,345"),
            (np.log(1e30), "10^30"),
            (5000.0, "10^2171"),
            (-900.0, "below 0.001"),
        ],
    )
    def test_evidence_of_any_size_is_short(self, log: float, text: str) -> None:
        """E-values beyond what a float holds are powers of ten."""
        assert evidence_text(log) == text


class TestPage:
    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (320, "dark")])
    @pytest.mark.parametrize("which", ["raised", "swapped"])
    def test_it_opens_on_every_screen(
        self, width: int, scheme: Any, which: str, browser: Browser, request: pytest.FixtureRequest
    ) -> None:
        """The page fetches nothing, complains of nothing, does not scroll sideways, and can be read."""
        result: WatchResult = request.getfixturevalue(which)
        with Seen(browser, page_of(result), color_scheme=scheme) as seen:
            seen.page.set_viewport_size({"width": width, "height": 900})
            assert seen.is_quiet()
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
            faintest, where = seen.page.evaluate(CONTRAST)[0]
            assert faintest >= 4.5, where

    def test_it_begins_with_the_verdicts(self, raised: WatchResult, browser: Browser) -> None:
        """Headline first, then a verdict per alarm, raised ones first with what to do, then the rest."""
        with Seen(browser, page_of(raised)) as seen:
            assert seen.text(".lead") == "The calibration alarm is raised, and so are some slices."
            cards = [one.inner_text() for one in seen.page.locator("article.verdict").all()]
            assert [card.split()[:2] for card in cards] == [
                ["Calibration", "raised"],
                ["Slices", "raised"],
                ["Endpoint", "quiet"],
                ["Questions", "quiet"],
            ]
            assert "What to do: Audit again" in cards[0]
            sections = seen.page.evaluate("[...document.querySelectorAll('section[id]')].map(e => e.id)")
            assert sections == ["evidence", "gaps", "window", "slices", "counts", "limits"]
            assert seen.page.title().startswith("Alarm: gpt-4o-mini")

    def test_every_number_is_the_one_in_the_file(self, raised: WatchResult, browser: Browser) -> None:
        """Numbers are those of watch.json, and there are no others outside words that are checked above."""
        tree = json.loads((Path(raised.folder) / WATCH_FILE).read_text())
        with Seen(browser, page_of(raised)) as seen:
            assert check_numbers(seen, tree) > 60

    def test_figures_have_alt_texts(self, raised: WatchResult, browser: Browser) -> None:
        """Each figure says in words what it shows."""
        with Seen(browser, page_of(raised)) as seen:
            titles = seen.page.evaluate(
                "[...document.querySelectorAll('svg')].map(e => e.getAttribute('aria-label'))"
            )
        assert len(titles) == 5
        assert all(len(title) > 60 for title in titles)
        assert "It was raised after" in titles[2]
        assert "It was never raised" in titles[0]
        assert "The last 500 labelled items:" in titles[4]

    def test_a_watch_that_has_just_begun(self, tmp_path: Path, browser: Browser) -> None:
        """Before the first answer the page says so, and claims nothing."""
        result = saved(quiet_result(tmp_path))
        with Seen(browser, page_of(result)) as seen:
            assert seen.is_quiet()
            assert seen.text(".lead") == "No alarm is raised."
            assert "There is nothing to draw yet." in seen.text("#evidence")
            assert seen.page.locator("#window, #slices").count() == 0

    def test_hostile_texts_are_shown_as_texts(
        self, raised: WatchResult, tmp_path: Path, browser: Browser
    ) -> None:
        """Names, reasons and facts from outside are neither run nor hidden nor taken for a template."""
        slices = (
            SliceAlarm(
                name=HOSTILE, labelled=5, log_evidence=30.0, raised_at=4, gap=Estimate(0.1, 0.05, 0.2, 0.95)
            ),
            *raised.state.slices,
        )
        gaps = (replace(raised.state.gaps[0], name=HOSTILE), *raised.state.gaps[1:])
        hostile = replace(
            raised,
            folder=str(tmp_path),
            model=HOSTILE,
            stream=HOSTILE,
            reference=HOSTILE,
            stopped=HOSTILE,
            facts=(HOSTILE,),
            first_seen={"calibration": HOSTILE},
            state=replace(raised.state, slices=slices, gaps=gaps),
        )
        write_watch_page(hostile)
        with Seen(browser, tmp_path / WATCH_PAGE) as seen:
            assert seen.is_quiet()
            text = seen.text()
            assert "<script>alert(1)</script>\\u202e&amp;{{ 7*7 }}" in text
            assert "\u202e" not in seen.page.content()

    def test_the_same_result_gives_the_same_page(self, raised: WatchResult) -> None:
        """Nothing in the page depends on when it is written."""
        assert render_watch(raised) == render_watch(raised)


def test_evidence_beyond_any_float_is_drawn(swapped: WatchResult) -> None:
    """Evidence of e^5000 or e^-5000 does not break the figure."""
    alarm = swapped.state.alarm("endpoint")
    assert alarm is not None
    for sign in (1, -1):
        path = replace(swapped.state.paths["endpoint"], log_evidence=(sign * 5000.0,) * 60)
        axes = plot_evidence(path, alarm)
        axes.figure.canvas.draw()
        assert np.isfinite(axes.get_ylim()).all()
