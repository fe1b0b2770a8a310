"""The probe of endpoints in the process, and the jitter that it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe_endpoint
from blindcal.probing.response_curve import Observation, Query, fit, together
from blindcal.records import Reply, Request
from serving import PAIR, items


def outcome(result: Probe, question: str) -> str:
    return next(finding.outcome for finding in result.findings if finding.question == question)


class Curve:
    """A greedy model of log-odds 1.5, deaf to temperature, whose service distorts the bias.

    With ``lapse``, that biased query gets the wrong answer.
    """

    def __init__(
        self, applied: Callable[[float], float] = float, *, completion_tokens: int = 1, lapse: int = 0
    ) -> None:
        self._applied = applied
        self._completion_tokens = completion_tokens
        self._left = lapse

    async def ask(self, request: Request) -> Reply:
        self._left -= bool(request.logit_bias)
        difference = request.logit_bias.get(1, 0.0) - request.logit_bias.get(2, 0.0)
        positive = 1.5 + self._applied(difference) >= 0
        if self._left == 0 and request.logit_bias:
            positive = not positive
        exposed = {"Yes": -0.2, "No": -1.7} if request.top_logprobs else None
        text = "Yes" if positive else "No"
        return Reply(text, completion_tokens=self._completion_tokens, logprobs=exposed)

    async def close(self) -> None:
        pass


class Coin(Curve):
    """An endpoint that answers at random and heeds nothing."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    async def ask(self, request: Request) -> Reply:  # noqa: ARG002 - heeds nothing
        return Reply("Yes" if self._rng.random() < 0.5 else "No")


@pytest.mark.parametrize(
    ("applied", "verdict", "question", "expected"),
    [
        (lambda b: b, "thresholds", "acts by the right amount", "good"),
        (lambda b: b / 2, "not auditable", "acts by the right amount", "bad"),
        (lambda b: -b if 4 < b < 30 else b, "not auditable", "one flip", "bad"),
    ],
    ids=["as it should", "by half its size", "turns back"],
)
def test_the_bias_is_compared_with_logprobs_and_must_be_monotone(
    applied: Callable[[float], float], verdict: str, question: str, expected: str
) -> None:
    """A bias that acts by half its size, or turns back, shows where logprobs are exposed."""
    result = asyncio.run(probe_endpoint(Curve(applied), items(8), PAIR))
    assert (result.verdict, outcome(result, question)) == (verdict, expected)


def test_random_answers_never_pass() -> None:
    """Answers drawn at random do not pass for a working bias."""
    for seed in range(6):
        assert asyncio.run(probe_endpoint(Coin(seed), items(8), PAIR)).verdict != "thresholds"


def test_what_is_a_caution() -> None:
    """A single answer that contradicts the bias, wherever it was, and replies billed at several tokens."""
    for lapse in range(12, 60, 12):
        result = asyncio.run(probe_endpoint(Curve(lapse=lapse), items(8), PAIR))
        outcomes = {finding.outcome for finding in result.findings}
        assert (result.verdict, "caution" in outcomes) == ("thresholds", True)
    result = asyncio.run(probe_endpoint(Curve(completion_tokens=16), items(8), PAIR))
    assert outcome(result, "one token out") == "caution"


@pytest.mark.parametrize("width", [0.05, 0.3, 1.0])
def test_fit_recovers_jitter(width: float) -> None:
    """With many answers the fitted flip and jitter are the true ones."""
    rng = np.random.default_rng(3)
    shifts = rng.uniform(1 - 3 * width, 1 + 3 * width, 600)
    answers = rng.normal(1.0, width, 600) <= shifts
    fitted = fit(
        [Observation(Query("a", float(b)), int(answer)) for b, answer in zip(shifts, answers, strict=True)]
    )
    assert fitted.shifts["a"] == pytest.approx(1.0, abs=0.2 * width)
    assert fitted.jitter == pytest.approx(width, rel=0.2)
    assert fitted.most > width * 0.9


def test_an_error_leaves_no_query_under_way() -> None:
    """The first error is raised once the other queries have ended, so that none fails unseen afterwards."""
    ended: list[int] = []

    async def query(number: int) -> int:
        for _ in range(number):
            await asyncio.sleep(0)
        ended.append(number)
        if number:
            raise ValueError(number)
        return number

    async def ask() -> None:
        await together(*map(query, (2, 0, 4)))

    with pytest.raises(ValueError, match="2"):
        asyncio.run(ask())
    assert sorted(ended) == [0, 2, 4]
