"""Whether an endpoint is steady: the noise of its threshold answers, and whether they changed during a run.

An answer that should follow from the log-odds and the shift alone may be noisy in two ways. *Jitter* moves
the log-odds a little each time, which matters only near the flip. A *flip* is an answer that is the opposite
of what it should be, however clear the case. A forced query (a shift that overrides any model) shows flips
alone. A query asked twice shows both: disagreement near the flip is probably jitter, elsewhere a flip.

The queries of a round are asked in random order. If the endpoint is the same throughout, the order tells
nothing about the answers, whatever the model: the running sum of any score of the answers, centred, is then a
Brownian bridge in the limit, and its largest distance from zero has Kolmogorov's distribution (the CUSUM test
for a change at an unknown time). The scores are what the answers have left once the label, the shift and the
temperature are accounted for: their level (all log-odds moved), times the shift (the bias acts less or more),
and times the label (the model got better or worse).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import kolmogorov

from blindcal.estimate.latent.model import working_table
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.readings import Patterns, count_patterns
from blindcal.estimate.uncertainty import share_bounds
from blindcal.records import INVALID, AnswerTable, Estimate, FloatArray, IntArray, Noise

_FLIP_RATES = np.array([0.0, 0.003, 0.01, 0.025, 0.05, 0.1, 0.2])
_JITTERS = np.array([0.0, 0.2, 0.5, 1.0, 1.7])
_PROBED = 0.7  # standard deviation of the logarithm of the jitter that a probe measures
_LEVEL, _DROP = 0.95, 1.92  # of the log-likelihood, from its maximum to the end of a 95% interval
_MOST_ITEMS = 600  # whose answers decide the density of the log-odds while the noise is estimated


@dataclass(frozen=True, slots=True)
class ControlCounts:
    """Valid control answers: forced ones and those that were wrong, repeated ones that disagreed."""

    forced: int = 0
    failed: int = 0
    repeated: int = 0
    disagreed: int = 0


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """The noise, with intervals; ``plausible`` are other values that explain the controls about as well."""

    flip_rate: Estimate
    jitter: Estimate
    plausible: tuple[Noise, ...] = ()

    @property
    def posterior(self) -> NoisePosterior:
        """The same as a fit takes it."""
        return NoisePosterior(Noise(float(self.jitter), float(self.flip_rate)), self.plausible)


def estimate_noise(
    labels: IntArray, answered: AnswerTable, repeats: AnswerTable, counts: ControlCounts, jitter: float
) -> NoiseEstimate:
    """Estimate the noise of a run's threshold answers.

    ``repeats`` are answers to queries of the run that were asked once more, and ``jitter`` is what the probe
    measured.
    """
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
    corners = {
        _best(fit, near, axis, int(place))
        for axis in (0, 1)
        for place in np.flatnonzero(near.any(axis=1 - axis))[[0, -1]]
    }
    return NoiseEstimate(
        _between(float(flip_rate), _FLIP_RATES[near.any(axis=0)]),
        _between(float(noise), _JITTERS[near.any(axis=1)]),
        tuple(Noise(float(_JITTERS[s]), float(_FLIP_RATES[e])) for s, e in sorted(corners)),
    )


def forced_noise(counts: ControlCounts, jitter: float) -> NoiseEstimate:
    """The noise of answers of which there are more than two: the share of flips from forced queries alone.

    Repeated queries that disagree do not tell which of several close answers moved, so the jitter stays what
    the probe found.
    """
    failed, (low, high) = counts.failed, share_bounds(counts.failed, counts.forced, (1 - _LEVEL) / 2)
    rate = Estimate(failed / max(1, counts.forced), low, min(0.5, high), _LEVEL)
    ends = (low, min(0.5, high)) if failed else ()
    return NoiseEstimate(rate, Estimate(jitter), tuple(Noise(jitter, end) for end in ends))


def _log_likelihood(
    labels: IntArray, answered: AnswerTable, repeats: AnswerTable, counts: ControlCounts, noise: Noise
) -> float:
    """Log-likelihood of the controls, given the answers of the run."""
    if noise == Noise() or (counts.failed and not noise.flip_rate):
        return -np.inf
    passed = counts.forced - counts.failed
    total = passed * np.log1p(-noise.flip_rate)
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


def _best(fit: FloatArray, near: npt.NDArray[np.bool_], axis: int, place: int) -> tuple[int, int]:
    """The likeliest point of the grid at one end of the interval of a parameter."""
    along = np.where(near, fit, -np.inf).take(place, axis=axis)
    other = int(along.argmax())
    return (place, other) if axis == 0 else (other, place)


def _between(value: float, plausible: FloatArray) -> Estimate:
    return Estimate(value, float(plausible.min()), float(plausible.max()), _LEVEL)


LEAST_ANSWERS = 100  # in a round, below which nothing is tested
_MOST_SHIFTS = 20  # ranges of the shift within which answers are compared
_IN_A_RANGE = 25  # answers, at least


@dataclass(frozen=True, slots=True)
class Drift:
    """The test of "the answers did not change during the run".

    ``pvalue`` allows for all rounds and scores that were tested. ``at`` is the number of queries after which
    the change was, if there was one.
    """

    pvalue: float
    at: int


def drift_test(
    labels: IntArray, rounds: Sequence[AnswerTable], requests: Sequence[IntArray] | None = None
) -> Drift | None:
    """Test for a change; each round is in the order of asking. ``None`` if no round has enough answers.

    ``requests`` has the number of the request that brought each answer of each round, if some brought several
    answers about an item. These are alike, and their order tells nothing: they count as one.
    """
    tests: list[Drift] = []
    begin = 0
    for k, asked in enumerate(rounds):
        valid = np.flatnonzero(asked.answers != INVALID)
        if valid.size >= LEAST_ANSWERS:
            number = np.arange(len(asked)) if requests is None else requests[k]
            begins = np.flatnonzero(np.diff(number[valid], prepend=-1))  # of each request
            for score in _scores(labels, asked.rows(valid)):
                if (test := _cusum(score, begins)) is not None:
                    tests.append(Drift(test.pvalue, begin + int(valid[test.at - 1]) + 1))
        begin += len(asked)
    if not tests:
        return None
    clearest = min(tests, key=lambda test: test.pvalue)
    return Drift(min(1.0, clearest.pvalue * len(tests)), clearest.at)


def _scores(labels: IntArray, asked: AnswerTable) -> tuple[FloatArray, ...]:
    from scipy.stats import rankdata  # slow to import, and needed only once a run is finished

    label = labels[asked.items]
    rank = (rankdata(asked.shifts) - 0.5) / len(asked)
    ranges = max(1, min(_MOST_SHIFTS, len(asked) // (2 * _IN_A_RANGE)))
    strata = np.column_stack([label, asked.temperatures, np.floor(ranges * rank)])
    _, stratum = np.unique(strata, axis=0, return_inverse=True)
    stratum = stratum.reshape(-1)
    mean = np.bincount(stratum, asked.answers) / np.bincount(stratum)
    left = asked.answers - mean[stratum]
    return left, left * (rank - 0.5), left * (label - 0.5)


def _cusum(score: FloatArray, begins: IntArray) -> Drift | None:
    """The test of one score in one round; ``at`` counts its answers, ``begins`` is where requests begin."""
    centred = np.add.reduceat(score - score.mean(), begins)
    scale = np.sqrt((centred**2).sum())
    if scale < 1e-9 or begins.size < 2:
        return None
    path = np.abs(np.cumsum(centred)[:-1]) / scale
    at = int(path.argmax())
    return Drift(float(kolmogorov(path[at])), int(begins[at + 1]))
