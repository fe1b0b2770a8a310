"""Bets against a claim: fair if it holds, and the wealth is that of an independent slow computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit, ndtr

from blindcal.estimate.streams.alarms import RANGES, EProcess, GapCounts
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
    likelihood_ratios,
    question_cells,
    share_ratios,
)
from blindcal.estimate.streams.shown_bets import LabelGame
from blindcal.records import FloatArray, IntArray, Noise

# The wealth in the plainest way: item after item, product by product; from METHOD 9, not from the code

Number = Fraction | float


def bin_of(t: float) -> int:
    """The bin of a threshold; 1 belongs to the last one."""
    return min(int(Fraction(t) * BINS), BINS - 1)


def chance_of_yes(f: Number, k: int) -> Number:
    """How often an answer is positive at a threshold that is uniform in bin k."""
    return min(max(f * BINS - k, 0), 1)


def slow_gap(curve: Sequence[float], k: int, d: int, y: int) -> float:
    """The curve at f minus the label, which one answer measures; the curve is given at the bins' edges."""
    return curve[0] + d * BINS * (curve[k + 1] - curve[k]) - y


def stakes_of(gains: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Stakes of which the worst observation loses these shares."""
    return [share / -min(gains) for share in shares]


def distorted(p: float, shift: float, slope: float) -> float:
    """A probability whose log-odds are stretched and shifted."""
    odds = math.log(p / (1 - p))
    return 1 / (1 + math.exp(-shift - slope * odds))


def closest_ratio(a: float, b: float, shift: float, slope: float, steps: int) -> list[float]:
    """Ratio of an alternative to the closest calibrated law, for (bin, answer, label) in this order.

    Under the alternative, f has a beta(a, b) distribution and labels are distorted. The closest law is found
    by this number of steps of the usual iteration for mixtures. The ratio is not divided by its highest mean.
    """
    cells = 2 * BINS
    middles = [(i + 0.5) / cells for i in range(cells)]
    outcomes = [(k, d, y) for k in range(BINS) for d in (0, 1) for y in (0, 1)]

    def law(f: float, chance: float) -> list[float]:
        each = []
        for k, d, y in outcomes:
            yes = float(chance_of_yes(f, k))
            each.append((yes if d else 1 - yes) * (chance if y else 1 - chance) / BINS)
        return each

    mass = [f ** (a - 1) * (1 - f) ** (b - 1) for f in middles]
    mass = [one / math.fsum(mass) for one in mass]
    others = [law(f, distorted(f, shift, slope)) for f in middles]
    wanted = np.array(mass) @ np.array(others)
    rows = np.array([law(f, f) for f in middles])
    weights = np.full(cells, 1 / cells)
    for _ in range(steps):
        whose = rows * weights[:, None] / (weights @ rows)  # the E-step: which f an outcome comes from
        weights = whose @ wanted
    return [float(one) for one in wanted / (weights @ rows)]


def starts(places: Sequence[int], spacing: int) -> list[tuple[int, Fraction]]:
    """The starting points up to the last of these places, with their shares: 1/2, then 1/(2 k (k + 1))."""
    evenly = [k * spacing for k in range(1, 21)]
    later = [math.ceil(Fraction(evenly[-1]) * Fraction(11, 10) ** k) for k in range(1, 100)]
    found = [(0, Fraction(1, 2))]
    for k, start in enumerate([*evenly, *later], 1):
        if start > max(places, default=0):
            break
        found.append((start, Fraction(1, 2 * k * (k + 1))))
    return found


def slow_wealth(
    factors: Sequence[Sequence[Number]], shares: Sequence[Number], places: Sequence[int], spacing: int = 500
) -> list[float]:
    """The wealth after each observation; ``factors`` are those of each observation for every bet.

    What starts later than an observation's place does not bet on it, and is still what it was.
    """
    begun = starts(places, spacing)
    wealth: list[list[Number]] = [[1 for _ in shares] for _ in begun]
    path = []
    for row, place in zip(factors, places, strict=True):
        for mine, (start, _) in zip(wealth, begun, strict=True):
            if place >= start:
                mine[:] = [have * factor for have, factor in zip(mine, row, strict=True)]
        total: Number = 1
        for mine, (_, share) in zip(wealth, begun, strict=True):
            won = sum(own * have for own, have in zip(shares, mine, strict=True))
            total += (share if isinstance(won, Fraction) else float(share)) * (won - 1)
        path.append(float(total))
    return path


LEVEL = 0.05
CURVE = np.interp(EDGES, [0, 0.3, 0.8, 1], [0.1, 0.25, 0.9, 0.95])
BAND = np.interp(EDGES, [0, 0.5, 1], [0.05, 0.1, 0.02])
CLAIMS = {
    "perfect": CurveClaim(),
    "curve": CurveClaim(curve=CURVE),
    "max_ece": CurveClaim(allowance=0.07),
    "band": CurveClaim(curve=CURVE, width=BAND),
}
CONFIDENCES = (0.0, 1e-6, 0.25, 1 / 3, 0.5, 0.7031, 1.0)


def path_of(game: Game, cells: IntArray, places: IntArray, spacing: int = 500) -> FloatArray:
    return np.exp(EProcess(game.shares, LEVEL, spacing).add(game.log_factors[cells], places))


@cache
def tables(name: str) -> FloatArray:
    """The gains of a claim's bets, with axes (bet, bin, answer, label)."""
    return np.stack([bet.gains.reshape(BINS, 2, 2) for bet in CLAIMS[name].game.bets])


def means(gains: FloatArray, f: float, positive: float, yes: FloatArray | None = None) -> FloatArray:
    """The mean gain of every bet; ``yes`` is the share of positive answers in each bin."""
    if yes is None:
        yes = np.array([float(chance_of_yes(f, k)) for k in range(BINS)])
    chances = np.stack([1 - yes, yes], 1) / BINS
    return np.asarray(np.einsum("sbay,ba,y->s", gains, chances, [1 - positive, positive]))


def in_the_large(curve: FloatArray) -> list[float]:
    cells = [(k, d, y) for k in range(BINS) for d in (0, 1) for y in (0, 1)]
    return [slow_gap(curve.tolist(), *cell) for cell in cells]


# Fairness


@pytest.mark.parametrize("f", CONFIDENCES)
def test_betting_in_the_large_is_fair_at_every_confidence(f: float) -> None:
    """The mean is exactly 0 if E[Y|f] is the curve; a limit of the ECE is paid for, and just breaks even."""
    for name, curve in (("perfect", EDGES), ("curve", CURVE)):
        chance = float(np.interp(f, EDGES, curve))
        assert means(tables(name)[:2], f, chance) == pytest.approx(0, abs=1e-12)
        assert tables(name)[0].ravel() == pytest.approx(in_the_large(curve), abs=1e-12)
    for chance in np.clip([f - 0.07, f, f + 0.07], 0, 1):
        assert means(tables("max_ece"), f, chance).max() <= 1e-12
    if f >= 0.07:
        assert means(tables("max_ece"), f, f - 0.07)[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["perfect", "curve"])
def test_no_likelihood_ratio_has_a_mean_above_one(name: str) -> None:
    """At every confidence, also inside the bins, where the mean is a parabola; somewhere it is 1."""
    highest = np.full(len(tables(name)) - 2, -np.inf)
    for f in np.unique([*np.linspace(0, 1, 60 * 16 + 1), *CONFIDENCES]):
        chance = float(np.interp(f, EDGES, CLAIMS[name].curve))
        highest = np.maximum(highest, means(tables(name)[2:], f, chance))
    assert highest.max() <= 1e-12
    assert highest.min() > -0.01  # little is given away


def test_a_likelihood_ratio_is_that_of_a_slow_computation() -> None:
    """The ratio of an alternative and the closest calibrated law, up to the factor that makes it fair."""
    ratios, meanings = likelihood_ratios(EDGES)
    place = 7 + 2  # the second distribution of the confidence, the third distortion
    assert (meanings[place].shift, meanings[place].slope) == (0, 0.3)
    factor = ratios[place].ravel() / closest_ratio(0.3, 0.3, 0.0, 0.3, 500)
    assert factor == pytest.approx(factor[0], rel=1e-9)
    assert 0.98 < factor[0] <= 1


def test_a_mean_deviation_is_paid_for_however_it_is_spread() -> None:
    """The limit holds for the mean over confidences: a large gap at few of them wins nothing either."""
    for far, f in ((0.3, 0.9), (0.6, 0.65)):
        bad, rest = means(tables("max_ece"), f, f - far), means(tables("max_ece"), 0.4, 0.4)
        share = 0.07 / far
        assert (share * bad + (1 - share) * rest).max() <= 1e-12


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_no_bet_on_a_shown_probability_has_a_mean_above_one(off: int) -> None:
    """At every p, between the edges too, wherever the curve is within its band or the limit."""
    curve, p = np.clip(EDGES**1.5, 0.01, 0.99), np.linspace(0, 1, 997)
    for claim in (
        CurveClaim(),
        CurveClaim(curve=curve, width=np.full(EDGES.size, 0.02), factors=np.ones(29)),
        CurveClaim(curve=curve, allowance=0.02),
    ):
        game, slack = LabelGame(claim), 0.02 * bool(claim.allowance or claim.width.any())
        up = np.clip(np.interp(p, EDGES, claim.curve) + off * slack, 0, 1)[:, None]
        gains = [np.exp(game.logs(np.column_stack([p, np.full(p.size, y)]))) for y in (0.0, 1.0)]
        assert ((1 - up) * gains[0] + up * gains[1]).max() <= 1 + 1e-9


@pytest.mark.parametrize("k", [0, 18, 45, 60])
def test_a_band_is_paid_for(k: int) -> None:
    """No bet wins on average anywhere in the band; in the large, one just breaks even at its edge."""
    f, middle, half = float(EDGES[k]), float(CURVE[k]), float(BAND[k])
    for chance in np.clip([middle - half, middle, middle + half], 0, 1):
        assert means(tables("band"), f, chance).max() <= 1e-12
    assert means(tables("band"), f, middle - half)[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("noise", "most"), [(Noise(0.2, 0.0), np.inf), (Noise(0.0, 0.02), 5), (Noise(0.5, 0.01), 5)]
)
def test_noise_is_paid_for(noise: Noise, most: float) -> None:
    """With noisy answers and a largest shift, no bet wins on average, whatever f is."""
    game = CurveClaim(noises=(noise,), max_shift=most).game
    gains = np.stack([bet.gains.reshape(BINS, 2, 2) for bet in game.bets])
    node, weight = np.polynomial.legendre.leggauss(10)
    pieces = 200  # of each bin
    edges = np.linspace(0, 1, BINS * pieces + 1)
    t = edges[:-1, None] + (node + 1) / 2 / (BINS * pieces)
    highest = np.full(len(gains), -np.inf)
    for f in expit(np.linspace(-9, 9, 73)):
        away = logit(f) - np.clip(logit(t), -most, most)
        clean = ndtr(away / noise.jitter) if noise.jitter else (away >= 0).astype(float)
        rate = noise.flip_rate + (1 - 2 * noise.flip_rate) * clean
        yes = (rate @ weight / 2).reshape(BINS, pieces).mean(axis=1)
        highest = np.maximum(highest, means(gains, f, float(f), yes))
    assert highest.max() <= 0


@given(st.integers(0, 10**6))
def test_a_ratio_of_shares_has_a_mean_of_at_most_one(seed: int) -> None:
    """Also where an answer is impossible, or all but impossible, under one of the two."""
    rng = np.random.default_rng(seed)
    share, other = (
        np.where(rng.random(BINS) < 0.3, rng.choice([0, 1e-5, 0.999, 1], BINS), rng.random(BINS))
        for _ in range(2)
    )
    ratios = share_ratios(share, other[None])[0]
    assert (ratios >= 0).all()
    assert ((1 - share) * ratios[:, 0] + share * ratios[:, 1]).max() <= 1 + 1e-12


# The wealth


def slow_factors(name: str) -> tuple[list[float], list[list[float]]]:
    """Shares of all stakes, and what each cell multiplies them by; betting in the large is computed anew."""
    game, large = CLAIMS[name].game, name in ("perfect", "curve")
    shares, columns = [], []
    for place, bet in enumerate(game.bets):
        gains = bet.gains.tolist()
        if large and place < 2:
            gains = [(1 - 2 * place) * gain for gain in in_the_large(CLAIMS[name].curve)]
        stakes = stakes_of(gains, IN_THE_LARGE if place < 2 else RATIOS)
        share = 1 / 4 if place < 2 else 1 / 2 / (len(game.bets) - 2)
        for stake in stakes:
            shares.append(share / len(stakes))
            columns.append([1 + stake * gain for gain in gains])
            assert min(columns[-1]) >= 0  # no bet can lose more than all
    return shares, [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("name", CLAIMS)
def test_the_wealth_is_that_of_a_slow_computation_after_every_item(name: str) -> None:
    """Several starting points; items in order, and as labels come late and out of order."""
    rng = np.random.default_rng([0, 15])
    f, t = rng.beta(0.6, 0.7, 240), rng.random(240)
    labels, d = (rng.random(240) < f).astype(np.int64), (f >= t).astype(np.int64)
    labels[100:] = np.maximum(labels[100:], (t[100:] > 0.6).astype(np.int64))  # something to find
    shares, factors = slow_factors(name)
    cells = calibration_cells(labels, t, d)
    rows = [factors[4 * bin_of(t[k]) + 2 * d[k] + labels[k]] for k in range(240)]
    assert sum(shares) == pytest.approx(1)
    for places in (np.arange(240), np.random.default_rng(1).permutation(240)):
        expected = slow_wealth(rows, shares, places.tolist(), 7)
        assert path_of(CLAIMS[name].game, cells, places, 7) == pytest.approx(expected, rel=1e-9)


def test_the_mixture_over_starting_points_is_exact() -> None:
    """In fractions, without any rounding, far beyond the even starting points."""
    game = anchor_game(0.05, 0.1)
    cells = np.random.default_rng(3).integers(4, size=90)
    factors = [[Fraction(float(x)) for x in row] for row in np.exp(game.log_factors)]
    shares = [Fraction(float(x)) for x in game.shares]
    expected = slow_wealth([factors[cell] for cell in cells], shares, list(range(90)), 2)
    assert path_of(game, cells, np.arange(90), 2) == pytest.approx(expected, rel=1e-12)


def test_questions_have_the_wealth_of_a_slow_computation() -> None:
    """Ratios of the shares of positive answers, less the band, in bins of the threshold."""
    rng = np.random.default_rng(5)
    share = np.linspace(0.95, 0.1, BINS)
    others = np.stack([np.clip(share * factor, 0, 1) for factor in (0.5, 0.8, 0.9, 1.02, 0.95, 0.7)])
    width, band = np.full(BINS, 0.01), np.array([1, 2, 0.5, 1, 0, 3.0])
    game = ShareClaim(share, width, band, others).game
    t, d = rng.random(200), (rng.random(200) < 0.4).astype(np.int64)
    by_bet: list[list[float]] = [[] for _ in others]
    for p, *qs in zip(share, *others, strict=True):
        for answer in (0, 1):
            for bet, q in enumerate(qs):
                ratio = q / p if answer else (1 - q) / (1 - p)
                slack = band[bet] * 0.01 * abs(q / p - (1 - q) / (1 - p))
                by_bet[bet].append(float(ratio - 1 - slack))
    cells = [2 * bin_of(at) + answer for at, answer in zip(t, d, strict=True)]
    rows = [
        [1 + stake * gains[cell] for gains in by_bet for stake in stakes_of(gains, RATIOS)] for cell in cells
    ]
    expected = slow_wealth(rows, [1 / 12] * 12, list(range(200)), 11)
    assert path_of(game, question_cells(t, d), np.arange(200), 11) == pytest.approx(expected, rel=1e-9)


def test_anchors_have_the_wealth_of_a_slow_computation() -> None:
    """Bets on more wrong answers above the flips, below them, and in both places."""
    rng = np.random.default_rng(6)
    above, wrong = (rng.random(60) < 0.5).astype(np.int64), (rng.random(60) < 0.3).astype(np.int64)
    rows = []
    for up, bad in zip(above.tolist(), wrong.tolist(), strict=True):
        excess = bad - (0.05 if up else 0.1)
        bets = ((excess if up else 0) / 0.05, (0 if up else excess) / 0.1, excess / 0.1)
        rows.append([1 + stake * bet for bet in bets for stake in (0.3, 0.7)])
    expected = slow_wealth(rows, [1 / 6] * 6, list(range(60)), 11)
    found = path_of(anchor_game(0.05, 0.1), anchor_cells(above, wrong), np.arange(60), 11)
    assert found == pytest.approx(expected, rel=1e-9)


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
    whole, other, pieces = (EProcess(game.shares, LEVEL, 6) for _ in range(3))
    path = whole.add(factors, places)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    other.add(factors[order], places[order])
    assert other.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)
    cut = data.draw(st.integers(0, len(rows)))
    for part in (slice(0, cut), slice(cut, None)):
        pieces.add(factors[part], places[part])
    assert pieces.path == pytest.approx(path, abs=1e-9)
    assert (pieces.raised_at, pieces.observations) == (whole.raised_at, whole.observations)
    assert pieces.strongest == pytest.approx(whole.strongest, abs=1e-9)


@pytest.mark.parametrize("gap", [0.005, -0.0153])
def test_a_gap_between_two_candidate_values_is_found_in_a_long_stream(gap: float) -> None:
    """Once the interval is narrower than the steps between candidate values, it does not become empty."""
    rng = np.random.default_rng(5)
    counts = GapCounts()
    narrow = []
    for _ in range(4):
        f = rng.uniform(0.1, 0.9, 250_000)
        t = rng.uniform(size=f.size)
        labels = (rng.uniform(size=f.size) < f - gap).astype(np.int64)
        counts.add(labels, t, (f >= t).astype(np.int64))
        found = counts.gap(RANGES["all items"], 0.95)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= gap <= found.high
        narrow.append(found.high - found.low)
    assert max(narrow) < 0.025
    assert narrow[-1] < 0.01
