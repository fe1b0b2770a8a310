"""Whether each of several answers is given as often as it is right: against published and simple cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from blindcal.estimate.findings import AnswerMargins

#: Unaided distance vision of the left and the right eye of 7,477 women (Stuart 1955).
VISION = ((1520, 266, 124, 66), (234, 1512, 432, 78), (117, 362, 1772, 205), (36, 82, 179, 492))


def test_the_pvalue_is_the_published_one() -> None:
    """The statistic of these eyes is 11.957, with three degrees of freedom."""
    found = AnswerMargins.of(VISION)
    assert found is not None
    assert found.pvalue is not None
    assert chi2.isf(found.pvalue, 3) == pytest.approx(11.957, abs=5e-4)
    assert found.labelled == pytest.approx([1976 / 7477, 2256 / 7477, 2456 / 7477, 789 / 7477])
    assert found.given == pytest.approx([1907 / 7477, 2222 / 7477, 2507 / 7477, 841 / 7477])


def test_nothing_is_claimed_without_wrong_answers_or_with_groups() -> None:
    """No wrong answer, no test; items in groups, no test; no answers, nothing at all."""
    right = AnswerMargins.of(((5, 0, 0), (0, 7, 0), (0, 0, 9)))
    assert right is not None
    assert (right.moved, right.pvalue) == (0.0, None)
    grouped = AnswerMargins.of(VISION, grouped=True)
    assert grouped is not None
    assert grouped.pvalue is None
    assert AnswerMargins.of(()) is None
    assert AnswerMargins.of(((0, 0, 0),) * 3) is None


def test_the_pvalue_of_a_fair_model_is_uniform() -> None:
    """If answers and labels have the same distribution, a share p of the p-values is below p."""
    rng = np.random.default_rng(0)
    cells = np.array([[0.2, 0.04, 0.03], [0.04, 0.25, 0.06], [0.03, 0.06, 0.29]])
    tables = rng.multinomial(600, cells.ravel() / cells.sum(), 400).reshape(-1, 3, 3)
    found = np.array([AnswerMargins.of(table.tolist()).pvalue for table in tables])  # type: ignore[union-attr]
    for level in (0.1, 0.5):
        # three standard errors of 400 draws
        assert abs((found < level).mean() - level) < 3 * np.sqrt(level * (1 - level) / 400)
