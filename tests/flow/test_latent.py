"""`latent`: limits in which the answer is known, symmetries, groups, other kinds of answers, jitter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import blindcal as bc
from blindcal.records import AnswerTable, FloatArray, IntArray, Round
from blindcal.simulation.simulate import generate, log_odds, respond
from fitting import asked, check_sound, columns, drawn, ends, fitted

# -- limits in which the answer is known ---------------------------------------------------------------


def test_many_queries_give_the_binned_error_of_the_hidden_probabilities() -> None:
    """With a dozen queries per item nothing is left to estimate: every estimate is that of the true p."""
    labels, p = generate(1500, 1)
    fit = fitted(labels, asked(labels, p, 12))
    for bins in (3, 5, 10):
        assert fit.at(bins=bins).gaps == pytest.approx(bc.binned_ece(labels, p, bins).gaps, abs=1e-3)
    assert fit.accuracy.value == pytest.approx(np.mean((p >= 0.5) == labels), abs=1e-3)
    assert fit.brier.value == pytest.approx(np.mean((p - labels) ** 2), abs=1e-3)
    pairs = p[labels == 1][:, None] - p[labels == 0][None, :]
    assert fit.auroc.value == pytest.approx(np.mean(pairs > 0), abs=1e-3)
    assert fit.mean_confidence.value == pytest.approx(p.mean(), abs=1e-3)
    s = log_odds(p)
    loss = np.mean(np.logaddexp(0, np.where(labels == 1, -s, s)))
    assert fit.log_loss.value == pytest.approx(loss, abs=5e-3)
    assert fit.leaning.value == pytest.approx(p.mean() - labels.mean(), abs=1e-3)
    sure = np.maximum(p, 1 - p).mean()
    assert fit.overconfidence.value == pytest.approx(sure - np.mean((p >= 0.5) == labels), abs=2e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_query_comes_close_to_the_binned_error(seed: int) -> None:
    """On 10,000 items of a smooth population one query per item finds the sample's ECE within 0.01."""
    labels, p = generate(10_000, seed)
    # sd of the estimate about its oracle is near .0035 at this size (mean |error| .0028 in METHOD 7's terms)
    assert fitted(labels, asked(labels, p, seed=seed)).ece.value == pytest.approx(
        bc.binned_ece(labels, p).ece.value, abs=0.0125
    )


@pytest.mark.parametrize(("p", "share"), [(0.7, 0.7), (0.7, 0.5), (0.8, 0.5), (0.03, 0.2), (0.5, 0.5)])
def test_one_atom(p: float, share: float) -> None:
    """Where every item has the same probability the error is |p - mean label|, and it is covered."""
    labels, hidden = drawn(2000, 0, share, p)
    fit = fitted(labels, asked(labels, hidden))
    check_sound(fit)
    oracle = abs(p - labels.mean())
    # an atom on a bin's edge (0.8) may be shared between two bins, never lost
    assert fit.ece.value == pytest.approx(oracle, abs=0.01)
    # the mean label alone has sd sqrt(share (1-share) / 2000); the 95% interval must hold 4.5 of them less
    slack = 2.5 * math.sqrt(share * (1 - share) / 2000)
    low, high = ends(fit.ece)
    assert low - slack <= abs(p - share) <= high + slack


SATURATED = {
    "all certain of yes": (0.6, 1.0),
    "all certain of no": (0.3, 0.0),
    "beyond any grid": (0.5, 1 - 1e-12),
}


@pytest.mark.parametrize("name", SATURATED)
def test_saturated_probabilities_have_a_place(name: str) -> None:
    """p of exactly 0 or 1 counts in the outer bins with its whole error."""
    share, p = SATURATED[name]
    labels, hidden = drawn(1500, 1, share, p)
    fit = fitted(labels, asked(labels, hidden))
    check_sound(fit)
    oracle = float(bc.binned_ece(labels, hidden).ece)
    assert fit.ece.value == pytest.approx(oracle, abs=0.005)
    assert oracle in fit.ece
    assert fit.calibrated_pvalue < 1e-6


def test_certain_and_right_is_calibrated() -> None:
    """p = label in {0, 1} for every item: no error, no evidence of one, and no claim to know it exactly."""
    labels, _ = drawn(1000, 2, 0.6, 0.0)
    fit = fitted(labels, asked(labels, labels.astype(float)))
    check_sound(fit)
    assert float(fit.ece) < 0.001
    assert fit.calibrated_pvalue > 0.5
    low, high = ends(fit.ece)
    # a share of 1 - .025^(1/n) goes unseen in 2.5% of samples
    assert low == 0
    assert high >= 1 - 0.025 ** (1 / 1000)
    assert ends(fit.accuracy)[0] <= 0.025 ** (1 / 1000)


# -- symmetries ----------------------------------------------------------------------------------------


def values(fit: bc.LatentFit) -> list[float]:
    estimates = fit.ece, fit.tce, fit.accuracy, fit.auroc, fit.brier, fit.log_loss
    return [*map(float, estimates), fit.calibrated_pvalue]


