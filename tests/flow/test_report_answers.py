"""The report of an audit with more than two answers: about the answer given, then about each answer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blindcal import plot
from blindcal.estimate.findings import NOTHING, AnswerMargins, Curve
from blindcal.records import Estimate
from blindcal.report.page import html, write_page
from blindcal.report.plots import draw
from blindcal.results.result import AuditResult
from browsing import CONTRAST, Seen, check_numbers, chromium
from finished_runs import FinishedRuns
from reporting import headline_of, page_words
from results import around

#: Words that are about two answers.
OF_TWO = re.compile(
    r"\b(yes/no|(positive|negative) (label|item|answer|decision)s?|Yes|neither (word|“)|two answer words)\b"
)
EMOTIONS = ("sadness", "joy", "love", "anger")


@pytest.fixture(scope="module")
def four(finished_runs: FinishedRuns) -> AuditResult:
    """Questions with four options, of a model that likes the first."""
    table = ((60, 2, 1, 2), (20, 40, 1, 1), (20, 1, 40, 1), (20, 1, 1, 29))
    result = finished_runs.original("choices").result
    return replace(result, confusion=table, margins=AnswerMargins.of(table))


def test_the_page_is_about_the_answer_given(four: AuditResult, tmp_path: Path) -> None:
    """It shows what result.json has, fits every screen, and does not speak of two answers."""
    result = replace(four, answers=EMOTIONS)
    write_page(result, tmp_path / "report.html")
    with chromium() as browser, Seen(browser, tmp_path / "report.html") as seen:
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
    assert headings[:7] == [
        "Blind Calibration Curve",
        "Reliability diagram",
        "How sure it is",
        "All metrics",
        "By answer",
        "Answers and labels",
        "Operating points",
    ]


def test_the_headline_is_about_the_answer_given(four: AuditResult) -> None:
    """How often it is right at a confidence, and where the curve is off the diagonal, without a side."""
    f = tuple(k / 100 for k in range(1, 100))
    low = tuple(x - 0.2 if x > 0.7 else x - 0.01 for x in f)
    high = tuple(x - 0.1 if x > 0.7 else x + 0.01 for x in f)
    curve = Curve(f, tuple((a + b) / 2 for a, b in zip(low, high, strict=True)), low, high)
    over = replace(four, overconfidence=around(0.1), operating=())
    lead = headline_of(replace(over, curve=curve))
    assert re.match(r"It is right \d+% of the time \(\d+% to \d+%\), and \d+% confident on average\.", lead)
    assert lead.endswith("It is overconfident in answers with over 71% confidence.")
    everywhere = Curve(f, f, tuple(x - 0.3 for x in f), tuple(x - 0.1 for x in f))
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
    texts = {one.figure.axes[0].get_xlabel() for one in drawn.values()}
    assert texts == {"confidence in the answer given", "threshold on the confidence"}
    assert not any(OF_TWO.search(one.title) for one in drawn.values())
    axes = plot.reliability(four)
    curve = next(line for line in axes.get_lines() if str(line.get_label()).startswith("curve"))
    assert min(np.asarray(curve.get_xdata(), float)) >= 0.25
    assert axes.get_ylabel() == "share of right answers"
    assert "confidence in the answer given" in html(four)
