"""Populations with known truth, for measuring estimators: a distribution of f and a curve E[Y|f]; and audits.

`CHOSEN` are six shapes chosen by hand, and `ATOMS` three with many items at the very same probability.
`drawn`, `narrow` and `grouped` make a new population for every seed, so nothing was tuned on it. `Recorded`
uses a real model's scores as a population.
"""

from __future__ import annotations

from record import RESAMPLES

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

import blindcal as bc
from blindcal.estimate.findings import ACCEPTED_ERROR
from blindcal.estimate.grid import Cells
from blindcal.estimate.measures import atb, brier_parts, coverage_at, risk, smooth_ece
from blindcal.estimate.problem import Problem
from blindcal.estimate.shown import AnswersFit, fit_answers
from blindcal.items.score_files import read_scores
from blindcal.methods import make_design, method_of
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import ask

#: Coverages at which the error of the surest items is checked.
COVERAGES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Population:
    """Draws of the hidden log-odds s, and the probability of a positive label given f."""

    name: str
    draw: Callable[[np.random.Generator, int], FloatArray]
    curve: Callable[[FloatArray], FloatArray]

    def sample(self, n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """Labels and probabilities of n items."""
        f = expit(self.draw(rng, n))
        return (rng.random(n) < self.curve(f)).astype(np.int64), f

    def ece(self, bins: int = 5, n: int = 1_000_000) -> float:
        """The population's binned ECE, from the mean gaps over many draws (no label noise)."""
        f = expit(self.draw(np.random.default_rng(12345), n))
        where = np.minimum((f * bins).astype(np.int64), bins - 1)
        return float(np.abs(np.bincount(where, f - self.curve(f), minlength=bins)).sum() / n)

    def others(self, n: int = 400_000) -> dict[str, float]:
        """Other quantities of the population that an audit estimates (no label noise)."""
        return true_values(*self.many(n))

    def many(self, n: int = 400_000) -> tuple[FloatArray, FloatArray]:
        """Many probabilities, and for each the chance of a positive label."""
        f = expit(self.draw(np.random.default_rng(12345), n))
        return f, self.curve(f)


def true_values(f: FloatArray, up: FloatArray) -> dict[str, float]:
    """Quantities of items with the probabilities ``f`` whose labels are positive with probability ``up``."""
    p, where = np.unique(f, return_inverse=True)
    positive, negative = np.bincount(where, up), np.bincount(where, 1 - up)
    below = np.cumsum(negative) - negative / 2
    table, cells = np.concatenate([negative, positive]) / f.size, Cells.at(p)
    parts = dict(
        zip(("miscalibration", "discrimination", "uncertainty"), brier_parts(table, cells), strict=True)
    )
    errors = risk(table, cells, np.array(COVERAGES))
    right = float(np.where(f >= 0.5, up, 1 - up).mean())
    s = np.clip(logit(np.clip(f, 1e-12, 1 - 1e-12)), -13, 13)  # as the estimated log loss counts them
    return {
        **{name: float(part) for name, part in parts.items()},
        "smece": float(smooth_ece(table, cells)),
        "atb": atb(table, cells),
        "aurc": float(errors[-1]),
        "coverage": coverage_at(table, cells, ACCEPTED_ERROR),
        **{f"error at {c:g}": float(error) for c, error in zip(COVERAGES, errors, strict=False)},
        "accuracy": right,
        "overconfidence": float(np.maximum(f, 1 - f).mean()) - right,
        "leaning": float((f - up).mean()),
        "auroc": float(positive @ below / (positive.sum() * negative.sum())),
        "brier": float(((1 - up) * f**2 + up * (1 - f) ** 2).mean()),
        "log_loss": float(((1 - up) * np.logaddexp(0, s) + up * np.logaddexp(0, -s)).mean()),
        "mean_confidence": float(f.mean()),
    }


def _beta(a: float, b: float) -> Callable[[np.random.Generator, int], FloatArray]:
    return lambda rng, n: logit(np.clip(rng.beta(a, b, n), 1e-12, 1 - 1e-12))


def _two_humps(rng: np.random.Generator, n: int) -> FloatArray:
    return np.where(rng.random(n) < 0.45, -3.0, 3.5) + 2.0 * rng.standard_normal(n)


#: Five miscalibrated populations, then an exactly calibrated one.
CHOSEN = (
    Population("confident and wrong", _two_humps, lambda f: expit(0.35 * logit(f) - 0.2)),
    Population(
        "underconfident", lambda rng, n: 0.2 + rng.standard_normal(n), lambda f: expit(2.2 * logit(f))
    ),
    Population(
        "sine-shaped curve", _beta(1.2, 1.0), lambda f: f + 0.15 * np.sin(2 * np.pi * f) * (f - f**2) * 4
    ),
    Population("crowded at 0 and 1", _beta(0.15, 0.2), lambda f: 0.12 + 0.7 * f),
    Population(
        "rare positives",
        lambda rng, n: -3.0 + 1.5 * rng.standard_normal(n),
        lambda f: expit(0.7 * logit(f) - 1.5),
    ),
    Population("exactly calibrated", _beta(0.8, 0.6), lambda f: f),
)


def _sure(rng: np.random.Generator, n: int) -> FloatArray:
    return np.where(rng.random(n) < 0.5, np.inf, -np.inf)


def _third_at_half(rng: np.random.Generator, n: int) -> FloatArray:
    return np.where(rng.random(n) < 1 / 3, 0.0, 0.3 + 2.0 * rng.standard_normal(n))


#: Populations with ties: 16-bit logits make them at 1/2, and saturated probabilities at 0 and 1.
ATOMS = (
    Population("always sure", _sure, lambda f: 0.2 + 0.6 * f),
    Population("a third at 1/2, calibrated", _third_at_half, lambda f: f),
    Population("a third at 1/2, overconfident", _third_at_half, lambda f: expit(0.5 * logit(f) + 0.4)),
)


def drawn(seed: int) -> Population:
    """A random population, different for every seed.

    The log-odds are a mixture of one to three normals. The curve is a line in the log-odds plus a wave, and
    a share of the labels is random.
    """
    rng = np.random.default_rng([seed, 20261116])
    humps = int(rng.integers(1, 4))
    share = rng.dirichlet(np.ones(humps))
    centre, spread = 2.5 * rng.standard_normal(humps), rng.uniform(0.4, 2.5, humps)
    offset, slope = 0.7 * rng.standard_normal(), float(np.exp(0.5 * rng.standard_normal()))
    height, length, phase = rng.uniform(0, 0.8), rng.uniform(2, 6), rng.uniform(0, 2 * np.pi)
    noise = rng.uniform(0, 0.1)

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        which = rng.choice(humps, size=n, p=share)
        return np.asarray(centre[which] + spread[which] * rng.standard_normal(n))

    def curve(f: FloatArray) -> FloatArray:
        s = logit(np.clip(f, 1e-12, 1 - 1e-12))
        wave = height * np.sin(2 * np.pi * s / length + phase)
        return np.asarray(noise / 2 + (1 - noise) * expit(offset + slope * s + wave))

    return Population(f"drawn {seed}", draw, curve)


def narrow(seed: int) -> Population:
    """A random population, different for every seed, with a narrow but possibly informative confidence."""
    rng = np.random.default_rng([seed, 77])
    centre, spread = 1.5 * rng.standard_normal(), float(np.exp(rng.uniform(np.log(0.1), np.log(0.8))))
    slope, offset = rng.uniform(0, 1.5) / spread, 0.7 * rng.standard_normal()
    return Population(
        f"narrow {seed}",
        lambda rng, n: centre + spread * rng.standard_normal(n),
        lambda f: expit(offset + slope * (logit(f) - centre)),
    )


@dataclass(frozen=True)
class Grouped:
    """A population whose items come in groups.

    All items of a group share a normal offset of their log-odds, with standard deviation ``shift``, and one
    of the log-odds of a positive label, with standard deviation ``label``.
    """

    within: Population
    shift: float
    label: float

    @property
    def items(self) -> Population:
        """The population of single items, over all groups."""
        at, weight = np.polynomial.hermite_e.hermegauss(15)
        within = self.within

        def curve(f: FloatArray) -> FloatArray:
            up = logit(np.clip(within.curve(f), 1e-12, 1 - 1e-12))
            return np.asarray(expit(up[:, None] + self.label * at) @ weight / weight.sum())

        return Population(
            f"{within.name} in groups",
            lambda rng, n: within.draw(rng, n) + self.shift * rng.standard_normal(n),
            curve,
        )

    def sample(
        self, groups: int, size: int, rng: np.random.Generator
    ) -> tuple[IntArray, FloatArray, IntArray]:
        """Labels, probabilities and group numbers of groups of ``size`` items."""
        which = np.repeat(np.arange(groups), size)
        f = expit(self.within.draw(rng, which.size) + self.shift * rng.standard_normal(groups)[which])
        up = logit(np.clip(self.within.curve(f), 1e-12, 1 - 1e-12))
        up = expit(up + self.label * rng.standard_normal(groups)[which])
        return (rng.random(which.size) < up).astype(np.int64), f, which


def grouped(seed: int) -> Grouped:
    """A random population in groups, different for every seed."""
    rng = np.random.default_rng([seed, 78])
    return Grouped(drawn(seed), rng.uniform(0, 1.5), rng.uniform(0, 1))


@dataclass(frozen=True)
class Recorded:
    """A real model's scores on labelled items, as the whole population; samples are with replacement."""

    path: Path

    def sample(self, n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """Labels and probabilities of n items."""
        scores = read_scores(self.path)
        picked = rng.integers(scores.labels.size, size=n)
        return scores.labels[picked], scores.p[picked]

    def others(self) -> dict[str, float]:
        """Other quantities of the population that an audit estimates."""
        return true_values(*self.many())

    def many(self) -> tuple[FloatArray, FloatArray]:
        """The probabilities and the labels of all items."""
        scores = read_scores(self.path)
        return scores.p, scores.labels.astype(np.float64)

    def ece(self, bins: int = 5) -> float:
        """The population's binned ECE."""
        scores = read_scores(self.path)
        return float(bc.binned_ece(scores.labels, scores.p, bins).ece)


def simulated_fit(
    labels: IntArray,
    p: FloatArray,
    *,
    method: str = "latent",
    queries: float = 1.0,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> AnswersFit:
    """The fit of one simulated audit of items with known probabilities."""
    design = make_design(method, labels, queries=queries, seed=seed)
    answers = ask(design, p, seed=seed, logprobs=method_of(method).logprobs)
    problem = Problem.of_answers(labels, answers)
    return fit_answers(problem, resamples=resamples, seed=seed)
