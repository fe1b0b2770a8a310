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
from blindcal.estimation import EstimationInput, estimate
from blindcal.methods import make_design
from blindcal.records import Estimate, IntArray, Noise
from blindcal.simulation.simulate import ask, generate
from fitting import SCALARS, asked, ends, estimates_in, fitted

LABEL, CONFIDENCE = np.repeat([0, 1], CELLS), np.tile(MID_P, 2)  # of the cells of a joint table


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
    assert view.findings() == fitted(labels, answered, bins=7, level=0.8, **more).findings()
    assert (len(view.bins), view.gaps.size, view.level, view.ece.level) == (7, 7, 0.8, 0.8)
    assert view.ece.value != fit.ece.value
    assert view.tce.value == fit.tce.value
    assert fit.findings() == fit.at().findings() == view.at(bins=5, level=0.95).findings() == before


def test_a_surer_interval_holds_the_less_sure_one() -> None:
    """At a higher level every interval is wider, wherever it is."""
    labels, p = generate(500, 2)
    fit = fitted(labels, asked(labels, p), resamples=100)
    for name in SCALARS:
        (low, high), (lower, higher) = (ends(getattr(fit.at(level=at), name)) for at in (0.8, 0.99))
        assert lower <= low < high <= higher, name
        assert higher - lower > high - low, name
    inner, outer = (estimates_in(fit.at(level=at).findings()) for at in (0.8, 0.99))
    assert len(inner) == len(outer) > 39 * 7
    for narrow, wide in zip(inner, outer, strict=True):
        assert narrow.value == wide.value
        assert not narrow.has_interval or wide.half_width >= narrow.half_width - 1e-12


# -- without resamples ---------------------------------------------------------------------------------


def without_intervals(value: Any) -> Any:
    """A record without the intervals of its estimates."""
    if isinstance(value, Estimate):
        return Estimate(value.value)
    if isinstance(value, Curve):
        return replace(value, low=None, high=None, level=None)
    if isinstance(value, tuple):
        return tuple(map(without_intervals, value))
    if is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: without_intervals(getattr(value, field.name)) for field in fields(value)}
        return replace(value, **changed)
    return value


@pytest.mark.parametrize("one_label", [False, True])
def test_without_resamples_there_are_the_values_alone(one_label: bool) -> None:
    """Everything that a fit estimates is the same, less the intervals."""
    labels, p = generate(400, 3)
    labels = np.ones_like(labels) if one_label else labels
    answered = asked(labels, p)
    sure, bare = (fitted(labels, answered, resamples=resamples) for resamples in (20, 0))
    calls: list[Callable[[bc.LatentFit], object]] = [
        bc.LatentFit.findings,
        lambda fit: fit.findings(brief=True),
        lambda fit: fit.mean_confidence,
        lambda fit: fit.at(bins=3).bins,
    ]
    if not one_label:
        calls += [
            lambda fit: fit.curve_at([0.3]),
            lambda fit: fit.operating_at([0.3]),
            lambda fit: fit.expected_cost(2, 3, [0.3]),
        ]
    for call in calls:
        assert call(bare) == without_intervals(call(sure)) != call(sure)


# -- findings ------------------------------------------------------------------------------------------


def evidence(method: str, queries: float, **more: Any) -> EstimationInput:
    """Answers of 500 items, some of them invalid, in 7 bins."""
    labels, p = generate(500, 6)
    design = make_design(method, labels, queries=queries, seed=6)
    answers = ask(design, p, seed=6)
    answers = replace(answers, answers=np.where(np.arange(len(answers)) % 40 == 0, -1, answers.answers))
    return EstimationInput(
        method=method, design=design, labels=labels, answers=answers, bins=7, level=0.9, resamples=30, **more
    )


