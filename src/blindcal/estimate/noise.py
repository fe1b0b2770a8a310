"""The noise of an endpoint's threshold answers.

*Jitter* moves the log-odds a little each time; a *flip* reverses an answer, however clear. Forced queries (a
shift that overrides any model) show flips alone, repeated ones both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blindcal.estimate.latent.model import working_table
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.uncertainty import share_bounds
from blindcal.records import AnswerTable, Estimate, FloatArray, IntArray, Noise

_FLIP_RATES = np.array([0.0, 0.003, 0.01, 0.025, 0.05, 0.1, 0.2])
_JITTERS = np.array([0.0, 0.2, 0.5, 1.0, 1.7])
_PROBED = 0.7  # standard deviation of the logarithm of the jitter that a probe measures
_LEVEL, _DROP = 0.95, 1.92  # of the log-likelihood, from its maximum to the end of a 95% interval
_NOISIER = 0.025  # p-value below which answers have become noisier; honest noise is below it in under 2%
_MOST_ITEMS = 600  # whose answers decide the density of the log-odds while the noise is estimated


@dataclass(frozen=True, slots=True)
class ControlCounts:
    """Valid control answers: forced ones and wrong among them, repeated ones and disagreeing among them."""

    forced: int = 0
    failed: int = 0
    repeated: int = 0
    disagreed: int = 0

    def __add__(self, other: ControlCounts) -> ControlCounts:
        forced, failed = self.forced + other.forced, self.failed + other.failed
        return ControlCounts(forced, failed, self.repeated + other.repeated, self.disagreed + other.disagreed)

    def noisier_than(self, before: ControlCounts) -> bool:
        """Whether answers are wrong or disagree more often than ``before`` (Fisher's exact test of each)."""
        from scipy.stats import hypergeom  # slow to import, and needed only for decisions

        both = self + before
        wrong = self.failed, (both.forced, both.failed, self.forced)
        differ = self.disagreed, (both.repeated, both.disagreed, self.repeated)
        return any(n > 0 and hypergeom.sf(n - 1, *counts) < _NOISIER for n, counts in (wrong, differ))


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """The noise, with intervals; ``plausible`` values explain the controls about as well."""

    flip_rate: Estimate
    jitter: Estimate
    plausible: tuple[Noise, ...] = ()

    @property
    def posterior(self) -> NoisePosterior:
        return NoisePosterior(Noise(float(self.jitter), float(self.flip_rate)), self.plausible)


def estimate_noise(
    labels: IntArray, answered: AnswerTable, repeats: AnswerTable, counts: ControlCounts, jitter: float
) -> NoiseEstimate:
    """Estimate a run's noise; ``repeats`` are queries asked again, ``jitter`` is what the probe measured."""
    if not (counts.failed or counts.disagreed):
        # no answer tells jitter from none; a flip rate of e passes with chance (1 - e)^(forced + 2 repeated)
        clean = counts.forced + 2 * counts.repeated
        most = 1 - np.exp(-_DROP / clean) if clean else 0.5
        return NoiseEstimate(Estimate(0.0, 0.0, min(0.5, float(most)), _LEVEL), Estimate(jitter))
    fit = np.array(
        [
            [_log_likelihood(labels, answered, repeats, counts, Noise(s, e)) for e in _FLIP_RATES]
            for s in _JITTERS
        ]
    )
    if jitter > 0:
        off = np.log(np.maximum(_JITTERS, _JITTERS[1] / 2) / jitter) / _PROBED
        fit -= 0.5 * off[:, None] ** 2
    weights = np.exp(fit - fit.max())
    weights /= weights.sum()
    near = fit > fit.max() - _DROP
    flip_rate, noise = weights.sum(axis=0) @ _FLIP_RATES, weights.sum(axis=1) @ _JITTERS
    plausible = np.where(near, fit, -np.inf)
    jitters, flip_rates = (np.flatnonzero(near.any(axis=1 - axis))[[0, -1]] for axis in (0, 1))
    corners = {(int(s), int(plausible[s].argmax())) for s in jitters}
    corners |= {(int(plausible[:, e].argmax()), int(e)) for e in flip_rates}
    return NoiseEstimate(
        _between(float(flip_rate), _FLIP_RATES[near.any(axis=0)]),
        _between(float(noise), _JITTERS[near.any(axis=1)]),
        tuple(Noise(float(_JITTERS[s]), float(_FLIP_RATES[e])) for s, e in sorted(corners)),
    )


def forced_noise(counts: ControlCounts, jitter: float) -> NoiseEstimate:
    """The noise with more than two answers: flips from forced queries, jitter from the probe."""
    # disagreement does not tell which of several close answers moved
    failed, (low, high) = counts.failed, share_bounds(counts.failed, counts.forced, (1 - _LEVEL) / 2)
    rate = Estimate(failed / max(1, counts.forced), low, min(0.5, high), _LEVEL)
    ends = (low, min(0.5, high)) if failed else ()
    return NoiseEstimate(rate, Estimate(jitter), tuple(Noise(jitter, end) for end in ends))


def _log_likelihood(
    labels: IntArray, answered: AnswerTable, repeats: AnswerTable, counts: ControlCounts, noise: Noise
) -> float:
    if noise == Noise() or (counts.failed and not noise.flip_rate):
        return -np.inf
    total = (counts.forced - counts.failed) * np.log1p(-noise.flip_rate)
    if counts.failed:
        total += counts.failed * np.log(noise.flip_rate)
    if not len(repeats):
        return float(total)
    again = np.unique(repeats.items)
    others = np.setdiff1d(answered.items, again)
    some = np.random.default_rng(0).permutation(others)[: max(0, _MOST_ITEMS - again.size)]

    def patterns(rows: AnswerTable) -> Patterns:
        return count_patterns(labels, rows, noise=noise)

    first = answered.of(again)
    table = working_table(patterns(answered.of(np.union1d(again, some))))
    once, twice = patterns(first), patterns(first.joined(repeats))
    # answers under the table with the repeats, minus those without: the repeats given the answers
    return float(total + twice.counts @ np.log(twice.mass(table)) - once.counts @ np.log(once.mass(table)))


def _between(value: float, plausible: FloatArray) -> Estimate:
    return Estimate(value, float(plausible.min()), float(plausible.max()), _LEVEL)
