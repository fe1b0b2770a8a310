"""The alarms of a stream of answers: endpoint, questions and calibration; and confidence sequences of gaps.

Each alarm has an e-process: the wealth of fixed bets against a claim, which grows if the claim is false. If
the claim holds, the chance that the wealth ever reaches 1/level is at most ``level`` (Ville's inequality),
however often one looks. Half of the wealth bets from the first observation on, the rest from later starting
points, so that a change after a long quiet time is noticed soon too; until then it is cash. Bets are products
over observations, so their order does not matter. A late one counts for the starting points before its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import logsumexp

from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.streams.betting import Game, Observed, noise_effects
from blindcal.records import BoolArray, Estimate, FloatArray, IntArray

AlarmName: TypeAlias = Literal["endpoint", "questions", "calibration"]

SPACING = 500
"""Distance of the first starting points, in items."""
_EVEN_STARTS = 20  # starting points at even distances; later ones are a tenth farther than the one before
_GROWTH = 1.1
_MOST_STARTS = 200  # more than any stream has
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An alarm: how strong the evidence is, and since when and in which direction something changed.

    ``level`` is the highest chance of a false alarm. The alarm is raised once the e-value reaches
    ``threshold``, and stays raised. ``log_evidence`` is the natural logarithm of the e-value now,
    ``strongest`` its highest value, and ``raised_at`` the number of ``observations`` before the alarm. Once
    it is raised, ``since`` is the likeliest place of the change in the stream (from 0; of an anchor query,
    for the endpoint), and ``finding`` what changed.
    """

    name: AlarmName
    level: float
    threshold: float
    observations: int
    log_evidence: float
    strongest: float
    raised_at: int | None = None
    since: int | None = None
    finding: str | None = None

    @property
    def raised(self) -> bool:
        """Whether it was raised, now or before."""
        return self.raised_at is not None


@dataclass(frozen=True, slots=True)
class Gap:
    """Mean confidence minus the share of positive labels in a range; the interval holds at all times.

    With more than two answers, it is minus the share of right answers.
    """

    name: str
    gap: Estimate
    share: float | None


@dataclass(frozen=True, slots=True)
class EvidencePath:
    """The logarithm of an e-value after numbers of observations, thinned for a picture."""

    observations: tuple[int, ...]
    log_evidence: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorState:
    """The alarms of a stream so far; one with nothing to be tested against is left out.

    Calibration is tested against the limit ``max_ece`` of the ECE, or the reference audit if that is
    ``None``. Gaps are confidence sequences, against no reference. With ``several`` answers, all is about the
    given one and whether it is right.
    """

    answers: int
    labelled: int
    max_ece: float | None
    alarms: tuple[Alarm, ...]
    gaps: tuple[Gap, ...]
    paths: dict[AlarmName, EvidencePath]
    several: bool = False

    @property
    def raised(self) -> bool:
        """Whether any alarm is raised."""
        return any(alarm.raised for alarm in self.alarms)

    def alarm(self, name: AlarmName) -> Alarm | None:
        """The alarm of this name, if there is one."""
        return next((alarm for alarm in self.alarms if alarm.name == name), None)


# The wealth


def starting_points(spacing: int = SPACING) -> IntArray:
    """Places where a part of the wealth begins: 0, spacing, 2 spacing, ..., later farther apart."""
    even = spacing * np.arange(_EVEN_STARTS + 1.0)
    later = even[-1] * _GROWTH ** np.arange(1, _MOST_STARTS - _EVEN_STARTS)
    return np.asarray(np.ceil(np.concatenate([even, later[later < 2**53]])), np.int64)


def start_shares(count: int) -> FloatArray:
    """Shares of the wealth that begin at the first ``count`` points: 1/2, 1/4, 1/12, 1/24, ..."""
    later = np.arange(1, count)
    return np.concatenate([[0.5], 0.5 / (later * (later + 1.0))])[:count]


