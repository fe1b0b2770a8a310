"""The alarms of a stream of answers: endpoint, questions and calibration, and those of slices.

Each alarm has its own e-process, so it may be looked at any time and says what changed. Slices are tested
together: among those that are named, the expected share of false ones is at most the level (e-BH), and if
nothing changed in any slice, the chance that one is ever named is at most the level too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import betaincinv

from blindcal.estimate.streams.alternatives import Distortion
from blindcal.estimate.streams.betting import (
    Game,
    anchor_cells,
    anchor_game,
    calibration_cells,
    question_cells,
)
from blindcal.estimate.streams.confidence_sequence import RANGES, GapCounts
from blindcal.estimate.streams.e_process import EProcess, changed_since, discoveries
from blindcal.records import Estimate, FloatArray, IntArray

AlarmName: TypeAlias = Literal["endpoint", "questions", "calibration"]
Against: TypeAlias = Literal["reference", "perfect", "max_ece"]

FOR_REFERENCE = 0.2
"""Share of the level of an alarm that allows for what its reference leaves uncertain."""
OTHER_SLICES = "(others)"
"""Where the items of slices beyond the highest number of them are counted."""
NO_SLICE = "(none)"
"""The slice of items without one."""
MOST_POINTS = 400
_ANCHOR_SPACING = 20


@dataclass(frozen=True, slots=True)
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

    @property
    def evidence(self) -> float:
        """The e-value now; infinite if it is too large for a number."""
        return float(np.exp(min(self.log_evidence, 709.0))) if self.log_evidence < 709 else np.inf


@dataclass(frozen=True, slots=True)
class Gap:
    """Mean confidence minus the share of positive labels, among the items of a range of confidence.

    The interval holds at all times at once. ``share`` is about which share of the items is in the range.
    """

    name: str
    gap: Estimate
    share: float | None


@dataclass(frozen=True, slots=True)
class SliceAlarm:
    """The calibration of one slice; it is named ``raised_at`` so many labelled answers of all slices."""

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


@dataclass(frozen=True, slots=True)
class MonitorState:
    """The alarms of a stream so far; one that has nothing to be tested against is left out.

    ``against`` says what the calibration is held against: a reference audit, perfection, or a limit
    ``max_ece``. Gaps are confidence sequences, against no reference.
    """

    answers: int
    labelled: int
    against: Against
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


class _Watched:
    """An alarm under way: a game, its e-process, and the observations from which to date a change."""

    def __init__(self, name: AlarmName, game: Game, level: float, spent: float, **spaced: int) -> None:
        self.name, self.game, self.level = name, game, level
        self.process = EProcess(game.shares, level * (1 - spent), **spaced)
        self._cells: list[IntArray] = []
        self._places: list[IntArray] = []

    def add(self, cells: IntArray, places: IntArray) -> None:
        self._cells.append(cells)
        self._places.append(places)
        self.process.add(self.game.log_factors[cells], places)

    def alarm(self, words: Mapping[Turn, str]) -> Alarm:
        found = self.process
        since = finding = None
        if found.raised_at is not None:
            factors = self.game.log_factors[np.concatenate(self._cells), found.best_bet]
            since = changed_since(factors, np.concatenate(self._places))
            finding = words[_turn(self.game.meaning(found.best_bet))]
        return Alarm(
            self.name,
            self.level,
            float(np.exp(found.bar)),
            found.observations,
            found.log_evidence,
            found.strongest,
            found.raised_at,
            since,
            finding,
        )

    def path(self) -> EvidencePath:
        path = self.process.path
        if path.size <= MOST_POINTS:
            shown = np.arange(path.size)
        else:
            shown = np.unique(np.linspace(0, path.size - 1, MOST_POINTS).round().astype(np.int64))
        return EvidencePath(tuple((shown + 1).tolist()), tuple(path[shown].tolist()))


class _Slices:
    """The slices of a stream, a fixed number at most: what comes after these is counted as one."""

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
        evidence = np.full((len(owners), self._most), np.nan)
        before = np.zeros(self._most)
        for column, (name, process) in enumerate(self._processes.items()):
            before[column] = process.log_evidence
            mine = np.flatnonzero(owners == name)
            if mine.size:
                evidence[mine, column] = process.add(self._game.log_factors[cells[mine]], places[mine])
                self._counts[name].add(labels[mine], thresholds[mine], answers[mine])
        for row, known in enumerate(_filled(evidence, before)):
            for column in discoveries(known, self._level):
                self._raised.setdefault(list(self._processes)[column], self._seen + row + 1)
        self._seen += len(owners)

    def _slice(self, name: str | None) -> str:
        named = NO_SLICE if name is None else name
        if named not in self._processes:
            if len(self._processes) >= self._most - 1:
                named = OTHER_SLICES
            self._processes.setdefault(named, EProcess(self._game.shares, self._level))
            self._counts.setdefault(named, GapCounts())
        return named

    def state(self, level: float) -> tuple[SliceAlarm, ...]:
        """All slices, those with the strongest evidence first."""
        found = [
            SliceAlarm(
                name,
                process.observations,
                process.log_evidence,
                self._raised.get(name),
                self._counts[name].gap(RANGES["all items"], 1 - level),
            )
            for name, process in self._processes.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.log_evidence))


class StreamMonitor:
    """The alarms of a stream, against claims that are given as games.

    ``for_reference`` is the share of each level that allows for what the claims leave uncertain. At most
    ``slices`` slices are told apart.
    """

    def __init__(
        self,
        calibration: Game,
        questions: Game | None,
        *,
        level: float,
        against: Against,
        max_ece: float | None = None,
        for_reference: float = 0.0,
        slices: int = 20,
    ) -> None:
        self._level, self._against, self._max_ece = level, against, max_ece
        spent = for_reference if against == "reference" else 0.0
        self._calibration = _Watched("calibration", calibration, level, spent)
        self._questions = (
            None if questions is None else _Watched("questions", questions, level, for_reference)
        )
        self._endpoint: _Watched | None = None
        self._slices = _Slices(calibration, slices, level * (1 - spent))
        self._counts = GapCounts()
        self._answers = self._anchors = 0

    def add_answers(self, thresholds: FloatArray, answers: IntArray, places: IntArray | None = None) -> None:
        """Add answers (0 or 1) at thresholds, of items at these places in the stream."""
        if places is None:
            places = np.arange(self._answers, self._answers + len(answers))
        self._answers += len(answers)
        if self._questions is not None:
            self._questions.add(question_cells(thresholds, answers), places)

    def add_labelled(
        self,
        labels: IntArray,
        thresholds: FloatArray,
        answers: IntArray,
        places: IntArray | None = None,
        parts: Sequence[str | None] | None = None,
    ) -> None:
        """Add labelled answers in the order in which their labels came; ``parts`` are their slices."""
        if not len(labels):
            return
        if places is None:
            first = self._calibration.process.observations
            places = np.arange(first, first + len(labels))
        cells = calibration_cells(labels, thresholds, answers)
        self._calibration.add(cells, places)
        self._counts.add(labels, thresholds, answers)
        if parts is not None:
            self._slices.add(parts, cells, places, labels, thresholds, answers)

    def expect_anchors(self, up_wrong: int, up_asked: int, down_wrong: int, down_asked: int) -> None:
        """Say how often anchor queries above and below their flips were answered wrongly at the set-up."""
        missed = self._level * FOR_REFERENCE / 2
        most = _upper_bound(up_wrong, up_asked, missed), _upper_bound(down_wrong, down_asked, missed)
        game = anchor_game(*most)
        self._endpoint = _Watched("endpoint", game, self._level, FOR_REFERENCE, spacing=_ANCHOR_SPACING)
        self._anchors = 0

    def add_anchors(self, up: IntArray, wrong: IntArray) -> None:
        """Add answers to anchor queries: whether each was asked above its flip, and whether it was wrong."""
        assert self._endpoint is not None, "the answers at the set-up come first"
        places = np.arange(self._anchors, self._anchors + len(up))
        self._anchors += len(up)
        self._endpoint.add(anchor_cells(np.asarray(up, np.int64), np.asarray(wrong, np.int64)), places)

    def state(self) -> MonitorState:
        """Everything that is known now."""
        watched = {"endpoint": self._endpoint, "questions": self._questions, "calibration": self._calibration}
        there = {name: one for name, one in watched.items() if one is not None}
        words = {
            "endpoint": _ENDPOINT_WORDS,
            "questions": _QUESTION_WORDS,
            "calibration": _calibration_words(self._against),
        }
        level = 1 - self._level
        gaps = [
            Gap(name, self._counts.gap(weight, level), _known(self._counts.share(weight)))
            for name, weight in RANGES.items()
        ]
        return MonitorState(
            self._answers,
            self._calibration.process.observations,
            self._against,
            self._max_ece,
            tuple(one.alarm(words[name]) for name, one in there.items()),
            tuple(gaps),
            self._slices.state(self._level),
            {one.name: one.path() for one in there.values()},
        )


Turn: TypeAlias = tuple[int, int]
"""In which direction log-odds are shifted and stretched: -1, 0 or 1 each."""


def _turn(change: Distortion) -> Turn:
    return int(np.sign(change.shift)), int(np.sign(change.slope - 1))


_ENDPOINT_WORDS: dict[Turn, str] = {
    (-1, 0): "answers that were positive are negative now: the model leans to the negative answer",
    (1, 0): "answers that were negative are positive now: the model leans to the positive answer",
    (0, 0): "answers at known thresholds are different now, in both directions",
}
_QUESTION_WORDS: dict[Turn, str] = {
    (1, 0): "confidence in the positive answer is higher than in the reference audit",
    (-1, 0): "confidence in the positive answer is lower than in the reference audit",
    (0, 1): "confidences are farther from 0.5 than in the reference audit",
    (0, -1): "confidences are closer to 0.5 than in the reference audit",
}


def _calibration_words(against: Against) -> dict[Turn, str]:
    than = {
        "reference": "in the reference audit, at the same confidence",
        "perfect": "the confidence says",
        "max_ece": "the confidence says, beyond the limit",
    }[against]
    return {
        (1, 0): f"the positive answer is right more often than {than}",
        (-1, 0): f"the positive answer is right less often than {than}",
        (0, -1): f"the answers are wrong more often than {than}: overconfident",
        (0, 1): f"the answers are right more often than {than}: underconfident",
        (1, -1): f"confident negative answers are wrong more often than {than}",
        (-1, -1): f"confident positive answers are wrong more often than {than}",
    }


def _filled(evidence: FloatArray, before: FloatArray) -> FloatArray:
    """Each column with the last known value where there is none, ``before`` in front of the first."""
    whole = np.concatenate([before[None], evidence])
    known = np.where(np.isnan(whole), 0, np.arange(len(whole))[:, None])
    return np.take_along_axis(whole, np.maximum.accumulate(known, axis=0), axis=0)[1:]


def _upper_bound(hits: int, trials: int, missed: float) -> float:
    """The highest rate that so many hits leave possible; the truth is above it with chance ``missed``."""
    return 1.0 if hits >= trials else float(betaincinv(hits + 1, trials - hits, 1 - missed))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
