"""Bets against a claim: fair if it holds, and the wealth is that of an independent slow computation."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit, ndtr

import slow_betting as slow
from blindcal.estimate.streams.betting import (
    BINS,
    EDGES,
    IN_THE_LARGE,
    RATIOS,
    CurveClaim,
    Game,
    ShareClaim,
    anchor_cells,
    anchor_game,
    calibration_cells,
    label_dependence,
    likelihood_ratios,
    question_cells,
    share_ratios,
)
from blindcal.estimate.streams.e_process import EProcess, discoveries
from blindcal.records import FloatArray, IntArray, Noise

LEVEL = 0.05
CURVE = np.interp(EDGES, [0, 0.3, 0.8, 1], [0.1, 0.25, 0.9, 0.95])
BAND = np.interp(EDGES, [0, 0.5, 1], [0.05, 0.1, 0.02])
CLAIMS = {
    "perfect": CurveClaim(),
    "curve": CurveClaim(CURVE),
    "max_ece": CurveClaim(allowance=0.07),
    "band": CurveClaim(CURVE, BAND),
}
CONFIDENCES = (0.0, 1e-6, 0.1, 0.25, 1 / 3, 0.5, 0.7031, 0.999, 1.0)


def answers_of(n: int, seed: int) -> tuple[IntArray, FloatArray, IntArray]:
    """Labels, thresholds and answers of calibrated items."""
    rng = np.random.default_rng([seed, 15])
    f, t = rng.beta(0.6, 0.7, n), rng.random(n)
    return (rng.random(n) < f).astype(np.int64), t, (f >= t).astype(np.int64)


def path_of(game: Game, cells: IntArray, places: IntArray, spacing: int = 500) -> FloatArray:
    return EProcess(game.shares, LEVEL, spacing).add(game.log_factors[cells], places)


# Fairness


@cache
def tables(name: str) -> FloatArray:
    """The gains of a claim's sides, with axes (side, bin, answer, label)."""
    return np.stack([side.gains.reshape(BINS, 2, 2) for side in CLAIMS[name].game.bets])


def means(gains: FloatArray, f: float, positive: float, yes: FloatArray | None = None) -> FloatArray:
    """The mean gain of every side; ``yes`` is how often answers in each bin are positive."""
    if yes is None:
        yes = np.array([float(slow.chance_of_yes(f, k)) for k in range(BINS)])
    chances = np.stack([1 - yes, yes], 1) / BINS
    return np.asarray(np.einsum("sbay,ba,y->s", gains, chances, [1 - positive, positive]))


@pytest.mark.parametrize("f", CONFIDENCES)
def test_betting_in_the_large_is_fair_at_every_confidence(f: float) -> None:
    """E[S | f] = 0 exactly if E[Y|f] is the curve, in fractions."""
    at = Fraction(f)
    assert slow.mean_gain(lambda k, d, y: in_the_large(EDGES, k, d, y), at, at) == pytest.approx(0, abs=1e-15)
    for name, curve in (("perfect", EDGES), ("curve", CURVE)):
        chance = float(np.interp(f, EDGES, curve))
        assert means(tables(name)[:2], f, chance) == pytest.approx(0, abs=1e-12)
        found = [in_the_large(curve, k, d, y) for k in range(BINS) for d in (0, 1) for y in (0, 1)]
        assert tables(name)[0].ravel() == pytest.approx(found, abs=1e-12)
        assert tables(name)[1].ravel() == pytest.approx([-one for one in found], abs=1e-12)


def in_the_large(curve: FloatArray, k: int, d: int, y: int) -> float:
    return slow.in_the_large(curve.tolist(), k, d, y)


@pytest.mark.parametrize("name", ["perfect", "curve"])
def test_no_likelihood_ratio_has_a_mean_above_one(name: str) -> None:
    """At every confidence, also inside the bins, where the mean is a parabola; somewhere it is 1."""
    highest = np.full(len(tables(name)) - 2, -np.inf)
    for f in np.unique([*np.linspace(0, 1, 60 * 16 + 1), *CONFIDENCES]):
        chance = float(np.interp(f, EDGES, CLAIMS[name].curve))
        highest = np.maximum(highest, means(tables(name)[2:], f, chance))
    assert highest.max() <= 1e-12
    assert highest.min() > -0.01  # little is given away
    game = CLAIMS[name].game
    exact = slow.mean_gain(  # one of them once more in fractions
        lambda k, d, y: float(game.bets[9].gains[4 * k + 2 * d + y]), Fraction(1, 3), Fraction(1, 3)
    )
    assert name == "curve" or exact == pytest.approx(means(tables(name), 1 / 3, 1 / 3)[9], abs=1e-12)


