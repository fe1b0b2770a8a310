"""Two runs compared: paired where the items are the same, as text, JSON and a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

import blindcal as bc
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.paired import Difference, differences
from blindcal.methods import make_design
from blindcal.records import Estimate, FloatArray, IntArray
from blindcal.report.comparison import (
    better,
    comparison_page,
    differing,
    draw_comparison,
    headline,
    labels_of,
    pairing,
)
from blindcal.report.plots import save_drawings
from blindcal.results.compare import RunComparison, compare
from blindcal.results.run import open_run
from blindcal.simulation.simulate import ask
from browsing import CONTRAST, Seen, chromium
from commanding import blindcal
from deciding import TEMPLATE, audited, model, serving, write_items
from reporting import finished
from reporting import population as people

N = 600
LABELS, SHARP = model(N, 8)
SHIFTED = np.clip(SHARP**0.4, 1e-6, 1 - 1e-6)  # ranks as SHARP does, and says Yes too readily


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def items(folder: Path) -> Path:
    return write_items(folder / "items.jsonl", LABELS)


@pytest.fixture(scope="module")
def runs(folder: Path, items: Path) -> dict[str, Path]:
    """Audits of two models on the same items; of one in other words; and of one on items of its own."""
    found = {}
    with serving(items, SHARP) as server:
        found["sharp"] = audited(items, server, folder / "sharp")
    with serving(items, SHIFTED) as server:
        found["shifted"] = audited(items, server, folder / "shifted", seed=1)
    other: dict[str, Any] = {"template": "Hand on heart: " + TEMPLATE}
    with serving(items, SHARP, other) as server:
        found["reworded"] = audited(items, server, folder / "reworded", seed=2, **other)
    labels, p = model(500, 77)
    elsewhere = write_items(folder / "elsewhere.jsonl", labels, id=[f"e{k}" for k in range(500)])
    with serving(elsewhere, p) as server:
        found["elsewhere"] = audited(elsewhere, server, folder / "elsewhere")
    return found


def by_name(found: tuple[Difference, ...]) -> dict[str, Difference]:
    return {one.quantity: one for one in found}


def test_a_real_difference_is_shown_and_none_is_not(runs: dict[str, Path]) -> None:
    """A model that ranks alike but leans to Yes differs in ECE, and not in AUROC."""
    found = compare(open_run(runs["sharp"]), open_run(runs["shifted"]), resamples=200)
    assert found.paired
    assert (found.common, found.reworded, found.only_first, found.only_second) == (N, 0, 0, 0)
    one = by_name(found.differences)
    ece = one["ece"]
    assert ece.difference.low is not None
    assert ece.difference.low > 0
    assert float(ece.difference) == float(ece.second) - float(ece.first)
    assert ece.first.value == open_run(runs["sharp"]).result.ece.value
    assert 0 in one["auroc"].difference
    assert set(one) == {"ece", "accuracy", "auroc", "brier", "log_loss"}


def test_the_same_items_are_told_by_id_and_prompt(runs: dict[str, Path]) -> None:
    """Other words for the same items still pair; other ids do not, and the sentence says which."""
    sharp = open_run(runs["sharp"])
    reworded = compare(sharp, open_run(runs["reworded"]), resamples=40)
    assert (reworded.common, reworded.reworded) == (N, N)
    assert (
        pairing(reworded)
        == f"paired on {N} items that both runs asked about, {N} of them asked in other words"
    )
    apart = compare(sharp, open_run(runs["elsewhere"]), resamples=40)
    assert not apart.paired
    assert (apart.only_first, apart.only_second) == (N, 500)
    assert "no item in common" in pairing(apart)
    assert all(one.correlation == 0 for one in apart.differences)


def test_ids_that_mean_nothing_do_not_pair(folder: Path, runs: dict[str, Path]) -> None:
    """Items numbered alike in two files, with other prompts and other labels, are different items."""
    labels, p = model(N, 123)
    path = write_items(folder / "unrelated.jsonl", labels)
    words: dict[str, Any] = {"template": "Quite another question about {n}?"}
    with serving(path, p, words) as server:
        out = audited(path, server, folder / "unrelated", **words)
    found = compare(open_run(runs["sharp"]), open_run(out), resamples=40)
    assert (found.common, found.paired) == (0, False)


def test_a_part_in_common_is_paired_too(folder: Path, items: Path, runs: dict[str, Path]) -> None:
    """A run on some of the items, and groups across both, are drawn together where they overlap."""
    groups = [f"g{k // 3}" for k in range(300)]
    path = write_items(folder / "half.jsonl", LABELS[:300], group=groups)
    with serving(items, SHIFTED) as server:
        out = audited(path, server, folder / "half")
    found = compare(open_run(runs["sharp"]), open_run(out), resamples=40)
    assert (found.common, found.only_first, found.only_second) == (300, 300, 0)
    assert "beside them A has 300 and B 0 of its own" in pairing(found)


def test_the_command_says_it_in_text_json_and_a_page(runs: dict[str, Path], tmp_path: Path) -> None:
    """All three hold the same numbers; the page asks nothing of the network."""
    arguments = ("compare", runs["sharp"], runs["shifted"], "--resamples", 60)
    page, figures = tmp_path / "compared.html", tmp_path / "figures"
    found = json.loads(blindcal(*arguments, "--json", "--html", page, "--figures", figures).stdout)
    shown = blindcal(*arguments).stdout
    assert found["paired"] is True
    text = page.read_text()
    for one in found["differences"]:
        off = one["difference"]
        for number in (f"{one['first']['value']:.4f}", f"{off['value']:+.4f}", f"{off['low']:+.4f}"):
            assert number in shown
            assert number in text
    assert "higher in B" in shown
    assert {path.name for path in figures.iterdir()} == {
        f"{name}.{kind}" for name in ("calibration-curves", "reliability-curves") for kind in ("png", "svg")
    }
    tags = Tags()
    tags.feed(text)
    assert tags.seen["svg"] == 2
    assert not set(tags.seen) & {"script", "link", "img", "iframe"}
    assert not re.findall(r"""(?:src|href)=["'](?!#)|url\((?!#)""", text)
    for sentence in headline(compare(open_run(runs["sharp"]), open_run(runs["shifted"]), resamples=60)):
        assert sentence in shown
        assert escape(sentence.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}"), quote=False) in text


