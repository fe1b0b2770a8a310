"""One fit of `latent` in other bins, at other levels, without intervals, as findings and in print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import blindcal as bc
from blindcal.estimate.findings import Curve
from blindcal.estimate.grid import CELLS, MID_P
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.uncertainty import heterogeneity_pvalue
from blindcal.evidence import Evidence, estimate
from blindcal.methods import make_design
from blindcal.records import AnswerTable, Estimate, FloatArray, Noise
from blindcal.simulation.simulate import ask, generate
from fitting import SCALARS, asked, ends, estimates_in, fitted


def cells_of(table: FloatArray) -> list[tuple[float, int, float]]:
    """The share, the label and the confidence of each cell."""
    f = MID_P.tolist() * 2
    return [(share, int(k >= CELLS), f[k]) for k, share in enumerate(table.tolist())]


# -- other bins and levels -----------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
def test_another_view_is_the_same_fit(grouped: bool) -> None:
    """``at`` refits nothing, leaves the fit as it is, and shows what a fit made that way would."""
    labels, p = generate(600, 13)
    answered = asked(labels, p)
    more: dict[str, Any] = {"resamples": 50, "groups": answered.items % 200 if grouped else None}
    fit = fitted(labels, answered, **more)
    before = fit.findings()
    view = fit.at(bins=7, level=0.8)
    assert view.draws is fit.draws
    assert fit.at(bins=7).draws is fit.draws
    assert view.findings() == fitted(labels, answered, bins=7, level=0.8, **more).findings()
    assert (len(view.bins), view.gaps.size, view.level, view.ece.level) == (7, 7, 0.8, 0.8)
    assert view.ece.value != fit.ece.value
    assert view.tce.value == fit.tce.value
    assert view.tce.half_width < fit.tce.half_width
    assert fit.findings() == fit.at().findings() == view.at(bins=5, level=0.95).findings() == before
    assert (len(fit.bins), fit.level, fit.at(bins=7).level) == (5, 0.95, 0.95)


def test_a_surer_interval_holds_the_less_sure_one() -> None:
    """At a higher level every interval is wider, wherever it is."""
    labels, p = generate(500, 2)
    fit = fitted(labels, asked(labels, p), resamples=100)
    for name in SCALARS:
        (low, high), (lower, higher) = (ends(getattr(fit.at(level=at), name)) for at in (0.8, 0.99))
        assert lower <= low < high <= higher, name
        assert higher - lower > high - low, name
    inner, outer = (list(estimates_in(fit.at(level=at).findings())) for at in (0.8, 0.99))
    assert len(inner) == len(outer) > 39 * 7
    for one, other in zip(inner, outer, strict=True):
        assert one.value == other.value
        if one.has_interval:
            assert other.half_width >= one.half_width - 1e-12


# -- without resamples ---------------------------------------------------------------------------------


def without_intervals(value: Any) -> Any:
    """A record as it is where nothing tells how sure its numbers are."""
    if isinstance(value, Estimate):
        return Estimate(value.value)
    if isinstance(value, Curve):
        return replace(value, low=None, high=None, level=None)
    if isinstance(value, tuple):
        return tuple(without_intervals(one) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {one.name: without_intervals(getattr(value, one.name)) for one in fields(value)}
        return replace(value, **changed)
    return value


@pytest.mark.parametrize("one_label", [False, True])
def test_without_resamples_there_are_the_values_alone(one_label: bool) -> None:
    """Everything a fit finds is the same, less the intervals."""
    labels, p = generate(400, 3)
    labels = np.ones_like(labels) if one_label else labels
    answered = asked(labels, p)
    sure, bare = (fitted(labels, answered, resamples=resamples) for resamples in (20, 0))
    assert bare.findings() == without_intervals(sure.findings())
    assert bare.findings(brief=True) == without_intervals(sure.findings(brief=True))
    assert any(one.has_interval for one in estimates_in(sure.findings()))
    assert not any(one.has_interval or one.level for one in estimates_in(bare.findings()))
    assert bare.mean_confidence == without_intervals(sure.mean_confidence)
    assert bare.at(bins=3).gaps.tolist() == sure.at(bins=3).gaps.tolist()
    if not one_label:
        assert bare.curve_at([0.3]) == without_intervals(sure.curve_at([0.3]))
        assert bare.operating_at([0.3]) == without_intervals(sure.operating_at([0.3]))
        assert bare.expected_cost(2, 3, [0.3]) == without_intervals(sure.expected_cost(2, 3, [0.3]))


# -- findings ------------------------------------------------------------------------------------------


def evidence(method: str, queries: float, **more: Any) -> Evidence:
    """Answers of 500 items, some of them invalid, in 7 bins."""
    labels, p = generate(500, 6)
    design = make_design(method, labels, queries=queries, seed=6)
    answers = ask(design, p, seed=6)
    answers = replace(answers, answers=np.where(np.arange(len(answers)) % 40 == 0, -1, answers.answers))
    return Evidence(
        method=method, design=design, labels=labels, answers=answers, bins=7, level=0.9, resamples=30, **more
    )


def fit_of(one: Evidence, members: np.ndarray, resamples: int) -> bc.LatentFit:
    """What `bc.latent` makes of some items' answers, handed over row by row."""
    rows = [k for k, item in enumerate(one.answers.items) if item in set(members.tolist())]
    items = [int(one.answers.items[k]) for k in rows]
    return bc.latent(
        [int(one.labels[item]) for item in items],
        [float(one.answers.shifts[k]) for k in rows],
        [int(one.answers.answers[k]) for k in rows],
        [float(one.answers.temperatures[k]) for k in rows],
        [f"{item:04}" for item in items],
        None if one.groups is None else [int(one.groups[item]) for item in items],
        jitter=one.noise.best.jitter,
        bins=one.bins,
        level=one.level,
        resamples=resamples,
    )


