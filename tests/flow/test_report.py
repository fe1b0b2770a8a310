"""The page of a run, looked at in a real browser: what it says, shows, hides and leaves alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from blindcal.cli import app
from blindcal.estimate.findings import Curve
from blindcal.items.files import load
from blindcal.probing.findings import Finding
from blindcal.records import Estimate, Message, Targets, Token
from blindcal.report.narrative import headline, notes
from blindcal.report.page import render, write_page
from blindcal.results.result import AuditResult
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import Server, running
from browsing import CONTRAST, Seen, check_numbers, chromium
from reporting import PROBE, audited, population, spelled_out

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "</style></title><script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{7*7}}\u202eevil"


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
    return audited(labels, p, parts=topics.tolist(), truth=True, invalid=0.01)


@pytest.fixture(scope="module")
def page(full: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(full, path)
    return path


# What it looks like


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("desktop", {}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": {"width": 390, "height": 844}, "is_mobile": True}),
        ("narrow", {"viewport": {"width": 320, "height": 568}, "is_mobile": True}),
    ],
)
def test_it_opens_on_every_screen(
    name: str, context: dict[str, Any], browser: Browser, page: Path, tmp_path: Path
) -> None:
    """Light, dark and small: no complaint, no request, nothing wider than the screen, and a picture of it."""
    width = context.pop("viewport", {"width": 1280})["width"]
    with Seen(browser, page, **context) as seen:
        seen.page.set_viewport_size({"width": width, "height": 900})
        assert seen.is_quiet(), (seen.trouble, seen.requests)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        picture = seen.page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        assert len(picture) > 50_000
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(21, 24, 28)" if name == "dark" else "rgb(255, 255, 255)")
        for svg in seen.page.locator("svg").all():
            assert svg.get_attribute("role") == "img"
            assert svg.get_attribute("aria-label")
            box = svg.bounding_box()
            assert box is not None
            assert box["width"] > 200


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(scheme: Any, browser: Browser, page: Path) -> None:
    """Each piece of text, in figures too, has a contrast of at least 4.5 to what is behind it."""
    with Seen(browser, page, color_scheme=scheme) as seen:
        found = seen.page.evaluate(CONTRAST)
    assert len(found) > 400
    assert found[0][0] >= 4.5, found[:5]


def test_it_prints(browser: Browser, page: Path) -> None:
    """As a PDF it is a few light pages with every table open, the closed ones too."""
    with Seen(browser, page, color_scheme="dark") as seen:
        printed = seen.page.pdf(format="A4")
        assert printed.startswith(b"%PDF")
        assert 4 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 20
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        hidden = "[...document.querySelectorAll('details table')].filter(e => !e.getClientRects()[0]?.height)"
        assert seen.page.evaluate(f"{hidden}.length") == 0


def test_it_works_from_the_keyboard(browser: Browser, page: Path) -> None:
    """The first key leads past the top; links lead where they say; details open; headings are in order."""
    with Seen(browser, page) as seen:
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "skip"
        seen.page.keyboard.press("Enter")
        assert seen.page.evaluate("document.activeElement.id") == "main"
        for link in seen.page.locator("a[href^='#']").all():
            target = link.get_attribute("href")
            assert seen.page.locator(str(target)).count() == 1
        summary = seen.page.locator("summary").first
        summary.focus()
        seen.page.keyboard.press("Enter")
        assert seen.page.locator("details[open] table").first.is_visible()
        levels = seen.page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(e => e.tagName)")
        assert levels == ["H1", *["H2"] * (len(levels) - 1)]
        ids = seen.page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        for table in seen.page.locator("table").all():
            assert table.locator("thead th[scope=col]").count() > 1
            assert table.locator("tbody th[scope=row]").count() == table.locator("tbody tr").count()


def test_it_is_in_the_promised_order(browser: Browser, page: Path) -> None:
    """Headline first; then figures, metrics, decisions, parts, and last what it rests on."""
    with Seen(browser, page) as seen:
        headings = [each.inner_text() for each in seen.page.locator("h2").all()]
    assert headings == [
        "Blind Calibration Curve",
        "Reliability diagram",
        "How sure it is",
        "All metrics",
        "Operating points",
        "By topic",
        "Against the truth",
        "Can this endpoint be audited?",
        "What was asked",
        "What it cost",
        "Invalid answers",
        "What this audit cannot tell",
        "How to cite",
    ]


# What it says


def test_every_number_is_the_one_in_the_result(full: AuditResult, browser: Browser, page: Path) -> None:
    """Read back from the page, each number equals result.json's to the digits shown, and none is without."""
    with Seen(browser, page) as seen:
        for summary in seen.page.locator("summary").all():
            summary.click()
        assert check_numbers(seen, json.loads(full.to_json())) > 400
        said = seen.text(".lead")
        ece = full.ece
        assert ece.value is not None
        assert f"calibration error is {ece.value:.1%} (95% interval: " in said
        figure = seen.page.locator("#curve svg").first.text_content() or ""
        assert f"{ece.value:.3f}" in figure


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "twenty items",
            r"^It is right \d+% of the time \(.*\), and \d+% confident on average\. Its calibration error is "
            r".* \(95% interval: .*\)\. .*Note: There are only 20 items: rely",
        ),
        (
            "one label",
            r"^The correct answer to every question is “Yes”\. It gets .* right .*Note: Every item has",
        ),
        (
            "all invalid",
            "^Nothing can be said about its calibration: not one of 300 answers was “Yes” or “No”",
        ),
        (
            "perfect",
            r"it is right (99|100)% of the time .* Chance alone could produce this error in a perfectly",
        ),
        (
            "constant",
            r"^When it says “Yes” with at least 60% confidence, as it does for \d+% of the questions, it "
            r"is right 5\d% .* It is overconfident.*Note: It may be no better than a coin flip",
        ),
        (
            "sure of one answer",
            r"^When it says “Yes” with at least 95% confidence, as it does for (99|100)% of the questions, "
            r"it is right 5\d% of the time \(4\d% to",
        ),
        ("swapped", r"Are the labels or the two answer words swapped\?"),
        ("blind", r"is estimated at .*% ?\. This method gives no interval"),
        ("sampling", r"^It is right \d+% of the time, and \d+% confident on average\. Its calibration"),
        (
            "forced",
            r"^Warning: This audit was forced although the probe found a problem: ignored\. The estimates",
        ),
    ],
)
def test_it_tells_the_truth_of_odd_runs(name: str, said: str, browser: Browser, tmp_path: Path) -> None:
    """Little data, one label, nothing valid: the headline claims no more than the estimates support."""
    labels, p = population(300)
    made = {
        "twenty items": lambda: audited(labels[:20], p[:20]),
        "one label": lambda: audited(np.ones(300, np.int64), p),
        "all invalid": lambda: audited(labels, p, invalid=1.1),
        "perfect": lambda: audited(labels, np.where(labels == 1, 0.9999, 0.0001)),
        "constant": lambda: audited(labels, np.full(300, 0.62)),
        "sure of one answer": lambda: audited(labels, np.full(300, 0.99999)),
        "swapped": lambda: audited(1 - labels, p),
        "blind": lambda: audited(labels, p, "blind"),
        "sampling": lambda: audited(labels, p, "sampling"),
        "forced": lambda: audited(labels, p, objection="ignored"),
    }
    result = made[name]()
    write_page(result, tmp_path / "report.html")
    with Seen(browser, tmp_path / "report.html") as seen:
        assert seen.is_quiet(), seen.trouble
        shown = " ".join(seen.text("section.headline").split())
        for summary in seen.page.locator("summary").all():
            summary.click()
        check_numbers(seen, json.loads(result.to_json()))
        assert not re.search(r"\b(nan|none|inf)\b(?! was sent)", seen.text(), re.IGNORECASE)
    assert re.search(said, shown), shown