class EProcess:
    """The wealth of bets with these ``shares`` of the stakes, and the alarm that it raises at 1/``level``.

    ``log_evidence`` is the logarithm of the wealth now, ``strongest`` its highest value, and ``raised_at``
    the number of observations after which it first reached the bar.
    """

    def __init__(self, shares: FloatArray, level: float, spacing: int = SPACING) -> None:
        self._log_shares = np.log(shares)
        self.bar = -np.log(level)
        self._starts = starting_points(spacing)
        self._wealth = np.zeros((0, shares.size))  # logarithm, by starting point and bet
        self._path: list[FloatArray] = []
        self.observations = 0
        self.log_evidence = self.strongest = 0.0
        self.raised_at: int | None = None

    @property
    def path(self) -> FloatArray:
        """The logarithm of the wealth after each observation."""
        return np.concatenate([np.empty(0), *self._path])

    def add(self, log_factors: FloatArray, places: IntArray) -> FloatArray:
        """Add observations (rows) at any ``places`` of the stream; return the log-wealth after each one."""
        if not len(log_factors):
            return np.empty(0)
        starts = np.searchsorted(self._starts, places, side="right")
        missing = max(0, int(starts.max()) - len(self._wealth))
        self._wealth = np.concatenate([self._wealth, np.zeros((missing, self._log_shares.size))])
        # observations with the same starting points before them are multiplied together
        pieces = np.split(np.arange(len(places)), np.flatnonzero(np.diff(starts)) + 1)
        path = np.concatenate([self._add(log_factors[own], int(starts[own[0]])) for own in pieces])
        reached = np.flatnonzero(path >= self.bar)
        if self.raised_at is None and reached.size:
            self.raised_at = self.observations + int(reached[0]) + 1
        self.observations += path.size
        self.log_evidence = float(path[-1])
        self.strongest = max(self.strongest, float(path.max()))
        self._path.append(path)
        return path

    def _add(self, log_factors: FloatArray, begun: int) -> FloatArray:
        grown = np.cumsum(log_factors, axis=0)
        weighted = self._weighted
        cash = 1 - start_shares(len(weighted)).sum()
        counting = logsumexp(weighted[:begun], axis=0)
        others = logsumexp(np.append(weighted[begun:], np.log(cash)))
        self._wealth[:begun] += grown[-1]
        return np.asarray(np.logaddexp(logsumexp(grown + counting, axis=1), others))

    @property
    def _weighted(self) -> FloatArray:
        return self._wealth + np.log(start_shares(len(self._wealth)))[:, None] + self._log_shares

    @property
    def best_bet(self) -> int:
        """The bet that has won most, from its best starting point on."""
        return int(np.argmax(self._weighted)) % self._log_shares.size if len(self._wealth) else 0


class GameAlarm:
    """An alarm under way; ``spent`` is the share of the level for what the claim leaves uncertain."""

    def __init__(self, name: AlarmName, game: Game, level: float, spent: float, **spaced: int) -> None:
        self.name, self.game, self.level = name, game, level
        self.process = EProcess(game.shares, level * (1 - spent), **spaced)
        self._observed: list[Observed] = []
        self._places: list[IntArray] = []

    def add(self, observed: Observed, places: IntArray) -> None:
        self._observed.append(observed)
        self._places.append(places)
        self.process.add(self.game.logs(observed), places)

    def state(self, max_ece: float | None, *, several: bool = False) -> Alarm:
        process = self.process
        since = finding = None
        if process.raised_at is not None:
            bet, places = process.best_bet, np.concatenate(self._places)
            order = np.argsort(places, kind="stable")
            won = np.cumsum(self.game.logs(np.concatenate(self._observed)[order])[:, bet])
            # the place from which on the best bet has won most
            since = int(places[order[np.argmin(np.concatenate([[0.0], won[:-1]]))]])
            change = self.game.meanings[bet]
            turn = int(np.sign(change.shift)), int(np.sign(change.slope - 1))
            than = "the confidence says, beyond the limit" if max_ece else "the confidence says"
            if max_ece is None:
                than = "in the reference audit, at the same confidence"
            answer = "the answer given" if several else "the positive answer"
            finding = _WORDS[self.name][turn].format(than=than, answer=answer)
        return Alarm(
            name=self.name,
            level=self.level,
            threshold=float(np.exp(process.bar)),
            observations=process.observations,
            log_evidence=process.log_evidence,
            strongest=process.strongest,
            raised_at=process.raised_at,
            since=since,
            finding=finding,
        )

    def path(self) -> EvidencePath:
        path = self.process.path
        points = np.linspace(0, path.size - 1, min(path.size, _MOST_POINTS))
        shown = np.unique(points.round().astype(np.int64))
        return EvidencePath(tuple((shown + 1).tolist()), tuple(path[shown].tolist()))


