"""Calibration of the answer that a model gives, with more than two answers ("top-label", METHOD 8).

The first answer to an item is the answer given. Further queries are about it: each is answered with the same
answer again or with another one. So the problem becomes one with two labels, right and wrong, and with
readings of the log-odds of the given answer against all others. The likelihood is that of `latent`; only the
response curves differ:

- a shift on the given answer alone, at T = 0, tests its margin over the strongest other answer;
- with Gumbel numbers of our own on the others, P(same answer) = exp(-exp(-(s + b)));
- drawn at T = 1, P(same answer) = sigmoid(s);
- shown probabilities bound s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blindcal.estimate.axis import LOG_ODDS, Axis, Excess, log_odds_from, margin_axis
from blindcal.estimate.excess import ExcessPosterior, find_excess
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.records import INVALID, NEGATIVE, PLAIN, POSITIVE, AnswerTable, IntArray, Noise


@dataclass(frozen=True, eq=False)
class GivenAnswers:
    """The answers that were given, and what further answers say about them.

    Attributes
    ----------
    given : array of shape (items,)
        The answer given to each item, `INVALID` if there is none.
    right : array of shape (items,)
        1 if it is the label, else 0.
    readings : AnswerTable
        Queries about the given answers: positive if the same answer came again.
    choices : array of shape (items,)
        Number of answers of each item.
    greedy : bool
        Whether the given answers are the likeliest ones, not drawn.
    """

    given: IntArray
    right: IntArray
    readings: AnswerTable
    choices: IntArray
    greedy: bool = True

    @property
    def items(self) -> IntArray:
        """The items to which an answer was given."""
        return np.flatnonzero(self.given != INVALID)

    @property
    def hard(self) -> npt.NDArray[np.bool_]:
        """The readings that test a margin."""
        rows = self.readings
        shown = ~np.isnan(rows.bounds_or_nan).any(axis=1)
        assert rows.gumbel is not None
        return np.asarray((rows.temperatures == 0) & ~rows.gumbel & ~shown & (rows.answers != INVALID))

    def of(self, items: IntArray) -> GivenAnswers:
        """Those of some items only."""
        given = np.full_like(self.given, INVALID)
        given[items] = self.given[items]
        return replace(self, given=given, readings=self.readings.of(items))


def given_answers(labels: IntArray, answered: AnswerTable, choices: IntArray) -> GivenAnswers:
    """Reduce answers to items with several answers to right and wrong ones; labels are answers too.

    The answer given to an item is its first plain answer at T = 0; if none was asked for, the first drawn.
    """
    if answered.about is None:
        answered = replace(answered, about=np.full(len(answered), PLAIN))
    assert answered.about is not None
    valid = (answered.answers >= 0) & (answered.answers < choices[answered.items])
    plain = np.flatnonzero((answered.about == PLAIN) & valid)
    greedy = bool((answered.temperatures[plain] == 0).any())
    first = plain[answered.temperatures[plain] == 0] if greedy else plain
    given = np.full(labels.size, INVALID)
    where = np.full(labels.size, -1)
    where[answered.items[first[::-1]]] = first[::-1]  # the first of several comes last and stays
    has = where >= 0
    given[has] = answered.answers[where[has]]
    owner = answered.items
    same = np.where(valid, np.where(answered.answers == given[owner], POSITIVE, NEGATIVE), INVALID)
    shown = ~np.isnan(answered.bounds_or_nan).any(axis=1)
    itself = np.arange(len(answered)) == where[owner]
    drawn = (answered.about == PLAIN) & (answered.temperatures > 0) & ~itself
    asked = (answered.about != PLAIN) & (answered.about == given[owner])
    use = (given[owner] != INVALID) & (drawn | asked | (itself & shown))
    gumbel = np.zeros(len(answered), bool) if answered.biases is None else _gumbel(answered)
    rows = replace(answered, answers=same, stated=None, about=None, biases=None, gumbel=gumbel).rows(use)
    return GivenAnswers(given, (given == labels).astype(np.int64), rows, choices, greedy)


def _gumbel(answered: AnswerTable) -> npt.NDArray[np.bool_]:
    """Whether the answers that a query is not about had numbers of their own."""
    assert answered.biases is not None
    assert answered.about is not None
    others = np.where(np.isfinite(answered.biases), answered.biases, 0.0)
    asked = np.flatnonzero(answered.about != PLAIN)
    others[asked, answered.about[asked]] = 0.0
    return np.asarray((others != 0).any(axis=1) & (answered.about != PLAIN))


def read_given(given: GivenAnswers, noise: Noise, axis: Axis | None = None) -> Patterns:
    """Count the readings by pattern; the items are those to which an answer was given.

    By default the axis is that of log-odds.
    """
    items = given.items
    axis = axis_of(given, None) if axis is None else axis
    rows = given.readings.of(items)
    rows = replace(rows, items=np.searchsorted(items, rows.items))
    return count_patterns(given.right[items], rows, jitter=noise.jitter, flip_rate=noise.flip_rate, axis=axis)


def excess_of(given: GivenAnswers, noise: Noise, *, roughly: bool = False) -> ExcessPosterior | None:
    """What the readings say about the excess; ``None`` if no margin was tested: it does not matter then."""
    if not given.hard.any():
        return None
    choices = given.choices[given.items]
    first = read_given(given, noise, margin_axis(choices, Excess(0.0, 0.0)))
    return find_excess(lambda excess: first.on(margin_axis(choices, excess)), roughly=roughly)


def axis_of(given: GivenAnswers, excess: Excess | None) -> Axis:
    choices = given.choices[given.items]
    if excess is not None:
        return margin_axis(choices, excess)
    return log_odds_from(choices) if given.greedy else LOG_ODDS
