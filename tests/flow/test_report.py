"""The page of a run, looked at in a real browser: what it says, shows, hides and leaves alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import results
from blindcal import plot
from blindcal.auditing.audit import audit
from blindcal.estimate.findings import NOTHING, AnswerMargins, Curve
from blindcal.probing.findings import Finding
from blindcal.records import Estimate, Message, Targets, Token
from blindcal.report.notebook import html
from blindcal.report.page import render, write_page
from blindcal.report.plots import draw
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from browsing import CONTRAST, Seen, check_numbers, chromium
from commanding import blindcal
from finished_runs import FinishedRuns
from reporting import PROBE, audited, headline_of, page_words, population
from results import around
from serving import replaying

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "</style></title><script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{7*7}}\u202eevil"
SHOWN = HOSTILE.replace("\u202e", "\\u202e")
SECTIONS = [
    "Verdict overconfident",
    "Blind Calibration Curve",
    "Reliability diagram",
    "How sure it is",
    "Risk and coverage",
    "All metrics",
    "Operating points",
    "By topic",
    "Against the truth",
    "What this audit cannot tell",
    "How it was made",
]
FOLDED = ["Can this endpoint be audited?", "What was asked", "What it cost", "Invalid answers", "How to cite"]

#: Words that are about two answers.
OF_TWO = re.compile(
    r"\b(yes/no|(positive|negative) (label|item|answer|decision)s?|Yes|neither (word|“)|two answer words)\b"
)
EMOTIONS = ("sadness", "joy", "love", "anger")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium; where there is none the tests say so and are skipped."""
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def full() -> AuditResult:
    """A result with everything in it."""
    labels, p = population()
    topics = np.random.default_rng(0).choice(["law", "physics", "rare"], labels.size, p=[0.6, 0.38, 0.02])
    return audited(labels, p, parts=topics.tolist(), invalid=0.01)