def test_a_headline_names_the_stretch_that_is_off(full: AuditResult) -> None:
    """Over- and underconfidence is claimed where the band is off the diagonal, and only there."""
    f = tuple(k / 100 for k in range(1, 100))
    low = tuple(x - 0.2 if x > 0.7 else x - 0.01 for x in f)
    high = tuple(x - 0.1 if x > 0.7 else x + 0.01 for x in f)
    curve = Curve(f, tuple((a + b) / 2 for a, b in zip(low, high, strict=True)), low, high)
    lead = _lead(replace(full, curve=curve, operating=()))
    assert lead.endswith("It is overconfident when it says “Yes” with over 71% confidence.")
    # a stretch too short to be seen on the curve, but a good part of the items are on it
    lead = _lead(replace(full, curve=curve))
    assert lead.endswith("with over 71% confidence, and “No” with at least 95% confidence.")
    lead = _lead(replace(full, overconfidence=Estimate(0.01, -0.01, 0.02), leaning=Estimate(0.1, 0.05, 0.2)))
    assert lead.endswith("It leans towards “Yes” more than the labels do.")
    unsure = replace(full, overconfidence=Estimate(0.01, -0.01, 0.02), leaning=Estimate(0.0, -0.1, 0.1))
    assert _lead(unsure).endswith("It is not calibrated, but neither over- nor underconfident overall.")


