"""The first sentence of a report quotes what a model does often and what is known well, or else all of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import results
from blindcal.estimate.findings import Curve, OperatingPoint
from blindcal.records import Estimate
from blindcal.report.next_steps import next_steps, verdict
from blindcal.report.sentences import COMMON, WIDEST
from reporting import headline_of

ALL = "It is right 75% of the time (73% to 77%), and 81% confident on average."


def point(threshold: float, **given: Any) -> OperatingPoint:
    """An operating point at which half of the decisions are positive, and little is known."""
    wide = Estimate(0.7, 0.4, 0.9, 0.95)
    known: dict[str, Any] = dict.fromkeys(("recall", "accuracy", "precision", "negative_precision"), wide)
    return OperatingPoint(threshold, 0.0, **known | {"positive_rate": Estimate(0.5)} | given)


def first(*points: OperatingPoint, **changes: Any) -> str:
    """The first sentence about a model with these operating points; empty if there is none."""
    result = results.result(operating=points, settings={"positive": "Yes", "negative": "No"}, **changes)
    return headline_of(result).partition("Its calibration error")[0].rstrip()


def test_it_quotes_what_is_common_and_known() -> None:
    """The highest round confidence that the model often has, of the more frequent answer that is known."""
    sure = point(0.95, precision=Estimate(0.98, 0.93, 0.99), positive_rate=Estimate(0.03))
    common = point(0.8, precision=Estimate(0.62, 0.55, 0.7), positive_rate=Estimate(0.41))
    assert first(sure, common) == (
        "When it says “Yes” with at least 80% confidence, as it does for 41% of the questions, it is right "
        "62% of the time (55% to 70%)."
    )
    assert first(sure) == ALL
    yes = point(0.9, precision=Estimate(0.7, 0.65, 0.75), positive_rate=Estimate(0.35))
    no = point(0.1, negative_precision=Estimate(0.95, 0.9, 0.97), positive_rate=Estimate(0.4))
    assert first(yes, no) == (
        "When it says “No” with at least 90% confidence, as it does for 60% of the questions, it is right "
        "95% of the time (90% to 97%)."
    )
    unsure = replace(no, negative_precision=Estimate(0.95, 0.7, 0.97))
    assert first(yes, unsure).startswith(
        "When it says “Yes” with at least 90% confidence, as it does for 35%"
    )
    assert first(replace(common, threshold=0.7), no, answers=("A", "B", "C")) == (  # the one given
        "When it is at least 70% confident in its answer, as it is for 41% of the questions, it is right "
        "62% of the time (55% to 70%)."
    )


def test_an_interval_that_says_little_is_not_quoted() -> None:
    """If nothing better is known, the sentence is about all answers; a curve at its edge is never quoted."""
    unsure = point(0.9, precision=Estimate(0.98, 0.7, 1.0), positive_rate=Estimate(0.5))
    steep = Curve((0.5, 0.9), (0.5, 0.98), (0.4, 0.95), (0.6, 0.99), 0.95)
    assert first(unsure, curve=steep) == ALL
    assert first(point(0.5, precision=Estimate(0.75, 0.7, 0.8)), curve=steep) == ALL  # no confidence at all
    assert first(accuracy=Estimate(0.6)) == "It is right 60% of the time, and 66% confident on average."
    assert first(accuracy=Estimate(None)) == ""


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_estimates_it_claims_no_more(seed: int) -> None:
    """What is quoted is common and narrow, whichever operating points there are."""
    rng = np.random.default_rng(seed)

    def between() -> Estimate:
        low, value, high = (np.sort(rng.random(3)) * rng.uniform(0.1, 1)).tolist()
        return Estimate(value, low, high, 0.95)

    for _ in range(10):
        rates = np.sort(rng.random(39))[::-1].tolist()
        points = [
            point(k / 40, precision=between(), negative_precision=between(), positive_rate=Estimate(rate))
            for k, rate in zip(range(1, 40), rates, strict=True)
        ]
        text = first(*points)
        quoted = re.match(
            r"When it says .* with at least (\d+)% .* for (\d+)% of .* right \d+% of the time "
            r"\((\d+)% to (\d+)%\)\.$",
            text,
        )
        if quoted is None:
            assert text == ALL
            continue
        confidence, share, low, high = (int(number) / 100 for number in quoted.groups())
        assert confidence >= 0.6
        assert share >= COMMON - 0.005
        assert high - low <= WIDEST + 0.01


CORRECTED = ["threshold", "certify", "recalibrate", "check", "watch"]


@pytest.mark.parametrize(
    ("changes", "outcome", "commands"),
    [
        (
            {"overconfidence": results.around(0.1)},
            "overconfident",
            CORRECTED,
        ),
        ({"overconfidence": results.around(-0.1)}, "underconfident", CORRECTED),
        ({"calibrated_pvalue": 0.001}, "not calibrated", CORRECTED),
        ({"ece": Estimate(0.02, 0.0, 0.04)}, "calibrated", ["threshold", "certify", "check", "watch"]),
        ({"ece": Estimate(0.06, 0.0, 0.11), "operating": ()}, "undecided", ["plan", "watch"]),
        ({"ece": Estimate(0.06)}, "not tested", ["check"]),
        ({"ece": Estimate(None)}, None, []),
        ({"objection": "the bias does not act"}, None, []),
    ],
)
def test_the_verdict_says_what_to_do_next(changes: Any, outcome: str | None, commands: list[str]) -> None:
    """One word for the whole result, and the commands that make sense after it."""
    sure = point(0.9, precision=Estimate(0.95, 0.91, 0.97))
    neither = {"overconfidence": results.around(0.0), "calibrated_pvalue": 0.5, "operating": (sure,)}
    result = results.result(**{**neither, **changes})
    judged = verdict(result)
    assert (None if judged is None else judged.outcome) == outcome
    steps = [step.line for step in next_steps(result)]
    assert [step.split()[1] for step in steps] == commands
    if "threshold" in commands:
        assert "blindcal threshold RUN --precision 0.9" in steps
