"""From answer words to token ids: candidates, guesses, and the spelling that a model uses."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.prepare import PILOTS, check_semantics, choose_tokens
from blindcal.endpoints import tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import InputError, MissingExtraError, UnfitError
from blindcal.records import Item, Message, Targets, Token
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from engine import governed
from misbehaving import Behaviour, Server

VOCABULARY = {"Yes": 5, " Yes": 6, "yes": 7, "No": 8, " no": 9}
ITEMS = [Item(f"q{k}", 0, (Message("user", f"Which is {k}?"),), choices=4) for k in range(PILOTS)]
LETTERS = tuple("ABCD")


async def encode(text: str) -> Sequence[int]:
    """A vocabulary of a few words, in which everything else takes two tokens."""
    return [VOCABULARY[text]] if text in VOCABULARY else [1, 2]


def encoded(source: tokens.Encoder, text: str) -> list[int]:
    async def talk() -> list[int]:
        return list(await source(text))

    return asyncio.run(talk())


def model(
    spelled: Sequence[tuple[str, int]],
    logits: Sequence[float],
    name: str = "m",
    asked: Sequence[Item] = ITEMS,
) -> Recording:
    """A model with these tokens, and the same logits for every item."""
    known = tuple(Token(number, text) for text, number in spelled)
    rows, n = np.tile(np.array(logits, float), (len(asked), 1)), len(asked)
    ids = tuple(item.id for item in asked)
    return Recording(name, ids, known, rows, np.full(n, rows.max() - 12.0), np.zeros(n, np.int64))


def chosen(recording: Recording, behaviour: Behaviour | None = None, **options: Any) -> tokens.Choice:
    """The tokens that are chosen by asking a model, as an audit does."""

    async def talk() -> tokens.Choice:
        async with Server(recording, ITEMS, behaviour) as server:
            settings = Settings(model=recording.name, base_url=server.base_url, method="latent", **options)
            async with HttpEndpoint(settings.endpoint, environ={}) as endpoint:
                return await choose_tokens(endpoint, governed(endpoint), ITEMS, settings)

    return asyncio.run(talk())


def test_candidates_are_single_tokens() -> None:
    """Case and leading-space spellings count if they are one token, the given one first."""
    spellings = asyncio.run(tokens.candidates("yes", encode))
    assert [(token.text, token.id) for token in spellings] == [("yes", 7), ("Yes", 5), (" Yes", 6)]
    with pytest.raises(UnfitError, match="'Perhaps'"):
        asyncio.run(tokens.candidates("Perhaps", encode))
    with pytest.raises(InputError, match="empty"):
        asyncio.run(tokens.candidates("  ", encode))
    # ids given by hand are taken as they are, once each
    by_hand = asyncio.run(tokens.candidates("Yes", encode, [9642, 10035, 9642]))
    assert by_hand == (Token(9642, "Yes"), Token(10035, "Yes"))
    with pytest.raises(InputError, match="from 0 up"):
        asyncio.run(tokens.candidates("Yes", encode, [-1]))


def guessed(
    behaviour: Behaviour, ids: tuple[int, int] = (13022, 3160), others: tuple[int, int] = (7, 8)
) -> str:
    """The doubt about the ids that are guessed for a model with these ids, which is called gpt-4o-mini."""
    spelled = zip(("Yes", "No", " cat", " dog"), (*ids, *others), strict=True)
    choice = chosen(model([*spelled], [2.0, 1.0, -4.0, -5.0], "gpt-4o-mini"), behaviour)
    assert choice.targets.positive[0].id == (ids[0] if not choice.doubt else 13022)
    return choice.doubt


@pytest.mark.parametrize(("form", "ids"), [("llama.cpp", (5, 6)), ("vllm", (5, 6)), ("none", (13022, 3160))])
def test_ids_that_are_right(form: Any, ids: tuple[int, int]) -> None:
    """A server that tells its ids is believed, whatever it calls its model; else the name counts."""
    assert guessed(Behaviour(tokenize=form), ids=ids) == ""


def test_guessed_ids_of_other_words() -> None:
    """If the bias makes the model say other words, the ids are those of another model."""
    with pytest.raises(
        UnfitError, match=r"OpenAI's o200k_base.* are not those of this model.*' cat', ' dog'"
    ):
        guessed(Behaviour(tokenize="none"), ids=(5, 6), others=(13022, 3160))


def test_guessed_ids_where_the_bias_does_nothing() -> None:
    """If the answers are words of the sides, the bias is at fault, and if they are others, either may be."""
    assert guessed(Behaviour(tokenize="none", bias="ignored")) == ""
    doubt = guessed(Behaviour(tokenize="none", bias="ignored", outside=1.0))
    assert "may not be those of this model: whichever answer the bias raises, it says" in doubt
    assert guessed(Behaviour(tokenize="none", bias="rejected")) == ""


def test_openai_is_not_asked_for_its_ids() -> None:
    """OpenAI's own service has no /tokenize, and its models have the published ids."""

    async def talk() -> tokens.Vocabulary:
        async with HttpEndpoint(Address("https://api.openai.com/v1", "gpt-4o"), environ={}) as endpoint:
            return await tokens.find_vocabulary(endpoint, governed(None), ITEMS[0])  # type: ignore[arg-type]  # is not asked

    vocabulary = asyncio.run(talk())
    assert (vocabulary.unsure, encoded(vocabulary.encode, "Yes")) == ("", [13022])


