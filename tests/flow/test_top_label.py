"""Estimates with more than two answers, about the answer given (METHOD 8)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax
from scipy.stats import binom

from blindcal.choice_design import (
    DrawnAnswersDesign,
    GivenAnswerDesign,
    choice_round,
    gumbel_numbers,
)
from blindcal.design import answer_design
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.grid import EDGES_S, HALF, MID_S
from blindcal.estimate.latent.estimator import fit_problem
from blindcal.estimate.latent.excess import excess_of
from blindcal.estimate.problem import Excess, Problem
from blindcal.estimate.readings import margin_axis
from blindcal.estimate.truth import drawn_answer_ece, top_label_ece
from blindcal.estimation import EstimationInput, estimate
from blindcal.items.score_files import read_choices
from blindcal.methods import METHODS, make_design
from blindcal.records import INVALID, PLAIN, AnswerTable, FloatArray, IntArray, Noise, Round
from blindcal.simulation.simulate import ask_choices, simulate
from fitting import ends, estimates_in
from paths import SHARED

CHOICES = SHARED / "choices"


def model(n: int, k: int = 4, seed: int = 0, heat: float = 1.3) -> tuple[IntArray, FloatArray]:
    """Labels and logits of a model that is overconfident by the factor ``heat``."""
    rng = np.random.default_rng([seed, 99])
    truth = 1.5 * rng.standard_normal((n, k))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return labels, heat * truth


def answers_of(labels: IntArray, logits: FloatArray, queries: float = 2.0, seed: int = 0) -> AnswerTable:
    choices = np.isfinite(logits).sum(axis=1)
    return ask_choices(GivenAnswerDesign(labels, choices, queries, seed), logits, seed=seed)


def problem_of(labels: IntArray, logits: FloatArray, queries: float = 2.0, seed: int = 0) -> Problem:
    answered = answers_of(labels, logits, queries, seed)
    return Problem.of_answers(labels, answered, choices=np.isfinite(logits).sum(axis=1))


# What a query says


@pytest.mark.parametrize("shift", [-2.0, -0.5, 1.0])
def test_gumbel_numbers_read_the_log_odds_against_all_other_answers(shift: float) -> None:
    """P(answer j) = exp(-exp(-(s + b))), whatever the logits of the others are."""
    logits, count = np.array([0.3, 1.2, -0.4, 0.9, -2.0]), 20_000
    rng = np.random.default_rng(1)
    items = np.zeros(count, np.int64)
    about = np.full(count, 1)
    asked = choice_round(items, np.array([5]), np.full(count, shift), about, gumbel_numbers((count, 5), rng))
    assert asked.biases is not None
    positive = int(((logits + asked.biases).argmax(axis=1) == 1).sum())
    s = logits[1] - logsumexp(np.delete(logits, 1))
    p = np.exp(-np.exp(-(s + shift)))
    assert binom.ppf(1e-5, count, p) <= positive <= binom.ppf(1 - 1e-5, count, p)


def test_the_truth_is_that_of_a_loop() -> None:
    """Top-label ECE equals its definition, item by item."""
    labels, logits = model(500, 5)
    f = softmax(logits, axis=1)
    gaps = np.zeros(10)
    for label, row in zip(labels, f, strict=True):
        best = int(row.argmax())
        gaps[min(int(row[best] * 10), 9)] += row[best] - (best == label)
    assert float(top_label_ece(labels, logits, 10).ece) == pytest.approx(np.abs(gaps / 500).sum())


def test_answers_are_reduced_to_the_given_one() -> None:
    """The first plain answer is the one given; a query about it says "again" or not, others are left out."""
    biases = [[0, 0, -1.0, 0], [0.3, -2.0, 0.7, -0.1], [-2.0, 0, 0, 0], [-1.0, 0, 0, 0]]
    table = AnswerTable(
        items=np.array([0, 1, 2, 3, 0, 1, 1, 2]),
        shifts=np.array([0, 0, 0, 0, -1.0, -2.0, -2.0, -1.0]),
        temperatures=np.zeros(8),
        answers=np.array([2, 1, INVALID, 3, 2, 0, 1, 0]),
        about=np.array([PLAIN, PLAIN, PLAIN, PLAIN, 2, 1, 0, 0]),
        biases=np.array([[0, 0, 0, 0]] * 4 + biases),
    )
    problem = Problem.of_answers(np.array([2, 0, 0, 1]), table, choices=np.array([4, 4, 4, 3]))
    assert problem.given is not None
    assert problem.given.tolist() == [2, 1, INVALID, INVALID]  # item 3 does not have the answer 3
    assert problem.labels.tolist()[:2] == [1, 0]
    assert (problem.readings.items.tolist(), problem.readings.answers.tolist()) == ([0, 1], [1, 0])
    assert problem.readings.gumbel is not None
    assert problem.readings.gumbel.tolist() == [False, True]


def test_the_first_of_several_drawn_answers_is_the_one_given() -> None:
    """Without a plain answer at T = 0, later draws say whether the first one comes again."""
    zeros, ones = np.zeros(3), np.ones(3)
    table = AnswerTable(zeros.astype(int), zeros, ones, np.array([1, 2, 1]), about=np.full(3, PLAIN))
    problem = Problem.of_answers(np.array([1]), table, choices=np.array([3]))
    assert not problem.greedy
    assert problem.given is not None
    assert problem.given.tolist() == [1]
    assert problem.readings.answers.tolist() == [0, 1]


# The likelihood


def test_several_noisy_answers_of_an_item_share_its_log_odds() -> None:
    """Two Gumbel answers at one margin are averaged over the excess together, not one by one."""
    axis = margin_axis(np.array([6]), Excess(0.0, 0.0))
    log_one = np.log(expit(axis.nodes))[None]
    both = axis.averaged(2 * log_one)[1][0]
    apart = axis.averaged(log_one)[1][0] ** 2
    assert (both[HALF:] >= apart[HALF:] - 1e-12).all()
    assert (both[HALF : HALF + 100] > apart[HALF : HALF + 100] + 1e-6).all()


# Whole estimates


@pytest.mark.parametrize("k", [3, 6])
def test_the_truth_is_inside_the_intervals(k: int) -> None:
    """One audit of an overconfident model: ECE, accuracy, overconfidence and Brier score."""
    labels, logits = model(4000, k, seed=k)
    fit = fit_problem(problem_of(labels, logits), bins=10, resamples=200, level=0.999)
    f = softmax(logits, axis=1).max(axis=1)
    right = (logits.argmax(axis=1) == labels).astype(float)
    assert float(top_label_ece(labels, logits, 10).ece) in fit.ece
    assert fit.accuracy.value == pytest.approx(right.mean())
    assert f.mean() - right.mean() in fit.overconfidence
    assert ((f - right) ** 2).mean() in fit.brier
    assert ends(fit.overconfidence)[0] > 0
    assert fit.calibrated_pvalue < 1e-6


@pytest.mark.parametrize(("queries", "error"), [(2.0, 0.03), (4.0, 0.008)])
def test_the_excess_may_tell_about_being_right(queries: float, error: float) -> None:
    """If wrong answers have more excess at the same margin, more queries bring the truth nearer."""
    logits, rng = model(4000, 6)[1], np.random.default_rng([0, 98])
    ordered, given = np.sort(logits, axis=1), logits.argmax(axis=1)
    excess = logsumexp(ordered[:, :-1], axis=1) - ordered[:, -2]
    right = rng.random(4000) < expit(ordered[:, -1] - ordered[:, -2] - 5 * (excess - 0.7) - 0.7)
    labels = np.where(right, given, (given + 1) % 6)
    fit = fit_problem(problem_of(labels, logits, queries), bins=10, resamples=100)
    truth = ((softmax(logits, axis=1).max(axis=1) - right) ** 2).mean()
    assert truth in fit.brier
    assert fit.brier.value == pytest.approx(truth, abs=error)


def test_a_calibrated_model_is_not_accused() -> None:
    """Of three calibrated models at most one has a p-value below 5%: more do once in 140 times."""
    rejected = 0
    for seed in range(3):
        fit = fit_problem(problem_of(*model(800, 4, seed, heat=1.0), seed=seed), resamples=2)
        rejected += fit.calibrated_pvalue < 0.05
    assert rejected <= 1


def test_the_excess_is_found() -> None:
    """The mean excess at the margins that occur is that of the logits."""
    labels, logits = model(6000, 5, heat=1.0)
    posterior = excess_of(problem_of(labels, logits, 3.0), Noise())
    assert posterior is not None
    ordered = np.sort(logits, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    excess = logsumexp(ordered[:, :-1], axis=1) - ordered[:, -2]
    cells = np.searchsorted(EDGES_S, margin, side="right") - 1
    axis = margin_axis(np.full(1, 5), posterior.best)
    expected = (MID_S[:, None] - axis.nodes).mean(axis=1)[cells]
    assert expected.mean() == pytest.approx(excess.mean(), abs=0.08)


def test_different_numbers_of_answers_are_audited_together() -> None:
    """Items with two to five answers: those that an item does not have are never given."""
    labels, logits = model(3000, 5, seed=3)
    choices = np.random.default_rng(0).integers(2, 6, 3000)
    logits[np.arange(5) >= choices[:, None]] = -np.inf
    f = softmax(logits, axis=1)
    rng = np.random.default_rng(1)
    labels = np.array([rng.choice(5, p=row) for row in f])  # calibrated
    answered = answers_of(labels, logits)
    assert (answered.answers < choices[answered.items]).all()
    problem = Problem.of_answers(labels, answered, choices=choices)
    fit = fit_problem(problem, bins=5, resamples=100, level=0.999)
    assert float(top_label_ece(labels, logits, 5).ece) in fit.ece
    assert fit.mean_confidence.value == pytest.approx(f.max(axis=1).mean(), abs=0.03)


def test_nothing_is_made_of_plain_answers_alone() -> None:
    """Without a query about an answer its confidence is unknown."""
    labels, logits = model(50)
    choices = np.full(50, 4)
    plain = answer_design(
        DrawnAnswersDesign(choices, 1.0, 0), lambda asked, _: logits[asked.items].argmax(axis=1)
    )
    with pytest.raises(NotIdentifiedError, match="no query about an answer that was given"):
        fit_problem(Problem.of_answers(labels, plain, choices=choices))


# Designs


@pytest.mark.parametrize("queries", [1.4, 2.0, 3.0])
def test_queries_count_the_plain_answer(queries: float) -> None:
    """Every item is asked plainly once, and the rest of the budget goes to queries about the given answer.

    An item without a valid plain answer is not asked again.
    """
    labels, logits = model(400)
    given = np.where(np.arange(400) % 10 == 0, INVALID, logits.argmax(axis=1))

    def answer(asked: Round, _: int) -> IntArray:
        assert asked.biases is not None
        answers = (logits[asked.items] + asked.biases).argmax(axis=1)
        return np.where(given[asked.items] == INVALID, INVALID, answers)

    answered = answer_design(GivenAnswerDesign(labels, np.full(400, 4), queries, 5), answer)
    assert answered.about is not None
    again = answered.about != PLAIN
    assert np.array_equal(np.sort(answered.items[~again]), np.arange(400))
    assert again.sum() == round(queries * 400) - 400
    assert (answered.about[again] == given[answered.items[again]]).all()


TOO_FEW, ONLY_TWO = "more than 1 per item is needed, got 1", "audits two answers only; with more, use one of"
REFUSED = {"latent": TOO_FEW, "sampling": TOO_FEW, "temperature": TOO_FEW}
REFUSED |= {name: f"{name} {ONLY_TWO}" for name in ("blind", "extraction")}


@pytest.mark.parametrize("method", REFUSED)
def test_what_several_answers_need_is_named(method: str) -> None:
    """One query per item is the plain answer, which tells nothing; some methods are for two answers."""
    queries = 2.0 if method == "extraction" else 1.0
    with pytest.raises(InputError, match=REFUSED[method]):
        make_design(method, np.array([0, 1, 2]), queries=queries, choices=np.array([3, 3, 3]))


# Methods


SEVERAL = tuple(name for name, method in METHODS.items() if method.several is not None and method.simulable)


@pytest.mark.parametrize("method", SEVERAL)
def test_every_method_estimates(method: str) -> None:
    """Also by answer and label, and for each part of a breakdown."""
    labels, logits = model(600)
    choices = np.full(600, 4)
    queries = METHODS[method].usual_queries(several=True)
    design = make_design(method, labels, queries=queries, bins=5, choices=choices)
    findings = estimate(
        EstimationInput(
            method=method,
            design=design,
            labels=labels,
            answers=ask_choices(design, logits, logprobs=METHODS[method].logprobs),
            parts=[("low", "high")[k % 2] for k in range(600)] if method == "latent" else None,
            bins=5,
            resamples=40,
            choices=choices,
        )
    )
    assert findings.ece.value is not None
    assert all(float(each) in each for each in estimates_in(findings) if each.has_interval)
    assert findings.leaning.value is None
    confusion = np.array(findings.confusion)
    assert confusion.sum() == 600
    assert [(row.right, row.given) for row in findings.by_answer] == [
        (confusion[k, k], confusion[:, k].sum()) for k in range(4)
    ]
    assert findings.accuracy.value == pytest.approx(np.trace(confusion) / 600)
    if method == "latent":
        assert [part.name for part in findings.parts] == ["high", "low"]
        assert sum(part.positive_labels for part in findings.parts) == np.trace(confusion)
        assert findings.parts_pvalue is not None


def test_logprobs_give_the_truth() -> None:
    """Readings of the given answer's log-odds leave almost no error."""
    labels, logits = model(2000)
    simulated = simulate("logprobs", labels, logits, queries=1.0, bins=10, repeats=1)
    assert simulated.mae < 2e-3