def fit_of(evidence: EstimationInput, members: IntArray) -> bc.LatentFit:
    """What `bc.latent` makes of some items' answers, handed over row by row."""
    answered = evidence.answers.of(members)
    rows = answered.items
    return bc.latent(
        evidence.labels[rows].tolist(),
        answered.shifts.tolist(),
        answered.answers.tolist(),
        answered.temperatures.tolist(),
        [f"{item:04}" for item in rows],
        None if evidence.groups is None else evidence.groups[rows].tolist(),
        jitter=evidence.noise.best.jitter,
        bins=evidence.bins,
        level=evidence.level,
        resamples=evidence.resamples,
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
    answered = evidence(**EVIDENCE[name])
    fit = fit_of(answered, np.arange(500))
    assert estimate(answered) == fit.findings()
    assert estimate(answered, brief=True) == fit.findings(brief=True)


def test_parts_are_estimated_from_their_own_answers() -> None:
    """Each part is a fit to its items alone; the test compares their gaps below and above 1/2."""
    names = ["a" if k % 2 else ("b" if k < 300 else None) for k in range(500)]
    answered = evidence("latent", 2, parts=names)
    findings = estimate(answered)
    assert findings.ece == estimate(replace(answered, parts=None)).ece
    members = [np.flatnonzero([n == name for n in names]) for name in (None, "a", "b")]
    fits = [fit_of(answered, chosen) for chosen in members]
    assert [part.name for part in findings.parts] == ["(none)", "a", "b"]
    for part, fit, chosen in zip(findings.parts, fits, members, strict=True):
        assert (part.items, part.positive_labels) == (chosen.size, answered.labels[chosen].sum())
        assert not part.few
        for quantity in ("ece", "accuracy", "leaning", "overconfidence"):
            assert getattr(part, quantity) == getattr(fit, quantity), quantity
    halves, covariances = zip(*(fit.half_gaps for fit in fits), strict=True)
    assert findings.parts_pvalue == heterogeneity_pvalue(halves, covariances)
    assert estimate(answered, brief=True).parts == ()
    without = estimate(replace(answered, resamples=0))
    assert without.parts_pvalue is None
    assert [part.ece for part in without.parts] == [Estimate(part.ece.value) for part in findings.parts]


def test_findings_are_what_the_tables_say() -> None:
    """Bins, signed errors, distributions and rates, summed cell by cell from the fit's own tables."""
    labels, p = generate(400, 7)
    fit = fitted(labels, asked(labels, p, 2), resamples=20, level=0.8)
    findings, y, f, m = fit.findings(), LABEL, CONFIDENCE, fit.sample
    for each in findings.bins:
        inside = (each.low <= f) & (f < each.high)
        share, predicted, observed = (float(m[inside] @ of[inside]) for of in (np.ones(f.size), f, y))
        assert each.share == pytest.approx(share)
        assert (each.predicted, each.observed) == pytest.approx((predicted / share, observed / share))
        assert each.gap.value == pytest.approx(predicted - observed)
    signed = {"leaning": (f - y, -1.0), "overconfidence": (np.maximum(f, 1 - f) - ((f >= 0.5) == y), -0.5)}
    for name, (error, least) in signed.items():
        quantity, missed = getattr(findings, name), fit.resampling.missed
        assert quantity.value == pytest.approx(m @ error, abs=1e-12)
        ways = ((1 - missed) * (fit.draws @ error) + missed * end for end in (least, 1))
        (low, _), (_, high) = (np.quantile(way, (0.1, 0.9), method="weibull") for way in ways)
        change = (fit.resampling.rougher - fit.population) @ error
        assert ends(quantity) == pytest.approx((low + min(change, 0), high + max(change, 0)), abs=1e-12)
    assert findings.confidence is not None
    assert len(findings.confidence.edges) == 21
    for label, shares in enumerate((findings.confidence.negatives, findings.confidence.positives)):
        for mass, (start, stop) in zip(shares, pairwise(findings.confidence.edges), strict=True):
            inside = (y == label) & (start <= f) & (f < stop)
            assert mass == pytest.approx(m[inside].sum() / m[y == label].sum(), abs=1e-12)
    population = fit.population
    for point in findings.operating[::6]:
        above = f >= point.threshold
        true, false = (population[above & (y == label)].sum() for label in (1, 0))
        positive = population[y == 1].sum()
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
    positives = population[CELLS:]
    assert fit.curve_at(MID_P).value == pytest.approx(positives / (population[:CELLS] + positives))


# -- in print ------------------------------------------------------------------------------------------


def test_a_repr_fits_on_one_line() -> None:
    """It names the class, what it rests on and what came out, and holds no array."""
    labels, p = generate(1200, 1)
    fit = fitted(labels, asked(labels, p), resamples=0)
    assert repr(fit) == f"LatentFit(1,200 items, 1,200 queries, ECE {float(fit.ece):.4f})"
    for value in (bc.blind([1, 0], [0.5, 0.5], [-1, -1], bins=2), bc.binned_ece(labels, p, 8)):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 120