EVIDENCE: dict[str, dict[str, Any]] = {
    "one threshold": {"method": "latent", "queries": 1},
    "several thresholds": {"method": "latent", "queries": 2.5},
    "temperatures": {"method": "temperature", "queries": 3},
    "groups": {"method": "latent", "queries": 1, "groups": np.arange(500) % 60},
    "jitter": {"method": "latent", "queries": 1.5, "noise": NoisePosterior(Noise(0.3))},
    "answers of blind": {"method": "blind", "queries": 1, "estimator": "latent"},
    "answers of extraction": {"method": "extraction", "queries": 2, "estimator": "latent"},
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_estimates_of_a_method_are_those_of_a_fit_to_its_answers(name: str) -> None:
    """From evidence to findings is `bc.latent` of the same answers, whoever asked for them."""
    one = evidence(**EVIDENCE[name])
    fit = fit_of(one, np.arange(500), 30)
    assert estimate(one) == fit.findings()
    assert estimate(one, brief=True) == fit.findings(brief=True)


def test_parts_are_estimated_from_their_own_answers() -> None:
    """Each part is a fit to its items alone; the test compares their gaps below and above 1/2."""
    names = ["a" if k % 2 else ("b" if k < 300 else None) for k in range(500)]
    one = evidence("latent", 2, parts=names)
    found = estimate(one)
    assert found.ece == estimate(replace(one, parts=None)).ece
    members = [np.flatnonzero([n == name for n in names]) for name in (None, "a", "b")]
    fits = [fit_of(one, chosen, 30) for chosen in members]
    assert [part.name for part in found.parts] == ["(none)", "a", "b"]
    for part, fit, chosen in zip(found.parts, fits, members, strict=True):
        assert (part.items, part.positive_labels) == (chosen.size, one.labels[chosen].sum())
        for quantity in ("ece", "accuracy", "leaning", "overconfidence"):
            assert getattr(part, quantity) == getattr(fit, quantity), quantity
    assert [part.few for part in found.parts] == [False, False, False]
    halves, covariances = zip(*(fit.half_gaps for fit in fits), strict=True)
    assert found.parts_pvalue == heterogeneity_pvalue(halves, covariances)
    assert estimate(one, brief=True).parts == ()
    without = estimate(replace(one, resamples=0))
    assert without.parts_pvalue is None
    assert [part.ece for part in without.parts] == [Estimate(part.ece.value) for part in found.parts]


def test_findings_are_what_the_tables_say() -> None:
    """Bins, signed errors, distributions and rates, summed cell by cell from the fit's own tables."""
    labels, p = generate(400, 7)
    fit = fitted(labels, asked(labels, p, 2), resamples=20, level=0.8)
    found, sample, population = fit.findings(), cells_of(fit.sample), cells_of(fit.population)
    for one in found.bins:
        inside = [cell for cell in sample if one.low <= cell[2] < one.high]
        share = sum(m for m, _, _ in inside)
        predicted, positive = sum(m * f for m, _, f in inside), sum(m * y for m, y, _ in inside)
        assert one.share == pytest.approx(share)
        assert (one.predicted, one.observed) == pytest.approx((predicted / share, positive / share))
        assert one.gap.value == pytest.approx(predicted - positive)
    signed: dict[str, Callable[[int, float], float]] = {
        "leaning": lambda y, f: f - y,
        "overconfidence": lambda y, f: max(f, 1 - f) - ((f >= 0.5) == (y == 1)),
    }
    for name, error in signed.items():
        quantity = getattr(found, name)
        assert quantity.value == pytest.approx(sum(m * error(y, f) for m, y, f in sample), abs=1e-12)
        drawn = [sum(m * error(y, f) for m, y, f in cells_of(table)) for table in fit.draws]
        least = {"leaning": -1.0, "overconfidence": -0.5}[name]
        ways = (
            [(1 - u) * x + u * end for x, u in zip(drawn, fit.resampling.missed, strict=True)]
            for end in (least, 1)
        )
        (low, _), (_, high) = (np.quantile(way, (0.1, 0.9), method="weibull") for way in ways)
        assert ends(quantity) == pytest.approx((low, high), abs=1e-12)
    assert found.confidence is not None
    assert len(found.confidence.edges) == 21
    for label, shares in enumerate((found.confidence.negatives, found.confidence.positives)):
        total = sum(m for m, y, _ in sample if y == label)
        for share, (low, high) in zip(shares, pairwise(found.confidence.edges), strict=True):
            mass = sum(m for m, y, f in sample if y == label and low <= f < high)
            assert share == pytest.approx(mass / total, abs=1e-12)
    positive = sum(m for m, y, _ in population if y == 1)
    for point in found.operating[::6]:
        above = [cell for cell in population if cell[2] >= point.threshold]
        true, false = (sum(m for m, y, _ in above if y == label) for label in (1, 0))
        rates = {
            "precision": true / (true + false),
            "recall": true / positive,
            "accuracy": true + 1 - positive - false,
            "positive_rate": true + false,
            "false_positive": false,
            "false_negative": positive - true,
            "negative_precision": (1 - positive - false) / (1 - true - false),
        }
        for name, rate in rates.items():
            assert getattr(point, name).value == pytest.approx(rate), name
    negatives, positives = fit.population[:CELLS], fit.population[CELLS:]
    assert fit.curve_at(MID_P).value == pytest.approx(positives / (negatives + positives))


# -- in print ------------------------------------------------------------------------------------------


def test_a_repr_fits_on_one_line() -> None:
    """It names the class, what it rests on and what came out, and holds no array."""
    labels, p = generate(1200, 1)
    answered: AnswerTable = asked(labels, p)
    rows = labels[answered.items], answered.shifts, answered.answers
    fit = fitted(labels, answered, resamples=0)
    undefined = bc.blind([1, 0], [0.5, 0.5], [-1, -1], bins=2)
    shown = {
        "LatentFit(1,200 items, 1,200 queries, ECE ": fit,
        "BlindResult(1,200 items, 5 bins, ECE ": bc.blind(labels, np.arange(1200) % 5 / 5, labels),
        "BlindResult(2 items, 2 bins, ECE nan)": undefined,
        "BinnedCalibration(1,200 items, 8 bins, ECE ": bc.binned_ece(labels, p, 8),
        "Counts(1,200 items, 1,200 queries, ": bc.Counts.of(*rows),
        "Counts(12,000,000,000 items, ": bc.Counts.of(*rows, counts=np.full(1200, 10**7)),
        "Simulation(blind, 1,200 items, 2 audits, error ": bc.simulate("blind", labels, p, repeats=2),
    }
    for start, one in shown.items():
        text = repr(one)
        assert text.startswith(start)
        assert "\n" not in text
        assert len(text) < 120
    assert repr(fit).endswith(f"ECE {float(fit.ece):.4f})")
    assert repr(fit.at(bins=11)).endswith(f"ECE {float(fit.at(bins=11).ece):.4f})")