@pytest.mark.parametrize("method", ["latent", "blind", "sampling", "temperature", "logprobs"])
def test_two_answers_through_the_new_path_are_the_old_result(method: str) -> None:
    """The estimates equal those of the probabilities of the second answer, to the last digit."""
    labels, logits = model(500, 2)
    p = expit(logits[:, 1] - logits[:, 0])
    queries = METHODS[method].queries
    new = simulate(method, labels, logits, queries=queries, repeats=2)
    assert new == simulate(method, labels, p, queries=queries, repeats=2)


@pytest.mark.skipif(not CHOICES.is_dir(), reason="the recorded choices are not beside the project")
def test_real_models_are_estimated_as_well_as_promised() -> None:
    """Mean error of the top-label ECE (10 bins) on the five files with one query: at most .008 at seed 0."""
    errors = []
    for path in sorted(CHOICES.glob("*.csv.gz")):
        known = read_choices(path)
        errors.append(simulate("latent", known.labels, known.logits, bins=10, repeats=1).mae)
    assert len(errors) == 5
    assert np.mean(errors) <= 0.008


def test_the_truth_of_a_drawn_answer_counts_each_by_its_probability() -> None:
    """It is the mean over draws of the top-label error of the drawn answer, and `repeated` estimates it."""
    labels, logits = model(4000, 4, seed=9)
    f = softmax(logits, axis=1)
    rng = np.random.default_rng(0)
    gaps = np.zeros(5)
    for _ in range(40):
        drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        p = f[np.arange(4000), drawn]
        gaps += np.bincount(np.minimum((p * 5).astype(int), 4), p - (drawn == labels), minlength=5)
    truth = drawn_answer_ece(labels, logits, 5)
    assert truth.gaps == pytest.approx(gaps / (40 * 4000), abs=2e-3)
    assert truth.counts.sum() == pytest.approx(4000)
    simulated = simulate("repeated", labels, logits, queries=3.0, repeats=2)
    assert simulated.oracle == float(truth.ece)
    assert simulated.mae < 0.02