@pytest.fixture(scope="module")
def page(full: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(full, path)
    return path


@pytest.fixture(scope="module")
def seen(browser: Browser, page: Path) -> Iterator[Seen]:
    """The page of a full result on a desktop."""
    with Seen(browser, page) as one:
        yield one


# What it looks like


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (320, "light")])
def test_it_can_be_read_on_every_screen(width: int, scheme: Any, browser: Browser, page: Path) -> None:
    """Light, dark and small: no complaint, no request, nothing too wide, every word clear of its ground."""
    with Seen(browser, page, color_scheme=scheme, is_mobile=width < 500) as seen:
        seen.page.set_viewport_size({"width": width, "height": 900})
        assert seen.is_quiet(), (seen.trouble, seen.requests)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(21, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
        contrasts = seen.page.evaluate(CONTRAST)
        assert len(contrasts) > 400
        assert contrasts[0][0] >= 4.5, contrasts[:5]
        for svg in seen.page.locator("svg").all():
            assert svg.get_attribute("role") == "img"
            assert svg.get_attribute("aria-label")
            box = svg.bounding_box()
            assert box is not None
            assert box["width"] > 200


def test_it_prints(browser: Browser, page: Path) -> None:
    """As a PDF it is a few light pages with every table open, the closed ones too."""
    with Seen(browser, page, color_scheme="dark") as seen:
        printed = seen.page.pdf(format="A4")
        assert 4 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 20
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        hidden = "[...document.querySelectorAll('details table')].filter(e => !e.getClientRects()[0]?.height)"
        assert seen.page.evaluate(f"{hidden}.length") == 0


def test_it_works_from_the_keyboard(browser: Browser, page: Path) -> None:
    """The first key leads past the top; links lead where they say; details open; sections are in order."""
    with Seen(browser, page) as seen:
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "skip"
        seen.page.keyboard.press("Enter")
        assert seen.page.evaluate("document.activeElement.id") == "main"
        links = seen.page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map(e => e.hash)")
        ids = seen.page.evaluate("[...document.querySelectorAll('[id]')].map(e => '#' + e.id)")
        assert len(ids) == len(set(ids))
        assert set(links) <= set(ids)
        seen.page.locator("summary").first.focus()
        seen.page.keyboard.press("Enter")
        assert seen.page.locator("details[open] table").first.is_visible()
        headings = "[...document.querySelectorAll('h1,h2,h3')].map(e => [e.tagName, e.innerText])"
        seen.unfold()
        (first, _), *others = seen.page.evaluate(headings)
        titles = [*(["H2", section] for section in SECTIONS), *(["H3", section] for section in FOLDED)]
        assert (first, others) == ("H1", titles)
        for table in seen.page.locator("table").all():
            assert table.locator("thead th[scope=col]").count() > 1
            assert table.locator("tbody th[scope=row]").count() == table.locator("tbody tr").count()


# What it says


def test_every_number_is_the_one_in_the_result(full: AuditResult, seen: Seen) -> None:
    """Read back from the page, each number equals result.json's to the digits shown, and none is without."""
    assert check_numbers(seen, json.loads(full.to_json())) > 400
    ece = full.ece
    assert ece.value is not None
    assert f"calibration error is {ece.value:.1%} (95% interval: " in seen.text(".lead")
    figure = seen.page.locator("#curve svg").first.text_content() or ""
    assert f"{ece.value:.3f}" in figure


LABELS, P = population(300)
ODD: dict[str, tuple[Callable[[], AuditResult], str]] = {
    "twenty items": (
        lambda: audited(LABELS[:20], P[:20]),
        r"^It is right \d+% of the time \(.*\), and \d+% confident on average\. Its calibration error is "
        r".* \(95% interval: .*\)\. .*Note: There are only 20 items: rely",
    ),
    "one label": (
        lambda: audited(np.ones(300, np.int64), P),
        r"^The correct answer to every question is “Yes”\. It gets .* right .*Note: Every item has",
    ),
    "all invalid": (
        lambda: audited(LABELS, P, invalid=1.1),
        "^Nothing can be said about its calibration: not one of 300 answers was “Yes” or “No”",
    ),
    "perfect": (
        lambda: audited(LABELS, np.where(LABELS == 1, 0.9999, 0.0001)),
        r"it is right (99|100)% of the time .* Chance alone could produce this error in a perfectly",
    ),
    "constant": (
        lambda: audited(LABELS, np.full(300, 0.62)),
        r"^When it says “Yes” with at least 60% confidence, as it does for \d+% of the questions, it is "
        r"right 5\d% .* It is overconfident.*Note: It may be no better than a coin flip",
    ),
    "swapped": (lambda: audited(1 - LABELS, P), r"Are the labels or the two answer words swapped\?"),
    "blind": (lambda: audited(LABELS, P, "blind"), r"is estimated at .*% ?\. This method gives no interval"),
    "sampling": (
        lambda: audited(LABELS, P, "sampling"),
        r"^It is right \d+% of the time, and \d+% confident on average\. Its calibration",
    ),
    "forced": (
        lambda: audited(LABELS, P, objection="ignored"),
        r"^Warning: This audit was forced although the probe found a problem: ignored\. The estimates",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_it_tells_the_truth_of_odd_runs(name: str, browser: Browser, tmp_path: Path) -> None:
    """Little data, one label, nothing valid: the headline claims no more than the estimates support."""
    made, words = ODD[name]
    result = made()
    write_page(result, tmp_path / "report.html")
    with Seen(browser, tmp_path / "report.html") as seen:
        assert seen.is_quiet(), seen.trouble
        shown = " ".join(seen.text("section.headline").split())
        check_numbers(seen, json.loads(result.to_json()))
        assert not re.search(r"\b(nan|none|inf)\b(?! was sent)", seen.text(), re.IGNORECASE)
    assert re.search(words, shown), shown


F = tuple(k / 100 for k in range(1, 100))
#: A curve that is off the diagonal above 0.7 only.
OFF = Curve(
    F,
    tuple(f - 0.15 if f > 0.7 else f for f in F),
    tuple(f - 0.2 if f > 0.7 else f - 0.01 for f in F),
    tuple(f - 0.1 if f > 0.7 else f + 0.01 for f in F),
)


def test_a_headline_names_the_stretch_that_is_off(full: AuditResult) -> None:
    """Over- and underconfidence is claimed where the band is off the diagonal, and only there."""
    lead = headline_of(replace(full, curve=OFF, operating=()))
    assert lead.endswith("It is overconfident when it says “Yes” with over 71% confidence.")
    # a stretch too short to be seen on the curve, but a good part of the items are on it
    lead = headline_of(replace(full, curve=OFF))
    assert lead.endswith("with over 71% confidence, and “No” with at least 95% confidence.")
    value, low, high = (tuple(f + (f > 0.5) * 0.2 - by for f in F) for by in (0.1, 0.15, 0.05))
    timid = replace(full, curve=Curve(F, value, low, high), overconfidence=around(-0.1))
    assert re.search(r"It is underconfident when it says “Yes” .*, and “No” ", headline_of(timid))
    unsure = replace(full, overconfidence=Estimate(0.01, -0.01, 0.02), leaning=Estimate(0.1, 0.05, 0.2))
    assert headline_of(unsure).endswith("It leans towards “Yes” more than the labels do.")
    neither = replace(unsure, leaning=Estimate(0.0, -0.1, 0.1))
    assert headline_of(neither).endswith(
        "It is not calibrated, but neither over- nor underconfident overall."
    )


def test_notes_say_what_limits_the_estimates() -> None:
    """A stop with the items that the estimates are about, and few groups."""
    whole = results.result()
    stopped = replace(whole, complete=False, stopped="limit", counts=replace(whole.counts, unanswered=7))
    about = "The estimates are about the 1,000 items that have an answer, a random sample of all 1,007."
    assert f"Note: The run was stopped early (limit). {about}" in page_words(stopped)
    for groups, words in ((1, "All items are in one group"), (9, "The items are in only 9 groups"), (10, "")):
        text = page_words(replace(whole, counts=replace(whole.counts, groups=groups)))
        assert f"Note: {words}" in text if words else "Note" not in text


def test_what_was_not_asked_or_sent_is_not_claimed(full: AuditResult, browser: Browser, seen: Seen) -> None:
    """A page of stated confidence has no tokens, no bias, no shift, no whiskers; numbers are right."""
    assert full.example is not None
    stated = replace(
        full,
        method="verbalized",
        estimator="stated",
        semantics="stated",
        ece=replace(full.ece, low=None, high=None),
        targets=Targets((), ()),
        example=replace(full.example, logit_bias={}),
        counts=replace(full.counts, invalid=7),
        invalid_reasons={"no confidence": 5, "refused (400): 1+1 tokens. Policy 2.1": 2},
        settings={**full.settings, "queries": 1.44526, "seed": 1234567},
    )
    path = Path(seen.url.removeprefix("file://")).with_name("stated.html")
    write_page(stated, path)
    seen.unfold()
    with Seen(browser, path) as other:
        other.unfold()
        text = " ".join(other.text("body").split())
        check_numbers(other, json.loads(stated.to_json()))
        assert "threshold" not in other.text("#asked")
    plain = " ".join(seen.text("body").split())
    for claim in ("Tokens for", "whisker", "answers were neither", "the probability that the model hides"):
        assert claim in plain, claim
        assert claim not in text
    assert "shift" not in text.lower()
    for words in (
        "answers could not be read",
        "the confidence that the model states",
        "A stated confidence is text like any other",
        "Common bias C none was sent",
        "1.45 queries per item on average, seed 1234567",
        "Could not be read 7",
        "no confidence (5), refused (400): 1+1 tokens. Policy 2.1 (2)",
    ):
        assert words in text, words


# What it must not do


def test_hostile_texts_are_shown_as_texts(full: AuditResult, browser: Browser, tmp_path: Path) -> None:
    """Mark-up, quotes and marks that turn text around are seen, not run, wherever they come from."""
    assert full.example is not None
    assert full.oracle is not None
    messages = (Message(HOSTILE, HOSTILE + "\n" + "x" * 100_000),)
    result = replace(
        full,
        model=HOSTILE,
        items=f"/tmp/{HOSTILE}.jsonl",
        by=HOSTILE,
        parts=tuple(replace(part, name=f"{HOSTILE}{k}") for k, part in enumerate(full.parts)),
        stopped=HOSTILE,
        complete=False,
        blindcal=HOSTILE,
        oracle=replace(full.oracle, path=HOSTILE, column=HOSTILE),
        example=replace(full.example, messages=messages, left_out=80_000),
        targets=Targets((Token(1, HOSTILE),), (Token(2, HOSTILE),)),
        probe=replace(PROBE, reason=HOSTILE, findings=(Finding(HOSTILE, "bad", HOSTILE),)),
        objection=HOSTILE,
        settings={**full.settings, "positive": HOSTILE, "negative": HOSTILE, "template": HOSTILE},
    )
    path = tmp_path / "a <b>&'\".html"
    write_page(result, path)
    assert path.stat().st_size < 1_000_000
    with Seen(browser, path) as seen:
        assert seen.is_quiet(), (seen.trouble, seen.requests)
        assert seen.page.locator("script, img, iframe, object, form").count() == 0
        assert seen.page.evaluate("document.querySelectorAll('style').length") == 1
        assert seen.text("h1") == SHOWN
        seen.unfold()
        assert seen.text("#asked pre").startswith(SHOWN + "\nxxx")
        for section in ("header", "#parts", "#oracle", "#probe", "#asked", ".note.bad"):
            assert SHOWN in seen.text(section), section
        assert "\u202e" not in seen.page.content()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_hostile_file_gives_a_tame_page(browser: Browser, tmp_path: Path) -> None:
    """From a file of hostile questions over HTTP to the page: all is text, numbers are the result's."""
    labels, p = population(60)
    path = tmp_path / "<b>'items'\u202e<script>.jsonl"
    prompt = f"{HOSTILE} {'long ' * 20_000}"
    rows = [
        {"id": f"{HOSTILE}{k}", "prompt": f"{prompt}{k}?", "label": int(label), "at": HOSTILE}
        for k, label in enumerate(labels)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with replaying(path, p) as server:
        settings = Settings(model="replay", base_url=server.base_url, by_field="at", resamples=20)
        audit(path, settings, out=tmp_path / "run")
    page = tmp_path / "run" / "report.html"
    assert page.stat().st_size < 1_000_000
    with Seen(browser, page) as seen:
        assert seen.is_quiet(), (seen.trouble, seen.requests)
        assert seen.page.locator("script, img").count() == 0
        assert SHOWN in seen.text("#parts tbody")
        seen.unfold()
        assert seen.text("#asked pre").startswith(f"{SHOWN} long long")
        assert "further characters are not shown" in seen.text("#asked")
        check_numbers(seen, json.loads((page.parent / "result.json").read_text()))


def test_the_page_forbids_itself_everything(browser: Browser, page: Path) -> None:
    """Whatever got into the page could neither run nor call home: its own policy forbids it."""
    text = page.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href|action)=["'](?!#|data:)""", text.replace('xlink:href="#', 'href="#'))
    assert "@import" not in text
    assert "url(http" not in text
    with Seen(browser, page) as seen:
        seen.page.evaluate(
            "() => { const e = document.createElement('img'); e.src = 'http://127.0.0.1:9/x'; "
            "document.body.append(e); const s = document.createElement('script'); "
            "s.textContent = 'window.ran = 1'; document.body.append(s); }"
        )
        assert seen.page.evaluate("window.ran") is None
        assert any("Content Security Policy" in each for each in seen.trouble)


def test_a_large_run_is_a_small_page(full: AuditResult, tmp_path: Path) -> None:
    """57 parts of 56,168 items: under a megabyte, made in a few seconds."""
    parts = tuple(replace(full.parts[0], name=f"subject {k}") for k in range(57))
    begin = time.process_time()
    write_page(replace(full, parts=parts), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    assert time.process_time() - begin < 8  # seconds of this process; about 1.5 on a quiet machine


def test_the_command_writes_the_page_and_the_figures(full: AuditResult, tmp_path: Path) -> None:
    """``blindcal report`` takes a folder or a result, says where all is, and repeats itself."""
    full.save(tmp_path / "result.json")
    figures = tmp_path / "figures"
    done = blindcal("report", tmp_path, "--figures", figures)
    assert done.exit_code == 0
    assert (tmp_path / "report.html").read_text() == render(full)
    assert str(tmp_path / "report.html") in done.output
    assert {path.suffix for path in figures.iterdir()} == {".png", ".svg"}
    assert "none: no such run" in str(blindcal("report", tmp_path / "none").exception)


# With more than two answers: about the answer given, then about each answer


@pytest.fixture(scope="module")
def four(finished_runs: FinishedRuns) -> AuditResult:
    """Questions with four options, of a model that likes the first."""
    table = ((60, 2, 1, 2), (20, 40, 1, 1), (20, 1, 40, 1), (20, 1, 1, 29))
    result = finished_runs.original("choices").result
    return replace(result, confusion=table, margins=AnswerMargins.of(table))


def test_the_page_is_about_the_answer_given(four: AuditResult, browser: Browser, tmp_path: Path) -> None:
    """It shows what result.json has, fits every screen, and does not speak of two answers."""
    result = replace(four, answers=EMOTIONS)
    write_page(result, tmp_path / "report.html")
    with Seen(browser, tmp_path / "report.html") as seen:
        assert seen.is_quiet(), seen.trouble
        for summary in seen.page.locator("summary").all():
            summary.click()
        assert check_numbers(seen, json.loads(result.to_json())) > 300
        text = seen.text()
        headings = [each.inner_text() for each in seen.page.locator("h2").all()]
        rows = seen.page.locator("#answers tbody tr").count()
        counts = seen.page.locator("#confusion table.confusion td").all_inner_texts()
        links = [str(link.get_attribute("href")) for link in seen.page.locator("nav a").all()]
        assert all(seen.page.locator(link).count() == 1 for link in links)
        assert seen.page.evaluate(CONTRAST)[0][0] >= 4.5
        seen.page.set_viewport_size({"width": 390, "height": 800})
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not OF_TWO.search(text), OF_TWO.search(text)
    assert not re.search(r"\b(nan|inf)\b", text)
    assert rows == len(EMOTIONS)
    assert [int(one.replace(",", "")) for one in counts] == np.ravel(result.confusion).tolist()
    assert "240 questions with the answers sadness, joy, love and anger from" in text
    assert headings[:9] == [*SECTIONS[:6], "By answer", "Answers and labels", SECTIONS[6]]


def test_the_headline_is_about_the_answer_given(four: AuditResult) -> None:
    """How often it is right at a confidence, and where the curve is off the diagonal, without a side."""
    over = replace(four, overconfidence=around(0.1), operating=())
    lead = headline_of(replace(over, curve=OFF))
    assert re.match(r"It is right \d+% of the time \(\d+% to \d+%\), and \d+% confident on average\.", lead)
    assert lead.endswith("It is overconfident in answers with over 71% confidence.")
    everywhere = Curve(F, F, tuple(f - 0.3 for f in F), tuple(f - 0.1 for f in F))
    assert headline_of(replace(over, curve=everywhere)).endswith(
        "It is overconfident in answers at any confidence."
    )


def test_the_page_says_what_the_position_does(four: AuditResult) -> None:
    """A model that likes the first option: due to the position alone only if the options were permuted."""
    text = page_words(four)
    assert re.search(r"For each answer to be given as often as it is right, \d+\.\d% of all would", text)
    assert "more than chance explains (p-value below 0.001)" in text
    assert "an audit that permutes them shows how much their position alone matters." in text
    shuffled = page_words(replace(four, settings=four.settings | {"permute": 0}))
    assert "so this is how much their position matters." in shuffled
    assert "position alone" not in page_words(replace(four, answers=EMOTIONS))
    assert four.margins is not None
    fair = page_words(replace(four, margins=replace(four.margins, pvalue=0.4)))
    assert "That may be due to chance (p-value 0.40)." in fair


def test_the_notes_fit_several_answers(four: AuditResult) -> None:
    """Invalid answers, a useless confidence and a model that is always right, in words that fit."""
    doubtful = replace(
        four,
        counts=replace(four.counts, invalid=12),
        auroc=Estimate(0.5, 0.48, 0.52, 0.95),
        accuracy=around(1.0, 0.0),
    )
    text = page_words(doubtful)
    assert "answers were none of those asked for." in text
    assert "no better than a coin flip at telling right answers from wrong ones" in text
    assert "Every answer given is right." in text
    nothing = replace(four, ece=NOTHING, counts=replace(four.counts, each=(0,) * 4, invalid=50))
    assert headline_of(nothing) == (
        "Nothing can be said about its calibration: not one of 50 answers was one of those asked for."
    )


def test_figures_name_their_axes(four: AuditResult) -> None:
    """Axes and alt texts are about the answer given; its curve begins where items can be."""
    drawn = {one.name: one for one in draw(four)}
    texts = {one.figure.axes[0].get_xlabel() for name, one in drawn.items() if name != "risk"}
    assert texts == {"confidence in the answer given", "threshold on the confidence"}
    assert not any(OF_TWO.search(one.title) for one in drawn.values())
    axes = plot.reliability(four)
    curve = next(line for line in axes.get_lines() if str(line.get_label()).startswith("curve"))
    assert min(np.asarray(curve.get_xdata(), float)) >= 0.25
    assert axes.get_ylabel() == "share of right answers"
    assert "confidence in the answer given" in html(four)