#: What changed, by alarm and by the signs of the shift and the stretch of the log-odds.
_WORDS: dict[AlarmName, dict[tuple[int, int], str]] = {
    "endpoint": {
        (-1, 0): "confidence in {answer} to the same items is lower now",
        (1, 0): "confidence in {answer} to the same items is higher now",
        (0, 0): "confidence about the same items is different now, in both directions",
    },
    "questions": {
        (1, 0): "confidence in {answer} is higher than in the reference audit",
        (-1, 0): "confidence in {answer} is lower than in the reference audit",
        (0, 1): "confidences are farther from 0.5 than in the reference audit",
        (0, -1): "confidences are closer to 0.5 than in the reference audit",
    },
    "calibration": {
        (1, 0): "{answer} is right more often than {than}",
        (-1, 0): "{answer} is right less often than {than}",
        (0, -1): "the answers are wrong more often than {than}: overconfident",
        (0, 1): "the answers are right more often than {than}: underconfident",
        (1, -1): "where confidence is low, {answer} is right more often than {than}",
        (-1, -1): "where confidence is high, {answer} is right less often than {than}",
    },
}
# Gaps


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """A continuous function on [0, 1], given by its values at increasing knots from 0 to 1."""

    knots: FloatArray
    values: FloatArray

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.interp(x, self.knots, self.values)

    def slope(self, x: FloatArray) -> FloatArray:
        """The slope at each x; at a knot, the slope to its right."""
        slopes = np.diff(self.values) / np.diff(self.knots)
        return np.asarray(slopes[np.clip(np.searchsorted(self.knots, x, "right") - 1, 0, slopes.size - 1)])


def _soft_step(place: float, *, above: bool) -> PiecewiseLinear:
    knots = np.unique(np.clip([0, place - _SOFT / 2, place + _SOFT / 2, 1], 0, 1))
    values = np.clip((knots - place) / _SOFT + 0.5, 0, 1)
    return PiecewiseLinear(knots, values if above else 1 - values)


_SOFT = 0.2  # width of the edge of a range
RANGES: dict[str, PiecewiseLinear] = {
    "all items": PiecewiseLinear(np.array([0.0, 1.0]), np.array([1.0, 1.0])),
    **{f"confidence below {edge:g}": _soft_step(edge, above=False) for edge in (0.1, 0.3, 0.5)},
    **{f"confidence above {edge:g}": _soft_step(edge, above=True) for edge in (0.5, 0.7, 0.9)},
}
"""Ranges of confidence, as weights of the items."""
_BINS = 240  # of the threshold, in which answers are counted
_MIDDLES = (np.arange(_BINS) + 0.5) / _BINS
_GRID = np.arange(-20, 21) / 20  # values of a gap that are tested first
_HALVINGS = 9
_ROUNDED = 5000  # rounded probabilities
_BIAS = 1e-4  # the most by which counting in bins moves a gap
_LEAST_LOSS = 0.01  # a bet that could hardly lose would have no highest stake
_FRACTIONS = np.array([0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7])


