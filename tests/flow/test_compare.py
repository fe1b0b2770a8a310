"""Two runs compared: paired where the items are the same, as text, JSON and a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup

from blindcal.estimate.latent.difference import Difference, differences
from blindcal.methods import make_design
from blindcal.records import Estimate
from blindcal.report.comparison import (
    NAMES,
    better,
    change,
    comparison_page,
    differing,
    headline,
    pairing,
    run_names,
)
from blindcal.results.compare import RunComparison, compare
from blindcal.results.run import Run
from blindcal.simulation.simulate import ask
from browsing import CONTRAST, Seen, chromium
from commanding import blindcal
from finished_runs import FinishedRuns
from fitting import alike_models, asked, fitted

N = 400


@pytest.fixture(scope="module")
def sharp(finished_runs: FinishedRuns) -> Run:
    return finished_runs.original("plain").opened()


@pytest.fixture(scope="module")
def shifted(finished_runs: FinishedRuns, sharp: Run) -> Run:
    """The same items, asked of a model that ranks as the first does and says Yes too readily."""
    p = np.clip(finished_runs.original("plain").truth ** 0.4, 1e-6, 1 - 1e-6)
    answered = ask(make_design("latent", sharp.labels, seed=1), p, seed=1)
    return replace(sharp, answered=answered, settings={**sharp.settings, "seed": 2})


def by_name(each: tuple[Difference, ...]) -> dict[str, Difference]:
    return {one.quantity: one for one in each}


def test_a_real_difference_is_shown_and_none_is_not(sharp: Run, shifted: Run) -> None:
    """A model that ranks alike but leans to Yes differs in ECE, and not in AUROC."""
    found = compare(sharp, shifted, resamples=100)
    assert (found.paired, found.common, found.reworded) == (True, N, 0)
    each = by_name(found.differences)
    ece = each["ece"]
    assert (ece.difference.low or 0) > 0
    assert float(ece.difference) == float(ece.second) - float(ece.first)
    assert ece.first.value == sharp.result.ece.value
    assert 0 in each["auroc"].difference
    assert set(each) == {"ece", "accuracy", "auroc", "brier", "log_loss"}


def test_the_same_items_have_the_same_id_and_prompt(sharp: Run, shifted: Run) -> None:
    """Other words for the same items still pair; other ids do not, and the sentence says which."""
    other = tuple(b"other " + digest for digest in shifted.digests)
    reworded = compare(sharp, replace(shifted, digests=other), resamples=20)
    assert (reworded.common, reworded.reworded) == (N, N)
    words = f"paired on {N} items that both runs asked about, {N} of them asked in other words"
    assert pairing(reworded) == words
    # with other labels too, ids that are alike mean nothing
    unrelated = compare(sharp, replace(shifted, digests=other, labels=shifted.labels[::-1]), resamples=20)
    assert (unrelated.common, unrelated.paired) == (0, False)
    ids = tuple(f"e{k}" if k >= N // 2 else name for k, name in enumerate(shifted.ids))
    groups = tuple(f"g{k // 3}" if k < N // 2 else None for k in range(N))
    half = compare(sharp, replace(shifted, ids=ids, group_names=groups), resamples=20)
    assert (half.common, half.only_first, half.only_second) == (N // 2,) * 3
    assert f"beside them A has {N // 2} and B {N // 2} of its own" in pairing(half)
    apart = compare(sharp, replace(shifted, ids=tuple(f"e{k}" for k in range(N))), resamples=20)
    assert (apart.paired, apart.only_first, apart.only_second) == (False, N, N)
    assert "no item in common" in pairing(apart)
    assert all(one.correlation == 0 for one in apart.differences)


def test_the_command_says_it_in_text_json_and_a_page(finished_runs: FinishedRuns, tmp_path: Path) -> None:
    """All three hold the same numbers; the page asks nothing of the network, and names are text on it."""
    hostile = tmp_path / "<script>alert(1)<" / "run"
    hostile.parent.mkdir()
    hostile.symlink_to(finished_runs.original("plain").folder, target_is_directory=True)
    arguments = ("compare", hostile, finished_runs.original("noisy").folder, "--resamples", 20)
    page = tmp_path / "compared.html"
    found = json.loads(blindcal(*arguments, "--json", "--html", page).stdout)
    shown = blindcal(*arguments).stdout
    assert all(len(line) <= 80 for line in shown.splitlines() if line.startswith(tuple(NAMES.values())))
    assert re.search(r"^ECE .* (better|worse|unclear)$", shown, re.MULTILINE)
    assert found["paired"] is True
    text = page.read_text()
    for one in found["differences"]:
        off = one["difference"]
        for number in (f"{one['first']['value']:.4f}", f"{off['value']:+.4f}", f"{off['low']:+.4f}"):
            assert number in shown
            assert number.replace("-", "\N{MINUS SIGN}") in text
    assert text.count("<svg") == 2
    assert not re.search(r"<(script|link rel=.style|img|iframe)", text)
    assert not re.findall(r"""(?:src|href)=["'](?!#)|url\((?!#)""", text)
    assert "&lt;script&gt;alert(1)" in text
    with chromium() as browser:
        for scheme, width in (("light", 1280), ("dark", 390)):
            with Seen(browser, page, color_scheme=scheme) as seen:
                seen.page.set_viewport_size({"width": width, "height": 900})
                assert seen.is_quiet(), (seen.trouble, seen.requests)
                assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
                faintest, where = seen.page.evaluate(CONTRAST)[0]
                assert faintest >= 4.5, where


