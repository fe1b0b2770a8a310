"""The alarms of a stream: the same whatever the order and the batches, rarely false, and soon right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

import blindcal as bc
from blindcal.errors import InputError
from blindcal.estimate.latent.estimator import fit_problem
from blindcal.estimate.problem import NoisePosterior, Problem
from blindcal.estimate.shown import ShownFit
from blindcal.estimate.streams.alarms import RANGES, Alarm, AlarmName, GapCounts, MonitorState
from blindcal.estimate.streams.betting import CurveClaim, Reference, calibration_cells, question_cells
from blindcal.estimate.streams.shown_bets import LabelGame
from blindcal.records import AnswerTable, FloatArray, IntArray, Noise
from blindcal.simulation.simulate import log_odds
from blindcal.watching.monitor import FOR_REFERENCE
from fitting import asked, fitted
from wealth import first_reached, wealth_path  # bench/ is a folder of scripts, not a package

LEVEL = 0.05
Curve = Callable[[FloatArray], FloatArray]
Rows = tuple[IntArray, FloatArray, IntArray]


def rows_of(n: int, seed: int, curve: Curve = lambda f: f) -> Rows:
    """Labels, thresholds and answers of items whose reliability curve is known."""
    rng = np.random.default_rng([seed, 151])
    f, t = rng.beta(0.6, 0.7, n), rng.random(n)
    return (rng.random(n) < curve(f)).astype(np.int64), t, (f >= t).astype(np.int64)


def squared(f: FloatArray) -> FloatArray:
    """The curve of a model that says yes too often."""
    return np.asarray(f**2)


@cache
def reference() -> bc.LatentFit:
    """An audit of a thousand items of an overconfident model."""
    rng = np.random.default_rng(152)
    p = rng.beta(0.6, 0.7, 1000)
    labels = (rng.random(1000) < squared(p)).astype(np.int64)
    return fitted(labels, asked(labels, p), resamples=100)


@cache
def shown_reference() -> ShownFit:
    """The same audit where probabilities are shown."""
    rng = np.random.default_rng(152)
    p = rng.beta(0.6, 0.7, 1000)
    labels = (rng.random(1000) < squared(p)).astype(np.int64)
    return ShownFit(labels=labels, p=p, resamples=1000)


def alarm(state: MonitorState, name: AlarmName = "calibration") -> Alarm:
    found = state.alarm(name)
    assert found is not None
    return found


def in_pieces(monitor: bc.Monitor, rows: Rows, cuts: list[int]) -> MonitorState:
    state = monitor.state()
    for first, end in zip([0, *cuts], [*cuts, rows[0].size], strict=True):
        state = monitor.update(*(column[first:end] for column in rows))
    return state


def check_same(state: MonitorState, other: MonitorState) -> None:
    """The same alarms and gaps, up to rounding."""
    for mine, theirs in zip(state.alarms, other.alarms, strict=True):
        assert mine.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-9)
        assert replace(mine, log_evidence=0, strongest=0) == replace(theirs, log_evidence=0, strongest=0)
    assert state.gaps == other.gaps


def test_the_fast_wealth_of_the_benchmarks_is_that_of_a_monitor() -> None:
    """The calibration and the questions alarm; in unit tests, the wealth is that of a slow computation."""
    rows = rows_of(2600, 2, lambda f: 0.5 * f)
    state = bc.Monitor(reference()).update(*rows)
    known = Reference.of(reference(), LEVEL * FOR_REFERENCE)
    paths: dict[AlarmName, FloatArray] = {
        "calibration": wealth_path(known.curve.game, calibration_cells(*rows)),
        "questions": wealth_path(known.share.game, question_cells(*rows[1:])),
    }
    for name, path in paths.items():
        found = alarm(state, name)
        assert found.log_evidence == pytest.approx(np.log(path[-1]), abs=1e-9)
        assert (found.raised_at or np.inf) == first_reached(path, found.threshold)


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=3)
def test_batches_and_the_order_of_labels_change_nothing(seed: int, data: st.DataObject) -> None:
    """Any pieces, with invalid answers and missing labels; labels in any order."""
    rng = np.random.default_rng(seed)
    labels, t, answers = rows_of(700, seed, squared)
    labels[rng.random(700) < 0.2] = -1
    answers[rng.random(700) < 0.1] = -1
    whole = bc.Monitor(reference()).update(labels, t, answers)
    cuts = sorted(data.draw(st.lists(st.integers(0, 700), min_size=1, max_size=2)))
    check_same(in_pieces(bc.Monitor(reference()), (labels, t, answers), cuts), whole)

    late = bc.Monitor(reference())
    valid = np.flatnonzero(answers != -1)
    late.add_answers(t[valid], answers[valid], valid)
    known = rng.permutation(valid[labels[valid] != -1])
    late.add_labelled(labels[known], t[known], answers[known], known)
    state = late.state()
    for mine, theirs in zip(state.alarms, whole.alarms, strict=True):
        assert mine.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-9)
    assert (state.gaps, state.answers, state.labelled) == (whole.gaps, whole.answers, whole.labelled)


def test_labels_of_any_kind_are_read() -> None:
    """Booleans and numbers, and NaN for what is not known."""
    labels, t, answers = rows_of(60, 5)
    whole = bc.Monitor().update(labels, t, answers)
    check_same(bc.Monitor().update(labels == 1, t, answers == 1), whole)
    state = bc.Monitor().update(np.where(np.arange(60) < 40, labels, np.nan), t, answers)
    check_same(state, replace(bc.Monitor().update(labels[:40], t[:40], answers[:40]), answers=60))
    assert (state.answers, state.labelled) == (60, 40)


def test_an_alarm_stays_raised_and_says_since_when() -> None:
    """A change after 1,500 quiet items is dated, and stays found after calibrated items have followed."""
    monitor = bc.Monitor()
    assert not monitor.update(*rows_of(1500, 7)).raised
    state = monitor.update(*rows_of(1500, 8, squared))
    found = alarm(state)
    assert state.raised
    assert found.raised_at is not None
    assert 1500 < found.raised_at < 2300
    assert found.since is not None
    assert 1300 < found.since <= found.raised_at
    assert found.finding is not None
    assert "less often" in found.finding or "wrong more often" in found.finding
    after = alarm(monitor.update(*rows_of(8000, 9)))
    assert after.raised_at == found.raised_at
    assert after.strongest >= after.log_evidence
    assert after.threshold == pytest.approx(1 / LEVEL)


def test_each_alarm_says_what_changed() -> None:
    """Shifted confidences raise the questions alarm, other labels the calibration alarm."""
    rng = np.random.default_rng(11)
    n = 3000
    f, t = rng.beta(0.6, 0.7, n), rng.random(n)
    same = (rng.random(n) < squared(f)).astype(np.int64)
    higher = np.sqrt(f)  # what the model says now
    questions = alarm(bc.Monitor(reference()).update(same, t, higher >= t), "questions")
    assert questions.raised
    assert "higher" in str(questions.finding)
    other = (rng.random(n) < 0.3 * squared(f)).astype(np.int64)
    state = bc.Monitor(reference()).update(other, t, f >= t)
    assert [one.name for one in state.alarms if one.raised] == ["calibration"]
    state = bc.Monitor(reference()).update(same, t, f >= t)
    assert not state.raised
    assert state.max_ece is None
    assert bc.Monitor(reference(), max_ece=0).update(same, t, f >= t).raised


@pytest.mark.parametrize(("n", "shape"), [(400, 1.0), (1000, 1.0), (2000, 1.0), (400, 0.02), (1000, 0.3)])
def test_a_reference_without_errors_does_not_silence_the_alarm(n: int, shape: float) -> None:
    """The model is always right: if it still is, nothing is raised; inverted labels are noticed at once."""
    rng = np.random.default_rng([n, 3])
    p, later = (np.clip(rng.beta(shape, shape, size), 1e-9, 1 - 1e-9) for size in (n, 1000))
    labels, same = ((each >= 0.5).astype(np.int64) for each in (p, later))
    known, t = fitted(labels, asked(labels, p), resamples=100), rng.random(1000)
    quiet, wrong = (alarm(bc.Monitor(known).update(each, t, later >= t)) for each in (same, 1 - same))
    assert np.isfinite([quiet.log_evidence, wrong.log_evidence]).all()
    assert not quiet.raised
    assert wrong.raised_at is not None
    assert wrong.raised_at <= 200


def test_shown_probabilities_raise_what_changed_and_soon() -> None:
    """As threshold answers do, in a tenth of the items: other labels, other confidences, and nothing else."""
    rng = np.random.default_rng(12)
    f = rng.beta(0.6, 0.7, 3000)
    same = (rng.random(3000) < squared(f)).astype(np.int64)
    state = in_shown_pieces(bc.Monitor(shown_reference()), same, f, [1, 700])
    check_same(state, bc.Monitor(shown_reference()).update(same, p=f))
    assert not state.raised
    assert (state.answers, state.labelled) == (3000, 3000)
    assert 0 not in state.gaps[0].gap
    found = alarm(bc.Monitor(shown_reference(), max_ece=0).update(same, p=f))
    assert found.raised_at is not None
    assert found.raised_at <= 200
    state = bc.Monitor(shown_reference()).update(1 - same, p=f)
    assert (state.raised, alarm(state, "questions").raised) == (True, False)
    assert (alarm(state).raised_at or 999) <= 100
    higher = np.sqrt(f)
    questions = alarm(bc.Monitor(shown_reference()).update(np.full(3000, -1), p=higher), "questions")
    assert questions.raised
    assert "higher" in str(questions.finding)


def in_shown_pieces(monitor: bc.Monitor, labels: IntArray, p: FloatArray, cuts: list[int]) -> MonitorState:
    for first, end in zip([0, *cuts], [*cuts, p.size], strict=True):
        state = monitor.update(labels[first:end], p=p[first:end])
    return state


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_one_shown_probability_proves_nothing(p: float, label: int) -> None:
    """At the ends of the scale too, every evidence is finite and every gap possible."""
    for known in (None, shown_reference()):
        state = bc.Monitor(known).update([label], p=[p])
        assert not state.raised
        assert np.isfinite([one.log_evidence for one in state.alarms]).all()
        assert all(0 in one.gap for one in state.gaps)


def test_intervals_of_shown_gaps_hold_and_are_narrower() -> None:
    """The true gap of all items is inside after each of 6 looks; one reading tells more than one answer."""
    labels, t, answers = rows_of(600, 3, squared)
    f = np.random.default_rng([3, 151]).beta(0.6, 0.7, 600)
    shown, hidden = bc.Monitor(), bc.Monitor()
    many = np.random.default_rng(41).beta(0.6, 0.7, 1_000_000)
    for first in range(0, 600, 100):
        rows = slice(first, first + 100)
        seen = shown.update(labels[rows], p=f[rows]).gaps[0].gap
        other = hidden.update(labels[rows], t[rows], answers[rows]).gaps[0].gap
        assert float((many - squared(many)).mean()) in seen
    assert float(seen.high or 1) - float(seen.low or -1) < 0.8 * (
        float(other.high or 1) - float(other.low or -1)
    )


@pytest.mark.parametrize("shown", [False, True])
def test_alarms_are_rarely_false(shown: bool) -> None:
    """Labels drawn from f: of 150 streams, at most 7.5 are expected; more than 16 have a chance of 1 in 500.

    Seeds 0 to 149, 1,500 items each; bench/monitored.py does it with 1,000 streams of 20,000.
    """
    game = LabelGame(CurveClaim()) if shown else CurveClaim().game

    def observed(seed: int) -> Any:
        labels, t, answers = rows_of(1500, seed)
        f = np.random.default_rng([seed, 151]).beta(0.6, 0.7, 1500)
        return np.column_stack([f, labels]) if shown else calibration_cells(labels, t, answers)

    paths = (wealth_path(game, observed(seed)) for seed in range(150))
    raised = sum(np.isfinite(first_reached(path, 1 / LEVEL)) for path in paths)
    assert binom.sf(16, 150, LEVEL) < 1 / 500
    assert 0 < raised <= 16


def test_the_endpoint_alarm_allows_for_what_the_set_up_shows() -> None:
    """As many errors as its confidence bounds allow raise nothing; many more do, on the right side."""
    monitor = bc.Monitor()
    assert monitor.state().alarm("endpoint") is None
    monitor.expect_anchors(1, 30, 0, 30)
    most_up, most_down = (beta.ppf(1 - LEVEL * FOR_REFERENCE / 2, k + 1, 30 - k) for k in (1, 0))
    rng = np.random.default_rng(31)
    up = rng.random(400) < 0.5
    wrong = rng.random(400) < 0.9 * np.where(up, most_up, most_down)
    monitor.add_anchors(up.astype(np.int64), wrong.astype(np.int64))
    found = alarm(monitor.state(), "endpoint")
    assert (found.raised, found.observations) == (False, 400)
    up = rng.random(40) < 0.5
    wrong = ~up & (rng.random(40) < 0.9)
    monitor.add_anchors(up.astype(np.int64), wrong.astype(np.int64))
    found = alarm(monitor.state(), "endpoint")
    assert found.raised_at is not None
    assert 400 < found.raised_at <= 440
    assert "in the positive answer to the same items is higher" in str(found.finding)


def test_noise_of_shown_probabilities_is_seldom_a_move() -> None:
    """Of 40 endpoints whose probabilities jitter, 2 at most are accused in 300 anchors; one that moves is."""
    raised = 0
    for seed in range(40):
        rng, monitor = np.random.default_rng([seed, 44]), bc.Monitor()
        monitor.update([], p=[])
        pairs, moves = (np.diff(rng.normal(0, 0.02, (n, 2)))[:, 0] for n in (50, 300))
        margin = np.abs(pairs).max()
        monitor.expect_anchors(0, 50, 0, 0)
        monitor.add_anchors(moves <= margin, np.abs(moves) > margin)
        raised += alarm(monitor.state(), "endpoint").raised
        if seed == 0:
            monitor.add_anchors(np.zeros(6, np.int64), np.ones(6, np.int64))
            found = alarm(monitor.state(), "endpoint")
            assert found.raised
            assert "in the positive answer to the same items is higher" in str(found.finding)
    assert raised <= 2


def test_intervals_of_gaps_hold_at_all_times() -> None:
    """Of 60 streams, at least 57 are expected to hold at every look; fewer than 52 has a chance of 1 in 100.

    Seeds 0 to 59, 600 items each, 6 looks; of all items and of confident ones in turn.
    """
    many = np.random.default_rng(41).beta(0.6, 0.7, 1_000_000)
    looks = np.unique(np.geomspace(5, 600, 6).astype(int))
    held = 0
    for seed in range(60):
        name = ("all items", "confidence above 0.5")[seed % 2]
        weight = RANGES[name](many)
        truth = float(((many - squared(many)) * weight).sum() / weight.sum())
        rows, counts, inside = rows_of(600, seed, squared), GapCounts(), True
        for first, end in zip([0, *looks], looks, strict=False):
            labels, t, answers = rows
            counts.add(labels[first:end], t[first:end], answers[first:end])
            inside &= truth in counts.gap(RANGES[name], 1 - LEVEL)
        held += inside
    assert binom.cdf(51, 60, 0.95) < 1 / 100
    assert held >= 52


@pytest.mark.parametrize(
    ("noise", "believed"),
    [
        (Noise(0.0, 0.04), NoisePosterior(Noise(0.0, 0.04))),
        (Noise(0.0, 0.05), NoisePosterior(Noise(0.0, 0.03), (Noise(0.0, 0.01), Noise(0.0, 0.05)))),
        (Noise(1.0, 0.01), NoisePosterior(Noise(0.7, 0.01), (Noise(0.2, 0.01), Noise(1.0, 0.01)))),
    ],
)
def test_noise_of_the_reference_is_no_gap(noise: Noise, believed: NoisePosterior) -> None:
    """A calibrated model with flips or jitter: no gap is claimed, and no alarm is raised."""
    rng = np.random.default_rng([0, 43])

    def answered(n: int) -> Rows:
        f, t = rng.beta(6, 0.6, n), rng.random(n)
        noisy = log_odds(f) + noise.jitter * rng.standard_normal(n) >= log_odds(t)
        labels = (rng.random(n) < f).astype(np.int64)
        return labels, t, (noisy ^ (rng.random(n) < noise.flip_rate)).astype(np.int64)

    labels, t, answers = answered(2000)
    table = AnswerTable(np.arange(2000), -log_odds(t), np.zeros(2000), answers)
    known = fit_problem(Problem.of_answers(labels, table, noise=believed), resamples=100)
    rows = answered(10_000)
    for max_ece in (None, 0):
        state = bc.Monitor(known, max_ece=max_ece).update(*rows)
        assert all(0 in gap.gap for gap in state.gaps), state.gaps
        assert not alarm(state).raised
        assert np.isfinite(alarm(state).log_evidence)


@pytest.mark.parametrize("max_ece", [None, 0])
def test_little_proves_nothing(max_ece: float | None) -> None:
    """No answers, answers without labels, and one item at any threshold: no alarm, every gap is possible."""
    for rows in (([], [], []), ([-1, -1], [0.3, 0.6], [1, 0])):
        state = bc.Monitor(reference(), max_ece=max_ece).update(*rows)
        assert not state.raised
        assert alarm(state).log_evidence == 0
        assert all((one.gap.low, one.gap.high) == (-1, 1) for one in state.gaps)
    assert (state.answers, state.labelled) == (2, 0)
    for t, label, answer in product((0.0, 0.5, 1.0), (0, 1), (0, 1)):
        state = bc.Monitor(reference(), max_ece=max_ece).update([label], [t], [answer])
        assert not state.raised
        assert all(np.isfinite(one.log_evidence) for one in state.alarms)
        assert all(0 in one.gap for one in state.gaps)


@pytest.mark.parametrize("label", [0, 1])
def test_all_labels_may_be_equal(label: int) -> None:
    """A model that is sure and right is calibrated; one that says one half is not."""
    t = np.random.default_rng(51).random(800)
    labels = np.full(800, label)
    assert not bc.Monitor().update(labels, t, labels).raised
    state = bc.Monitor().update(labels, t, t <= 0.5)
    assert state.raised
    assert 0.5 - label in state.gaps[0].gap
    assert 0 not in state.gaps[0].gap


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (([0, 1], [0.5], [1]), "answers"),
        (([0], [1.5], [1]), "thresholds"),
        (([0] * 500, np.random.default_rng(61).beta(2, 2, 500), [1] * 500), "spread evenly"),
    ],
)
def test_wrong_input_is_named(rows: Any, why: str) -> None:
    """Columns of different lengths, what is no probability, and thresholds that are not spread evenly."""
    with pytest.raises(InputError, match=why):
        bc.Monitor().update(*rows)
    with pytest.raises(InputError, match="max_ece"):
        bc.Monitor(max_ece=1)
    with pytest.raises(InputError, match="either the shown"):
        bc.Monitor().update(*rows, p=[0.5])
    with pytest.raises(InputError, match="has shown probabilities"):
        bc.Monitor(shown_reference()).update([1], [0.5], [1])
    with pytest.raises(InputError, match="has answers at thresholds"):
        bc.Monitor(reference()).update([1], p=[0.5])