SPELLED = model([*VOCABULARY.items()], [3.0, 4.0, 1.0, -9.0, -5.0])  # Yes, ␣Yes, yes / No, ␣no


def test_pair_is_what_the_model_says_and_max_every_spelling() -> None:
    """A pair is the spelling that the model prefers on each side, though it only ever says one side."""
    choice = chosen(SPELLED)
    assert choice.targets == Targets((Token(6, " Yes"),), (Token(9, " no"),), "pair")
    assert (choice.votes, choice.queries) == ({" Yes": 4, " no": 4}, 8)
    every = chosen(SPELLED, semantics="max")
    assert [token.id for token in every.targets.positive] == [5, 6, 7]
    assert [token.id for token in every.targets.negative] == [8, 9]
    assert (every.targets.semantics, every.queries) == ("max", 0)


@pytest.mark.parametrize("bias", ["rejected", "ignored"])
def test_pilots_without_bias(bias: Any) -> None:
    """Where the bias is refused or ignored a choice still stands, for the probe to speak about."""
    assert chosen(SPELLED, Behaviour(bias=bias)).targets.negative == (Token(8, "No"),)


def test_openai_vocabularies() -> None:
    """OpenAI's models have their published ids, without a download; others ask their endpoint."""
    newer = ["gpt-4o-mini", "gpt-4o-2024-08-06", "openai/gpt-4.1", "ft:gpt-4o:mine", "o200k_base", "gpt-5"]
    older = ["gpt-4-turbo", "gpt-3.5-turbo-0125", "cl100k_base"]
    for names, ids in ((newer, [13022, 3004]), (older, [9642, 2360])):
        for name in names:
            source = tokens.named_vocabulary(name)
            assert [encoded(source, text)[0] for text in ("Yes", " No")] == ids, name
    assert tokens.openai_encoding("Qwen/Qwen2.5-7B-Instruct") is None


@pytest.mark.parametrize("encoding", tokens.IDS)
def test_ids_known_by_heart(encoding: str) -> None:
    """The table of usual answer words and letters is what OpenAI's published vocabulary says."""
    published, ids = tokens.openai_vocabulary(encoding), tokens.IDS[encoding]
    assert {"Yes", " no", "A", " Z"} <= ids.keys()
    assert {text: list(published.encode(text)) for text in ids} == {
        text: [number] for text, number in ids.items()
    }


