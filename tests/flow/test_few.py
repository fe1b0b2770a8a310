"""Few items or groups: intervals say how little is known."""

from __future__ import annotations

import pytest

from fitting import asked, drawn, ends, fitted


@pytest.mark.parametrize("n", [3, 21, 80])
def test_a_few_right_answers_do_not_show_a_direction_of_nearly_zero(n: int) -> None:
    """Certain and right every time: a share of 1 - .025^(1/n) of the questions may still be otherwise."""
    labels, _ = drawn(n, 2, 0.6, 0.0)
    fit = fitted(labels, asked(labels, labels.astype(float)), resamples=60)
    unseen = 1 - 0.025 ** (1 / n)
    low, high = ends(fit.overconfidence)  # half right and unsure, or sure and wrong
    assert low <= -0.5 * unseen * 0.99
    assert high >= unseen * 0.99
    low, high = ends(fit.leaning)
    assert low <= -unseen * 0.99
    assert high >= unseen * 0.99


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("groups", [1, 2])
def test_one_or_two_groups_show_no_direction(groups: int, seed: int) -> None:
    """However overconfident 30 questions about one text are, another text may be otherwise."""
    labels, p = drawn(30 * groups, seed, 0.5, 0.97)
    answered = asked(labels, p, seed=seed)
    fit = fitted(labels, answered, resamples=60, groups=answered.items // 30)
    for one in (fit.overconfidence, fit.leaning):
        assert 0 in one
        assert 2 * one.half_width > 1
    curve = fit.curve_at([0.9])
    assert curve.low is not None
    assert curve.high is not None
    assert curve.high[0] - curve.low[0] > 0.5
