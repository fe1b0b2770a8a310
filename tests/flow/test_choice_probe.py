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
from blindcal.records import FloatArray, Item, Message, Targets, Token
from blindcal.simulation.recording import Recording
from governed import governed
from misbehaving import Behaviour, Server

N = 24


def logits(count: int, seed: int = 7) -> FloatArray:
    """Logits with margins from near ties to the certainty of a good model."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(0, 1, (N, count)) * rng.choice([0.5, 2, 5], (N, 1)), float)


def items(count: int, fewer: int = 0) -> list[Item]:
    """Questions with so many answers; every other one has ``fewer``."""
    return [
        Item(f"q{k}", 0, (Message("user", f"Which is {k}?"),), choices=count - fewer * (k % 2))
        for k in range(N)
    ]


def probed(
    behaviour: Behaviour | None = None, count: int = 4, *, seed: int = 0, fewer: int = 0, **options: Any
) -> Probe:
    """What the probe finds at a model with so many answers that behaves so."""
    letters = [chr(65 + k) for k in range(count)]
    asked = items(count, fewer)
    recording = Recording.of_choices([item.id for item in asked], logits(count, seed), letters)
    targets = Targets((), (), answers=tuple((token,) for token in recording.tokens))

    async def talk() -> Probe:
        async with (
            Server(recording, asked, behaviour) as server,
            HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint,
        ):
            questions = ProbeQuestions(
                (TokenQuestion(targets, biased=False),),
                lambda top: LogprobQuestion(targets.words, "sum", top),
                ConfidenceQuestion(targets.words),
            )
            found = await probe(
                governed(endpoint),
                asked,
                options.pop("targets", targets),
                seed=seed,
                questions=questions,
                **options,
            )
            assert found.queries <= server.requests
            return found

    return asyncio.run(talk())


def answer(found: Probe, question: str) -> str:
    """The outcome of one question and its answer."""
    return next(f"{one.outcome}: {one.answer}" for one in found.findings if one.question == question)


@pytest.mark.parametrize("seed", range(8))
def test_a_good_endpoint_is_usable(seed: int) -> None:
    """Each answer can be forced, and every Gumbel query is answered as predicted."""
    found = probed(seed=seed)
    assert (found.verdict, found.max_shift, found.jitter, found.outside) == ("thresholds", 50, 0, 0)
    assert answer(found, "a bias on every answer") == "good: yes: each of 4 answers, 8 times in all"
    assert answer(found, "Gumbel queries").startswith("good: yes: ")
    assert answer(found, "logit_bias acts").endswith("items forced from one answer to another")
    assert {finding.outcome for finding in found.findings} == {"good"}
    assert found.queries < 300


@pytest.mark.parametrize("count", [3, 6, 12])
def test_any_number_of_answers(count: int) -> None:
    """All of them are forced."""
    found = probed(count=count)
    assert found.verdict == "thresholds"
    told = answer(found, "a bias on every answer")
    assert told == f"good: yes: each of {count} answers, {2 * count} times in all"


def test_items_with_fewer_answers() -> None:
    """What an item does not have is neither asked for nor expected."""
    found = probed(count=5, fewer=2)
    assert found.verdict == "thresholds"
    assert "good" in answer(found, "a bias on every answer")


@pytest.mark.parametrize("most", [2, 3])
def test_entries_that_are_dropped(most: int) -> None:
    """A bias of which only the first entries act is found, with their number."""
    found = probed(Behaviour(most_biases=most))
    told = answer(found, "a bias on every answer")
    assert told == f"bad: no: only the first {most} of 4 entries act"
    assert "thresholds" not in found.usable
    assert found.ways["thresholds"] == f"only the first {most} of 4 entries of logit_bias act"


@pytest.mark.parametrize("seed", range(4))
def test_only_the_largest_entries_act(seed: int) -> None:
    """Forced answers show nothing, but Gumbel queries do, and what explains them is said."""
    found = probed(Behaviour(most_biases=2, further_biases="lowest"), seed=seed)
    assert "good" in answer(found, "a bias on every answer")
    assert "as if only the 2 largest of them acted" in answer(found, "Gumbel queries")
    assert found.ways["thresholds"].startswith("biases on several answers do not add up as they should")


@pytest.mark.parametrize("most", [2, 3, 5])
def test_too_many_entries_are_refused(most: int) -> None:
    """How many are accepted is found, and the service's own words are shown."""
    found = probed(Behaviour(most_biases=most, further_biases="rejected"), count=6)
    assert "too many properties" in answer(found, "a bias on every answer")
    told = f"logit_bias takes {most} entries at most, too few for 6 answers"
    assert found.ways["thresholds"] == told


