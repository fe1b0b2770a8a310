"""The probe of endpoints that give one of several answers, over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import ConfidenceQuestion, LogprobQuestion, TokenQuestion
from blindcal.probing.findings import Probe
from blindcal.probing.probe import ProbeQuestions, probe
from blindcal.records import Item, Message, Targets, Token
from blindcal.simulation.recording import Recording
from governed import governed
from misbehaving import Behaviour, Server

N = 24
WITHOUT_BIAS = ("temperature", "repeated answers")


def probed(
    behaviour: Behaviour | None = None, count: int = 4, *, seed: int = 0, fewer: int = 0, **options: Any
) -> Probe:
    """What the probe finds at a model with ``count`` answers; every other item has ``fewer``.

    Its margins are from near ties to the certainty of a good model.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, (N, count)) * rng.choice([0.5, 2, 5], (N, 1))
    asked = [
        Item(f"q{k}", 0, (Message("user", f"Which is {k}?"),), choices=count - fewer * (k % 2))
        for k in range(N)
    ]
    recording = Recording.of_choices([item.id for item in asked], logits, [chr(65 + k) for k in range(count)])
    targets = Targets((), (), answers=tuple((token,) for token in recording.tokens))
    questions = ProbeQuestions(
        (TokenQuestion(targets, biased=False),),
        lambda top: LogprobQuestion(targets.words, "sum", top),
        ConfidenceQuestion(targets.words),
    )

    async def talk() -> Probe:
        async with (
            Server(recording, asked, behaviour) as server,
            HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint,
        ):
            chosen = options.pop("targets", targets)
            found = await probe(governed(endpoint), asked, chosen, seed=seed, questions=questions, **options)
            assert found.queries <= server.requests
            return found

    return asyncio.run(talk())


def answer(found: Probe, question: str) -> str:
    """The outcome of one question and its answer."""
    return next(f"{one.outcome}: {one.answer}" for one in found.findings if one.question == question)


@pytest.mark.parametrize("seed", range(2))
def test_a_good_endpoint_is_usable(seed: int) -> None:
    """Each answer can be forced, and every Gumbel query is answered as predicted."""
    found = probed(seed=seed)
    assert (found.verdict, found.max_shift, found.jitter, found.outside) == ("thresholds", 50, 0, 0)
    assert answer(found, "a bias on every answer") == "good: yes: each of 4 answers, 8 times in all"
    assert answer(found, "Gumbel queries").startswith("good: yes: ")
    assert answer(found, "logit_bias acts").endswith("items forced from one answer to another")
    assert {finding.outcome for finding in found.findings} == {"good"}
    assert found.queries < 300


@pytest.mark.parametrize(("count", "fewer"), [(3, 0), (5, 2), (12, 0)])
def test_any_number_of_answers(count: int, fewer: int) -> None:
    """All of them are forced; what an item does not have is neither asked for nor expected."""
    found = probed(count=count, fewer=fewer)
    assert found.verdict == "thresholds"
    assert f"good: yes: each of {count} answers" in answer(found, "a bias on every answer")


@pytest.mark.parametrize(
    ("further", "question", "trouble"),
    [
        ("ignored", "a bias on every answer", "not all of 4 entries of logit_bias act"),
        ("rejected", "a bias on every answer", "logit_bias does not take an entry for every answer"),
        ("lowest", "Gumbel queries", "biases on several answers do not add up as they should"),
    ],
)
def test_a_bias_of_few_entries(further: Any, question: str, trouble: str) -> None:
    """A service that takes or heeds only some entries is refused; Gumbel queries show if the largest act."""
    found = probed(Behaviour(most_biases=2, further_biases=further))
    assert answer(found, question).startswith("bad: no: ")
    assert found.ways["thresholds"] == trouble