class GapCounts:
    """Labelled answers of a stream, counted by threshold, answer and label.

    A gap is the mean confidence minus the share of positive labels in a range of confidence. A value is in
    the confidence sequence as long as bets against it have not won 1/level (METHOD 9). Items within 0.1 of
    the edge of a range count in part, because one answer per item can measure only continuous weights.

    Flips are undone on average, at the rate of the best value of the noise. Each bet pays the most that any
    plausible noise could add to it.
    """

    def __init__(self, noise: NoisePosterior | None = None, max_shift: float = np.inf) -> None:
        noise = NoisePosterior() if noise is None else noise
        self._counts = np.zeros((_BINS, 2, 2), np.int64)
        self._flips = noise.best.flip_rate
        self._effects = noise_effects(noise.every, max_shift, _BINS, self._flips)

    def add(self, labels: IntArray, thresholds: FloatArray, answers: IntArray) -> None:
        bins = np.minimum((thresholds * _BINS).astype(np.int64), _BINS - 1)
        np.add.at(self._counts, (bins, answers, labels), 1)

    def share(self, weight: PiecewiseLinear) -> float | None:
        """The estimated share of the items that a weight counts; ``None`` without answers."""
        if not (total := int(self._counts.sum())):
            return None
        counts, _, sizes = self._cells(weight)
        return float(np.clip(counts @ sizes / total, 0, 1))

    def gap(self, weight: PiecewiseLinear, level: float) -> Estimate:
        """The gap of the items that a weight counts, with a confidence sequence at this level."""
        counts, signed, sizes = self._cells(weight)
        bar = -np.log(1 - level)

        def refuted(values: FloatArray) -> BoolArray:
            return np.asarray(self._log_wealth(weight, values, counts, signed, sizes) >= bar)

        kept = _GRID[~refuted(_GRID)]
        value = None
        if (size := float(counts @ sizes)) >= 1:
            # gains add up to zero at this value, so no bet has won there: it is always in the interval
            value = float(np.clip(counts @ signed / size, -1, 1))
            kept = np.append(kept, value)
        if not kept.size:
            return Estimate(None, -1.0, 1.0, level)
        inner = np.array([kept.min(), kept.max()])
        outer = np.array([_GRID[inner[0] > _GRID].max(initial=-1), _GRID[inner[1] < _GRID].min(initial=1)])
        for _ in range(_HALVINGS):
            middle = (inner + outer) / 2
            out = refuted(middle)
            inner, outer = np.where(out, inner, middle), np.where(out, middle, outer)
        low, high = np.clip(outer + np.array([-_BIAS, _BIAS]), -1, 1).tolist()
        return Estimate(value, low, high, level)

    def _cells(self, weight: PiecewiseLinear) -> tuple[FloatArray, FloatArray, FloatArray]:
        cells = np.nonzero(self._counts)
        return self._counts[cells].astype(float), *self._measured(weight, *cells)

    def _measured(self, weight: PiecewiseLinear, *cells: IntArray) -> tuple[FloatArray, FloatArray]:
        """The signed gap and the weight of an item that one answer measures, each without bias."""
        bins, answers, labels = cells
        t, first = _MIDDLES[bins], float(weight.values[0])
        unflipped = (answers - self._flips) / (1 - 2 * self._flips)
        signed = unflipped * (weight(t) + (t - labels) * weight.slope(t)) - labels * first
        return signed, first + unflipped * weight.slope(t)

    def _log_wealth(
        self,
        weight: PiecewiseLinear,
        values: FloatArray,
        counts: FloatArray,
        signed: FloatArray,
        sizes: FloatArray,
    ) -> FloatArray:
        anywhere, weights = self._measured(weight, *np.indices(self._counts.shape))
        # stakes are shares of the highest loss in any cell, also in those that do not occur
        possible = anywhere - np.multiply.outer(values, weights)
        gains = signed - values[:, None] * sizes
        logs = []
        for sign in (1, -1):
            paid = self._paid(sign * possible)[:, None]
            most = paid[:, 0] - (sign * possible).reshape(values.size, -1).min(axis=1)
            stakes = _FRACTIONS[:, None] / np.maximum(most, _LEAST_LOSS)
            won = stakes[:, :, None] * (sign * gains - paid)
            logs.append(np.log(np.maximum(1 + won, 1e-300)) @ counts)
        return np.asarray(logsumexp(np.concatenate(logs), axis=0) - np.log(2 * _FRACTIONS.size))

    def _paid(self, possible: FloatArray) -> FloatArray:
        """The most that noise could add to the mean gain."""
        by_answer = (possible[:, :, 1] - possible[:, :, 0]) * (1 - 2 * self._flips)
        added = np.tensordot(self._effects, by_answer, (1, 1))
        return np.asarray(np.maximum(0, added.max(axis=(0, 2))))


class ShownGapCounts(GapCounts):
    """Labelled probabilities of a stream, rounded and counted by label."""

    def __init__(self) -> None:
        self._counts = np.zeros((_ROUNDED + 1, 2), np.int64)

    def add(self, labels: IntArray, p: FloatArray, answers: IntArray) -> None:  # noqa: ARG002 - p says more
        np.add.at(self._counts, (np.rint(p * _ROUNDED).astype(np.int64), labels), 1)

    def _measured(self, weight: PiecewiseLinear, *cells: IntArray) -> tuple[FloatArray, FloatArray]:
        rounded, labels = cells
        p = rounded / _ROUNDED
        sizes = weight(p)
        return (p - labels) * sizes, sizes

    def _paid(self, possible: FloatArray) -> FloatArray:
        return np.zeros(len(possible))