def test_a_wrong_token_is_named() -> None:
    """An answer that no bias can force has the wrong token."""
    tokens = [Token(1, "A"), Token(2, "B"), Token(3, "C"), Token(99, "D")]
    wrong = Targets((), (), answers=tuple((token,) for token in tokens))
    found = probed(targets=wrong, seed=2)
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
        (Behaviour(bias_scale=0.25), "acts by the wrong amount"),
        (Behaviour(bias_scale=4.0), "acts by the wrong amount"),
        (Behaviour(jitter=2.0), "change from query to query"),
        (Behaviour(repetition_penalty=1.3, penalty_fields="ignored"), ""),  # no answer stands in the prompt
    ],
)
def test_what_misleads_two_answers_misleads_several(behaviour: Behaviour, reason: str) -> None:
    """Two answers of each item are compared, as in a yes/no audit, and show the same."""
    found = probed(behaviour, seed=1)
    if reason:
        assert "thresholds" not in found.usable
        assert reason in found.ways["thresholds"]
    else:
        assert found.verdict == "thresholds"


@pytest.mark.parametrize("jitter", [0.05, 0.2])
def test_little_jitter_is_measured_and_allowed_for(jitter: float) -> None:
    """Near ties are no contradiction."""
    for seed in range(3):
        found = probed(Behaviour(jitter=jitter, seed=seed), seed=seed)
        assert found.verdict == "thresholds"
        assert "good" in answer(found, "Gumbel queries")


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_stray_answers_are_found(share: float) -> None:
    """Answers that are replaced by others at random are unreliable, however many there are to choose from."""
    for seed in range(3):
        assert "thresholds" not in probed(Behaviour(flipped=share, seed=seed), seed=seed).usable


def test_answers_outside_the_targets_are_no_contradiction() -> None:
    """A few other words are counted as such."""
    found = probed(Behaviour(outside=0.08))
    assert found.verdict == "thresholds"
    assert 0 < (found.outside or 0) < 0.2
    assert "good" in answer(found, "Gumbel queries")


def test_logprobs_come_first_and_are_compared_with_the_bias() -> None:
    """The flips of the two likeliest answers are where the logprobs say."""
    found = probed(Behaviour(logprobs=True), ways=("logprobs", "thresholds"))
    assert found.verdict == "logprobs"
    assert "good" in answer(found, "acts by the right amount")
    scaled = probed(Behaviour(logprobs=True, bias_scale=1.5), ways=("logprobs", "thresholds"), seed=2)
    assert "logprobs" not in scaled.usable


WITHOUT_BIAS = ("temperature", "repeated answers")


@pytest.mark.parametrize("seed", range(4))
def test_temperature_without_a_bias(seed: int) -> None:
    """Draws of two answers of each item show that temperature acts."""
    found = probed(Behaviour(bias="rejected"), ways=WITHOUT_BIAS, seed=seed)
    assert found.verdict == "temperature"
    assert "good" in answer(found, "temperature honoured")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(temperature="ignored"), "temperature changes no answer"),
        (Behaviour(temperature="fixed"), "that temperature is honoured could not be shown"),
        (Behaviour(temperature="rejected"), "temperature is not accepted"),
    ],
)
def test_temperature_that_does_not_act(behaviour: Behaviour, reason: str) -> None:
    """An endpoint whose draws do not follow the temperature cannot be audited by it."""
    found = probed(behaviour, ways=WITHOUT_BIAS)
    assert reason in found.ways["temperature"]


@pytest.mark.parametrize("n", ["honoured", "ignored", "identical"])
def test_repeated_answers(n: str) -> None:
    """Answers in several ways are found, and whether one request gives several independent ones."""
    found = probed(Behaviour(n=n, temperature="rejected"), ways=("repeated answers",))  # type: ignore[arg-type]
    assert found.verdict == "repeated answers"
    assert "items were answered in several ways" in answer(found, "repeated answers differ")
    assert found.at_once == (4 if n == "honoured" else 1)


def test_an_endpoint_without_any_way() -> None:
    """It is not auditable, and why is said."""
    how = Behaviour(bias="rejected", temperature="ignored")
    found = probed(how, ways=("logprobs", "thresholds", *WITHOUT_BIAS))
    assert found.verdict == "not auditable"