def test_hostile_names_are_text_on_the_page(runs: dict[str, Path], tmp_path: Path) -> None:
    """A folder named like a tag is shown, not run."""
    hostile = tmp_path / "<script>alert(1)<" / "run"
    hostile.parent.mkdir()
    hostile.symlink_to(runs["sharp"], target_is_directory=True)
    page = tmp_path / "page.html"
    blindcal("compare", hostile, runs["shifted"], "--resamples", 40, "--html", page)
    tags = Tags()
    tags.feed(page.read_text())
    assert "script" not in tags.seen
    assert "&lt;script&gt;alert(1)" in page.read_text()


class Tags(HTMLParser):
    """Counts the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.seen[tag] = self.seen.get(tag, 0) + 1


def test_the_page_can_be_read_on_every_screen(runs: dict[str, Path], tmp_path: Path) -> None:
    """Light, dark and small: no complaint, no request, nothing too wide, every word clear of its ground."""
    page = tmp_path / "page.html"
    done = blindcal("compare", runs["sharp"], runs["reworded"], "--resamples", 20, "--html", page)
    assert done.exit_code == 0, done.output
    screens: list[tuple[int, dict[str, Any]]] = [
        (1280, {}),
        (1280, {"color_scheme": "dark"}),
        (390, {"is_mobile": True}),
    ]
    with chromium() as browser:
        for width, context in screens:
            with Seen(browser, page, **context) as seen:
                seen.page.set_viewport_size({"width": width, "height": 900})
                assert seen.is_quiet(), (context, seen.trouble, seen.requests)
                assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
                faintest, where = seen.page.evaluate(CONTRAST)[0]
                assert faintest >= 4.5, where
                assert "Hand on heart" in seen.text("#settings")
                assert "600 reworded" in seen.text(".tiles")


def test_the_page_shows_every_difference_and_every_caveat(tmp_path: Path) -> None:
    """Each difference with its interval, which run is better, and what weakens the comparison."""
    labels, p = people(80)
    one, two = finished("runs/one", labels, p), finished("runs/two", labels, 1 - p, seed=7)
    doubtful: dict[str, Any] = {
        "semantics": "sum",
        "complete": False,
        "objection": "no",
    }
    two = replace(two, result=replace(two.result, **doubtful))
    found = compare(one, two, level=0.975, resamples=40)
    drawn = draw_comparison([one.result, two.result], labels_of(found))
    page = " ".join(Markup(comparison_page(found, drawn, (one, two))).striptags().split())
    for each in found.differences:
        off = each.difference
        assert off.low is not None
        assert off.high is not None
        sides = f"A {float(each.first):.4f}B {float(each.second):.4f}"
        assert f"{sides}{float(off):+.4f}{off.low:+.4f} to {off.high:+.4f}" in page
    assert "its 97.5% interval" in page
    assert "lower in BA is better" in page
    for note in (
        "Run A has only 80 items",
        "Run B has only 80 items",
        "Run B was forced although the probe found a problem",
        "Run B was stopped early",
        "The runs measured different things",
    ):
        assert note in page
    assert "Run A was" not in page
    files = {path.name for path in save_drawings(drawn, tmp_path)}
    assert files == {path.name for path in tmp_path.iterdir()}
    names = ("calibration-curves", "reliability-curves")
    assert files == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}


def made_up(**found: tuple[float, float, float]) -> RunComparison:
    """A comparison with these differences: the second's value, and the ends of the difference's interval."""
    differences = tuple(
        Difference(name, Estimate(0.1), Estimate(second), Estimate(second - 0.1, low, high, 0.95), 0.3)
        for name, (second, low, high) in found.items()
    )
    return RunComparison(
        first="a",
        second="b",
        models=("m", "n"),
        common=100,
        reworded=0,
        only_first=0,
        only_second=0,
        bins=5,
        level=0.95,
        differences=differences,
    )


def test_the_headline_reads_no_more_than_is_shown() -> None:
    """A difference is told with its size, none with how large it may be, a lone one with a caution."""
    none = {"accuracy": (0.11, -0.02, 0.04), "auroc": (0.1, -0.01, 0.01)}
    lower = headline(made_up(ece=(0.06, -0.07, -0.01), **none))
    told = "B's calibration error is 4.0 points lower than A's: 6.0% against 10.0%"
    assert lower[0] == f"{told} (95% sure: 1.0 to 7.0 points)."
    assert lower[1] == "Accuracy and AUROC do not differ significantly."
    alike = headline(made_up(ece=(0.09, -0.05, 0.03), **none))
    assert alike[0].startswith(
        "The runs do not differ significantly in calibration error: A has 10.0%, B has 9.0%"
    )
    assert "at most 5.0 points" in alike[0]
    assert alike[1] == "Accuracy and AUROC do not differ significantly."
    lone = headline(made_up(ece=(0.09, -0.05, 0.03), **{**none, "brier": (0.2, 0.05, 0.15)}))
    assert lone[1] == "Brier score is higher in B."
    assert "up to 20% of comparisons" in lone[2]
    both = made_up(ece=(0.2, 0.05, 0.15), accuracy=(0.05, -0.09, -0.01), brier=(0.2, 0.05, 0.15))
    assert headline(both)[1] == "Brier score is higher and accuracy is lower in B."
    assert [better(one) for one in both.differences] == ["A", "A", "A"]


def test_settings_that_differ_are_named(runs: dict[str, Path]) -> None:
    """Only what differs between the runs is listed, with both values."""
    found = differing(open_run(runs["sharp"]), open_run(runs["reworded"]))
    listed = {name: (a, b) for name, a, b in found}
    assert set(listed) == {"base_url", "seed", "template"}
    assert listed["seed"] == ("0", "2")
    assert listed["template"][1].startswith("Hand on heart: ")


def test_runs_without_a_fit_cannot_be_compared(folder: Path, items: Path, runs: dict[str, Path]) -> None:
    """The error names the run and what would do."""
    with serving(items, SHARP) as server:
        out = audited(items, server, folder / "blind", method="blind", bins=5)
    found = blindcal("compare", runs["sharp"], out)
    assert "has no fit" in str(found.exception)


def population(n: int, seed: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Two models whose errors go together, the second twice as sure of itself."""
    rng = np.random.default_rng([seed, 4])
    labels = (rng.random(n) < 0.4).astype(np.int64)
    shared = 1.3 * (2 * labels - 1) + 1.5 * rng.standard_normal(n)
    one, two = (shared + 0.5 * rng.standard_normal(n) for _ in range(2))
    return labels, np.asarray(1 / (1 + np.exp(-one))), np.asarray(1 / (1 + np.exp(-2 * two)))