def test_a_likelihood_ratio_is_that_of_a_slow_computation() -> None:
    """The ratio of an alternative and the closest calibrated law, up to the factor that makes it fair."""
    found = likelihood_ratios(EDGES)
    slow_ratio = slow.closest_ratio(0.3, 0.3, 0.0, 0.3, 500)
    place = 7 + 2  # the second distribution of the confidence, the third distortion
    assert (found[1][place].shift, found[1][place].slope) == (0, 0.3)
    factor = found[0][place].ravel() / slow_ratio
    assert factor == pytest.approx(factor[0], rel=1e-9)
    assert 0.98 < factor[0] <= 1


@pytest.mark.parametrize("f", CONFIDENCES)
def test_a_limit_of_the_ece_is_paid_for(f: float) -> None:
    """No side wins on average if the gap at a confidence is the limit; a one-sided gap just breaks even."""
    for chance in np.clip([f - 0.07, f, f + 0.07], 0, 1):
        assert means(tables("max_ece"), f, chance).max() <= 1e-12
    if f >= 0.07:
        assert means(tables("max_ece"), f, f - 0.07)[0] == pytest.approx(0, abs=1e-12)


def test_a_mean_deviation_is_paid_for_however_it_is_spread() -> None:
    """The limit holds for the mean over confidences: a large gap at few of them wins nothing either."""
    for far, f in ((0.3, 0.9), (0.6, 0.65)):
        bad, rest = means(tables("max_ece"), f, f - far), means(tables("max_ece"), 0.4, 0.4)
        share = 0.07 / far
        assert (share * bad + (1 - share) * rest).max() <= 1e-12


@pytest.mark.parametrize("k", [0, 3, 18, 30, 45, 60])
def test_a_band_is_paid_for(k: int) -> None:
    """No side wins on average anywhere in the band; in the large, one just breaks even at its edge."""
    f = float(EDGES[k])
    middle, half = float(CURVE[k]), float(BAND[k])
    for chance in np.clip([middle - half, middle, middle + half], 0, 1):
        assert means(tables("band"), f, chance).max() <= 1e-12
    assert means(tables("band"), f, middle - half)[0] == pytest.approx(0, abs=1e-12)


def test_label_dependence_is_that_of_the_means() -> None:
    """The difference of the mean gains between positive and negative labels."""
    found = label_dependence(tables("perfect"))
    for k in (0, 7, 31, 60):
        f = float(EDGES[k])
        expected = means(tables("perfect"), f, 1.0) - means(tables("perfect"), f, 0.0)
        assert found[:, k] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("noise", [Noise(0.2, 0.0), Noise(0.0, 0.02), Noise(0.5, 0.01)])
@pytest.mark.parametrize("reach", [np.inf, 5.0])
def test_noise_is_paid_for(noise: Noise, reach: float) -> None:
    """With noisy answers and thresholds that cannot be reached, no side wins on average, whatever f is."""
    game = CurveClaim(noise=noise, max_shift=reach).game
    gains = np.stack([side.gains.reshape(BINS, 2, 2) for side in game.bets])
    node, weight = np.polynomial.legendre.leggauss(10)
    pieces = 200  # of each bin
    edges = np.linspace(0, 1, BINS * pieces + 1)
    t = edges[:-1, None] + (node + 1) / 2 / (BINS * pieces)
    highest = np.full(len(gains), -np.inf)
    for f in expit(np.linspace(-9, 9, 73)):
        away = logit(f) - np.clip(logit(t), -reach, reach)
        clean = ndtr(away / noise.jitter) if noise.jitter else (away >= 0).astype(float)
        rate = noise.flip_rate + (1 - 2 * noise.flip_rate) * clean
        yes = (rate @ weight / 2).reshape(BINS, pieces).mean(axis=1)
        highest = np.maximum(highest, means(gains, f, float(f), yes))
    assert highest.max() <= 0


# The wealth


