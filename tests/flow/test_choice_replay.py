"""A choice file replayed: over HTTP with biases, temperature and logprobs, and without a server."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import chisquare

from blindcal.choice_design import choice_round
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import InputError
from blindcal.records import INVALID, Item, Message, Request, Round, Targets
from blindcal.simulation.recording import Recording
from misbehaving import Behaviour
from serving import replies_of

ANSWERS = ("A", "B", "C", "D")
RNG = np.random.default_rng(5)
LOGITS = RNG.normal(0, 2, (30, 4))
CHOICES = 4 - (np.arange(30) % 3 == 0)  # every third item has three answers
LOGITS[CHOICES == 3, 3] = -np.inf
RECORDING = Recording.of_choices([f"q{k}" for k in range(30)], LOGITS, ANSWERS)
TARGETS = Targets((), (), answers=tuple((token,) for token in RECORDING.tokens))
ITEMS = [Item(f"q{k}", 0, (Message("user", f"Which is {k}?"),), choices=int(CHOICES[k])) for k in range(30)]


def round_of(count: int, seed: int) -> Round:
    """Gumbel queries about random answers of random items."""
    rng = np.random.default_rng(seed)
    items, about = rng.integers(0, 30, count), rng.integers(0, 3, count)
    return choice_round(items, CHOICES, rng.normal(0, 2, count), about, rng.gumbel(size=(count, 4)))


def test_a_bias_on_every_answer_decides_the_greedy_one() -> None:
    """Over HTTP and without a server, the answer is the one with the largest sum of logit and bias."""
    asked = round_of(200, 1)
    assert asked.biases is not None
    expected = (LOGITS[asked.items] + asked.biases).argmax(axis=1)
    assert RECORDING.answers(asked, TARGETS, np.zeros(200)).tolist() == expected.tolist()
    question = TokenQuestion(TARGETS)
    requests = [
        question.request(ITEMS[i].messages, 0.0, 0.0, biases=b)
        for i, b in zip(asked.items, asked.biases, strict=True)
    ]
    assert [
        question.parse(reply).answer for reply in replies_of(RECORDING, ITEMS, requests)
    ] == expected.tolist()


def test_draws_follow_the_softmax() -> None:
    """Plain answers are the likeliest ones, and draws have the shares of the softmax; others are invalid."""
    plain, count = choice_round(np.arange(30), CHOICES), 4000
    assert RECORDING.answers(plain, TARGETS, np.zeros(30)).tolist() == LOGITS.argmax(axis=1).tolist()
    luck = np.random.default_rng(0).random(count)
    drawn = replace(choice_round(np.full(count, 4), CHOICES), temperatures=np.ones(count))
    answers = RECORDING.answers(drawn, TARGETS, luck)
    assert chisquare(np.bincount(answers, minlength=4), count * softmax(LOGITS[4])).pvalue > 1e-4
    hot = replace(drawn, temperatures=np.full(count, 5.0))
    assert INVALID in RECORDING.answers(hot, TARGETS, luck, biased=False)


def test_logprobs_are_those_of_all_answers() -> None:
    """The list has every token with its share."""
    request = Request(ITEMS[1].messages, top_logprobs=10)
    (reply,) = replies_of(RECORDING, ITEMS, [request], Behaviour(logprobs=True))
    assert reply.logprobs is not None
    shown = [math.exp(reply.logprobs[answer]) for answer in ANSWERS]
    assert shown == pytest.approx(softmax(LOGITS[1]), rel=1e-4)


def test_a_choice_file_is_loaded_as_it_is(tmp_path: Path) -> None:
    """Its answers are the tokens; other files are read as before."""
    path = tmp_path / "model__set.csv"
    path.write_text("id,logit_A,logit_B,logit_C,label\na,1,0,-1,0\nb,3,2,,1\n")
    known = Recording.load(path)
    assert (known.name, known.ids, known.choices) == ("model__set", ("a", "b"), 3)
    assert [token.text for token in known.tokens] == ["A", "B", "C"]
    assert known.logits[0].tolist() == [1, 0, -1]
    assert known.logits[1, 2] < -30
    with pytest.raises(InputError, match="a row for each id"):
        Recording.of_choices(["a"], np.zeros((2, 3)), ("A", "B", "C"))