def test_two_prompts_of_a_model_are_told_apart(sharp: Run, shifted: Run) -> None:
    """By the ends of their folders' names, and by the words that only one of them has."""
    words = "Passage: {passage} Question: {question}? Answer"
    prompts = (f"{words} Yes or No.", f"{words} with one word: Yes or No.")
    runs = (
        replace(sharp, folder=Path("q-m-plain"), settings={**sharp.settings, "template": prompts[0]}),
        replace(shifted, folder=Path("q-m-word"), settings={**shifted.settings, "template": prompts[1]}),
    )
    assert run_names(*runs) == ("plain", "word")
    assert (change(*prompts), change(*prompts[::-1])) == ("nothing more", "'with one word:'")
    assert change("0", "2") == "'0'"
    found = compare(*runs, resamples=40)
    page = " ".join(Markup(comparison_page(found, runs)).striptags().split())
    for shown in ("MetricA plainB wordB", "'with one word:' only here"):
        assert shown in page
    worse = "higher in BA is better"
    assert comparison_page(found, runs).count('class="outcome bad"') == page.count("A is better") > 0
    assert worse in page


def test_the_page_shows_every_caveat(sharp: Run, shifted: Run) -> None:
    """What weakens the comparison, which run is better, and the settings that differ."""
    counts = replace(shifted.result.counts, items=80)
    doubtful = replace(shifted.result, semantics="sum", complete=False, objection="no", counts=counts)
    runs = sharp, replace(shifted, result=doubtful)
    found = compare(*runs, level=0.975, resamples=20)
    page = " ".join(Markup(comparison_page(found, runs)).striptags().split())
    for words in (
        "its 97.5% interval",
        "higher in BA is better",
        "Run B has only 80 items",
        "Run B was forced although the probe found a problem",
        "Run B was stopped early",
        "The runs measured different things",
        *(sentence.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}") for sentence in headline(found)),
    ):
        assert words in page
    assert "Run A was" not in page
    listed = {name: (a, b) for name, a, b in differing(*runs)}
    assert (set(listed), listed["seed"]) == ({"items", "semantics", "seed"}, ("0", "2"))


def made_up(**found: tuple[float, float, float]) -> RunComparison:
    """A comparison with these differences: the second's value, and the ends of the difference's interval."""
    each = tuple(
        Difference(name, Estimate(0.1), Estimate(second), Estimate(second - 0.1, low, high, 0.95), 0.3)
        for name, (second, low, high) in found.items()
    )
    about = {"common": 100, "reworded": 0, "only_first": 0, "only_second": 0, "bins": 5, "level": 0.95}
    return RunComparison(first="a", second="b", models=("m", "n"), differences=each, **about)  # type: ignore[arg-type]  # counts and a level


def test_the_headline_reads_no_more_than_is_shown() -> None:
    """A difference comes with its size, none with how large it may be, a lone one with a caution."""
    none = {"accuracy": (0.11, -0.02, 0.04), "auroc": (0.1, -0.01, 0.01)}
    assert headline(made_up(ece=(0.06, -0.07, -0.01), **none)) == (
        "B's calibration error is 4.0 points lower than A's: 6.0% against 10.0% "
        "(95% sure: 1.0 to 7.0 points).",
        "Accuracy and AUROC do not differ significantly.",
    )
    alike = headline(made_up(ece=(0.09, -0.05, 0.03), **{**none, "brier": (0.2, 0.05, 0.15)}))
    assert alike[0].startswith("The runs do not differ significantly in calibration error: A has 10.0%")
    assert "at most 5.0 points" in alike[0]
    assert alike[1] == "Brier score is higher in B."
    assert "up to 20% of comparisons" in alike[2]
    both = made_up(ece=(0.2, 0.05, 0.15), accuracy=(0.05, -0.09, -0.01), brier=(0.2, 0.05, 0.15))
    assert headline(both)[1] == "Brier score is higher and accuracy is lower in B."
    assert [better(row) for row in both.differences] == ["A", "A", "A"]


def test_runs_without_a_fit_cannot_be_compared(finished_runs: FinishedRuns) -> None:
    """The error names the run and what would do."""
    runs = [finished_runs.original(name).folder for name in ("plain", "blind")]
    assert "has no fit" in str(blindcal("compare", *runs).exception)


def test_paired_intervals_are_narrower() -> None:
    """Of models that are wrong together, by a tenth at least; the slow tier tests how often they hold."""
    widths = []
    for seed in range(3):
        labels, one, two = alike_models(300, seed)
        answers = asked(labels, one, seed=seed), asked(labels, two, seed=seed + 500)
        first, second = (fitted(labels, each, resamples=60) for each in answers)
        units = np.arange(300), np.arange(300)
        paired, apart = (by_name(differences(first, second, same))["brier"] for same in (units, None))
        assert paired.correlation > 0 == apart.correlation
        widths.append((paired.difference.half_width, apart.difference.half_width))
    mean = np.mean(widths, axis=0)
    assert mean[0] < 0.9 * mean[1]


def test_a_class_that_is_missing_leaves_out_what_it_leaves_undefined() -> None:
    """With positive labels alone there is no AUROC, and its difference is not made up."""
    labels = np.ones(60, np.int64)
    f = np.random.default_rng(0).random(60)
    answers = asked(labels, f), asked(labels, f**2, seed=1)
    first, second = (fitted(labels, each, resamples=60) for each in answers)
    each = by_name(differences(first, second))
    assert "auroc" not in each
    assert "ece" in each