def slow_factors(name: str) -> tuple[list[float], list[list[list[float]]]]:
    """Shares of all bets, and by cell what each is multiplied by; betting in the large is computed anew."""
    game, large = CLAIMS[name].game, name in ("perfect", "curve")
    shares, columns = [], []
    for place, side in enumerate(game.bets):
        gains = side.gains.tolist()
        if large and place < 2:
            cells = [(k, d, y) for k in range(BINS) for d in (0, 1) for y in (0, 1)]
            gains = [(1 - 2 * place) * in_the_large(CLAIMS[name].curve, *cell) for cell in cells]
        stakes = slow.stakes_of(gains, IN_THE_LARGE if place < 2 else RATIOS)
        share = 1 / 4 if place < 2 else 1 / 2 / (len(game.bets) - 2)
        for stake in stakes:
            shares.append(share / len(stakes))
            columns.append([1 + stake * gain for gain in gains])
    return shares, [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("name", CLAIMS)
def test_the_wealth_is_that_of_a_slow_computation_after_every_item(name: str) -> None:
    """Several starting points; items in order, and as labels come late and out of order."""
    labels, t, d = answers_of(240, 0)
    labels[100:] = np.maximum(labels[100:], (t[100:] > 0.6).astype(np.int64))  # something to find
    shares, factors = slow_factors(name)
    rows = [
        factors[4 * slow.bin_of(at) + 2 * said + y]
        for at, said, y in zip(t.tolist(), d.tolist(), labels.tolist(), strict=True)
    ]
    assert sum(shares) == pytest.approx(1)
    for places in (np.arange(240), np.random.default_rng(1).permutation(240)):
        found = path_of(CLAIMS[name].game, calibration_cells(labels, t, d), places, 7)
        assert np.exp(found) == pytest.approx(slow.wealth_path(rows, shares, places.tolist(), 7), rel=1e-9)


def test_the_mixture_over_starting_points_is_exact() -> None:
    """In fractions, without any rounding, far beyond the even starting points."""
    game = anchor_game(0.05, 0.1)
    cells = np.random.default_rng(3).integers(4, size=90)
    factors = [[Fraction(float(x)) for x in row] for row in np.exp(game.log_factors)]
    shares = [Fraction(float(x)) for x in game.shares]
    rows = [factors[cell] for cell in cells]
    found = path_of(game, cells, np.arange(90), 2)
    assert np.exp(found) == pytest.approx(slow.wealth_path(rows, shares, list(range(90)), 2), rel=1e-12)


def test_questions_have_the_wealth_of_a_slow_computation() -> None:
    """Ratios of the shares of positive answers, less the band, in bins of the threshold."""
    rng = np.random.default_rng(5)
    share = np.linspace(0.95, 0.1, BINS)
    others = np.stack([np.clip(share * factor, 0, 1) for factor in (0.5, 0.8, 0.9, 1.02, 0.95, 0.7)])
    width, band = np.full(BINS, 0.01), np.array([1, 2, 0.5, 1, 0, 3.0])
    game = ShareClaim(share, width, band, others).game
    t, d = rng.random(200), (rng.random(200) < 0.4).astype(np.int64)
    rows, ratios = [], share_ratios(share, others)
    by_side: list[list[float]] = [[] for _ in others]
    for k in range(BINS):
        for said in (0, 1):
            for side, other in enumerate(others):
                q, p = other[k], share[k]
                ratio = q / p if said else (1 - q) / (1 - p)
                assert ratios[side, k, said] == pytest.approx(ratio, rel=1e-12)
                slack = band[side] * 0.01 * abs(q / p - (1 - q) / (1 - p))
                by_side[side].append(float(ratio - 1 - slack))
    for at, said in zip(t.tolist(), d.tolist(), strict=True):
        cell = 2 * slow.bin_of(at) + said
        rows.append([1 + stake * gains[cell] for gains in by_side for stake in slow.stakes_of(gains, RATIOS)])
    found = path_of(game, question_cells(t, d), np.arange(200), 11)
    expected = slow.wealth_path(rows, [1 / 12] * 12, list(range(200)), 11)
    assert np.exp(found) == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 10**6))
def test_a_ratio_of_shares_has_a_mean_of_one_at_most(seed: int) -> None:
    """Also where an answer is impossible, or all but impossible, under one of the two."""
    rng = np.random.default_rng(seed)
    share, other = (
        np.where(rng.random(BINS) < 0.3, rng.choice([0, 1e-5, 0.999, 1], BINS), rng.random(BINS))
        for _ in range(2)
    )
    ratios = share_ratios(share, other[None])[0]
    assert (ratios >= 0).all()
    assert ((1 - share) * ratios[:, 0] + share * ratios[:, 1]).max() <= 1 + 1e-12