def fitted(labels: IntArray, f: FloatArray, seed: int) -> LatentFit:
    asked = ask(make_design("latent", labels, seed=seed), f)
    return bc.latent(labels[asked.items], asked.shifts, asked.answers, 0.0, asked.items, resamples=60)


def test_paired_intervals_hold_the_difference_and_are_narrower() -> None:
    """Of 12 repeats (seeds 0-11, n = 300) at most 3 miss: with 95% coverage more do once in 450 times."""
    labels, one, two = population(200_000, 1000)
    positive = labels == 1
    truth = {
        "accuracy": ((two >= 0.5) == positive).mean() - ((one >= 0.5) == positive).mean(),
        "brier": ((two - labels) ** 2).mean() - ((one - labels) ** 2).mean(),
    }
    missed: dict[str, int] = dict.fromkeys(truth, 0)
    widths: list[tuple[float, float]] = []
    for seed in range(12):
        labels, one, two = population(300, seed)
        first, second = fitted(labels, one, seed), fitted(labels, two, seed + 500)
        same = np.arange(300)
        paired, apart = (by_name(differences(first, second, units)) for units in ((same, same), None))
        for name, value in truth.items():
            missed[name] += value not in paired[name].difference
        widths.append((paired["brier"].difference.half_width, apart["brier"].difference.half_width))
    assert max(missed.values()) <= 3
    mean = np.mean(widths, axis=0)
    assert mean[0] < 0.9 * mean[1]


def test_a_class_that_is_missing_leaves_out_what_it_leaves_undefined() -> None:
    """With positive labels alone there is no AUROC, and its difference is not made up."""
    labels = np.ones(60, np.int64)
    f = np.random.default_rng(0).random(60)
    found = differences(fitted(labels, f, 0), fitted(labels, f**2, 1))
    assert "auroc" not in by_name(found)
    assert "ece" in by_name(found)
