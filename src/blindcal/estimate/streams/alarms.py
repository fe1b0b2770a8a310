"""The alarms of a stream of answers: endpoint, questions and calibration, and those of slices.

Each alarm has its own e-process, so it may be looked at any time and says what changed. Slices are tested
together: among those that are named, the expected share of false ones is at most the level (e-BH), and if
nothing changed in any slice, the chance that one is ever named is at most the level too.
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
"""Where the items of slices beyond the highest number of them are counted."""
NO_SLICE = "(none)"
"""The slice of items without one."""
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An alarm: how strong the evidence is, and since when and in which direction something changed.

    ``level`` is the highest chance that it is ever raised for nothing. It is raised once the e-value reaches
    ``threshold``, and stays raised. ``log_evidence`` is the natural logarithm of the e-value now, and
    ``strongest`` its highest value so far, after which of the ``observations`` it was ``raised_at``. Once it
    is raised, ``since`` is the place in the stream (from 0; of an anchor query, for the endpoint) since when
    the evidence speaks, and ``finding`` says what changed.
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
    """Mean confidence minus the share of positive labels, among the items of a range of confidence.

    The interval holds at all times at once. ``share`` is about which share of the items is in the range.
    """

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
    """The alarms of a stream so far; one that has nothing to be tested against is left out.

    The calibration is held against a limit of the ECE, ``max_ece``, or against the reference audit if that is
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
    """An alarm under way: a game, its e-process, and the observations from which to date a change.

    ``spent`` is the share of the level that allows for what the claim of the game leaves uncertain.
    """

    def __init__(self, name: AlarmName, game: Game, level: float, spent: float, **spaced: int) -> None:
        self.name, self.game, self.level = name, game, level
        self.process = EProcess(game.shares, level * (1 - spent), **spaced)
        self._cells: list[IntArray] = []
        self._places: list[IntArray] = []

    def add(self, cells: IntArray, places: IntArray) -> None:
        """Add observations by their cells in the game and their places in the stream."""
        self._cells.append(cells)
        self._places.append(places)
        self.process.add(self.game.log_factors[cells], places)

    def state(self, max_ece: float | None) -> Alarm:
        """What the alarm says now."""
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
        """The evidence so far, at a limited number of points."""
        path = self.process.path
        points = np.linspace(0, path.size - 1, min(path.size, _MOST_POINTS))
        shown = np.unique(points.round().astype(np.int64))
        return EvidencePath(tuple((shown + 1).tolist()), tuple(path[shown].tolist()))


class SliceAlarms:
    """The slices of a stream, at most ``most``: what comes after these is counted as one."""

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
        """Add labelled answers in their order, with their cells in the game."""
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


#: What changed, by the alarm and the direction in which log-odds are shifted and stretched (-1, 0 or 1 each).
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