def test_a_wrong_token_is_named() -> None:
    """An answer that no bias can force has the wrong token."""
    tokens = [Token(1, "A"), Token(2, "B"), Token(3, "C"), Token(99, "D")]
    found = probed(targets=Targets((), (), answers=tuple((token,) for token in tokens)), seed=2)
    assert answer(found, "a bias on every answer") == "bad: no: 'D' cannot be forced, not even alone"
    assert "(99) does not act: it may be the wrong token" in found.ways["thresholds"]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(bias="rejected"), "logit_bias is not accepted"),
        (Behaviour(bias="ignored"), "logit_bias is accepted but ignored"),
        (Behaviour(bias_scale=-1), "logit_bias acts with its sign inverted"),
        (Behaviour(integer_bias=True), "logit_bias is rounded"),
        (Behaviour(clamp=20), "logit_bias is clamped at about 19.9"),
        (Behaviour(bias_scale=4.0), "acts by the wrong amount"),
        (Behaviour(jitter=2.0), "change from query to query"),
        (Behaviour(flipped=0.1), "unreliabl"),
    ],
    ids=["rejected", "ignored", "inverted", "rounded", "clamped", "scaled", "jitter", "flipped"],
)
def test_what_misleads_two_answers_misleads_several(behaviour: Behaviour, reason: str) -> None:
    """Two answers of each item are compared, as in a yes/no audit, and show the same."""
    found = probed(behaviour, seed=1)
    assert "thresholds" not in found.usable
    assert reason in found.ways["thresholds"]


@pytest.mark.parametrize(
    "behaviour", [Behaviour(jitter=0.2), Behaviour(outside=0.08)], ids=["jitter", "words"]
)
def test_what_is_no_contradiction(behaviour: Behaviour) -> None:
    """A little jitter near ties, and a few other words, contradict no prediction."""
    found = probed(behaviour)
    assert found.verdict == "thresholds"
    assert "good" in answer(found, "Gumbel queries")
    assert (found.outside or 0.0) < 0.2


def test_logprobs_come_first_and_are_compared_with_the_bias() -> None:
    """The flips of the two likeliest answers are where the logprobs say."""
    found = probed(Behaviour(logprobs=True), ways=("logprobs", "thresholds"))
    assert found.verdict == "logprobs"
    assert "good" in answer(found, "acts by the right amount")
    scaled = probed(Behaviour(logprobs=True, bias_scale=1.5), ways=("logprobs", "thresholds"), seed=2)
    assert "logprobs" not in scaled.usable


def test_temperature_without_a_bias() -> None:
    """Draws of two answers of each item show that temperature acts."""
    found = probed(Behaviour(bias="rejected"), ways=WITHOUT_BIAS, seed=1)
    assert found.verdict == "temperature"
    assert "good" in answer(found, "temperature honoured")


@pytest.mark.parametrize(
    ("temperature", "reason"),
    [
        ("ignored", "temperature changes no answer"),
        ("fixed", "that temperature is honoured could not be shown"),
        ("rejected", "temperature is not accepted"),
    ],
)
def test_temperature_that_does_not_act(temperature: Any, reason: str) -> None:
    """An endpoint whose draws do not follow the temperature cannot be audited by it."""
    found = probed(Behaviour(temperature=temperature), ways=WITHOUT_BIAS)
    assert reason in found.ways["temperature"]


@pytest.mark.parametrize("n", ["honoured", "ignored", "identical"])
def test_repeated_answers(n: Any) -> None:
    """Answers in several ways are found, and whether one request gives several independent ones."""
    found = probed(Behaviour(n=n, temperature="rejected"), ways=("repeated answers",))
    assert found.verdict == "repeated answers"
    assert "items were answered in several ways" in answer(found, "repeated answers differ")
    assert found.at_once == (4 if n == "honoured" else 1)


def test_an_endpoint_without_any_way() -> None:
    """It is not auditable, and why is said."""
    how = Behaviour(bias="rejected", temperature="ignored")
    found = probed(how, ways=("logprobs", "thresholds", *WITHOUT_BIAS))
    assert found.verdict == "not auditable"