def test_anchors_have_the_wealth_of_a_slow_computation() -> None:
    """Bets on more wrong answers above the flips, below them, and on both sides."""
    rng = np.random.default_rng(6)
    above, wrong = (rng.random(60) < 0.5).astype(np.int64), (rng.random(60) < 0.3).astype(np.int64)
    rows = []
    for up, bad in zip(above.tolist(), wrong.tolist(), strict=True):
        excess = bad - (0.05 if up else 0.1)
        sides = ((excess if up else 0) / 0.05, (0 if up else excess) / 0.1, excess / 0.1)
        rows.append([1 + stake * side for side in sides for stake in (0.3, 0.7)])
    found = path_of(anchor_game(0.05, 0.1), anchor_cells(above, wrong), np.arange(60), 11)
    assert np.exp(found) == pytest.approx(slow.wealth_path(rows, [1 / 6] * 6, list(range(60)), 11), rel=1e-9)


@pytest.mark.parametrize("name", CLAIMS)
def test_no_bet_can_lose_more_than_all(name: str) -> None:
    """The worst observation loses just the share that is at stake."""
    game = CLAIMS[name].game
    least = np.exp(game.log_factors).min(axis=0)
    stakes = np.array([stake for side in game.bets for stake in side.stakes])
    assert (least >= 1 - stakes - 1e-12).all()
    assert least[:12] == pytest.approx(1 - stakes[:12], abs=1e-12)
    assert float(sum(game.shares)) == pytest.approx(1)


# The e-process


ROWS = st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


@given(ROWS, st.data())
@settings(max_examples=60)
def test_neither_order_nor_batches_change_the_wealth(
    rows: list[tuple[int, float, int]], data: st.DataObject
) -> None:
    """The wealth after all items is the same in any order, and every value is the same in any pieces."""
    game, places = CLAIMS["perfect"].game, np.arange(len(rows))
    labels, t, answers = (np.array(column) for column in zip(*rows, strict=True))
    factors = game.log_factors[calibration_cells(labels, t, answers)]
    whole = EProcess(game.shares, LEVEL, 6)
    path = whole.add(factors, places)
    assert np.isfinite(path).all()
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    other = EProcess(game.shares, LEVEL, 6)
    other.add(factors[order], places[order])
    assert other.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)
    cut = data.draw(st.integers(0, len(rows)))
    pieces = EProcess(game.shares, LEVEL, 6)
    for part in (slice(0, cut), slice(cut, None)):
        pieces.add(factors[part], places[part])
    assert pieces.path == pytest.approx(path, abs=1e-9)
    assert (pieces.raised_at, pieces.observations) == (whole.raised_at, whole.observations)
    assert pieces.strongest == pytest.approx(whole.strongest, abs=1e-9)


def test_an_alarm_stays_raised() -> None:
    """What was reached once counts, however much is lost later; the strongest evidence never falls."""
    game, n = CLAIMS["perfect"].game, 400
    cell = calibration_cells(np.zeros(n, np.int64), np.full(n, 0.5), np.ones(n, np.int64))
    surely_wrong = game.log_factors[cell]
    wealth = EProcess(game.shares, LEVEL)
    path = wealth.add(surely_wrong, np.arange(n))
    at, strongest = wealth.raised_at, wealth.strongest
    assert at is not None
    assert path[at - 1] >= -np.log(LEVEL) > path[at - 2]
    wealth.add(-np.abs(surely_wrong), np.arange(n, 2 * n))
    assert wealth.log_evidence < 0
    assert (wealth.raised_at, wealth.strongest) == (at, strongest)


@given(st.lists(st.floats(0, 2000), min_size=1, max_size=9), st.sampled_from([0.01, 0.05, 0.2]))
def test_e_bh_is_as_defined(evidence: list[float], level: float) -> None:
    """Discoveries are the largest set whose members all have evidence of K / (level * size)."""
    with np.errstate(divide="ignore"):
        found = discoveries(np.log(evidence), level)
    near = any(
        abs(e * level * size / len(evidence) - 1) < 1e-12
        for e in evidence
        for size in range(1, len(evidence) + 1)
    )
    assert near or set(found.tolist()) == slow.found_by_e_bh(evidence, level)
