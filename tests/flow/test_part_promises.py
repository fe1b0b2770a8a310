"""Thresholds and limits for each part of a run: what is promised, what fails, and what is left open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import blindcal as bc
from blindcal.estimate.uncertainty import holm
from blindcal.records import Estimate
from blindcal.results.check import Case, Limit, bounds_beyond
from blindcal.results.run import open_run
from blindcal.simulation.replay import Server
from commanding import blindcal, printed_error
from deciding import audited, model, serving, write_items

N, REFITS = 900, 60
LABELS, P = model(N, 11)
NAMES = np.array(["even", "odd", "swapped"])[np.arange(N) % 3]
P = np.where(NAMES == "swapped", 1 - P, P)  # in one part the model is wrong wherever it is sure


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    return write_items(folder / "items.jsonl", LABELS, topic=NAMES.tolist())


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with serving(items, P) as one:
        yield one


@pytest.fixture(scope="module")
def run(items: Path, server: Server) -> Path:
    return audited(items, server, items.parent / "run", by_field="topic", simultaneous=True)


def test_a_part_is_fitted_to_its_own_answers(run: Path) -> None:
    """The fit of a part has its items, and the estimates that the result shows for it."""
    read = open_run(run)
    assert read.part_names == ("even", "odd", "swapped")
    for part in read.result.parts:
        fit = read.fit(part=part.name, resamples=REFITS)
        assert fit.items == 300
        assert fit.ece.value == pytest.approx(part.ece.value)
    with pytest.raises(bc.InputError, match="has no part 'x'"):
        read.fit(part="x")


def test_the_audit_says_what_holds_together(run: Path, items: Path, server: Server) -> None:
    """The result, the console and the page say that intervals are simultaneous, and which part is off."""
    result = open_run(run).result
    assert result.parts_level == 0.95
    assert [part.ece.level for part in result.parts] == pytest.approx([1 - 0.05 / 3] * 3)
    page = (run / "report.html").read_text()
    assert "hold for all parts together" in page
    assert "<strong>miscalibrated</strong>" in page
    shown = blindcal(
        "audit", items, "--model", "replay", "--base-url", server.base_url, "--out", run, "--by", "topic",
        "--template", result.settings["template"], "--set", "resamples=40", "--set", "simultaneous=true",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "these intervals hold for all parts together with 95% confidence" in shown.output
    assert "alarms" in shown.output
    (line,) = [line for line in shown.output.splitlines() if " swapped " in line]
    assert line.endswith("miscalibrated, differs")


def test_each_part_has_a_threshold(run: Path) -> None:
    """Each is that of its own fit; a part without one says why, and does not keep the others from theirs."""
    found = open_run(run).part_thresholds(precision=0.8, resamples=REFITS)
    assert [one.part for one in found] == ["even", "odd", "swapped"]
    for one in found[:2]:
        fit = open_run(run).fit(part=one.part, resamples=REFITS)
        assert one.chosen == fit.choose_threshold(precision=0.8)
    assert found[2].chosen is None
    assert "no threshold reaches 0.8" in str(found[2].why)
    shown = blindcal("threshold", run, "--precision", 0.8, "--by", "--resamples", REFITS)
    assert shown.exit_code == 0, shown.output
    assert "each of 2 parts (of 3) reaches it, 95% sure of each by itself" in shown.output
    assert "swapped    300  none: precision: no threshold reaches 0.8" in shown.output


def test_promises_that_hold_together_ask_for_more(run: Path) -> None:
    """Each has the confidence that is left after sharing the error, from as many refits as that needs."""
    alone = open_run(run).part_thresholds(precision=0.8, resamples=REFITS)
    joint = open_run(run).part_thresholds(precision=0.8, resamples=REFITS, simultaneous=True)
    for one, other in zip(alone[:2], joint[:2], strict=True):
        assert one.chosen is not None
        assert other.chosen is not None
        assert other.chosen.confidence == pytest.approx(1 - 0.05 / 3)
        assert float(other.chosen.threshold) >= float(one.chosen.threshold)
    fit = open_run(run).fit(part="even", resamples=180)  # 3 / (0.05 / 3)
    assert joint[0].chosen == fit.choose_threshold(precision=0.8, confidence=1 - 0.05 / 3)
    records = json.loads(
        blindcal(
            "threshold", run, "--precision", 0.8, "--by", "--simultaneous", "--json", "--resamples", REFITS
        ).stdout
    )
    assert [one["threshold"] is None for one in records] == [False, False, True]
    assert records[0]["confidence"] == pytest.approx(1 - 0.05 / 3)


def test_a_goal_that_no_part_reaches_is_an_error(run: Path) -> None:
    """As without parts."""
    shown = blindcal("threshold", run, "--precision", 0.999, "--by", "--resamples", REFITS)
    assert shown.exit_code == 1
    assert "no part has such a threshold" in printed_error(shown)


def test_wrong_combinations_are_refused(run: Path) -> None:
    """No goal, a snippet of many thresholds, simultaneous what is one: each is a wrong command line."""
    for words in (["--by"], ["--by", "--precision", 0.8, "--snippet", "curl"], ["--simultaneous"]):
        assert blindcal("threshold", run, *words).exit_code == 2
    assert blindcal("check", run, "--max-ece", 0.1, "--by", "--estimate").exit_code == 2


def test_a_run_without_parts_says_how_to_get_them(items: Path, server: Server, tmp_path: Path) -> None:
    """The same audit with a field asks nothing again."""
    plain = audited(items, server, tmp_path / "plain")
    shown = blindcal("check", plain, "--max-ece", 0.5, "--by")
    assert "is not broken down into parts: run its audit again with --by" in printed_error(shown)


def test_a_part_fails_only_if_it_is_shown_to_be_beyond(run: Path) -> None:
    """The swapped part fails, others do not although their estimates may be beyond: that may be chance."""
    found = bc.check(run, max_ece=0.03, by_part=True, resamples=REFITS)
    outcomes = {one.part: one for one in found.parts}
    assert outcomes["swapped"].outcome == "failed"
    fit = open_run(run).fit(part="swapped", level=0.9, resamples=REFITS)
    low = fit.ece.low
    assert low is not None
    bound = outcomes["swapped"].bound
    assert bound is not None
    assert 0.03 < bound < low  # three parts are held to more than one is
    assert {outcomes["even"].outcome, outcomes["odd"].outcome} == {"undecided"}
    wide = bc.check(run, max_ece=0.9, min_accuracy=0.05, every_part=True, resamples=REFITS)
    assert (len(wide.verdicts), len(wide.parts), wide.outcome) == (2, 6, "passed")


@given(st.lists(st.floats(-6, 2), min_size=1, max_size=8), st.sampled_from([0.01, 0.05, 0.2]))
def test_parts_fail_as_by_holms_pvalues(scores: list[float], alpha: float) -> None:
    """With normal estimates, the parts beyond the limit are those whose adjusted p-values are below alpha."""
    limit = Limit(quantity="ece", name="ECE", value=0.5, at_most=True)

    def between(score: float, level: float) -> Estimate:
        value, far = 0.5 - 0.01 * score, 0.01 * norm.ppf((1 + level) / 2)
        return Estimate(value, value - far, value + far, level)

    cases = []
    for score in scores:
        fit: Any = SimpleNamespace(at=lambda level, score=score: SimpleNamespace(ece=between(score, level)))
        cases.append(
            Case(part="part", items=100, limit=limit, estimate=between(score, 1 - 2 * alpha), fit=fit)
        )
    adjusted = holm([float(norm.cdf(score)) for score in scores])
    near = {k for k, p in enumerate(adjusted) if p is not None and abs(p - alpha) < 1e-9}  # rounding decides
    assert (
        set(bounds_beyond(cases, alpha)) - near
        == {k for k, p in enumerate(adjusted) if p is not None and p < alpha} - near
    )


def test_the_command_raises_the_alarm(run: Path, tmp_path: Path) -> None:
    """A part that fails decides; one that is undecided only if every part must pass."""
    report, text = tmp_path / "junit.xml", tmp_path / "summary.md"
    alarm = ("check", run, "--min-accuracy", 0.45, "--by", "--resamples", REFITS)
    failed = blindcal(*alarm, "--junit", report, "--summary", text)
    assert failed.exit_code == 3, failed.output
    assert "by topic: 1 shown to be beyond a limit" in failed.output
    assert "failed     swapped, 300 items: accuracy at least 0.45" in failed.output
    names = [case.get("name") for case in ElementTree.parse(report).getroot().iter("testcase")]
    assert names == ["accuracy at least 0.45", "swapped: accuracy at least 0.45"]
    assert "swapped: accuracy at least 0.45" in text.read_text()
    open_ended = ("check", run, "--min-accuracy", 0.11, "--resamples", REFITS, "--by", "--json")
    shown = blindcal(*open_ended)
    assert shown.exit_code == 0, shown.output
    record = json.loads(shown.stdout)
    outcomes = {one["part"]: one["outcome"] for one in record["parts"]}
    assert (record["by"], outcomes["even"]) == ("topic", "passed")
    strict = blindcal(*open_ended, "--every-part")
    assert (strict.exit_code == 4) == (outcomes["swapped"] == "undecided")
