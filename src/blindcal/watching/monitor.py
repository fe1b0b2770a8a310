"""Watch a stream of answers for people who send the queries themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.special import gammaincc

from blindcal.errors import InputError
from blindcal.estimate.checks import ArrayLike, answers_array, fraction, probabilities
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.shown import AnswersFit, ShownFit
from blindcal.estimate.streams.alarms import (
    RANGES,
    GameAlarm,
    Gap,
    GapCounts,
    MonitorState,
    ShownGapCounts,
)
from blindcal.estimate.streams.betting import (
    CurveClaim,
    Game,
    Reference,
    anchor_cells,
    anchor_game,
    calibration_cells,
    question_cells,
)
from blindcal.estimate.streams.shown_bets import LabelGame, RangeGame, claim_of, moved_game
from blindcal.estimate.uncertainty import share_bounds
from blindcal.records import INVALID, NEGATIVE, POSITIVE, UNLABELLED, FloatArray, IntArray
from blindcal.results.run import Run, opened

FOR_REFERENCE = 0.2
"""Share of an alarm's level that allows for the uncertainty of the reference."""
_ANCHOR_SPACING = 20
_BINS = 20
_CLEARLY_UNEVEN = 1e-9  # p-value that uniform thresholds hardly ever have


class Monitor:
    """Alarms for a stream of answers or probabilities, valid whenever one looks.

    Where the endpoint shows probabilities, pass them as ``p``; with more than two answers, pass that of the
    answer given, and as the label whether it is right. Where it hides them, ask every item once, with
    a shift of ``-logit(t)`` on its positive answer, where the threshold t is uniform on (0, 1) and
    independent of the item (see ``thresholds``). The chance that an alarm is ever raised for nothing is at
    most ``level``, however long the stream and however often one looks.

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
    >>> bc.Monitor().update(labels, p=f).raised          # shown by the model
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
            self._fit, self._max_shift = reference, np.inf
        else:
            run = opened(reference)
            self._fit, self._max_shift = run.fit(), run.max_shift
        if max_ece is not None and not 0 <= max_ece < 1:
            raise InputError(f"max_ece: must be at least 0 and below 1, got {max_ece!r}")
        compared = self._fit is not None and max_ece is None
        self._spent = FOR_REFERENCE if compared else 0.0
        self._max_ece = None if compared else max_ece or 0.0
        self._endpoint: GameAlarm | None = None
        self._answers = self._anchors = self._rows = 0
        self._spread = np.zeros(_BINS)
        self._begin(isinstance(self._fit, ShownFit))

    def _begin(self, shown: bool) -> None:
        """Set the bets against the claims, on probabilities that are ``shown`` or on threshold answers."""
        self.shown, fit, missed = shown, self._fit, self._level * FOR_REFERENCE
        noise = NoisePosterior()
        questions: Game | None = None
        if isinstance(fit, ShownFit):
            claim, questions = claim_of(fit, missed), RangeGame(fit, missed)
        elif fit is not None:
            known, noise = Reference.of(fit, missed, max_shift=self._max_shift), fit.problem.noise
            claim, questions = known.curve, known.share.game
        if self._max_ece is not None:
            claim = CurveClaim(allowance=self._max_ece, noises=noise.every, max_shift=self._max_shift)
        game = LabelGame(claim) if shown else claim.game
        self._calibration = GameAlarm("calibration", game, self._level, self._spent)
        self._questions = None
        if questions is not None:
            self._questions = GameAlarm("questions", questions, self._level, FOR_REFERENCE)
        self._gaps = ShownGapCounts() if shown else GapCounts(noise, self._max_shift)

    def __repr__(self) -> str:
        return f"Monitor({self._answers:,} answers, {self._calibration.process.observations:,} labelled)"

    @staticmethod
    def thresholds(n: int, rng: np.random.Generator) -> FloatArray:
        """Draw ``n`` thresholds, uniform on (0, 1)."""
        return rng.uniform(1e-12, 1, n)

    def update(
        self,
        labels: ArrayLike,
        thresholds: ArrayLike | None = None,
        answers: ArrayLike | None = None,
        *,
        p: ArrayLike | None = None,
    ) -> MonitorState:
        """Add answers at thresholds, or shown probabilities, and return the state of the alarms.

        Parameters
        ----------
        labels : array of 0 and 1
            -1 or NaN if unknown: such an answer counts only for the alarm on the questions.
        thresholds : array of numbers in (0, 1), optional
        answers : array of 0 and 1, optional
            Whether the answer at the threshold was positive; -1 or NaN if invalid, which leaves it out.
        p : array of numbers from 0 to 1, optional
            The shown probability of the positive answer, instead of thresholds and answers.
        """
        if (p is None) == (thresholds is None) or (thresholds is None) != (answers is None):
            raise InputError("p: give either the shown probabilities, or thresholds and the answers there")
        if self.shown != (p is not None):
            if self._fit is not None or self._rows:
                before = "what came before" if self._fit is None else "the reference"
                kind = "shown probabilities (p)" if self.shown else "answers at thresholds"
                raise InputError(f"p: {before} has {kind}, and a monitor watches one kind")
            self._begin(p is not None)
        if p is not None:
            values = probabilities(p)
            given = np.where(values >= 0.5, POSITIVE, NEGATIVE)
        elif thresholds is not None and answers is not None:
            values = probabilities(thresholds, "thresholds")
            given = answers_array(answers, values.size)
            self._check_spread(values)
        known = answers_array(labels, values.size)
        places = self._rows + np.arange(values.size)
        self._rows += values.size
        valid = given != INVALID
        self.add_answers(values[valid], given[valid], places[valid])
        both = valid & (known != UNLABELLED)
        self.add_labelled(known[both], values[both], given[both], places[both])
        return self.state()

    def state(self) -> MonitorState:
        """The state of all alarms."""
        every = (self._endpoint, self._questions, self._calibration)
        alarms = [alarm for alarm in every if alarm is not None]
        several = self._fit is not None and self._fit.several
        level = 1 - self._level
        return MonitorState(
            answers=self._answers,
            labelled=self._calibration.process.observations,
            max_ece=self._max_ece,
            alarms=tuple(alarm.state(self._max_ece, several=several) for alarm in alarms),
            gaps=tuple(
                Gap(name, self._gaps.gap(weight, level), self._gaps.share(weight))
                for name, weight in RANGES.items()
            ),
            paths={alarm.name: alarm.path() for alarm in alarms},
            several=several,
        )

    def add_answers(self, values: FloatArray, answers: IntArray, places: IntArray) -> None:
        """Add valid answers at thresholds, or beside shown probabilities.

        ``values`` are these thresholds or probabilities, ``places`` the positions of the items in the stream.
        """
        self._answers += len(answers)
        if self._questions is not None:
            game = self._questions.game
            cells = game.ranges(values) if isinstance(game, RangeGame) else question_cells(values, answers)
            self._questions.add(cells, places)

    def add_labelled(self, labels: IntArray, values: FloatArray, answers: IntArray, places: IntArray) -> None:
        """Add labelled answers in the order in which their labels came."""
        if len(labels):
            rows = np.column_stack([values, labels])
            self._calibration.add(rows if self.shown else calibration_cells(labels, values, answers), places)
            self._gaps.add(labels, values, answers)

    def expect_anchors(self, up_wrong: int, up_asked: int, down_wrong: int, down_asked: int) -> None:
        """Set how many anchor queries were wrong at the set-up, above and below their flips.

        Of shown probabilities, a query is wrong if the probability has moved, and all are counted as above.
        """
        tail = self._level * FOR_REFERENCE / (1 if self.shown else 2)
        most = [share_bounds(*seen, tail)[1] for seen in ((up_wrong, up_asked), (down_wrong, down_asked))]
        game = moved_game(most[0]) if self.shown else anchor_game(*most)
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
