"""The alarms of a stream of answers: endpoint, questions and calibration, and those of slices.

Each alarm has its own e-process, so it may be looked at any time. Slices are tested together (e-BH): the
level bounds the expected share of false ones among those named, and the chance of any if none changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from blindcal.estimate.streams.betting import Game
from blindcal.estimate.streams.confidence_sequence import RANGES, GapCounts
from blindcal.estimate.streams.e_process import EProcess, changed_since, discoveries
from blindcal.records import Estimate, FloatArray, IntArray

AlarmName: TypeAlias = Literal["endpoint", "questions", "calibration"]

OTHER_SLICES = "(others)"
"""The slice of items beyond the highest number of slices."""
NO_SLICE = "(none)"
"""The slice of items without one."""
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
    """Mean confidence minus the share of positive labels in a range; the interval holds at all times."""

    name: str
    gap: Estimate
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceAlarm:
    """The calibration of one slice; ``raised_at`` counts the labelled answers of all slices."""

    name: str
    labelled: int
    log_evidence: float
    raised_at: int | None
    gap: Estimate


@dataclass(frozen=True, slots=True)
class EvidencePath:
    """The logarithm of an e-value after numbers of observations, thinned for a picture."""

    observations: tuple[int, ...]
    log_evidence: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorState:
    """The alarms of a stream so far; one with nothing to be tested against is left out.

    Calibration is tested against the limit ``max_ece`` of the ECE, or the reference audit if that is
    ``None``. Gaps are confidence sequences, against no reference.
    """

    answers: int
    labelled: int
    max_ece: float | None
    alarms: tuple[Alarm, ...]
    gaps: tuple[Gap, ...]
    slices: tuple[SliceAlarm, ...]
    paths: dict[AlarmName, EvidencePath]

    @property
    def raised(self) -> bool:
        """Whether any alarm is raised."""
        return any(one.raised for one in self.alarms) or any(one.raised_at for one in self.slices)

    def alarm(self, name: AlarmName) -> Alarm | None:
        """The alarm of this name, if there is one."""
        return next((one for one in self.alarms if one.name == name), None)


class GameAlarm:
    """An alarm under way; ``spent`` is the share of the level for what the claim leaves uncertain."""

    def __init__(self, name: AlarmName, game: Game, level: float, spent: float, **spaced: int) -> None:
        self.name, self.game, self.level = name, game, level
        self.process = EProcess(game.shares, level * (1 - spent), **spaced)
        self._cells: list[IntArray] = []
        self._places: list[IntArray] = []

    def add(self, cells: IntArray, places: IntArray) -> None:
        self._cells.append(cells)
        self._places.append(places)
        self.process.add(self.game.log_factors[cells], places)

    def state(self, max_ece: float | None) -> Alarm:
        process = self.process
        since = finding = None
        if process.raised_at is not None:
            bet = process.best_bet
            factors = self.game.log_factors[np.concatenate(self._cells), bet]
            since = changed_since(factors, np.concatenate(self._places))
            change = self.game.meanings[bet]
            turn = int(np.sign(change.shift)), int(np.sign(change.slope - 1))
            finding = _WORDS[self.name][turn].format(than=_compared(max_ece))
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


class SliceAlarms:
    """The slices of a stream, at most ``most``: later ones are counted as one."""

    def __init__(self, game: Game, most: int, level: float) -> None:
        self._game, self._most, self._level = game, most, level
        self._processes: dict[str, EProcess] = {}
        self._counts: dict[str, GapCounts] = {}
        self._raised: dict[str, int] = {}
        self._seen = 0

    def add(
        self,
        names: Sequence[str | None],
        cells: IntArray,
        places: IntArray,
        labels: IntArray,
        thresholds: FloatArray,
        answers: IntArray,
    ) -> None:
        owners = np.array([self._slice(name) for name in names])
        evidence = np.zeros((len(owners), self._most))
        for column, (name, process) in enumerate(self._processes.items()):
            mine = np.flatnonzero(owners == name)
            before = process.log_evidence
            path = np.append(before, process.add(self._game.log_factors[cells[mine]], places[mine]))
            evidence[:, column] = path[np.searchsorted(mine, np.arange(len(owners)), side="right")]
            self._counts[name].add(labels[mine], thresholds[mine], answers[mine])
        order = list(self._processes)
        for row, known in enumerate(evidence):
            for column in discoveries(known, self._level):
                self._raised.setdefault(order[column], self._seen + row + 1)
        self._seen += len(owners)

    def _slice(self, name: str | None) -> str:
        named = NO_SLICE if name is None else name
        if named not in self._processes and len(self._processes) >= self._most - 1:
            named = OTHER_SLICES
        if named not in self._processes:
            self._processes[named] = EProcess(self._game.shares, self._level)
            self._counts[named] = GapCounts()
        return named

    def state(self, level: float) -> tuple[SliceAlarm, ...]:
        """All slices, those with the strongest evidence first; gaps are at this level."""
        slices = [
            SliceAlarm(
                name=name,
                labelled=process.observations,
                log_evidence=process.log_evidence,
                raised_at=self._raised.get(name),
                gap=self._counts[name].gap(RANGES["all items"], level),
            )
            for name, process in self._processes.items()
        ]
        return tuple(sorted(slices, key=lambda one: -one.log_evidence))


#: What changed, by alarm and by the signs of the shift and the stretch of the log-odds.
_WORDS: dict[AlarmName, dict[tuple[int, int], str]] = {
    "endpoint": {
        (-1, 0): "answers that were positive are negative now: the model leans to the negative answer",
        (1, 0): "answers that were negative are positive now: the model leans to the positive answer",
        (0, 0): "answers at known thresholds are different now, in both directions",
    },
    "questions": {
        (1, 0): "confidence in the positive answer is higher than in the reference audit",
        (-1, 0): "confidence in the positive answer is lower than in the reference audit",
        (0, 1): "confidences are farther from 0.5 than in the reference audit",
        (0, -1): "confidences are closer to 0.5 than in the reference audit",
    },
    "calibration": {
        (1, 0): "the positive answer is right more often than {than}",
        (-1, 0): "the positive answer is right less often than {than}",
        (0, -1): "the answers are wrong more often than {than}: overconfident",
        (0, 1): "the answers are right more often than {than}: underconfident",
        (1, -1): "confident negative answers are wrong more often than {than}",
        (-1, -1): "confident positive answers are wrong more often than {than}",
    },
}


def _compared(max_ece: float | None) -> str:
    if max_ece is None:
        return "in the reference audit, at the same confidence"
    return "the confidence says, beyond the limit" if max_ece else "the confidence says"
