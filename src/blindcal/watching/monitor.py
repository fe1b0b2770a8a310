"""Watch a stream of answers for people who send the queries themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.special import gammaincc

from blindcal.errors import InputError
from blindcal.estimate.checks import ArrayLike, answers_array, fraction, probabilities
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.shown import AnswersFit
from blindcal.estimate.streams.alarms import RANGES, GameAlarm, Gap, GapCounts, MonitorState
from blindcal.estimate.streams.betting import (
    CurveClaim,
    Reference,
    anchor_cells,
    anchor_game,
    calibration_cells,
    question_cells,
)
from blindcal.estimate.uncertainty import share_bounds
from blindcal.records import INVALID, UNLABELLED, FloatArray, IntArray
from blindcal.results.run import Run, opened

FOR_REFERENCE = 0.2
"""Share of an alarm's level that allows for the uncertainty of the reference."""
_ANCHOR_SPACING = 20
_BINS = 20
_CLEARLY_UNEVEN = 1e-9  # p-value that uniform thresholds hardly ever have


class Monitor:
    """Alarms for a stream of answers, valid whenever one looks.

    Ask every item once, with a shift of ``-logit(t)`` on its positive answer, where the threshold t is
    uniform on (0, 1) and independent of the item (see ``thresholds``). The chance that an alarm is ever
    raised for nothing is at most ``level``, however long the stream and however often one looks.

    Parameters
    ----------
    reference : Run, path or fit, optional
        The audit to compare the stream with. Without one, only the calibration is watched.
    level : float
        Largest chance that an alarm is ever raised for nothing.
    max_ece : float, optional
        Raise the calibration alarm if the expected calibration error is above this limit; 0 tests for perfect
        calibration. By default the calibration is compared with that of the reference, or tested for
        perfection if there is none.

    Examples
    --------
    >>> import numpy as np
    >>> import blindcal as bc
    >>> rng = np.random.default_rng(0)
    >>> monitor = bc.Monitor()
    >>> t = monitor.thresholds(1000, rng)
    >>> f = rng.uniform(size=1000)                       # hidden in the model
    >>> labels = rng.uniform(size=1000) < f**2           # overconfident
    >>> state = monitor.update(labels, t, f >= t)
    >>> state.alarm("calibration").raised
    True
    """

    def __init__(
        self,
        reference: Run | str | Path | AnswersFit | None = None,
        *,
        level: float = 0.05,
        max_ece: float | None = None,
    ) -> None:
        self._level = fraction(level, "level")
        if reference is None or isinstance(reference, AnswersFit):
            fit, max_shift = reference, np.inf
        else:
            run = opened(reference)
            fit, max_shift = run.fit(), run.max_shift
        known = None if fit is None else Reference.of(fit.smooth, level * FOR_REFERENCE, max_shift=max_shift)
        noise = NoisePosterior() if fit is None else fit.smooth.problem.noise
        if max_ece is not None and not 0 <= max_ece < 1:
            raise InputError(f"max_ece: must be at least 0 and below 1, got {max_ece!r}")
        self._questions = None
        if known is not None:
            self._questions = GameAlarm("questions", known.share.game, level, FOR_REFERENCE)
        if known is not None and max_ece is None:
            spent, game = FOR_REFERENCE, known.curve.game
        else:
            spent, max_ece = 0.0, max_ece or 0.0
            game = CurveClaim(allowance=max_ece, noises=noise.every, max_shift=max_shift).game
        self._max_ece = max_ece
        self._calibration = GameAlarm("calibration", game, level, spent)
        self._endpoint: GameAlarm | None = None
        self._gaps = GapCounts(noise, max_shift)
        self._answers = self._anchors = self._rows = 0
        self._spread = np.zeros(_BINS)

    def __repr__(self) -> str:
        return f"Monitor({self._answers:,} answers, {self._calibration.process.observations:,} labelled)"

    @staticmethod
    def thresholds(n: int, rng: np.random.Generator) -> FloatArray:
        """Draw ``n`` thresholds, uniform on (0, 1)."""
        return rng.uniform(1e-12, 1, n)

    def update(self, labels: ArrayLike, thresholds: ArrayLike, answers: ArrayLike) -> MonitorState:
        """Add answers and return the state of the alarms.

        Parameters
        ----------
        labels : array of 0 and 1
            -1 or NaN if unknown: such an answer counts only for the alarm on the questions.
        thresholds : array of numbers in (0, 1)
        answers : array of 0 and 1
            Whether the answer at the threshold was positive; -1 or NaN if invalid, which leaves it out.
        """
        t = probabilities(thresholds, "thresholds")
        given, known = answers_array(answers, t.size), answers_array(labels, t.size)
        self._check_spread(t)
        places = self._rows + np.arange(t.size)
        self._rows += t.size
        valid = given != INVALID
        self.add_answers(t[valid], given[valid], places[valid])
        both = valid & (known != UNLABELLED)
        self.add_labelled(known[both], t[both], given[both], places[both])
        return self.state()

    def state(self) -> MonitorState:
        """The state of all alarms."""
        every = (self._endpoint, self._questions, self._calibration)
        alarms = [alarm for alarm in every if alarm is not None]
        level = 1 - self._level
        return MonitorState(
            answers=self._answers,
            labelled=self._calibration.process.observations,
            max_ece=self._max_ece,
            alarms=tuple(alarm.state(self._max_ece) for alarm in alarms),
            gaps=tuple(
                Gap(name, self._gaps.gap(weight, level), self._gaps.share(weight))
                for name, weight in RANGES.items()
            ),
            paths={alarm.name: alarm.path() for alarm in alarms},
        )

    def add_answers(self, thresholds: FloatArray, answers: IntArray, places: IntArray) -> None:
        """Add valid answers; ``places`` are the positions of their items in the stream."""
        self._answers += len(answers)
        if self._questions is not None:
            self._questions.add(question_cells(thresholds, answers), places)

    def add_labelled(
        self, labels: IntArray, thresholds: FloatArray, answers: IntArray, places: IntArray
    ) -> None:
        """Add labelled answers in the order in which their labels came."""
        if len(labels):
            self._calibration.add(calibration_cells(labels, thresholds, answers), places)
            self._gaps.add(labels, thresholds, answers)

    def expect_anchors(self, up_wrong: int, up_asked: int, down_wrong: int, down_asked: int) -> None:
        """Set how many anchor queries were wrong at the set-up, above and below their flips."""
        tail = self._level * FOR_REFERENCE / 2
        most = (share_bounds(*seen, tail)[1] for seen in ((up_wrong, up_asked), (down_wrong, down_asked)))
        game = anchor_game(*most)
        self._endpoint = GameAlarm("endpoint", game, self._level, FOR_REFERENCE, spacing=_ANCHOR_SPACING)
        self._anchors = 0

    def add_anchors(self, up: IntArray, wrong: IntArray) -> None:
        """Add answers to anchor queries: whether each was asked above its flip, and whether it was wrong."""
        assert self._endpoint is not None, "the answers at the set-up come first"
        places = np.arange(self._anchors, self._anchors + len(up))
        self._anchors += len(up)
        self._endpoint.add(anchor_cells(np.asarray(up, np.int64), np.asarray(wrong, np.int64)), places)

    def _check_spread(self, t: FloatArray) -> None:
        """Refuse thresholds that are clearly not uniform, by a chi-square test of all of them."""
        spread = self._spread + np.histogram(t, _BINS, (0, 1))[0]
        expected = spread.sum() / _BINS
        if expected >= 5:
            statistic = float(((spread - expected) ** 2).sum() / expected)
            if gammaincc((_BINS - 1) / 2, statistic / 2) < _CLEARLY_UNEVEN:
                raise InputError(
                    "thresholds: are not spread evenly over (0, 1), which all alarms rely on",
                    remedy="draw each at random with Monitor.thresholds, whatever the item",
                )
        self._spread = spread