def test_the_headline_follows_the_model() -> None:
    """A calibrated model is not blamed, an underconfident one is located, and a stop is noted."""
    rng = np.random.default_rng(1)
    p = np.clip(rng.beta(0.5, 0.5, 3000), 1e-6, 1 - 1e-6)
    calibrated = audited((rng.random(3000) < p).astype(np.int64), p)
    chance = "Chance alone could produce this error in a perfectly calibrated model; the true error may be as"
    assert chance in _lead(calibrated)
    timid = audited((rng.random(3000) < 1 / (1 + (1 / p - 1) ** 2.2)).astype(np.int64), p)
    where = r"It is underconfident when it says “Yes” with .* confidence, and “No” with"
    assert re.search(where, _lead(timid)), _lead(timid)
    stopped = replace(
        calibrated, complete=False, stopped="limit", counts=replace(calibrated.counts, unanswered=7)
    )
    assert spelled_out(stopped, list(notes(stopped))) == (
        "The run was stopped early (limit). The estimates are about the 3,000 items that have an answer, a "
        "random sample of all 3,007."
    )
    groups = {k: replace(calibrated, counts=replace(calibrated.counts, groups=k)) for k in (1, 9, 10)}
    words = {k: spelled_out(one, list(notes(one))) for k, one in groups.items()}
    assert words[1].startswith("All items are in one group, and the items of a group may be alike")
    assert words[9].startswith("The items are in only 9 groups, and the items of a group may be alike")
    assert not words[10]


def _lead(result: AuditResult) -> str:
    return spelled_out(result, headline(result))


def test_any_text_may_be_the_reason_of_an_invalid_answer() -> None:
    """What a provider says when it refuses an item is shown with its count, whatever characters it has."""
    found = audited(*population(300), "sampling", invalid=0.02)
    page = render(replace(found, invalid_reasons={"refused (400): 1+1 tokens. Policy 2.1": 6}))
    assert re.search(r'Policy 2\.1</bdi> \(<data value="6"', page)


def test_stated_confidence_is_not_called_a_logit() -> None:
    """Where the confidence is said in words there is no token, no threshold that was asked and no shift."""
    labels, p = population(300)
    found = audited(labels, p, "sampling", invalid=0.02)
    assert found.example is not None
    page = render(
        replace(
            found,
            method="verbalized",
            estimator="stated",
            semantics="stated",
            measures="the confidence that the model states in words",
            targets=Targets((), ()),
            example=replace(found.example, logit_bias={}),
            invalid_reasons={"no confidence": 3},
            settings={"positive": "True", "negative": "False"},
        )
    )
    assert "no confidence</bdi> (<data" in page
    assert "A stated confidence is text like any other" in page
    assert "none was sent" in page
    assert not re.search(r"[sS]hift|threshold <data", page)


# What it must not do