def test_usual_answer_words_need_no_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, Yes and No have all their spellings; for another word the error names the extra."""
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    source = tokens.openai_ids("o200k_base")
    spellings = asyncio.run(tokens.candidates("Yes", source))
    assert {token.text: token.id for token in spellings}["Yes"] == 13022
    assert {token.text for token in spellings} == {"Yes", " Yes", "yes", " yes", "YES", " YES"}
    with pytest.raises(MissingExtraError, match=r"only the ids of Yes, No.*blindcal\[tokenizers\]"):
        asyncio.run(tokens.candidates("Maybe", source))


def test_hugging_face_file(tmp_path: Path) -> None:
    """A tokenizer.json, or the folder that holds one, gives its ids without special tokens."""
    known = {"Yes": 0, "ĠYes": 1, "No": 2, "<s>": 3}
    cut = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}
    words = {"type": "WordLevel", "vocab": known, "unk_token": "<s>"}
    file = {"version": "1.0", "added_tokens": [], "pre_tokenizer": cut, "model": words}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    for source in (tmp_path, tmp_path / "tokenizer.json"):
        encoder = tokens.hugging_face(str(source))
        assert [encoded(encoder, text) for text in ("Yes", " Yes", "No")] == [[0], [1], [2]]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer at"):
        tokens.hugging_face(str(tmp_path))


# More than two answers


def lettered(texts: Sequence[str], logits: Sequence[float]) -> Recording:
    """A model with these tokens, ids from 10 up."""
    return model([(text, 10 + k) for k, text in enumerate(texts)], logits)


def test_every_answer_gets_the_spelling_that_the_model_uses() -> None:
    """Each answer gets pilot queries, and all answers get the spelling with the most votes."""
    spaced = [f" {letter}" for letter in LETTERS]
    choice = chosen(lettered([*LETTERS, *spaced], [0, 1, 2, -1, 12, 13, 11, 14]), answers=LETTERS)
    assert [side[0].text for side in choice.targets.answers] == spaced
    assert choice.targets.words == tuple(spaced)
    assert (choice.votes, choice.queries) == (dict.fromkeys(spaced, 2), 8)
    assert (choice.targets.positive, choice.targets.negative) == ((), ())


def test_one_spelling_needs_no_pilot() -> None:
    """Where each answer is one token in one spelling, nothing is asked; articles are no letters."""
    choice = chosen(lettered([*LETTERS, "a", " a", "b"], [0] * 7), answers=LETTERS)
    assert (choice.targets.words, choice.queries) == (LETTERS, 0)


def test_words_may_be_in_any_case() -> None:
    """The case is the model's, the same for all answers."""
    spelled = lettered(["joy", "fear", "Joy", "Fear", "Anger", "anger"], [0, 0, 3, 3, 3, 0])
    assert chosen(spelled, answers=("joy", "fear", "anger")).targets.words == ("Joy", "Fear", "Anger")


def test_an_answer_of_several_tokens_is_refused_with_the_cure() -> None:
    """Letters are one token in every vocabulary."""
    with pytest.raises(UnfitError, match=r"'hopelessness' is not one token.* with letters: .*choices"):
        chosen(lettered(["joy", "fear"], [0, 1]), answers=("joy", "fear", "hopelessness"))


def test_answers_that_share_a_token_are_refused_with_the_cure() -> None:
    """One token, or one word, cannot mean two answers."""
    one, two, three = ((Token(k, f"w{k}"),) for k in range(3))
    with pytest.raises(InputError, match=r"'w0' and 'other' share the token 'other' \(0\).*letters"):
        tokens.check_clashes([one, two, three, (Token(0, "other"),)])
    with pytest.raises(InputError, match="'w1' and 'W1' share the token 'W1'"):
        tokens.check_clashes([one, two, (Token(9, "W1"),)])


def test_only_pairs_of_tokens_are_compared() -> None:
    """Several spellings per answer are for two answers."""
    for semantics in ("max", "sum"):
        settings = Settings(model="m", answers=LETTERS, semantics=semantics)
        with pytest.raises(InputError, match="of more than two answers, each is one token"):
            check_semantics(settings)
        check_semantics(settings.replace(method="logprobs"))
    check_semantics(Settings(model="m", answers=LETTERS))
    check_semantics(Settings(model="m", semantics="max"))
