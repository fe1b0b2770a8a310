"""The test for a change of the answers during a run, on simulated answers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from blindcal.estimate.dependence import repeated_share
from blindcal.estimate.drift import Drift, anchors_moved, drift_test
from blindcal.estimate.noise import ControlCounts, estimate_noise
from blindcal.methods import make_design
from blindcal.records import INVALID, AnswerTable, IntArray


def asked(
    n: int, seed: int, *, drift: float = 0.0, ignored: bool = False, slowly: bool = False
) -> tuple[IntArray, AnswerTable]:
    """Labels, and threshold answers in the order of asking, of an endpoint that changes."""
    rng = np.random.default_rng(seed)
    s = 2.5 * rng.standard_normal(n)
    labels = (rng.random(n) < expit(0.8 * s)).astype(np.int64)
    shifts = -logit((rng.permutation(n) + 0.5) / n)
    late = np.arange(n) >= n // 2
    answers = s + drift * (np.arange(n) / n if slowly else late) + shifts * ~(late & ignored) >= 0
    return labels, AnswerTable(np.arange(n), shifts, np.zeros(n), answers.astype(np.int64))


def drift_of(n: int, seed: int, **change: object) -> Drift:
    labels, table = asked(n, seed, **change)  # type: ignore[arg-type]
    found = drift_test(labels, [table])
    assert found is not None
    return found


@pytest.mark.parametrize("n", [150, 1000])
def test_an_endpoint_that_stays_the_same_is_rarely_accused(n: int) -> None:
    """Of 1,000 runs, at most 1% get p < 0.001 or less, and the p-value is conservative at every level."""
    pvalues = np.array([drift_of(n, seed).pvalue for seed in range(1000)])
    assert (~(pvalues >= 0.001)).mean() <= 0.005
    for level in (0.01, 0.05, 0.2):
        assert (~(pvalues >= level)).mean() <= level + 3 * np.sqrt(level * (1 - level) / 1000)


def test_a_change_is_found_and_placed() -> None:
    """All log-odds + 1 half-way, or the bias ignored from there on: always found at 3,000 answers."""
    for seed in range(40):
        for change in ({"drift": 1.0}, {"ignored": True}):
            found = drift_of(3000, seed, **change)
            assert found.pvalue < 0.001
            assert abs(found.at - 1500) < 450


def test_a_slow_change_is_found() -> None:
    """All log-odds rise evenly by 2: always found at 3,000 answers."""
    assert all(drift_of(3000, seed, drift=2.0, slowly=True).pvalue < 0.001 for seed in range(40))


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("move", [0.0, 2.0, -2.0])
def test_anchors_move_with_the_log_odds(jitter: float, move: float) -> None:
    """17 answers next to known flips show a drift of 2 and its direction; jitter alone hardly ever does."""
    times, off = (np.arange(17) + 0.5) / 17, np.where(np.arange(17) % 2, 0.4, -0.4)
    rng = np.random.default_rng(0)
    noise = jitter * rng.standard_normal((400, 17))
    moved = [anchors_moved(times, off, (off + move * times + row >= 0) * 1.0) for row in noise]
    if move:
        assert -np.sign(move) not in moved
        assert moved.count(0) <= (0 if jitter == 0 else 100 if jitter < 1 else 400)
    else:
        assert moved.count(0) >= 397


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_cache_whatever_the_temperature_is_found(share: float) -> None:
    """Half of the draws repeat the item's first answer: nearly always seen; no honest run is accused."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        design = make_design("temperature", np.arange(600) % 2, queries=3, seed=seed)
        round_ = design.next_round(AnswerTable.empty())
        assert round_ is not None
        order = rng.permutation(len(round_))
        item, heat = round_.items[order], round_.temperatures[order]
        answers = (rng.random(item.size) < expit(2 * rng.standard_normal(600)[item] / heat)).astype(np.int64)
        first = answers[np.unique(item, return_index=True)[1]][item]
        answers = np.where(rng.random(item.size) < share, first, answers)
        found.append(repeated_share([AnswerTable(item, np.zeros(item.size), heat, answers)]))
    assert sum(each > 0 for each in found) >= 36 if share else not any(found)


def test_rounds_are_tested_together_and_numbered_through() -> None:
    """A change in the second round is placed after the queries of the first; invalid answers do not count."""
    labels, first = asked(1000, 1)
    late, second = asked(2000, 2, drift=2.0)
    second = AnswerTable(second.items + 1000, second.shifts, second.temperatures, second.answers)
    first.answers[::7] = INVALID
    found = drift_test(np.concatenate([labels, late]), [first, second])
    assert found is not None
    assert found.pvalue < 1e-6
    assert abs(found.at - 2000) < 200


def noisy(n: int, seed: int, *, jitter: float = 0.0, flips: float = 0.0) -> tuple[float, float]:
    """The jitter and the flip rate that controls show, for an endpoint with this noise."""
    rng = np.random.default_rng(seed)
    controls = 200
    labels, table = asked(n, seed)
    s = 2.5 * np.random.default_rng(seed).standard_normal(n)

    def answer(items: IntArray) -> IntArray:
        yes = s[items] + table.shifts[items] + jitter * rng.standard_normal(items.size) >= 0
        return (yes ^ (rng.random(items.size) < flips)).astype(np.int64)

    run = AnswerTable(table.items, table.shifts, table.temperatures, answer(table.items))
    again = rng.permutation(n)[: controls // 2]
    repeats = AnswerTable(again, table.shifts[again], np.zeros(again.size), answer(again))
    disagreed = int((run.answers[again] != repeats.answers).sum())
    failed = int(rng.binomial(controls // 2, flips))
    counts = ControlCounts(controls // 2, failed, again.size, disagreed)
    found = estimate_noise(labels, run, repeats, counts, 0.0)
    return float(found.jitter), float(found.flip_rate)


def test_clean_controls_leave_the_noise_at_what_the_probe_found() -> None:
    """Without a wrong answer there are no flips, up to a limit, and only the jitter of the probe."""
    labels, table = asked(300, 0)
    found = estimate_noise(labels, table, table.rows(slice(20)), ControlCounts(20, 0, 20, 0), 0.25)
    assert (float(found.jitter), float(found.flip_rate), found.plausible) == (0.25, 0.0, ())
    assert found.flip_rate.high == pytest.approx(1.92 / 60, rel=0.05)


def test_flips_and_jitter_are_told_apart() -> None:
    """Flips without jitter give a flip rate and little jitter; jitter without flips the other way round."""
    jitter, flips = noisy(400, 1, flips=0.1)
    assert flips == pytest.approx(0.1, abs=0.04)
    assert jitter < 0.5
    jitter, flips = noisy(400, 1, jitter=1.0)
    assert flips < 0.03
    assert jitter == pytest.approx(1.0, abs=0.5)