def test_hostile_texts_are_shown_as_texts(full: AuditResult, browser: Browser, tmp_path: Path) -> None:
    """Mark-up, quotes and marks that turn text around are seen, not run, wherever they come from."""
    assert full.example is not None
    assert full.oracle is not None
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
        example=replace(
            full.example, messages=(Message(HOSTILE, HOSTILE + "\n" + "x" * 100_000),), left_out=80_000
        ),
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
        shown = HOSTILE.replace("\u202e", "\\u202e")
        assert seen.text("h1") == shown
        assert seen.text("#asked pre").startswith(shown + "\nxxx")
        for section in ("header", "#parts", "#oracle", "#probe", "#asked", ".note.bad"):
            assert shown in seen.text(section), section
        assert "\u202e" not in seen.page.content()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_hostile_file_gives_a_tame_page(browser: Browser, tmp_path: Path) -> None:
    """From a file of hostile questions over HTTP to the page: all is text, numbers are the result's."""
    labels, p = population(60)
    path = tmp_path / "<b>'items'\u202e<script>.jsonl"
    prompt = f"{HOSTILE} {'long ' * 20_000}"
    with path.open("w") as file:
        for k, label in enumerate(labels):
            record = {"id": f"{HOSTILE}{k}", "prompt": f"{prompt}{k}?", "label": int(label), "at": HOSTILE}
            file.write(json.dumps(record) + "\n")
    loaded = load(path)
    questions = list(loaded)
    recording = Recording.from_probabilities([item.id for item in questions], p)
    with running(Server(recording, questions)) as server:
        command = ["audit", str(path), "--model", "replay", "--base-url", server.base_url, "--by", "at"]
        command += ["--out", str(tmp_path / "run"), "--set", "resamples=50", "--quiet"]
        done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = tmp_path / "run" / "report.html"
    assert page.stat().st_size < 1_000_000
    with Seen(browser, page) as seen:
        assert seen.is_quiet(), (seen.trouble, seen.requests)
        assert seen.page.locator("script, img").count() == 0
        shown = HOSTILE.replace("\u202e", "\\u202e")
        assert shown in seen.text("#parts tbody")
        assert seen.text("#asked pre").startswith(f"{shown} long long")
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


def test_a_large_run_is_a_small_page(tmp_path: Path) -> None:
    """56,168 items in 57 parts: under a megabyte, made in a few seconds."""
    labels, p = population(56_168)
    result = audited(labels, p)
    one = audited(labels[:500], p[:500], parts=["a"] * 500).parts[0]
    result = replace(result, by="subject", parts=tuple(replace(one, name=f"subject {k}") for k in range(57)))
    begin = time.process_time()
    write_page(result, tmp_path / "report.html")
    spent = time.process_time() - begin
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    assert spent < 8  # seconds of this process; about 1.5 on a quiet machine


# The command line


def test_what_was_not_asked_or_sent_is_not_claimed(
    full: AuditResult, browser: Browser, tmp_path: Path
) -> None:
    """A page of stated confidence has no tokens, no bias, no whiskers; money is right."""
    assert full.example is not None
    stated = replace(
        full,
        method="verbalized",
        estimator="stated",
        semantics="stated",
        ece=replace(full.ece, low=None, high=None),
        example=replace(full.example, logit_bias={}),
        counts=replace(full.counts, invalid=7),
        invalid_reasons={"no confidence": 7},
        settings={**full.settings, "queries": 1.44526, "seed": 1234567},
    )
    write_page(stated, tmp_path / "report.html")
    with Seen(browser, tmp_path / "report.html") as seen:
        text = " ".join(seen.text("body").split())
        check_numbers(seen, json.loads(stated.to_json()))
        plain = " ".join(_text(browser, full, tmp_path / "plain.html").split())
    for claim in ("Tokens for", "whisker", "answers were neither", "the probability that the model hides"):
        assert claim in plain, claim
        assert claim not in text
    for said in (
        "answers could not be read",
        "the confidence that the model states",
        "Common bias C none was sent",
        "1.45 queries per item on average, seed 1234567",
        "Could not be read 7",
    ):
        assert said in text, said


def _text(browser: Browser, result: AuditResult, path: Path) -> str:
    write_page(result, path)
    with Seen(browser, path) as seen:
        return seen.text("body")


def test_the_command_writes_the_page_figures_and_tables(full: AuditResult, tmp_path: Path) -> None:
    """``blindcal report`` takes a folder or a result, says where all is, and repeats itself."""
    full.save(tmp_path / "result.json")
    done = CliRunner().invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert (tmp_path / "report.html").read_text() == render(full)
    assert str(tmp_path / "report.html") in done.output
    arguments = ["report", str(tmp_path / "result.json"), "--out", str(tmp_path / "deep" / "page.html")]
    arguments += ["--figures", str(tmp_path / "figures"), "--csv", str(tmp_path / "tables")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (tmp_path / "deep" / "page.html").exists()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".svg"}
    assert (tmp_path / "tables" / "reliability.csv").exists()
    missing = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert "none: no such run" in str(missing.exception)
