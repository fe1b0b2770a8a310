"""From answer words to token ids."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.endpoints import tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import InputError, MissingExtraError, UnfitError
from blindcal.records import Reply, Request, Targets, Token
from blindcal.simulation.recording import Recording
from misbehaving import Behaviour, Server
from serving import items

VOCABULARY = {"Yes": 5, " Yes": 6, "yes": 7, "No": 8, " no": 9}


async def encode(text: str) -> Sequence[int]:
    """A vocabulary of a few words, in which everything else takes two tokens."""
    return [VOCABULARY[text]] if text in VOCABULARY else [1, 2]


def spoken(positive: Sequence[float], negative: Sequence[float]) -> Recording:
    """A model whose spellings Yes, ␣Yes, yes / No, ␣no have these logits, for two items."""
    chosen = tuple(Token(number, text) for text, number in VOCABULARY.items())
    logits = np.tile(np.array([*positive, *negative]), (2, 1))
    return Recording("m", ("item-0", "item-1"), chosen, logits, np.full(2, -9.0), np.zeros(2, np.int64))


def chosen(
    recording: Recording, behaviour: Behaviour | None = None, semantics: str = "pair"
) -> tokens.Choice:
    """What is chosen by asking a model."""

    async def talk() -> tokens.Choice:
        async with (
            Server(recording, items(2), behaviour) as server,
            HttpEndpoint(Address(server.base_url, "m"), environ={}) as endpoint,
        ):
            source = (await tokens.find_vocabulary(endpoint, endpoint, items(1)[0])).encode
            up, down = await tokens.candidates("Yes", source), await tokens.candidates("no", source)
            return await tokens.choose(
                endpoint, items(2), [up, down], "max" if semantics == "max" else "pair"
            )

    return asyncio.run(talk())


def test_candidates_are_single_tokens() -> None:
    """Case and leading-space spellings count if they are one token, the given one first."""
    found = asyncio.run(tokens.candidates("yes", encode))
    assert [(token.text, token.id) for token in found] == [("yes", 7), ("Yes", 5), (" Yes", 6)]
    with pytest.raises(UnfitError, match="'Perhaps'"):
        asyncio.run(tokens.candidates("Perhaps", encode))
    with pytest.raises(InputError, match="empty"):
        asyncio.run(tokens.candidates("  ", encode))
    for other in (Token(1, "No"), Token(2, " yes")):  # one token, or one word, cannot mean both
        with pytest.raises(InputError, match="share the token"):
            tokens.check_clashes([[Token(1, "Yes")], [other]])


def guessed(
    behaviour: Behaviour, ids: tuple[int, int] = (13022, 3160), others: tuple[int, int] = (7, 8)
) -> str:
    """The doubt about the ids that are found for a model with these ids, which is called gpt-4o-mini."""
    said = (*zip(ids, ("Yes", "No"), strict=True), *zip(others, (" cat", " dog"), strict=True))
    known = tuple(Token(number, text) for number, text in said)
    logits = np.tile([2.0, 1.0, -4.0, -5.0], (2, 1))
    model = Recording(
        "gpt-4o-mini", ("item-0", "item-1"), known, logits, np.full(2, -9.0), np.zeros(2, np.int64)
    )

    async def talk() -> str:
        async with (
            Server(model, items(2), behaviour) as server,
            HttpEndpoint(Address(server.base_url, "gpt-4o-mini"), environ={}) as endpoint,
        ):
            found = await tokens.find_vocabulary(endpoint, endpoint, items(1)[0])
            up = await tokens.candidates("Yes", found.encode)
            down = await tokens.candidates("No", found.encode)
            choice = await tokens.choose(endpoint, items(2), [up, down], unsure=found.unsure)
            assert choice.targets.positive[0].id == (ids[0] if not choice.doubt else 13022)
            return choice.doubt

    return asyncio.run(talk())


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

    class Silent:
        async def ask(self, _: Request) -> Reply:
            raise AssertionError("nothing is asked")

        async def close(self) -> None:
            """Nothing to release."""

    async def talk() -> tokens.Vocabulary:
        async with HttpEndpoint(Address("https://api.openai.com/v1", "gpt-4o"), environ={}) as endpoint:
            return await tokens.find_vocabulary(endpoint, Silent(), items(1)[0])

    found = asyncio.run(talk())
    assert found.unsure == ""
    assert asyncio.run(_encoded(found.encode, "Yes")) == [13022]


def test_pair_is_what_the_model_says() -> None:
    """The default pair is the spelling the model prefers on each side, though it only ever says one side."""
    choice = chosen(spoken([3.0, 4.0, 1.0], [-9.0, -5.0]))
    assert choice.targets == Targets((Token(6, " Yes"),), (Token(9, " no"),), "pair")
    assert choice.votes == {" Yes": 4, " no": 4}
    assert choice.queries == 8


def test_max_takes_every_spelling() -> None:
    """Max semantics biases all spellings and asks nothing."""
    choice = chosen(spoken([3.0, 4.0, 1.0], [-9.0, -5.0]), semantics="max")
    assert [token.id for token in choice.targets.positive] == [5, 6, 7]
    assert [token.id for token in choice.targets.negative] == [9, 8]
    assert (choice.targets.semantics, choice.queries) == ("max", 0)


@pytest.mark.parametrize("behaviour", [Behaviour(bias="rejected"), Behaviour(bias="ignored")])
def test_pilots_without_bias(behaviour: Behaviour) -> None:
    """Where the bias is refused or ignored a choice still stands, for the probe to speak about."""
    choice = chosen(spoken([3.0, 4.0, 1.0], [-9.0, -5.0]), behaviour)
    assert choice.targets.negative == (Token(9, " no"),)


def test_ids_by_hand() -> None:
    """Ids given by hand are taken as they are, once each."""
    found = asyncio.run(tokens.candidates("Yes", encode, [9642, 10035, 9642]))
    assert found == (Token(9642, "Yes"), Token(10035, "Yes"))
    with pytest.raises(InputError, match="from 0 up"):
        asyncio.run(tokens.candidates("Yes", encode, [-1]))


def test_openai_vocabularies() -> None:
    """OpenAI's models have their published ids, without a download; others ask their endpoint."""
    newer = (
        "gpt-4o-mini",
        "gpt-4o-2024-08-06",
        "openai/gpt-4.1",
        "ft:gpt-4o:mine",
        "o200k_base",
        "gpt-5-nano",
    )
    older = ("gpt-4-turbo", "gpt-3.5-turbo-0125", "cl100k_base")
    for names, ids in ((newer, [13022, 3004]), (older, [9642, 2360])):
        for name in names:
            source = tokens.named_vocabulary(name)
            assert [asyncio.run(_encoded(source, text))[0] for text in ("Yes", " No")] == ids, name
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
    found = asyncio.run(tokens.candidates("Yes", source))
    assert {token.text: token.id for token in found}["Yes"] == 13022
    assert {token.text for token in found} == {"Yes", " Yes", "yes", " yes", "YES", " YES"}
    with pytest.raises(MissingExtraError, match=r"only the ids of Yes, No.*blindcal\[tokenizers\]"):
        asyncio.run(tokens.candidates("Maybe", source))


async def _encoded(source: tokens.Encoder, text: str) -> list[int]:
    return list(await source(text))


def test_hugging_face_file(tmp_path: Path) -> None:
    """A tokenizer.json, or the folder that holds one, gives its ids without special tokens."""
    known = {"Yes": 0, "ĠYes": 1, "No": 2, "<s>": 3}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "use_regex": False,
                    "trim_offsets": True,
                },
                "model": {"type": "WordLevel", "vocab": known, "unk_token": "<s>"},
            }
        )
    )
    for source in (tmp_path, tmp_path / "tokenizer.json"):
        encoder = tokens.hugging_face(str(source))
        assert [asyncio.run(_encoded(encoder, text)) for text in ("Yes", " Yes", "No")] == [[0], [1], [2]]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer at"):
        tokens.hugging_face(str(tmp_path))
