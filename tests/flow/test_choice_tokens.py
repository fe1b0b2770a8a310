"""One token for each of several answers: found, preferred as the model spells it, or refused with a cure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from blindcal.auditing.prepare import PILOTS, check_semantics, choose_tokens
from blindcal.auditing.prepared import Prepared
from blindcal.endpoints import tokens
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import InputError, UnfitError
from blindcal.records import Item, Message, Targets, Token
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from governed import governed
from misbehaving import Behaviour, Server

ITEMS = [Item(f"q{k}", 0, (Message("user", f"Which is {k}?"),), choices=4) for k in range(PILOTS)]
LETTERS = "ABCD"


def model(texts: Sequence[str], logits: Sequence[Sequence[float]]) -> Recording:
    """A model with these tokens, ids from 10 up, and logits for each item."""
    found = tuple(Token(10 + k, text) for k, text in enumerate(texts))
    rows = np.array(logits, float)
    none = np.zeros(len(rows), np.int64)
    return Recording("replay", tuple(i.id for i in ITEMS), found, rows, rows.max(axis=1) - 12, none)


def chosen(recording: Recording, behaviour: Behaviour | None = None, **options: object) -> tokens.Choice:
    """What is chosen on a replay of a model."""

    async def talk() -> tokens.Choice:
        async with Server(recording, ITEMS, behaviour) as server:
            settings = Settings(model="replay", base_url=server.base_url, method="latent").replace(**options)
            async with HttpEndpoint(settings.endpoint, environ={}) as endpoint:
                return await choose_tokens(endpoint, governed(endpoint), ITEMS, settings)

    return asyncio.run(talk())


SPACED = list(LETTERS) + [f" {letter}" for letter in LETTERS]


def test_the_spelling_that_the_model_uses_is_found_for_every_answer() -> None:
    """Each answer gets pilot queries, and all answers get the spelling with the most votes."""
    rows = np.random.default_rng(1).normal(0, 2, (PILOTS, 8))
    rows[:, 4:] += 12
    found = chosen(model(SPACED, rows.tolist()), answers=tuple(LETTERS))
    assert [side[0].text for side in found.targets.answers] == [" A", " B", " C", " D"]
    assert found.targets.words == (" A", " B", " C", " D")
    assert (found.votes, found.queries) == ({" A": 2, " B": 2, " C": 2, " D": 2}, 8)
    assert (found.targets.positive, found.targets.negative) == ((), ())


def test_one_spelling_needs_no_pilot() -> None:
    """Where each answer is one token in one spelling, nothing is asked; articles are no letters."""
    texts = [*LETTERS, "a", " a", "b"]
    found = chosen(model(texts, np.zeros((PILOTS, 7)).tolist()), answers=tuple(LETTERS))
    assert (found.targets.words, found.queries) == (tuple(LETTERS), 0)


def test_words_are_found_in_any_case() -> None:
    """The case is the model's, the same for all answers."""
    texts = ["joy", "fear", "Joy", "Fear", "Anger", "anger"]
    rows = np.zeros((PILOTS, 6))
    rows[:, 2:5] = 3
    found = chosen(model(texts, rows.tolist()), answers=("joy", "fear", "anger"))
    assert found.targets.words == ("Joy", "Fear", "Anger")


def test_an_answer_of_several_tokens_is_refused_with_the_cure() -> None:
    """Letters are one token in every vocabulary."""
    with pytest.raises(UnfitError, match=r"'hopelessness' is not one token.* with letters: .*choices"):
        chosen(model(["joy", "fear"], [[0.0, 1.0]] * PILOTS), answers=("joy", "fear", "hopelessness"))


def test_answers_that_share_a_token_are_refused_with_the_cure() -> None:
    """Nothing is asked."""

    async def talk(answers: Sequence[Sequence[Token]]) -> None:
        await tokens.choose(governed(None), ITEMS, answers)  # type: ignore[arg-type]  # is not asked

    one, two, three = ((Token(k, f"w{k}"),) for k in range(3))
    with pytest.raises(InputError, match=r"'w0' and 'other' share the token 'other' \(0\).*letters"):
        asyncio.run(talk([one, two, three, (Token(0, "other"),)]))
    with pytest.raises(InputError, match="'w1' and 'W1' share the token 'W1'"):
        asyncio.run(talk([one, two, (Token(9, "W1"),)]))


def test_only_pairs_of_tokens_are_compared() -> None:
    """Several spellings per answer are for two answers."""
    for semantics in ("max", "sum"):
        settings = Settings(model="m", answers=tuple(LETTERS), semantics=semantics)
        with pytest.raises(InputError, match="of more than two answers, each is one token"):
            check_semantics(settings)
        check_semantics(settings.replace(method="logprobs"))
    check_semantics(Settings(model="m", answers=tuple(LETTERS)))
    check_semantics(Settings(model="m", semantics="max"))


def test_thresholds_sum_spellings_by_noise_of_our_own() -> None:
    """Only the sum needs it, and only of methods whose own draws would not follow it."""
    summed = Targets((Token(1, "Yes"), Token(2, "yes")), (Token(3, "No"),), "sum")
    for method, semantics, noisy in [
        ("latent", "sum", True),
        ("latent", "max", False),
        ("sampling", "sum", False),
    ]:
        settings = Settings(model="m", method=method, semantics=semantics, seed=5).resolved(10)
        targets = Targets(summed.positive, summed.negative, settings.target_semantics)
        question = Prepared(targets=targets, max_shift=50.0).question(settings)
        assert isinstance(question, TokenQuestion)
        assert question.own_noise == (5 if noisy else None)