@pytest.mark.parametrize(("method", "queries"), [("latent", 1), ("latent", 2.5), ("temperature", 3)])
def test_the_order_of_queries_does_not_matter(method: str, queries: float) -> None:
    """Shuffled rows give the same estimates and the same intervals."""
    labels, p = generate(800, 4)
    answered = asked(labels, p, queries, method)
    order = np.random.default_rng(0).permutation(len(answered))
    shuffled = AnswerTable(*(column[order] for column in columns(answered)))
    first, second = fitted(labels, answered), fitted(labels, shuffled)
    assert values(first) == pytest.approx(values(second), rel=1e-9)
    assert ends(first.ece) == pytest.approx(ends(second.ece), rel=1e-9)


@pytest.mark.parametrize(("method", "queries"), [("latent", 1), ("latent", 2.5), ("temperature", 3)])
def test_swapping_the_names_of_the_classes_mirrors_the_result(method: str, queries: float) -> None:
    """Labels, shifts and answers turned round give gaps turned round, and all else as it was."""
    labels, p = generate(1000, 6)
    answered = asked(labels, p, queries, method)
    turned = AnswerTable(answered.items, -answered.shifts, answered.temperatures, 1 - answered.answers)
    here, there = fitted(labels, answered), fitted(1 - labels, turned)
    # f >= t turns into f > t: the cells are open on the other side, which no answer at an edge tells apart
    assert there.gaps == pytest.approx(-here.gaps[::-1], abs=1e-6)
    assert values(there) == pytest.approx(values(here), rel=1e-5)
    assert there.mean_confidence.value == pytest.approx(1 - float(here.mean_confidence), abs=1e-6)


# -- groups --------------------------------------------------------------------------------------------


def test_groups_undo_the_false_certainty_of_duplicates() -> None:
    """Four copies of every item look like four times the data, unless groups say that they are not."""
    labels, p = generate(500, 9)
    answered = asked(labels, p)
    once = fitted(labels, answered, resamples=400)
    rows: Any = [np.tile(column, 4) for column in (labels[answered.items], answered.shifts, answered.answers)]
    copies = np.concatenate([answered.items + 500 * k for k in range(4)])
    plain = bc.latent(rows[0], rows[1], rows[2], 0.0, copies, resamples=400)
    owners = np.tile(answered.items, 4)
    grouped = bc.latent(rows[0], rows[1], rows[2], 0.0, copies, owners, resamples=400)
    for name in ("ece", "accuracy", "auroc", "brier"):
        width = [getattr(fit, name).half_width for fit in (once, plain, grouped)]
        # half the width with four times the data; back to the first with groups (Monte Carlo error: a tenth)
        assert width[1] < 0.75 * width[0], name
        assert width[2] == pytest.approx(width[0], rel=0.25), name
    assert plain.calibrated_pvalue < once.calibrated_pvalue
    assert grouped.calibrated_pvalue > plain.calibrated_pvalue


# -- other kinds of answers ----------------------------------------------------------------------------


def test_thresholds_and_samples_go_into_one_fit() -> None:
    """A mixture tells more than either part: both halves and the whole agree within their widths."""
    labels, p = generate(2000, 11)
    cold, warm = asked(labels, p), asked(labels, p, 3, "temperature")
    whole = AnswerTable(*(np.concatenate(pair) for pair in zip(columns(cold), columns(warm), strict=True)))
    fits = [fitted(labels, part) for part in (cold, warm, whole)]
    oracle = bc.binned_ece(labels, p).ece.value
    assert fits[2].ece.half_width < min(fit.ece.half_width for fit in fits[:2])
    for fit in fits:
        assert fit.ece.value == pytest.approx(oracle, abs=fit.ece.half_width)


def test_a_forced_answer_tells_nothing() -> None:
    """Rows with an infinite shift change no estimate."""
    labels, p = generate(500, 12)
    answered = asked(labels, p)
    forced = answered.with_round(
        Round(np.arange(500), np.full(500, np.inf), np.zeros(500)), np.ones(500, np.int64)
    )
    assert values(fitted(labels, forced)) == pytest.approx(values(fitted(labels, answered)), rel=1e-9)


# -- jitter --------------------------------------------------------------------------------------------


def repeated(labels: IntArray, p: FloatArray, times: int, jitter: float) -> AnswerTable:
    """The same thresholds asked again and again."""
    answered = asked(labels, p, jitter=jitter)
    once = Round(answered.items, answered.shifts, answered.temperatures)
    rng = np.random.default_rng(1)
    for _ in range(times - 1):
        answered = answered.with_round(once, respond(log_odds(p), once, rng, jitter))
    return answered


def test_a_known_jitter_is_taken_into_account() -> None:
    """With much noise, known noise beats ignored noise on repeated thresholds."""
    labels, p = generate(3000, 5)
    answered = repeated(labels, p, 2, 0.8)
    known, ignored = (fitted(labels, answered, jitter=jitter, bins=10) for jitter in (0.8, 0.0))
    oracle = bc.binned_ece(labels, p, 10).gaps
    assert np.abs(known.gaps - oracle).sum() < np.abs(ignored.gaps - oracle).sum()
    assert ignored.contradictions > 0
